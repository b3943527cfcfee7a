"""Scores of a benchmark from ends by hand."""

import numpy as np
import pandas as pd
import pytest

from analysis.statistics.benchmark import CONTROL, FLOOR, NONE, improvement, interquartile_mean, interval, normalised, scores
from harness.errors import UserError


def runs(ends: dict[tuple[str, str], list[float]], start: float = 0.2, collapsed: str = "") -> pd.DataFrame:
    """(entry, regime) -> the trainer's last reward of seeds 0, 1, ...; the sampler's is half of it."""
    return pd.DataFrame(
        [
            {"entry": entry, "regime": regime, "seed": seed, "start": start, "trainer": end, "sampler": end / 2}
            | {"outcome": "collapsed" if entry == collapsed else "survived"}
            for (entry, regime), values in ends.items()
            for seed, end in enumerate(values)
        ]
    )


REFERENCES = {(CONTROL, "a"): [0.8, 0.8], (NONE, "a"): [0.3, 0.5]}


def test_no_correction_has_gain_zero_and_the_control_one():
    """The control ends 0.4 above no correction in the mean. Seed by seed 0.5 and 0.3 of 0.4: 1.25 and 0.75. The mask regains 0.2
    and 0.1 of 0.4."""
    table = normalised(runs(REFERENCES | {("mask", "a"): [0.5, 0.6]}), "trainer").groupby("entry").gain.apply(list)
    assert table[NONE] == [0.0, 0.0] and table[CONTROL] == pytest.approx([1.25, 0.75])
    assert table["mask"] == pytest.approx([0.5, 0.25])


def test_a_regime_without_harm_is_divided_by_a_share_of_the_controls_gain():
    """The control gains 0.8 − 0.2 = 0.6 and no correction loses nothing of it. An end 0.03 lower is 0.03/(0.25·0.6) = 0.2."""
    table = runs({(CONTROL, "a"): [0.8], (NONE, "a"): [0.8], ("mask", "a"): [0.77]})
    assert FLOOR == 0.25 and normalised(table, "trainer").gain.iloc[-1] == pytest.approx(-0.2)


def test_a_control_that_gains_nothing_has_no_scale():
    table = runs({(CONTROL, "a"): [0.2], (NONE, "a"): [0.2]})
    with pytest.raises(UserError, match="a: the exact control gains nothing there"):
        normalised(table, "trainer")


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    """Of 8 values the least two and the largest two: (2 + 3 + 4 + 5)/4."""
    assert interquartile_mean([100, 0, 1, 2, 3, 4, 5, -100]) == pytest.approx((1 + 2 + 3 + 4) / 4)


def test_the_interval_draws_the_same_seeds_for_all_regimes():
    """Two seeds a resample: with probability 1/4, 1/2, 1/4 it has the first twice, both, or the second twice.

    Gains that follow the seed alone, 0 and 1 in all 32 regimes, have means 0, 1/2 and 1. So the 2.5 % quantiles are 0 and 1, as
    of one regime. Of 64 independent draws some 24 to 40 would be 1, so the middle half would have means of 1/4 to 3/4.
    Gains 0 and 1 in one regime and 1 and 0 in the other have half of each in any resample. Seeds that agree leave no width,
    however far regimes are apart.
    """
    for regimes in (1, 32):
        assert interval(np.array([[0.0] * regimes, [1.0] * regimes])) == (0.0, 1.0)
    assert interval(np.array([[0.0, 1.0], [1.0, 0.0]])) == (0.5, 0.5)
    assert interval(np.array([[0.1, 0.9], [0.1, 0.9]])) == pytest.approx((0.5, 0.5))


def test_the_scores_have_that_interval():
    """The first seed gains 0 and the second 1 in all 32 regimes. Their rows are reversed in half of them."""
    names = [f"{number:02}" for number in range(32)]
    ends = {(CONTROL, name): [0.8, 0.8] for name in names} | {(NONE, name): [0.4, 0.4] for name in names}
    table = runs(ends | {("mask", name): [0.4, 0.8] for name in names})
    table = pd.concat([table[table.regime < "16"], table[table.regime >= "16"][::-1]])
    mask = scores(table, "trainer").set_index("entry").loc["mask"]
    assert (mask.low, mask.high) == pytest.approx((0.0, 1.0))


def test_regimes_of_different_seeds_are_refused():
    table = runs(REFERENCES | {(CONTROL, "b"): [0.8, 0.8], (NONE, "b"): [0.4]})
    with pytest.raises(UserError, match="b: no run without a correction of seed 1, which other regimes have"):
        scores(table, "trainer")


def test_the_probability_of_improvement_is_a_mean_over_regimes():
    """Regime a: 3 beats 1 and 2, 2 beats 1 and ties once: 3.5 of 4. Regime b: 0 of 1. Mean 0.4375."""
    assert improvement([np.array([3, 2]), np.array([0])], [np.array([1, 2]), np.array([1])]) == pytest.approx(0.4375)


def test_scores_rank_entries_and_leave_out_what_is_incomplete():
    """The mask gains 0.5 in both seeds of a and loses 0.25 in b; the token weight lacks regime b."""
    ends = REFERENCES | {(CONTROL, "b"): [0.8, 0.8], (NONE, "b"): [0.4, 0.4]}
    ends |= {("mask", "a"): [0.5, 0.7], ("mask", "b"): [0.3, 0.3], ("token", "a"): [0.9, 0.9]}
    table = scores(runs(ends, collapsed="mask"), "trainer").set_index("entry")
    assert list(table.index) == [CONTROL, "mask", NONE]
    mask = table.loc["mask"]
    assert mask["in"] == "b" and mask.worst == pytest.approx(-0.25) and (mask.collapses, mask.runs) == (4, 4)
    # 0.5, 0.5, −0.25, −0.25 without the ends: (0.5 − 0.25)/2. Ends 0.5 and 0.7 against 0.3 and 0.5: 3.5 of 4, and 0 of b.
    assert mask.gain == pytest.approx(0.125) and mask.improvement == pytest.approx(3.5 / 4 / 2)
    assert table.loc[NONE, "improvement"] == 0.5 and (table.loc[NONE, ["low", "high"]] == 0).all()


def test_two_runs_of_one_entry_regime_and_seed_are_refused():
    table = runs(REFERENCES | {("mask", "a"): [0.5, 0.6]})
    with pytest.raises(UserError, match="several rows of mask, a, seed 1: which one counts is not told; leave one of each"):
        scores(pd.concat([table, table.iloc[[-1]].assign(trainer=0.9)]), "trainer")


def test_each_policy_has_its_own_scores():
    """The sampler's rewards are halves: its harm is 0.2, and FLOOR·(0.4 − 0.2) = 0.05 is less. So the gains are those above."""
    table = runs(REFERENCES | {("mask", "a"): [0.5, 0.6]})
    assert normalised(table, "sampler").gain.to_list() == pytest.approx(normalised(table, "trainer").gain.to_list())
