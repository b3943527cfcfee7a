"""Detectors on hand-made curves."""

import math

import pytest

from harness.collapse import DETECTORS, Drawdown, Numerical


def drawdown(rewards, n=320, **changes):
    """The event of a curve of evaluations at steps 0, 5, 10, ..."""
    detector = Drawdown(**{"delta": 0.5, "m": 3, "warm": 0, "floor": 0.1, **changes})
    for i, reward in enumerate(rewards):
        event = detector.observe(5 * i, {"eval/reward": reward, "eval/samples": n})
        if event:
            return event
    return None


RISE = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9]


def test_spike_to_zero_is_dated_at_its_first_evaluation():
    """M = 0.9; 0.0 is down by 0.9 ≥ 0.5·(0.9 − 0.1) = 0.4. Index 8, step 40, seen two evaluations later."""
    assert drawdown([*RISE, 0.0, 0.0, 0.0]) == {"onset": 40, "best": 0.9, "reward": 0.0}


def test_silent_decay_is_dated_where_it_passes_half_the_way():
    """Down 0.05 an evaluation from 0.9: the drop reaches 0.4 at the eighth, 0.9 − 0.4 = 0.5, index 7 + 8 = 15."""
    event = drawdown([*RISE, *(0.9 - 0.05 * i for i in range(1, 15))])
    assert event["onset"] == 5 * 15


def test_recovery_before_m_evaluations_is_no_event():
    assert drawdown([*RISE, 0.1, 0.1, 0.9, 0.1, 0.1, 0.9]) is None


def test_noise_around_a_plateau_is_no_event():
    """n = 40 at 0.9: σ = 0.047; swings of ±0.1 stay far from a drop of 0.4."""
    assert drawdown([*RISE, *(0.9 + (-1) ** i * 0.1 for i in range(50))], n=40) is None


def test_success_then_collapse_counts():
    assert drawdown([*RISE, *[1.0] * 30, 0.2, 0.2, 0.2])["onset"] == 5 * 38


def test_a_fall_below_the_start_counts_though_nothing_was_learned():
    """M = R_0 = 0.4, floor 0.1: a drop of 0.35 ≥ 0.15, and 0.05 ≤ 0.4 − 3·0.027."""
    assert drawdown([0.4, 0.05, 0.05, 0.05])["onset"] == 5


def test_never_learned_is_not_a_collapse():
    """R_0 = 0.12 with n = 40: σ_0 = 0.05. Falling to 0.05 is within 3σ of the start, and so was the best."""
    assert drawdown([0.12, 0.15, 0.12, 0.05, 0.05, 0.05], n=40, delta=0.2) is None


def test_three_sigma_guards_small_samples():
    """n = 4 at reward 0.5: 3σ = 0.75, so a drop of 0.4 from 0.9 is not told from noise; with n = 400 it is."""
    curve = [*RISE, 0.5, 0.5, 0.5]
    assert drawdown(curve, n=4) is None and drawdown(curve, n=400) is not None


def test_zero_right_of_a_few_is_not_certainty():
    """n = 20, from 0.25 to 0: σ at 0 is 0, but at 0.25 it is 0.097, and 0.25 < 3·0.097. With n = 200 the same fall counts."""
    curve = [0.05, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0]
    assert drawdown(curve, n=20, floor=0.0) is None and drawdown(curve, n=200, floor=0.0)["onset"] == 20


def test_drawdown_reports_once_and_survives_a_resume_at_any_point():
    curve = [*RISE, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0]
    for cut in range(len(curve)):
        events, detector = [], Drawdown(delta=0.5, m=3, warm=0, floor=0.1)
        for i, reward in enumerate(curve):
            if i == cut:
                state, detector = detector.state, Drawdown(delta=0.5, m=3, warm=0, floor=0.1)
                detector.state = state
            events.append(detector.observe(5 * i, {"eval/reward": reward, "eval/samples": 320}))
        assert [e["onset"] for e in events if e] == [40]


def numerical(norms, losses=None):
    detector = Numerical(factor=20, window=50, hits=5, of=10)
    for i, norm in enumerate(norms):
        event = detector.observe(i, {"actor/grad_norm": norm, "actor/loss": losses[i] if losses else 0.0})
        if event:
            return i, event
    return None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_gradient_or_loss_is_an_event_at_once(bad):
    assert numerical([1.0, 1.0, bad])[1]["onset"] == 2
    assert numerical([1.0, 1.0, 1.0], [0.0, bad, 0.0])[1] == {"onset": 1, "cause": "actor/loss is not finite"}
    event = Numerical(factor=20, window=50, hits=5, of=10).observe(4, {"actor/grad_norm": 1.0, "actor/entropy": bad})
    assert event == {"onset": 4, "cause": "actor/entropy is not finite"}


def test_five_of_ten_exploding_norms():
    """Median 1 over 50 steps; 21 exceeds 20 times that. Onset: the first of the five."""
    at, event = numerical([1.0] * 50 + [21, 1, 21, 1, 21, 1, 21, 1, 21])
    assert (at, event["onset"]) == (58, 50)


def test_four_of_ten_do_not_suffice():
    assert numerical([1.0] * 50 + [21, 21, 21, 21] + [1.0] * 20) is None


def test_the_median_is_frozen_while_it_is_exceeded():
    """Were the exploding norms let into the window of 50, a slow explosion would raise its own yardstick."""
    assert numerical([1.0] * 50 + [21, 19, 21, 19, 21, 19, 21, 19, 21])[1]["onset"] == 50


def test_half_of_the_steps_skipped():
    """30 of 50 are; the first row at which 50 are known is step 49. Half of them, 25, is not more than half."""
    def event(share):
        detector = Numerical(factor=20, window=50, hits=5, of=10)
        rows = [{"actor/skipped": float(i % 50 < share)} for i in range(50)]
        return [e for i, row in enumerate(rows) if (e := detector.observe(i, row))]

    assert event(25) == [] and event(30)[0]["onset"] == 49


def test_rows_without_the_metric_are_passed_over():
    assert Drawdown(delta=0.5, m=3, warm=0, floor=0.1).observe(1, {"actor/loss": 0.0}) is None
    assert Numerical(factor=20, window=50, hits=5, of=10).observe(1, {"eval/reward": 0.0}) is None


def test_detectors_are_registered():
    assert DETECTORS.names() == ["drawdown", "numerical"]
