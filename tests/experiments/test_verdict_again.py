"""The study of the verdict is scored twice, by code that shares nothing but the plan's constants, with the same result."""

import json
from dataclasses import asdict
from pathlib import Path
from shutil import copy

import numpy as np
import pandas as pd
import pytest

from experiments import verdict_study
from experiments.plan import recorded
from experiments.regimes import BEDS, STUDIED, Regime, regimes
from experiments.verdict_study import ARMS, FOLDER, GRID, Cutoffs
from tests.experiments import verdict_again as again

RULES = json.loads((FOLDER / "rules.json").read_text())
POLICIES = ("trainer", "sampler")
LAGS = ("persistence_1", "persistence_5", "persistence_20")
Records = tuple[pd.DataFrame, pd.DataFrame]


def read(folder: Path) -> Records:
    """endpoints.csv and verdicts.csv of `folder`."""
    return recorded(folder, ""), pd.read_csv(folder / "verdicts.csv", float_precision="round_trip")


def part(records: Records, names: list[Regime]) -> Records:
    """The records of the regimes `names`, and of all controls."""
    runs, verdicts = records
    found = (runs.bed + "/" + runs.source).isin([str(name) for name in names])
    return runs[found | (runs.source == "exact")], verdicts[verdicts.regime.isin([str(name) for name in names])]


def made_up(seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Random records of all held-out regimes and of every bed's control, as endpoints.csv and verdicts.csv have them.

    Ends are not rounded, so no arms tie. Every tenth persistence is missing, regimes differ in level, and some runs collapse.
    """
    rng, rows, verdicts = np.random.default_rng(seed), [], []
    held_out = regimes().held_out
    for regime in [*(Regime(bed, "exact") for bed in BEDS), *held_out]:
        level, k3 = rng.uniform(0.3, 0.9), 10 ** rng.uniform(-4, 0)
        for number in STUDIED:
            arms = ["none"] if regime.source == "exact" else list(ARMS)
            if regime.source != "exact":
                verdicts.append((str(regime), number, str(rng.choice([*ARMS, "token 1.03"]))))
                arms += ["token 1.03"]
            for arm in arms:
                early = dict(zip(("k3", "ess", "gradient", "identity"), rng.uniform(0, 1, 4) * (k3, 1, 0.5, k3), strict=True))
                early |= {lag: x if rng.random() > 0.1 else np.nan for lag, x in zip(LAGS, rng.uniform(-0.5, 1, 3), strict=True)}
                onset = 25.0 * rng.integers(1, 8) if rng.random() < k3 else np.nan
                early |= {"onset": onset, "outcome": "survived" if np.isnan(onset) else "collapsed"}
                early |= {"tokens": 20.0 if regime.bed.startswith("long") else 10.0}
                for policy in ("trainer", "sampler"):
                    start, end = rng.uniform(0, 0.2), level + rng.uniform(-0.1, 0.1) + 0.3 * (regime.source == "exact")
                    rows.append(
                        regime._asdict() | {"arm": arm, "seed": number, "policy": policy, "start": start, "end": end} | early
                    )
    return pd.DataFrame(rows), pd.DataFrame(verdicts, columns=["regime", "seed", "arm"])


@pytest.fixture(scope="module")
def calibration() -> Records:
    return part(read(FOLDER), regimes().calibration)


def theirs(records: Records) -> pd.DataFrame:
    """The regrets of every rule by experiments.verdict_study."""
    runs, about = records[0], verdict_study.seen(*records)
    named = {policy: verdict_study.rules(Cutoffs(**RULES[policy]["v2"]), RULES[policy]["best"]) for policy in POLICIES}
    return pd.concat(verdict_study.regrets(runs, about, policy, named[policy]) for policy in POLICIES)


def ours(records: Records) -> pd.DataFrame:
    named = {policy: again.rules(RULES[policy]["v2"], RULES[policy]["best"]) for policy in POLICIES}
    return pd.concat(again.regrets(*records, policy, named[policy]) for policy in POLICIES)


def check_regrets(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Regrets are equal. Where arms tie as the best on two seeds, only their differences between rules are."""
    by = ["policy", "regime", "arm"]
    one, other = one.set_index(by).sort_index(), other.set_index(by).sort_index()
    assert one.index.equals(other.index)
    untied = one.ties == 0
    for column in ("regret", "share"):
        np.testing.assert_allclose(one[column][untied], other[column][untied], rtol=0, atol=1e-9)
        differences = (table[column] - table[column].groupby(by[:2]).transform("mean") for table in (one, other))
        np.testing.assert_allclose(*differences, rtol=0, atol=1e-9)


def check_values(one: pd.DataFrame, other: pd.DataFrame, exactly: bool = True) -> None:
    """Equal tables to 1e-9, or if not `exactly` to what table.md keeps: four decimals or three digits."""
    assert list(one.index) == list(other.index)
    digits = {"rtol": 0, "atol": 1e-9} if exactly else {"rtol": 6e-3, "atol": 6e-5}
    np.testing.assert_allclose(one.to_numpy(float), other[one.columns].to_numpy(float), **digits)


def results(rows: pd.DataFrame, fitted: pd.DataFrame, held_out: pd.DataFrame) -> list[pd.DataFrame]:
    """Our tables after the regrets: claims, means without a source, laws, forecasts, with the names that the study gives them."""
    errors, (auc, lead) = again.law(fitted, held_out), again.forecast(held_out)
    named = {"k3": "K3", "dose": "K3 times tau", "spread": "1 − sequence ESS", "identity": "|mean ratio − 1|"}
    laws = pd.Series(errors, name="error").rename({"dose": "K3 times tau", "k3": "K3", "none": "no cost"}).to_frame()
    signals = pd.DataFrame({"AUC": auc, "lead": lead}).rename(named | {"gradient": "gradient norm"})
    columns = ["difference", "p", "holm_p"]
    return [
        again.claims(rows).set_index(["claim", "policy", "arm", "reference"])[columns].sort_index(),
        again.means(rows)[["mean", "least", "greatest"]].sort_index(),
        laws.sort_index(),
        signals.sort_index(),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_both_choose_the_recorded_rules(calibration, policy):
    place, best = again.tuned(*calibration, policy)
    assert {"v2": asdict(GRID[place]), "best": best} == RULES[policy]


@pytest.mark.slow
def test_both_find_the_same_regrets_of_the_calibration_regimes(calibration):
    """Ends are multiples of 1/1200, so two arms can be equally good on two seeds. Then either is the best arm."""
    check_regrets(ours(calibration), theirs(calibration))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_both_score_made_up_records_alike(calibration, seed):
    records = made_up(seed)
    rows = theirs(records)
    check_regrets(ours(records), rows)
    fitted, held_out = (verdict_study.costs(runs, "trainer") for runs in (calibration[0], records[0]))
    mine = again.costs(calibration[0]), again.costs(records[0])
    check_values(mine[1].sort_index(), held_out.set_index("regime").sort_index())
    found = [
        verdict_study.claims(rows).set_index(["claim", "policy", "arm", "reference"]),
        verdict_study.without_a_source(rows).set_index(["policy", "arm"]),
        verdict_study.law(fitted, held_out).set_index("law"),
        verdict_study.forecast(held_out).set_index("signal"),
    ]
    for one, other in zip(results(ours(records), *mine), found, strict=True):
        check_values(one, other.sort_index())


def tables(text: str) -> list[pd.DataFrame]:
    """The Markdown tables of `text`, cells as text."""
    rows = [[line.replace(r"\|", "¦").strip("|").split("|") for line in table.splitlines()] for table in text.split("\n\n")]
    cells = [[[cell.strip().replace("¦", "|") for cell in row] for row in table] for table in rows]
    return [pd.DataFrame(table[2:], columns=table[0]).replace("", np.nan) for table in cells]


SCORED = ["made up", "recorded"] if (FOLDER / "regrets.csv").is_file() else ["made up"]
"""Records that `python -m experiments.verdict_study score` has scored: those of the study once its held-out regimes are."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCORED)
def test_the_written_tables_are_those_of_a_second_scoring(kind, tmp_path, monkeypatch):
    folder = FOLDER
    if kind == "made up":
        folder, (runs, verdicts), (known, asked) = tmp_path, made_up(2), read(FOLDER)
        known = part((known, asked), regimes().calibration)[0]
        runs = runs[(runs.source != "exact") | ~runs.bed.isin(known.bed[known.source == "exact"])]
        pd.concat([known, runs]).to_csv(folder / "endpoints.csv", index=False)
        pd.concat([asked[asked.regime.isin(known.bed + "/" + known.source)], verdicts]).to_csv(
            folder / "verdicts.csv", index=False
        )
        copy(FOLDER / "rules.json", folder)
        monkeypatch.setattr(verdict_study, "FOLDER", folder)
        verdict_study.main(["score"])
    parts = regimes()
    fitted, held_out = (part(read(folder), names) for names in (parts.calibration, parts.held_out))
    rows = pd.read_csv(folder / "regrets.csv", float_precision="round_trip")
    check_regrets(ours(held_out), rows)
    written = tables((folder / "table.md").read_text(encoding="utf-8"))
    check_values(again.means(rows)[["mean", "worst"]], written[0].set_index(["policy", "rule"]).sort_index(), exactly=False)
    claims, *others = results(rows, again.costs(fitted[0]), again.costs(held_out[0]))
    keys = [["claim", "policy", "arm", "reference"], ["policy", "arm"], ["law"], ["signal"]]
    for one, other, by in zip((claims.rename(columns={"holm_p": "holm p"}), *others), written[1:], keys, strict=True):
        check_values(one, other.set_index(by).sort_index(), exactly=False)
