"""The leaderboard: its rows, the choice of its regimes, its records and its finding, from numbers by hand."""

import numpy as np
import pandas as pd
import pytest

from algos.registry import LOSSES
from analysis.statistics.benchmark import interval
from experiments import leaderboard
from experiments.benchmark import SEEDS, of_study
from experiments.leaderboard import (
    BUDGET,
    CHOOSERS,
    COSTS,
    MOST,
    RECOMMENDED,
    best_set,
    cost,
    never_learned,
    of_the_study,
    rows,
    scored,
    separation,
    separations,
)
from experiments.leaderboard_figure import draw, finding, stacked
from experiments.regimes import STUDIED, Regime
from experiments.verdict_study import ARMS
from harness.compose import compose
from harness.config import parse


@pytest.fixture(scope="module")
def listed():
    return rows()


@pytest.mark.slow
def test_every_loss_and_every_distinct_correction_has_one_row(listed):
    names = [row.name for row in listed]
    assert set(RECOMMENDED) == set(LOSSES.names()) and len(names) == len(set(names))
    assert {f"loss {name}" for name in RECOMMENDED} < set(names) and "none" not in names
    (token,) = (row for row in listed if row.name == "token_truncate")
    assert {"skyrl/token_tis", "verl/decoupled_token_is"} <= set(token.others)  # the token weight truncated at 2, all of them
    assert next(row for row in listed if row.name == "loss gspo").words == ["loss=gspo", "reduce=seq_mean_token_mean"]


@pytest.mark.slow
def test_every_row_and_both_references_are_planned_in_one_sweep(listed, monkeypatch):
    monkeypatch.setattr(leaderboard, "rows", lambda: [row for row in listed if row.name in ("icepop", "loss gspo")])
    runs = leaderboard.planned({"dense/int8": of_study(Regime("dense", "int8"))})
    assert {run.config.path.parent.name for run in runs} == {"leaderboard"}
    assert sorted({run.entry for run in runs}) == ["control", "icepop", "loss gspo", "none"] and len(runs) == 4 * len(SEEDS)


def test_separation_is_the_variance_of_arms_beyond_that_of_seeds():
    """Arms 0 and 1 in both seeds: MS_arms is 2·(¼ + ¼)/1 = 1, MS_rest 0, so 1/2. If seeds swap them nothing is left. A seed
    that is 0.3 higher throughout changes nothing."""
    arms = pd.DataFrame({"none": [0.0, 0.0], "mask": [1.0, 1.0]})
    assert separation(arms) == pytest.approx(0.5) and separation(arms.add([0.0, 0.3], axis=0)) == pytest.approx(0.5)
    assert separation(pd.DataFrame({"none": [0.0, 1.0], "mask": [1.0, 0.0]})) == 0.0
    # Arms 0.25 and 0.75 in the mean, residuals ±0.25: both mean squares are 0.25, so the noise explains the difference.
    assert separation(pd.DataFrame({"none": [0.0, 0.5], "mask": [1.0, 0.5]})) == pytest.approx(0.0)


def endpoints(ends: dict[tuple[str, str, str], float]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"bed": bed, "source": source, "arm": arm, "seed": seed, "policy": policy, "start": 0.2, "end": end}
            | {"outcome": "survived"}
            for (bed, source, arm), end in ends.items()
            for seed in STUDIED
            for policy in ("trainer", "sampler")
        ]
    )


INT8 = {("dense", "exact", "none"): 0.7} | {("dense", "int8", arm): 0.2 for arm in ARMS}


def test_regimes_are_chosen_on_seeds_that_the_benchmark_does_not_score():
    """The control gains 0.5. The mask ends 0.5 above four arms that are alike: shares 1 and 0, MS_arms 2·(16 + 4)/25/4 = 0.4,
    half of it for each policy. What the benchmark's seeds did does not count."""
    table = endpoints(INT8 | {("dense", "int8", "mask"): 0.7})
    assert not set(CHOOSERS) & set(SEEDS) and len(CHOOSERS) == 2
    assert separations(table).to_dict() == {"dense/int8": pytest.approx(0.4)}
    table.loc[(table.source == "exact") & table.seed.isin(SEEDS), "end"] = 1.0  # nor does their control
    assert separations(table)["dense/int8"] == pytest.approx(0.4)
    table.loc[(table.arm == "mask") & table.seed.isin(CHOOSERS), "end"] = 0.2
    assert separations(table)["dense/int8"] == 0.0


def test_the_set_is_the_best_that_its_minutes_allow():
    """Three seeds of one long warm start and three entries' runs: two fit. Beds of one kind share their warm starts."""
    start, run = COSTS["dense"]
    assert cost(("dense/a", "ppo/b")) == 3 * (start + 2 * 3 * run) <= BUDGET
    assert cost(("dense/a", "moe/b")) == 3 * (start + 3 * run + COSTS["moe"][0] + 3 * COSTS["moe"][1])
    found = pd.Series({f"ppo/{i}": 0.1 + i / 100 for i in range(8)} | {"dense/flat": 0.0})
    assert best_set(found) == ["ppo/7", "ppo/6"] and MOST >= 2
    every = pd.Series({"dense/a": 0.1, "moe/b": 0.1, "long20/c": 0.15, "long32/d": 0.1})
    assert cost(tuple(every.index)) > BUDGET >= cost(tuple(best_set(every)))


@pytest.mark.slow
def test_the_studys_runs_are_rows_of_the_benchmark():
    """Six entries with three seeds; the control is that of the bed, and a digest is that of the run."""
    found = of_the_study(endpoints(INT8), {})
    assert len(found) == 6 * 3 and set(found.entry) == {"none", "control", *(ARMS[arm] for arm in ARMS if arm != "none")}
    control = found[(found.entry == "control") & (found.seed == 71)].iloc[0]
    config = parse(compose("+regime/bed=dense", "+regime/source=exact", "correction=none", "seed=71"))
    assert (control.regime, control.trainer, control.start, control.digest) == ("dense/int8", 0.7, 0.2, config.digest)
    assert of_the_study(endpoints(INT8), {"dense/int8": []}).empty  # the quick set's runs are of one machine, and not the study's
    assert of_study(Regime("dense", "int8")) == ["+regime/bed=dense", "+regime/source=int8"]


def regrets(v2: float) -> pd.DataFrame:
    """Ten regimes: the best constant loses 0.10 to 0.19 of the gain, v2 `v2` more."""
    values = {"best constant": 0.0, "v2": v2, "always none": 0.3, "always token": 0.3, "verdict": 0.2}
    return pd.DataFrame(
        [
            {"arm": rule, "regime": f"dense/{i}", "policy": policy, "regret": share, "share": share}
            for rule, more in values.items()
            for i in range(10)
            for policy in ("trainer", "sampler")
            for share in [0.1 + i / 100 + more]
        ]
    )


def test_the_verdict_takes_v2_only_where_its_claim_holds():
    frozen = {policy: {"v2": {"k3": 0.001}, "best": "sequence"} for policy in ("trainer", "sampler")}
    better, worse = (scored(frozen, regrets(v2))["trainer"] for v2 in (-0.1, 0.1))
    assert (better["chosen"], worse["chosen"], better["regimes"]) == ("v2", "best constant", 10)
    assert better["scores"]["best constant"] == {"mean": pytest.approx(0.145), "worst": pytest.approx(0.19), "in": "dense/9"}


def test_what_never_learns_is_named():
    known = pd.DataFrame({"entry": ["a", "a", "b", "b"], "outcome": ["never learned"] * 3 + ["survived"]})
    assert never_learned(known) == ["a"]


def test_an_entry_that_repeats_another_in_every_reward_is_left_out():
    """b/x repeats a, and `loss ppo` no correction; c differs from a in one reward of the sampling policy."""
    ends = {"none": (0.1, 0.2), "loss ppo": (0.1, 0.2), "a": (0.3, 0.4), "b/x": (0.3, 0.4), "c": (0.3, 0.5)}
    rows = [(name, "dense/int8", 71, *both) for name, both in ends.items()]
    known = pd.DataFrame(rows, columns=["entry", "regime", "seed", "trainer", "sampler"])
    assert list(leaderboard.distinct(known).entry) == ["none", "a", "c"]


def test_an_interval_of_three_seeds_lies_above_0_if_every_seed_gains():
    """2.5 % is less than the 1/27 of the resample that has the least seed three times: the lower end is that seed's own mean."""
    rng = np.random.default_rng(0)
    for gains in rng.normal(size=(40, 3, 2)):
        low, high = interval(gains)
        assert low == pytest.approx(gains.mean(1).min()) and high == pytest.approx(gains.mean(1).max())


def test_the_figures_title_is_its_finding():
    table = pd.DataFrame(
        {"entry": ["control", "a", "b", "c", "none"], "low": [0.9, 0.1, -0.1, -0.5, 0], "high": [1, 1, 1, -0.1, 0]}
    )
    sampler = table.assign(low=[0.9, -1, -1, -1, 0], high=[1, -0.5, -0.5, -0.5, 0])
    title = finding({"trainer": table, "sampler": sampler})
    assert title == (
        "In all three seeds 1 of 3 losses and corrections beat none for the trainer's policy and 1 lose, "
        "0 and 3 for the one that samples; by chance 0"
    )


def test_equal_gains_are_stacked(tmp_path):
    """Bins of 0.05: 0.01 and 0.04 share one, 0.06 and -0.01 have their own. The figure is a PNG with the finding as title."""
    assert stacked(np.array([0.06, 0.04, 0.01, -0.01])).tolist() == [0, 0, 1, 0]
    table = pd.DataFrame({"entry": ["control", "loss a", "b", "none"], "gain": [1, 0.5, 0.4, 0], "low": [1, 0.1, -0.1, 0]})
    table["high"] = table.gain + 0.1
    said = draw({"trainer": table, "sampler": table}, 2, tmp_path / "figure.png")
    assert said.startswith(
        "In all three seeds 1 of 2 losses and corrections beat none for the trainer's policy and 0 lose, 1 and 0"
    )
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
