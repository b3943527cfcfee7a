"""Detectors on hand-made curves."""

import json
import math

import pytest

from harness.collapse import DETECTORS, Detectors, Outcome, detect, outcome
from harness.collapse.detectors import Distribution, Drawdown, Entropy, Learning, Length, Numerical, Weights


def evaluation(reward, n=320):
    """With the standard error of n independent responses."""
    return {"eval/reward": reward, "eval/stderr": math.sqrt(reward * max(1 - reward, 0) / n), "eval/samples": n}


def drawdown(rewards, n=320, **changes):
    """The event of a curve of evaluations at steps 0, 5, 10, ..."""
    detector = Drawdown(**{"delta": 0.5, "consecutive": 3, "warm": 0, "floor": 0.1, **changes})
    for i, reward in enumerate(rewards):
        event = detector.observe(5 * i, evaluation(reward, n))
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


def test_a_detector_reports_once_and_survives_a_resume_at_any_point():
    """A second fall is no second event, whether the state goes through a checkpoint's JSON before, within or after the first."""
    curve = [*RISE, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0]

    def made():
        return Detectors({"drawdown": Drawdown(delta=0.5, consecutive=3, warm=0, floor=0.1)})

    for cut in range(len(curve)):
        onsets, detectors = [], made()
        for i, reward in enumerate(curve):
            if i == cut:
                saved, detectors = json.loads(json.dumps(detectors.state())), made()
                detectors.restore(saved["events"], saved["detectors"])
            onsets += [event["onset"] for event in detectors.observe(5 * i, evaluation(reward)).values()]
        assert onsets == [40] and detectors.collapsed and detectors.outcome() == Outcome("collapsed", 40, "drawdown")


def numerical(norms, losses=None):
    detector = Numerical(factor=20, window=50, hits=5, hits_window=10)
    for i, norm in enumerate(norms):
        event = detector.observe(i, {"actor/grad_norm": norm, "actor/loss": losses[i] if losses else 0.0})
        if event:
            return i, event
    return None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_gradient_or_loss_is_an_event_at_once(bad):
    assert numerical([1.0, 1.0, bad])[1]["onset"] == 2
    assert numerical([1.0, 1.0, 1.0], [0.0, bad, 0.0])[1] == {"onset": 1, "cause": "actor/loss is not finite"}
    event = Numerical(factor=20, window=50, hits=5, hits_window=10).observe(4, {"actor/grad_norm": 1.0, "actor/entropy": bad})
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
        detector = Numerical(factor=20, window=50, hits=5, hits_window=10)
        rows = [{"actor/skipped": float(i % 50 < share)} for i in range(50)]
        return [e for i, row in enumerate(rows) if (e := detector.observe(i, row))]

    assert event(25) == [] and event(30)[0]["onset"] == 49


def test_rows_without_the_metric_are_passed_over():
    assert Drawdown(delta=0.5, consecutive=3, warm=0, floor=0.1).observe(1, {"actor/loss": 0.0}) is None
    assert Numerical(factor=20, window=50, hits=5, hits_window=10).observe(1, {"eval/reward": 0.0}) is None
    assert Entropy(share=0.05, consecutive=1).observe(1, {"eval/reward": 0.0}) is None
    assert distribution([{}] * 60) is None


def test_the_error_is_that_of_prompts_not_of_responses():
    """A drop of 0.2 over 48 prompts x 8. Were the responses independent, 3σ = 3·sqrt(.7·.3/384) = 0.07; with prompts
    either solved or not, σ = sqrt(.7·.3/47) = 0.067 and 3σ = 0.2005: not told from chance."""
    rows = [(0.1, 0.043)] + [(0.9, 0.0438)] * 4

    def event(error):
        detector = Drawdown(delta=0.2, consecutive=3, warm=0, floor=0.07)
        found = [
            detector.observe(i, {"eval/reward": r, "eval/stderr": e}) for i, (r, e) in enumerate([*rows, *[(0.7, error)] * 3])
        ]
        return [e for e in found if e]

    assert event(math.sqrt(0.7 * 0.3 / 47)) == [] and event(math.sqrt(0.7 * 0.3 / 384))[0]["onset"] == 5


def distribution(rows, **changes):
    detector = Distribution(**{"ess": 0.1, "factor": 10, "first": 5, "last": 25, "null_band": 1e-9, "consecutive": 5, **changes})
    return next((e for i, row in enumerate(rows) if (e := detector.observe(i, row))), None)


def mismatch(k3, ess=0.9):
    return {"rollout_corr/k3_kl": k3, "mismatch/ess_sequence": ess}


def test_a_growing_k3_warns_and_the_exact_control_does_not():
    """Reference: median of steps 5..25 = 1e-4, so far above 1e-3. Four steps in a row do not do; the fifth run of five does."""
    start, far, near = [mismatch(1e-4)] * 26, mismatch(1.1e-3), mismatch(0.9e-3)
    assert distribution([*start, *[far] * 4, near] * 3) is None
    event = distribution([*start, near, *[far] * 5])
    assert event == {"onset": 27, "cause": "K3 above 10 times its start"}
    assert distribution([mismatch(0.0, 1.0)] * 100) is None
    assert distribution([*[mismatch(1e-12)] * 26, *[mismatch(2e-9)] * 20]) is None  # 2000 times its start, within 3 null bands


def test_a_low_ess_warns_from_the_first_of_five_steps():
    assert distribution([mismatch(0.0), *[mismatch(0.0, 0.05)] * 5]) == {"onset": 1, "cause": "sequence ESS below 0.1"}


def test_entropy_below_a_twentieth_of_its_start_warns():
    """H_0 = 2, so below 0.1; the last row of a run has no entropy and does not break the count."""

    def warned(entropies):
        detector = Entropy(share=0.05, consecutive=3)
        rows = [{} if h is None else {"actor/entropy": h} for h in entropies]
        return next((e["onset"] for i, row in enumerate(rows) if (e := detector.observe(i, row))), None)

    assert warned([2.0, 0.1, 0.1, 0.1]) is None and warned([2.0, 0.09, 0.09, 0.2, 0.09, 0.09]) is None
    assert warned([2.0, 1.0, 0.09, None, 0.09, 0.09]) == 2


def test_responses_that_do_not_end_warn():
    """Above a half, three in a row; a task whose responses have one length has no such share."""

    def warned(shares):
        detector = Length(share=0.5, consecutive=3)
        rows = [{} if share is None else {"rollout/truncated": share} for share in shares]
        return next((e["onset"] for i, row in enumerate(rows) if (e := detector.observe(i, row))), None)

    assert warned([0.6, 0.6, 0.5, 0.6, 0.6]) is None and warned([None] * 9) is None
    assert warned([0.1, 0.6, 0.7, None, 0.8, 0.9]) == 1

    def same(shares):
        detector = Length(share=0.5, consecutive=3)
        rows = [{"rollout/truncated": 0.0, "rollout/same_length": share} for share in shares]
        return next((e["onset"] for i, row in enumerate(rows) if (e := detector.observe(i, row))), None)

    assert same([0.2, 0.6, 0.5, 0.9, 0.9, 0.9]) == 3
    assert same([0.9] * 9) is None  # a task whose answers are of one length
    old = Length(share=0.5, consecutive=3)
    old.state = {"long": [], "fired": False}  # of a checkpoint made before lengths were compared
    told = [old.observe(i, {"rollout/truncated": 0.0, "rollout/same_length": s}) for i, s in enumerate((0.2, 0.6, 0.6, 0.6))]
    assert told[:3] == [None] * 3 and told[3]["onset"] == 1
    with pytest.raises(ValueError, match=r"^collapse.detectors.length.share=1.5: must be a number > 0 and < 1$"):
        detect([], {"length": {"share": 1.5, "consecutive": 3}})


def test_the_alarms_of_verl_warn():
    """Two in a row beyond a bound; the bounds themselves are within. A row without a correction's metrics breaks no count."""

    def warned(*rows):
        detector = Weights(low=0.5, high=2.0, ess=0.3, masked=0.5, consecutive=2)
        names = ("rollout_is_mean", "rollout_is_eff_sample_size", "rollout_rs_masked_fraction")
        told = [dict(zip((f"rollout_corr/{name}" for name in names), row, strict=True)) if row else {} for row in rows]
        return next((event for i, row in enumerate(told) if (event := detector.observe(i, row))), None)

    sound = (1.0, 0.9, 0.1)
    assert warned(*[(0.5, 0.3, 0.5), (2.0, 0.3, 0.5)] * 3, (0.4, 0.9, 0.1), sound, (0.4, 0.9, 0.1)) is None
    assert warned(sound, (0.49, 1, 0), None, (2.1, 1, 0)) == {"onset": 1, "cause": "mean weight outside of 0.5 to 2"}
    assert warned(sound, (1, 0.29, 0), (1, 0.1, 0)) == {"onset": 1, "cause": "ESS of the weights below 0.3"}
    assert warned(sound, (1, 1, 0.51), (1, 1, 0.6)) == {"onset": 1, "cause": "more than 0.5 of the tokens rejected"}
    alone = [{"rollout_corr/rollout_rs_masked_fraction": 0.6}] * 2  # of a correction without a weight
    settings = {"low": 0.5, "high": 2.0, "ess": 0.3, "masked": 0.5, "consecutive": 2}
    (event,) = detect(({"step": i, **row} for i, row in enumerate(alone)), {"weights": settings}).values()
    assert event["onset"] == 0


def test_verls_alarms_of_spread_and_veto():
    """std > 1.0 and veto_fraction > 0.1, for two rows. The veto's share is recorded at every third step here."""
    settings = {"low": 0.5, "high": 2.0, "ess": 0.3, "masked": 0.5, "consecutive": 2}

    def warned(rows, **more):
        named = [{f"rollout_corr/rollout_{name}": value for name, value in row.items()} for row in rows]
        rows = [{"step": i, "rollout_corr/rollout_rs_masked_fraction": 0.0} | row for i, row in enumerate(named)]
        return detect(rows, {"weights": settings | more}).get("weights")

    spread = [{"is_std": value} for value in (1.2, 1.0, 1.01, 1.5)]
    assert warned(spread, std=1.0) == {"onset": 2, "cause": "standard deviation of the weights above 1"}
    assert warned(spread) is None
    vetoed = [{"rs_veto_seq_masked_fraction": 0.11}, {}, {}, {"rs_veto_seq_masked_fraction": 0.2}]
    assert warned(vetoed, veto=0.1) == {"onset": 0, "cause": "more than 0.1 of the responses vetoed"}
    assert warned(vetoed, veto=0.15) is None and warned(vetoed) is None


def test_a_fault_of_the_log_probabilities_warns_by_its_name():
    """Diagnoses at every second step; two in a row must name the same fault."""

    def warned(*faults):
        rows = []
        for i, fault in enumerate(faults):
            named = {f"diagnosis/fault_{fault}": 1.0} if fault else {}
            rows += [{"step": 2 * i, "diagnosis/faulty": float(bool(fault))} | named, {"step": 2 * i + 1}]
        return detect(rows, {"diagnosis": {"consecutive": 2}}).get("diagnosis")

    assert warned(None, "stale", None, "stale", "prompt") is None
    assert warned(None, "shift", "shift") == {"onset": 2, "cause": "fault of the log-probabilities: shift"}
    assert warned("unknown", "unknown")["cause"].endswith(": unknown")


def learned(rewards, n=320):
    detector = Learning(solved=0.95)
    return next((e["onset"] for i, r in enumerate(rewards) if (e := detector.observe(i, evaluation(r, n)))), None)


def test_learning_is_a_median_three_errors_above_the_start():
    """n = 320 at 0.4: 3σ = 0.082. One lucky evaluation moves no median of three;
    the first median above 0.484 is that of 0.45, 0.5, 0.5."""
    assert learned([0.4, 0.4, 0.9, 0.4, 0.4]) is None
    assert learned([0.4, 0.45, 0.5, 0.5, 0.5]) == 3
    assert learned([0.4] * 50) is None and learned([0.96, 0.97]) == 0  # solved from the start is no failure to learn
    assert learned([0.0] * 20) is None


SETTINGS = {
    "drawdown": {"delta": 0.5, "consecutive": 3, "warm": 0, "floor": 0.1},
    "numerical": {"factor": 20, "window": 50, "hits": 5, "hits_window": 10},
    "learning": {"solved": 0.95},
}


def test_detect_finds_what_a_run_saw_as_it_went():
    rows = [{"step": 5 * i, **evaluation(r), "actor/loss": 0.0} for i, r in enumerate([*RISE, 0.0, 0.0, 0.0])]
    rows[9]["actor/loss"] = math.nan
    events = detect(rows, SETTINGS)
    assert {name: event["onset"] for name, event in events.items()} == {"learning": 10, "numerical": 45, "drawdown": 40}


@pytest.mark.parametrize(
    ("onsets", "expected"),
    [
        ({"learning": 5}, Outcome("survived")),
        ({}, Outcome("never learned")),
        ({"entropy": 90}, Outcome("never learned")),
        ({"drawdown": 30}, Outcome("collapsed", 30, "drawdown")),
        (
            {"learning": 5, "drawdown": 100, "distribution": 60, "entropy": 80},
            Outcome("collapsed", 100, "drawdown", "distribution"),
        ),
        ({"learning": 5, "drawdown": 100, "distribution": 49, "entropy": 80}, Outcome("collapsed", 100, "drawdown", "entropy")),
        ({"learning": 5, "drawdown": 100, "distribution": 101}, Outcome("collapsed", 100, "drawdown")),  # after it: no cause
        ({"drawdown": 100, "numerical": 90}, Outcome("collapsed", 90, "numerical", "numerical")),
        ({"learning": 5, "distribution": 20, "entropy": 3}, Outcome("survived")),  # warnings are no collapse
    ],
)
def test_outcomes(onsets, expected):
    assert outcome(onsets, DETECTORS.names()) == expected


def test_an_unwatched_run_is_not_said_to_have_learned_nothing():
    assert outcome({}, ["drawdown", "numerical"]) == Outcome("survived")


def test_detectors_are_registered():
    assert DETECTORS.names() == [
        "diagnosis", "distribution", "drawdown", "entropy", "learning", "length", "numerical", "weights",
    ]  # fmt: skip
    assert {name: DETECTORS[name].role for name in DETECTORS.names()} == {
        "drawdown": "collapse",
        "numerical": "collapse",
        "distribution": "warning",
        "entropy": "warning",
        "length": "warning",
        "weights": "warning",
        "diagnosis": "warning",
        "learning": "learned",
    }
