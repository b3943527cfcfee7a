"""Plans as data: by hand, for runs that are paired by seed and for rules that are paired by regime."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis.statistics.tests import difference_p, equivalent_p, non_inferior_p
from experiments.plan import Comparisons, StudyPlan, extremes, recorded
from harness.errors import UserError

TRAINER, SAMPLER = {"policy": "trainer"}, {"policy": "sampler"}


def seeds(**arms: list[float]) -> pd.DataFrame:
    return pd.DataFrame([{"arm": arm, "seed": i, "reward": x} for arm, values in arms.items() for i, x in enumerate(values)])


def test_eight_paired_seeds():
    """Seeds differ by 1 and the arm adds 0.1 or 0.15 to each: of 2^8 patterns of signs two are as extreme, and the second
    comparison of the family has no run, so Holm takes twice that. Their sd is 0.025·√(8/7), so the interval of Student's
    t with 7 degrees (quantile 2.3646) is 0.125 ± 2.3646·0.025/√7 = 0.125 ± 0.02234."""
    plan = StudyPlan([Comparisons("text", [("mask", "none"), ("token", "none")])], paired="seed", seeds=range(8))
    base = np.arange(8.0)
    table = seeds(mask=base + np.tile([0.1, 0.15], 4), none=base).sample(frac=1, random_state=0)
    found = plan.compared(table).iloc[0]
    assert (found.p, found.holm_p) == (2 / 2**8, 4 / 2**8)
    assert (found["mean"], found["of reference"], found.difference) == pytest.approx((3.625, 3.5, 0.125))
    assert (found.low, found.high) == pytest.approx((0.125 - 0.02234, 0.125 + 0.02234), abs=1e-5)
    assert plan.compared(table[(table.arm != "mask") | (table.seed != 3)]).empty


def test_rules_are_compared_over_regimes_for_each_policy():
    """The regret of three rules in 36 regimes as a share of the control's gain, for two deployed policies: the new rule saves 0.1
    in each regime of the trainer, and nothing for the sampler. No drawn pattern of signs reaches 36 equal ones: 1/20001."""
    rows = [
        {"arm": rule, "regime": regime, "policy": policy, "regret": regime / 100 + extra * (policy == "trainer")}
        for regime in range(36)
        for policy in ("trainer", "sampler")
        for rule, extra in (("verdict", 0.0), ("always token", 0.1), ("never", 0.2))
    ]
    pairs = [("always token", "verdict"), ("never", "verdict")]
    plan = StudyPlan(
        [
            Comparisons("below the others", pairs, partial(non_inferior_p, margin=0), TRAINER),
            Comparisons("the same for the sampler", pairs, partial(equivalent_p, margin=0.02), SAMPLER),
            Comparisons("differs for the sampler", pairs[:1], difference_p, SAMPLER),
        ],
        endpoint="regret",
        paired="regime",
        limits=extremes,
    )
    found = plan.compared(pd.DataFrame(rows)).set_index(["family", "arm"])
    assert found.p["below the others"].tolist() == pytest.approx([1 / 20001] * 2)
    assert found.holm_p["below the others"].tolist() == pytest.approx([2 / 20001] * 2)
    assert found.difference["below the others"].tolist() == pytest.approx([0.1, 0.2])
    assert found.p["the same for the sampler"].max() == pytest.approx(1 / 20001)
    assert found.p["differs for the sampler", "always token"] == 1
    assert found.policy.unique().tolist() == ["trainer", "sampler"]


def test_the_seeds_of_a_regime_are_one_pair():
    """Two seeds in each of three regimes: the arm's means are 2, 3, 4, its seeds 1 apart, and the reference's 1, 1, 1. Two of
    eight patterns of the differences 1, 2, 3 are as extreme; six pairs of seeds would give 2/64."""
    rows = [
        {"arm": arm, "regime": regime, "seed": seed, "reward": mean + (arm == "mask") * (seed - 0.5)}
        for arm, means in (("mask", (2, 3, 4)), ("none", (1, 1, 1)))
        for regime, mean in enumerate(means)
        for seed in range(2)
    ]
    plan = StudyPlan([Comparisons("regimes", [("mask", "none")])], paired="regime", limits=extremes)
    found = plan.compared(pd.DataFrame(rows)).iloc[0]
    assert (found.difference, found.low, found.high, found.p) == (2, 1, 3, 2 / 8)


def test_a_hypothesis_is_counted_in_pairs_and_needs_no_test():
    """FP8 lies 0.05, 0.2 and 0.05 below: within 0.1 in two of three seeds. A seed that one arm lacks is no pair."""
    within = Comparisons("H", [("fp8", "bf16")], test=None, holds=lambda differences: np.abs(differences) <= 0.1)
    plan = StudyPlan([within], paired="seed", limits=extremes)
    found = plan.compared(seeds(fp8=[0.55, 0.5, 0.75], bf16=[0.6, 0.7, 0.8, 0.9])).iloc[0]
    assert (found.holds, found.pairs) == (2, 3) and np.isnan(found.p) and np.isnan(found.holm_p)
    assert (found.low, found.high) == pytest.approx((-0.2, -0.05))


def test_endpoints_that_are_not_there_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match=r"endpoints\.csv: not there; name the sweep"):
        recorded(tmp_path, "name the sweep")
