"""Early warnings: lead times, false alarms, thresholds and AUC of signals whose answer is known."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics import predictors

RNG = np.random.default_rng


def toy(seeds=4, length=100, lead=20):
    """K3 steps up from 1 to 10 `lead` steps before the collapse at 60 of every second run; the others stay near 1."""
    runs, steps = [], []
    for seed in range(seeds):
        for collapsed in (True, False):
            name = f"{seed}{collapsed}"
            k3 = np.where((np.arange(length) >= 60 - lead) & collapsed, 10.0, 1.0) + 0.01 * seed
            onset = 60.0 if collapsed else np.nan
            runs.append({"run": name, "source": "fp8", "seed": seed, "event": collapsed, "onset": onset, "step": length})
            steps.append(pd.DataFrame({"run": name, "step": np.arange(length), "rollout_corr/k3_kl": k3}))
    return pd.DataFrame(runs).set_index("run"), pd.concat(steps, ignore_index=True)


def test_lead_time_and_false_alarms_of_a_known_signal():
    """The median of 5 passes at the third step of the rise: 40 + 2 = 42, so 18 steps ahead; the others never reach it."""
    runs, steps = toy()
    row = predictors.evaluate(runs, steps).iloc[0]
    assert (row["detected"], row["median_lead"], row["false_alarms"]) == (1, 18, 0)
    assert row["note"] == "fewer than 10 collapses rank nothing"
    assert row["auc"] < 1  # before the rise it knows nothing, and ties count half


def test_the_auc_is_one_where_the_signal_is_there_and_a_half_before():
    """Landmarks 5, 10, ... of 4 collapsing and 4 other runs; a case at t collapses in (t, t + 50], so there are cases from 10 on.
    K3 differs from 42 on (the median), so at 45 and 50 the AUC is 1. Controls must be watched to t + 50 ≤ 100: t ≤ 50."""
    runs, steps = toy()
    steps["rollout_corr/k3_kl"] = steps["rollout_corr/k3_kl"].round()  # no differences between seeds: ties before the rise
    found = predictors.signals(steps, "rollout_corr/k3_kl")
    expected = np.mean([0.5] * 7 + [1.0] * 2)  # landmarks 10..40 and 45, 50
    assert predictors.time_dependent_auc(runs, found) == pytest.approx(expected)


def test_a_precision_is_no_warning():
    """Half of the fp8 runs collapse, whatever their K3; no fp32 run does, with a K3 of 0.

    Ranked among all, a case would always beat 4 of the 8 controls. Within fp8 the AUC is a half, and fp32 raises no false
    alarm.
    """
    runs, steps = toy()
    exact = runs.assign(source="fp32", event=False, onset=np.nan).rename(index=lambda run: f"exact{run}")
    steps["rollout_corr/k3_kl"] = 1.0
    both = pd.concat([steps, steps.assign(run="exact" + steps.run, **{"rollout_corr/k3_kl": 0.0})], ignore_index=True)
    row = predictors.evaluate(pd.concat([runs, exact]), both).iloc[0]
    assert (row["auc"], row["collapsed_runs"], row["other_runs"]) == (0.5, 4, 4)
    assert row["false_alarms"] == row["detected"]


def test_the_auc_does_not_look_ahead():
    """A diagnostic recorded from step 42 on only: no run has a score at the landmarks before, so only 45 and 50 count. That it
    is low at the end of the collapsed runs must not be seen there."""
    runs, steps = toy()
    steps.loc[steps.step > 70, "rollout_corr/k3_kl"] *= -1
    found = predictors.signals(steps[steps.step >= 42], "rollout_corr/k3_kl")
    assert predictors.time_dependent_auc(runs, found) == pytest.approx(1)


def test_landmarks_count_by_their_cases():
    """a collapses at 60, b at 12, c is watched to 100. At 5 b is the case, at 10 both, at 15..50 a. Scores differ at 10 only:
    (1·1/2 + 2·1 + 8·1/2)/11."""
    columns = {"event": [True, True, False], "onset": [60, 12, np.nan], "step": [100, 100, 100], "source": ["fp8"] * 3}
    at_ten = [1.0] * 10 + [2.0] + [1.0] * 89
    found = {"a": signal(at_ten), "b": signal(at_ten), "c": signal([1.0] * 100)}
    assert predictors.time_dependent_auc(pd.DataFrame(columns, index=list("abc")), found) == pytest.approx(6.5 / 11)


def test_a_claimed_step_of_1e9_costs_no_memory():
    """Landmarks lie before an onset, so a run that claims a last step of 10^9 adds one: at 55 it is watched to 105 and beyond.
    A landmark at every fifth step up to the last would take 1.5 GiB."""
    runs, steps = toy()
    steps["rollout_corr/k3_kl"] = steps["rollout_corr/k3_kl"].round()
    found = predictors.signals(steps, "rollout_corr/k3_kl")
    runs.loc[runs.index[~runs.event][0], "step"] = 10**9
    tracemalloc.start()
    assert predictors.time_dependent_auc(runs, found) == pytest.approx(np.mean([0.5] * 7 + [1.0] * 3))
    assert tracemalloc.get_traced_memory()[1] < 1e7
    tracemalloc.stop()


def test_an_alarm_at_the_onset_is_no_warning():
    """The K3 of seed 3 rises at 58, so its median rises at 60, the onset: seen, but not ahead."""
    runs, steps = toy()
    steps.loc[(steps.run == "3True") & (steps.step < 58), "rollout_corr/k3_kl"] = 1.0
    row = predictors.evaluate(runs, steps).iloc[0]
    assert (row["detected"], row["median_lead"]) == (0.75, 18)


def test_a_run_censored_within_the_horizon_is_neither_case_nor_control():
    """Controls cut off at 70: watched to t + 50 only for t ≤ 20, where nothing is seen yet and all scores are equal."""
    runs, steps = toy()
    steps["rollout_corr/k3_kl"] = steps["rollout_corr/k3_kl"].round()
    runs.loc[~runs.event, "step"] = 70
    assert predictors.time_dependent_auc(runs, predictors.signals(steps, "rollout_corr/k3_kl")) == pytest.approx(0.5)


def test_the_threshold_lies_halfway_and_stands_infinite_levels():
    """Others reach 1, 2; collapsed runs 6, 8 before their onset: halfway between 2 and 6. With an infinite K3 in place of the 8
    the same; with both infinite no number lies between."""
    runs = pd.DataFrame({"event": [False, False, True, True], "onset": [np.nan, np.nan, 9, 9]}, index=list("abcd"))

    def threshold(*tops):
        return predictors.best_threshold(runs, {run: signal([top] * 9) for run, top in zip("abcd", tops, strict=True)})

    assert threshold(1, 2, 6, 8) == threshold(1, 2, 6, np.inf) == 4 and threshold(1, 2, np.inf, np.inf) == np.inf


def signal(level):
    return predictors.Signal(np.arange(len(level)), np.maximum.accumulate(level), np.array(level, float))


def test_an_alarm_stands_at_the_first_rise_though_it_passes():
    """A rise in steps 20..29 only, its median from 22 on: the alarm is there, and a level once reached stays reached."""
    steps = pd.DataFrame({"run": "a", "step": np.arange(60), "rollout_corr/k3_kl": np.where(np.arange(60) // 10 == 2, 5.0, 1.0)})
    found = predictors.signals(steps, "rollout_corr/k3_kl")["a"]
    assert predictors.alarm(found, 3.0) == 22 and found.level[-1] == 5 and found.smooth[-1] == 1


def test_no_finite_value_yet_is_no_alarm():
    """A K3 of infinity has no running median: the level rises at step 1 from nothing to 1, and at step 2 to 6."""
    steps = pd.DataFrame({"run": "a", "step": [0, 1, 2], "rollout_corr/k3_kl": [np.inf, 1.0, 11.0]})
    found = predictors.signals(steps, "rollout_corr/k3_kl")["a"]
    assert found.level.tolist() == [-np.inf, 1, 6] and [predictors.alarm(found, c) for c in (1, 6)] == [1, 2]


def test_a_rise_after_the_onset_is_no_detection():
    """c rises to 3 at its onset only: just before, it stood at 1 like the others, so d alone is told: halfway from 1 to 9."""
    runs = pd.DataFrame({"event": [False, True, True], "onset": [np.nan, 5, 5]}, index=list("acd"))
    found = {"a": signal([1.0] * 9), "c": signal([1.0] * 5 + [3.0] * 4), "d": signal([1.0] * 2 + [9.0] * 7)}
    assert predictors.best_threshold(runs, found) == 5
    assert (
        predictors.alarm(found["c"], 3) == 5
        and predictors.alarm(found["d"], 5) == 2
        and np.isnan(predictors.alarm(found["a"], 5))
    )


def test_auc_against_mann_whitney():
    rng = RNG(5)
    score, case = rng.integers(0, 5, 30).astype(float), rng.random(30) < 0.4
    theirs = stats.mannwhitneyu(score[case], score[~case]).statistic / (case.sum() * (~case).sum())
    assert predictors.auc_at(score, case) == pytest.approx(theirs)


def test_the_threshold_is_not_chosen_on_the_seed_that_it_judges():
    """Noise that tells nothing: chosen on the very runs, some threshold looks skilled; left out, detections are as frequent as
    false alarms but for chance."""
    rng = RNG(6)
    runs, steps = toy(seeds=40)
    steps["rollout_corr/k3_kl"] = np.repeat(rng.random(len(runs)), 100)
    row = predictors.evaluate(runs, steps).iloc[0]
    assert abs(row["detected"] - row["false_alarms"]) < 0.3
    found = predictors.signals(steps, "rollout_corr/k3_kl")
    assert 0.3 < row["auc"] < 0.7 and np.isfinite(predictors.best_threshold(runs, found))


def test_too_few_runs_are_said_to_be_too_few():
    runs, steps = toy(seeds=1)
    row = predictors.evaluate(runs, steps).iloc[0]
    assert np.isnan(row["detected"]) and row["note"] == "1 collapsed, 1 not, 1 seeds: too few"
    runs["event"] = False
    assert predictors.evaluate(runs, steps).iloc[0]["note"] == "0 collapsed, 2 not, 1 seeds: too few"


def test_a_low_value_warns_where_low_is_bad():
    runs, steps = toy()
    for low in ("mismatch/ess_sequence", "actor/entropy"):
        steps[low] = 1 / steps["rollout_corr/k3_kl"]
    table = predictors.evaluate(runs, steps).set_index("diagnostic")
    assert table.loc["mismatch/ess_sequence", "median_lead"] == table.loc["actor/entropy", "median_lead"] == 18
