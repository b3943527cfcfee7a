"""The command of the benchmark: what it takes from the records, its tables, and a whole one in a few steps."""

import pandas as pd
import pytest

from analysis.statistics.benchmark import CONTROL, NONE, scores
from experiments.benchmark import of_study, plan, references
from experiments.regimes import Regime, regimes
from faultline import records
from faultline.cli import main
from faultline.tools.benchmark import alike, beside, own_name, recorded, regrets, table

INT8 = {"dense/int8": of_study(Regime("dense", "int8"))}


def test_the_records_are_small_and_the_quick_set_calibrates():
    """Six regimes at most, none of which is held out; the rows have less than 300 KB."""
    quick = records.quick()
    assert 1 <= len(quick) <= 6 and set(quick) <= {str(one) for one in regimes().calibration}
    assert all(words == of_study(Regime(*name.split("/"))) for name, words in quick.items())
    assert list(records.rows())[: len(records.COLUMNS)] == list(records.COLUMNS)
    assert len(records.rows().to_csv(index=False)) < 300_000


def test_a_recorded_name_with_another_config_is_not_taken():
    """Seed 70 without a correction is the recorded run; of seed 71 the record has another digest."""
    runs = references(INT8, [70, 71])
    digests = {run.seed: run.config.digest for run in runs if run.entry == NONE} | {71: "other"}
    rows = pd.DataFrame(
        [
            {"entry": entry, "regime": "dense/int8", "seed": seed, "digest": digests[seed] if entry == NONE else "x"}
            for entry in (NONE, CONTROL, "icepop")
            for seed in (70, 71)
        ]
    )
    assert set(recorded(rows, runs).seed) == {70} and len(recorded(rows, runs)) == 3
    assert list(recorded(records.rows()[:0], runs)) == list(records.COLUMNS)


@pytest.mark.slow
def test_an_entry_with_the_name_of_another_recorded_one_is_refused_before_any_run(monkeypatch, tmp_path, capsys):
    """The record has `icepop` of another config in this regime. With the config of the record it is the same row."""
    same = plan("icepop", ["correction=icepop"], INT8, [70])
    rows = pd.DataFrame(
        [
            {"entry": run.entry, "regime": run.regime, "seed": run.seed, "digest": run.config.digest}
            for run in (*references(INT8, [70]), *same)
        ]
    )
    own_name("icepop", rows, same)
    monkeypatch.setattr(records, "rows", lambda: rows)
    monkeypatch.setattr(records, "quick", lambda: INT8)
    with pytest.raises(SystemExit) as left:
        main(["benchmark", "--seeds", "70", "--name", "icepop", "loss=gspo", f"run.root={tmp_path}"])
    assert left.value.code == 2 and not list(tmp_path.iterdir())
    assert "icepop: the name of a recorded entry with another config; give --name NAME" in capsys.readouterr().err


def ends(values: dict[str, float], **more: float) -> pd.DataFrame:
    """Two regimes with three seeds each; an entry ends alike in all."""
    common = {"start": 0.2, "k3": 0.01, "persistence": 0.9, "tokens": 10.0, "outcome": "survived"} | more
    return pd.DataFrame(
        [
            {"entry": entry, "regime": regime, "seed": seed, "trainer": end, "sampler": end, **common}
            for entry, end in values.items()
            for regime in ("a", "b")
            for seed in (1, 2, 3)
        ]
    )


def test_the_table_shows_the_entry_among_the_best():
    """Twelve recorded rows: the ten best are shown, with the entry, which is worse than all, and the references."""
    values = {CONTROL: 0.7, NONE: 0.3, "mine": 0.2} | {f"r{i}": 0.4 + i / 100 for i in range(12)}
    short, whole = (table(scores(ends(values), "trainer"), "mine", every) for every in (False, True))
    assert len(short) == 13 and len(whole) == 15 and "r1" not in set(short.entry) and "r2" in set(short.entry)
    mine = short[short[""] == ">>>"].iloc[0]
    assert (mine.entry, mine["gain (interval)"], mine["P(above none)"]) == ("mine", "-0.25 (-0.25 to -0.25)", "0.00")
    assert mine["worst regime"].startswith("-0.25 in ") and mine.collapses == "0 of 6"


def test_an_entry_is_scored_by_the_references_of_its_own_machine():
    """The control gains 0.5 in both tables. Here `none` ends at 0.4, so 0.55 gains half; so does the recorded 0.5."""
    own, known = ends({CONTROL: 0.7, NONE: 0.4, "mine": 0.55}), ends({CONTROL: 0.7, NONE: 0.3, "other": 0.5, "mine": 0.7})
    found = beside(own, known, "trainer").set_index("entry")
    assert found.gain.to_dict() == pytest.approx({CONTROL: 1.0, "mine": 0.5, "other": 0.5, NONE: 0.0})
    assert beside(own, known[:0], "trainer").entry.to_list() == [CONTROL, "mine", NONE]


def test_recorded_rows_of_other_regimes_or_seeds_are_no_company():
    own = ends({CONTROL: 1.0, NONE: 0.0, "mine": 0.5})
    assert alike(own, own)
    assert not alike(own, own[own.regime == "a"]) and not alike(own, own[own.seed < 3])


def test_rules_are_scored_by_their_regret():
    """The control gains 0.5. The mask ends at 0.6, the best; none at 0.35 loses half of the gain, the token weight at 0.5 a
    fifth. v2 takes the token weight for what stays."""
    rows = ends({CONTROL: 0.7, NONE: 0.35, "mask": 0.6, "token": 0.5, "sequence": 0.4, "geometric": 0.4})
    v2 = {"k3": 1e-3, "persistence": 0.3, "tokens": 10, "short": "token", "long": "none"}
    names = ["v2", "best constant", *(f"always {arm}" for arm in ("none", "token", "sequence", "mask", "geometric"))]
    study = {name: {"mean": 0.1} for name in names}
    found = regrets(rows, "trainer", {"v2": v2, "best": "mask", "scores": study}).set_index("rule")
    means = found.loc[["always none", "always token", "best constant", "v2"], "mean"]
    assert means.to_list() == pytest.approx([0.5, 0.2, 0.0, 0.2]) and found["study's mean"]["v2"] == 0.1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give an entry, as correction=icepop, or --rules"),
        (["--rules", "correction=icepop"], "not both"),
        (["--regimes", "nosuch.yaml", "correction=icepop"], "nosuch.yaml: cannot be read"),
        (["--name", "none", "correction=icepop"], "--name none: the name of a reference"),
    ],
)
def test_a_wrong_command_says_what_to_give(words, said, capsys):
    with pytest.raises(SystemExit) as left:
        main(["benchmark", *words])
    assert left.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.slow
def test_a_benchmark_in_a_few_steps(tmp_path, monkeypatch, capfd):
    """A loss of one's own in one regime: its run, that without a correction and the control; the same command runs none again."""
    (tmp_path / "halved.py").write_text(
        "from algos.losses import TokenLoss, loss\n\n\n@loss(anchored=False)\n"
        "def half(logp, logp_prox, advantages, mask) -> TokenLoss:\n    return TokenLoss(-0.5 * advantages * logp)\n"
    )
    few = "steps=4 warmstart.steps=60 warmstart.keep_low=0 warmstart.keep_high=1 evaluation.every=1 rollout.prompts=8"
    small = "evaluation.prompts=32 evaluation.train_prompts=8 diagnostics.persistence.every=null"
    (tmp_path / "regimes.yaml").write_text(f"a: +regime/bed=dense +regime/source=fixed_0.4 {few} {small}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["--regimes", str(tmp_path / "regimes.yaml"), "--seeds", "3", "loss=halved:half", f"run.root={tmp_path}"]
    for count in ("3 to run", "none to start"):
        try:
            main(["benchmark", *words])
        except SystemExit as refused:  # so few steps may gain nothing, which is told
            assert refused.code == 2
        shown = capfd.readouterr()
        assert count in shown.err and (
            "Gain (none 0, control about 1" in shown.out or "the exact control gains nothing" in shown.err
        )
    assert len(list((tmp_path / "benchmark").glob("*/status.json"))) == 3
