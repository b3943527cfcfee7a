"""The tests of the second study, from endpoints by hand."""

from math import comb
from pathlib import Path
from shutil import copy

import pandas as pd
import pytest

from experiments.second import (
    ARM,
    CONTROL,
    LIST_9,
    OWN,
    PLAN,
    SAMPLING,
    START,
    arms,
    endpoints,
    long_curves,
    main,
    named,
    placed,
    shares,
    unchanged,
)
from harness.errors import UserError
from tests.analysis.synthetic import FP32, write

BASE = ("loss=pg", "task.modulus=7")
LOW, HIGH = [0.10, 0.11, 0.12, 0.13, 0.14], [0.80, 0.81, 0.82, 0.83, 0.84]


BASE_ARM = {"precision": "fp32", "noise": 0.0, "persistence": 0.0, "correction": "none", "setting": "base"}


def runs(*given: tuple[dict, str, list[float]]) -> pd.DataFrame:
    rows = [
        {
            **BASE_ARM,
            **keys,
            "policy": policy,
            "seed": 40 + i,
            "reward": reward,
            "k3": 0.1,
            "measured": 0.5,
            "outcome": "survived",
        }
        for keys, policy, rewards in given
        for i, reward in enumerate(rewards)
    ]
    return pd.DataFrame(rows)


def noise(size: float, persistence: float, **more: str) -> dict:
    return {"noise": size, "persistence": persistence, **more}


def comparisons(table: pd.DataFrame) -> pd.DataFrame:
    return PLAN.compared(named(table))


def test_families_are_those_of_the_plan():
    """The counts of docs/study.md, by hand."""
    assert [len(family.pairs) for family in PLAN.families] == [5, 5, 5, 6, 6, 4, 6, 7, 7, 7, 5, 4, 2, 2, 2, 3, 3]


def test_five_against_five_fully_apart():
    """2 of 252 subsets are as extreme, and Holm takes five times that: five noises were planned. Against the control's eight
    seeds it is 1 of C(13, 5) = 1287 subsets: the five highest lie less far from the mean than the five lowest, here."""
    table = runs((noise(0.1, 1), OWN, LOW), (noise(0.1, 0), OWN, HIGH), ({}, OWN, [*HIGH, 0.85, 0.86, 0.87]))
    found = comparisons(table).set_index(["family", "arm"])
    assert set(found.index.get_level_values("family")) == {"F1 persistence", "F2 fresh noise", "F3 fixed noise"}
    first = found.loc["F1 persistence"].iloc[0]
    assert first.p == pytest.approx(2 / 252) and first.holm_p == pytest.approx(10 / 252)
    assert first.difference == pytest.approx(-0.70) and first.low < -0.70 < first.high
    assert found.loc["F3 fixed noise"].p.iloc[0] == pytest.approx(1 / comb(13, 5))


def test_a_claim_of_no_harm_needs_a_margin_and_not_a_large_p():
    """BF16 equal to the control: shifted by 0.05 all of its runs lie above it, which 1 of C(13, 5) = 1287 subsets does, 7
    times. Twice the margin below, it is not shown."""
    control = [0.80, 0.81, 0.82, 0.82, 0.82, 0.82, 0.83, 0.84]
    close = runs(
        ({"precision": "bf16"}, OWN, HIGH), ({}, OWN, control), ({"precision": "fp16"}, OWN, [value - 0.1 for value in HIGH])
    )
    found = comparisons(close).set_index(["family", "arm"]).holm_p
    assert found["F10 no worse by 0.05", "bf16"] == pytest.approx(7 / 1287)
    assert found["F10 no worse by 0.05", "fp16"] == 1.0


def test_the_seeds_of_a_list_count_whole_or_not_at_all():
    """List 9 names eight arms. While one of them lacks seed 47, none has its three later seeds; a control of five is left out."""
    values = [0.5] * 8
    remedies = [(1, "token-truncate"), (1, "sequence-truncate"), (1, "none"), (0, "none")]
    named_by_9 = [noise(size, persistence, correction=name) for size in (0.1, 0.2) for persistence, name in remedies]
    whole = named(runs(*[(keys, OWN, values) for keys in [{}, *named_by_9]]))
    assert set(whole.arm) == {CONTROL, *LIST_9}
    assert PLAN.complete(whole).groupby(ARM).seed.nunique().eq(8).all()
    cut = PLAN.complete(whole[~((whole.noise == 0.2) & (whole.persistence == 0) & (whole.seed == 47))])
    assert cut[cut.noise > 0].groupby(ARM).seed.nunique().eq(5).all() and (cut.noise == 0).sum() == 8
    assert PLAN.complete(named(runs(({}, OWN, values[:5])))).empty


def test_an_arm_that_lacks_a_seed_is_left_out_and_a_policy_is_compared_with_itself():
    remedy = noise(0.1, 1, correction="token-truncate")
    assert comparisons(runs((noise(0.1, 1), OWN, LOW), (remedy, OWN, HIGH[:4]))).empty
    table = runs((noise(0.1, 1), OWN, LOW), (remedy, OWN, HIGH), (noise(0.1, 1), SAMPLING, HIGH), (remedy, SAMPLING, LOW))
    found = comparisons(table)
    assert list(found.family) == ["F4 remedies, own", "F5 remedies, sampling"]
    assert list(found.difference) == pytest.approx([0.70, -0.70])


def test_an_arm_of_the_continuation_is_compared_within_its_setting(tmp_path):
    """Policy gradient's arms are no reference of PPO's, and a run of another loss, task or length names its setting."""
    table = runs((noise(0.2, 1), OWN, HIGH), (noise(0.2, 1, setting="ppo"), OWN, LOW), (noise(0.2, 0, setting="ppo"), OWN, HIGH))
    found = comparisons(table)
    assert list(found.family) == ["F14 losses, persistence"] and found.holm_p.iloc[0] == pytest.approx(4 / 252)
    assert found.arm.iloc[0] == "ppo, fp32, noise 0.2, persistence 1"
    write(tmp_path, FP32, "loss=cispo", "task.modulus=20", seed=40, steps=280)
    assert set(endpoints(tmp_path).setting) == {"cispo, modulus 20"}


def test_a_precision_is_held_against_the_curves_at_its_own_size_and_persistence():
    """Runs of an arm are equal, so bands have no width. Fixed noise costs 0.1 for each 0.2 of √K3: 0.65 at K3 0.09, where fresh
    noise still has 0.78. A precision at 0.72 lies between the two, and counts only if its mismatch does not persist."""
    table = runs(({}, OWN, [0.8] * 8))
    for size, k3, fixed in ((0.1, 0.04, 0.7), (0.2, 0.16, 0.6), (0.4, 0.36, 0.5)):
        made = runs((noise(size, 1), OWN, [fixed] * 5), (noise(size, 0), OWN, [0.78] * 5))
        table = pd.concat([table, made.assign(k3=k3)])
    for name, persistence, values in (
        ("fp8_block", 0.9, [0.64, 0.65, 0.65, 0.65, 0.66]),
        ("int8", 0.9, [0.71, 0.72, 0.72, 0.72, 0.73]),
        ("bf16", 0.2, [0.71, 0.72, 0.72, 0.72, 0.73]),
    ):
        table = pd.concat([table, runs(({"precision": name}, OWN, values)).assign(k3=0.09, measured=persistence)])
    found = placed(table).set_index("precision")
    assert found.loc["int8", "fixed"] == "0.650 (0.650 to 0.650)" and found.loc["int8", "fresh"] == "0.780 (0.780 to 0.780)"
    assert found["on the curve"].to_dict() == {"fp8_block": "yes", "int8": "no", "bf16": "yes"}


def test_a_cost_is_a_share_of_what_the_control_gained():
    """The control gains 0.1 over the start. An arm 0.02 below it has lost 20 %, one 0.03 above has won 30 %. Five values of an
    arm have an sd of 0.01, eight of the control one of 0.0107. The standard error of the difference is then 0.00586 with 9.1
    degrees of freedom, Student's t is 2.26, and the interval ±0.0132: 13 % of the gain. Fixed noise has
    τ = 1 + 2·20 = 41, fresh noise 1, and persistence 0.5 has 1 + 2·(1 − 2⁻²⁰)."""
    control, arm = ([START + 0.1 + 0.01 * sign for sign in signs] for signs in ((1, -1) * 4, (1, -1, 1, -1, 0)))
    dose = {1.0: "4.1e+00", 0.0: "1.0e-01", 0.5: "3.0e-01"}
    for persistence, shown in dose.items():
        both = (({}, control), (noise(0.1, persistence), arm))
        table = runs(*[(keys, policy, values) for keys, values in both for policy in (OWN, SAMPLING)])
        table.loc[(table.noise > 0) & (table.policy == OWN), "reward"] -= 0.02
        table.loc[(table.noise > 0) & (table.policy == SAMPLING), "reward"] += 0.03
        (row,) = shares(table).to_dict("records")
        assert (row["K3"], row["K3·τ"]) == ("1.0e-01", shown)
        assert row["cost, trainer's own"] == "20% (7% to 33%)" and row["cost, sampling"] == "-30% (-43% to -17%)"
    real = runs(
        ({}, OWN, control), ({}, SAMPLING, control), ({"precision": "bf16"}, OWN, LOW), ({"precision": "bf16"}, SAMPLING, LOW)
    )
    assert shares(real)["K3·τ"].tolist() == ["–"]


def test_the_start_is_that_of_the_recorded_runs():
    long = pd.read_csv(Path(__file__).parents[2] / "experiments/study/second/long.csv")
    assert (long[long.step == 0].own == START).all()


def test_a_correction_of_the_exact_control_is_held_against_it_seed_by_seed():
    """Seed 40 of the mask has the very reward, seed 41 is 0.01 off; the truncation has seed 40 alone."""
    mask, cut = {"correction": "sequence-mask"}, {"correction": "token-truncate"}
    found = unchanged(runs(({}, OWN, [0.8] * 8), (mask, OWN, [0.8, 0.81]), (cut, OWN, [0.8])))
    assert list(found.runs) == [2, 1] and list(found["largest difference"]) == pytest.approx([0.01, 0.0])


@pytest.mark.slow
def test_recorded_rows_stay_and_new_runs_join_them(tmp_path, capsys):
    """The first sweep's rows are read from the file when the second is added, and its runs are not asked for again."""
    for seed in range(40, 48):
        write(tmp_path / "one", FP32, *BASE, seed=seed, steps=280)
        write(tmp_path / "two", "rollout/precision=bf16", *BASE, seed=seed, steps=280)
    main(tmp_path / "out", [tmp_path / "one"])
    main(tmp_path / "out", [tmp_path / "two"])
    kept = pd.read_csv(tmp_path / "out" / "endpoints.csv")
    assert set(kept.precision) == {"fp32", "bf16"} and len(arms(kept)) == 2
    assert endpoints(tmp_path / "one").reward.notna().all()
    text = (tmp_path / "out" / "table.md").read_text()
    assert "F8 precision" in text and text.strip() in capsys.readouterr().out


def test_a_run_that_has_collapsed_and_goes_on_has_no_endpoint_yet(tmp_path):
    """One of two collapsed runs has ended. The other is at step 200 of 280, and its last evaluations are yet to come."""
    write(tmp_path, FP32, *BASE, seed=40, steps=280, collapse=100)
    write(tmp_path, FP32, *BASE, seed=41, steps=280, collapse=100, until=200, state="running")
    assert set(endpoints(tmp_path).seed) == {40}


def test_only_the_long_runs_have_curves(tmp_path):
    """A run of 280 steps beside one of 2,800, each evaluated every five."""
    write(tmp_path / "sweep", FP32, *BASE, seed=40, steps=2800)
    write(tmp_path / "sweep", FP32, *BASE, seed=41, steps=280)
    found = long_curves(tmp_path / "sweep")
    assert set(found.seed) == {40} and list(found.step)[:2] == [0, 5] and found.step.is_monotonic_increasing
    assert found.own.notna().all() and list(found.columns) == ["noise", "persistence", "seed", "step", "own", "sampling"]


def test_a_folder_without_runs_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"endpoints\.csv: not there; name sweeps"):
        main(tmp_path / "new", [])
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_the_recorded_tables(tmp_path):
    """655 endpoints give table.md to the last digit, and stay as they are."""
    study = Path(__file__).parents[2] / "experiments/study/second"
    copy(study / "endpoints.csv", tmp_path)
    main(tmp_path, [])
    for name in ("table.md", "endpoints.csv"):
        assert (tmp_path / name).read_text() == (study / name).read_text()
