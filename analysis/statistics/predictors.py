"""Diagnostics as warnings of a collapse: their lead time, false alarms, and how well they rank runs by risk at any step.

A diagnostic raises an alarm at the first step at which its running median over WINDOW steps reaches a threshold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.survival import ENOUGH

WINDOW = 5
"""Number of steps of the running median, so that one noisy step raises no alarm."""
HORIZON = 50
"""Number of steps ahead within which the time-dependent AUC counts a collapse."""

DIAGNOSTICS = {
    "rollout_corr/k3_kl": 1,
    "mismatch/ess_sequence": -1,
    "mismatch/log_ratio_max_abs": 1,
    "actor/grad_norm": 1,
    "actor/entropy": -1,
    "rollout_corr/training_ppl": 1,
    "correction/weight_zero": 1,
}
"""Metrics that may warn of a collapse, each with its sign: +1 if a high value is a warning, −1 if a low value is one."""


class Signal(NamedTuple):
    """A run's diagnostic by step, signed so that high is bad. smooth: running median. level: highest running median so far."""

    steps: np.ndarray
    level: np.ndarray
    smooth: np.ndarray


def signals(steps: pd.DataFrame, metric: str) -> dict[str, Signal]:
    """The diagnostic `metric` of each run that recorded it, by run id. ESS and entropy are negated, so that high is bad."""
    sign = DIAGNOSTICS[metric]
    rows = steps.loc[steps[metric].notna(), ["run", "step", metric]]
    at, values = rows.step.to_numpy(), sign * rows[metric].to_numpy()
    by_run = {}
    for run, index in rows.groupby("run", observed=True).indices.items():
        smooth = _running_median(values[index])
        by_run[run] = Signal(at[index], np.maximum.accumulate(np.where(np.isnan(smooth), -np.inf, smooth)), smooth)
    return by_run


def _running_median(values: np.ndarray) -> np.ndarray:
    """Median of the finite ones among the last WINDOW (5) values up to each of `values` [N]; NaN where none is finite."""
    padded = np.full(WINDOW - 1 + len(values), np.nan)
    padded[WINDOW - 1 :] = np.where(np.isfinite(values), values, np.nan)
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)  # NaN comes last
    known, row = np.isfinite(windows).sum(1), np.arange(len(values))
    return (windows[row, (known - 1) // 2] + windows[row, known // 2]) / 2


def alarm(signal: Signal, threshold: float) -> float:
    """The first step at which a diagnostic's running median is at or above the threshold; NaN if it never is."""
    at = np.searchsorted(signal.level, threshold)
    return float(signal.steps[at]) if at < len(signal.steps) else np.nan


def auc_at(score: np.ndarray, case: np.ndarray) -> float:
    """Area under the ROC curve: P(score of a case > score of a non-case), ties counting half; NaN if a score is NaN."""
    if np.isnan(score).any():
        return np.nan
    cases, controls = score[case], np.sort(score[~case])
    wins = sum(np.searchsorted(controls, cases, side).sum() for side in ("left", "right")) / 2
    return float(wins / (len(cases) * len(controls)))


def time_dependent_auc(runs: pd.DataFrame, by_run: dict[str, Signal], ahead: int = HORIZON, spacing: int = 5) -> float:
    """How well a diagnostic ranks runs by whether they collapse within `ahead` steps: the mean area under the ROC curve.

    The mean is over steps t, multiples of `spacing`, and over sources of mismatch, weighted by the number of cases. Runs are
    ranked within a source, since K3 separates fp8 from fp32 without predicting a collapse. The score is the running median at
    t. Among the runs not collapsed at t, cases collapse in (t, t + ahead], and non-cases are recorded up to t + ahead without a
    collapse. All other runs are left out. NaN without a case or without a non-case.
    """
    known = runs.loc[[run for run in runs.index if run in by_run]]
    if known.empty:
        return np.nan
    first = np.array([by_run[run].steps[0] for run in known.index])
    event, onset, last, source = (known[name].to_numpy() for name in ("event", "onset", "step", "source"))
    before = onset[event, None] // spacing * spacing - np.arange(0, ahead + spacing, spacing)
    landmarks = np.unique(before[(before > 0) & (before < last.max())])  # others have no case, however many steps a run claims
    scores = np.array([_at(by_run[run], landmarks) for run in known.index])  # [runs, landmarks]
    total, weight = 0.0, 0
    for t, score in zip(landmarks, scores.T, strict=True):
        risk = ~(event & (onset <= t)) & (last > t) & (first <= t)
        case = risk & event & (onset <= t + ahead)
        control = risk & (~event | (onset > t + ahead)) & (last >= t + ahead)
        for each in pd.unique(source[case]):
            used = (case | control) & (source == each)
            if case[used].all():
                continue
            total += auc_at(score[used], case[used]) * case[used].sum()
            weight += int(case[used].sum())
    return total / weight if weight else np.nan


def _at(signal: Signal, steps: np.ndarray) -> np.ndarray:
    """The running median of a run's diagnostic at `steps`. Values before its first recorded step are meaningless."""
    return signal.smooth[np.searchsorted(signal.steps, steps, side="right") - 1]


def best_threshold(runs: pd.DataFrame, by_run: dict[str, Signal]) -> float:
    """The threshold of a diagnostic that maximises the share of detected collapses minus the share of false alarms.

    The candidates lie halfway between the highest running medians of two runs. Among equally good ones the middle one is
    returned. NaN if no run collapsed, or all did.
    """
    return _threshold(reached(runs, by_run), runs.event.to_numpy(bool))


def reached(runs: pd.DataFrame, by_run: dict[str, Signal]) -> np.ndarray:
    """Per run, the highest running median of a diagnostic up to the collapse, or to the end of a run without one.

    −inf if the diagnostic was not recorded before the collapse.
    """
    ends = [np.searchsorted(by_run[run].steps, onset) for run, onset in runs.onset.where(runs.event, np.inf).items()]
    return np.array([by_run[run].level[end - 1] if end else -np.inf for run, end in zip(runs.index, ends, strict=True)])


def _threshold(levels: np.ndarray, event: np.ndarray) -> float:
    """The threshold of a diagnostic with the best skill; NaN if no run collapsed, or all did.

    Skill is the share of collapsed runs at or above the threshold, minus that of other runs. levels [N]: highest running median
    of each run. event [N]: whether the run collapsed.
    """
    if not event.any() or event.all():
        return np.nan
    places = np.unique(levels[levels > -np.inf])
    candidates = np.concatenate([places[:1], (places[1:] + places[:-1]) / 2])  # infinite next to an infinite level
    skill = _passing(levels[event], candidates) - _passing(levels[~event], candidates)
    best = candidates[skill >= skill.max() - 1e-12]
    return float(best[len(best) // 2])


def _passing(levels: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """For each threshold of a diagnostic, the share of runs whose highest running median, in `levels`, is at or above it."""
    return (levels >= thresholds[:, None]).mean(1)


def evaluate(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row per diagnostic, such as K3: how well it would have predicted the runs' collapses.

    detected: share of collapsed runs with an alarm before the onset. median_lead: RL steps from alarm to onset. false_alarms:
    share of other runs with an alarm. auc: `time_dependent_auc`, `HORIZON` steps ahead. The threshold that judges a run was
    chosen on the runs of the other seeds. Sources of mismatch without a collapse are left out, since a run without mismatch
    raises no false alarm. detected, median_lead and false_alarms need a collapsed run, a run without a collapse, and two seeds.
    Otherwise they are NaN, and `note` says so.
    """
    if runs.event.any():
        runs = runs[runs.source.isin(runs.source[runs.event])]
    rows = []
    for metric in DIAGNOSTICS:
        if metric not in steps or steps[metric].isna().all():
            continue
        by_run = signals(steps, metric)
        known = runs.loc[[run for run in runs.index if run in by_run]]
        lead, false = _left_out(known, by_run)
        collapsed, others = int(known.event.sum()), int((~known.event).sum())
        judged = len(lead) and len(false)
        note = "" if judged else f"{collapsed} collapsed, {others} not, {known.seed.nunique()} seeds: too few"
        if judged and (len(lead), len(false)) != (collapsed, others):
            note = f"{len(lead)} of {collapsed} collapsed and {len(false)} of {others} other runs could be judged"
            collapsed, others = len(lead), len(false)
        if judged and collapsed < ENOUGH:
            note = "; ".join(filter(None, [note, f"fewer than {ENOUGH} collapses rank nothing"]))
        rows.append(
            {
                "diagnostic": metric,
                "collapsed_runs": collapsed,
                "other_runs": others,
                "detected": np.isfinite(lead).mean() if len(lead) else np.nan,
                "median_lead": float(np.nanmedian(lead)) if np.isfinite(lead).any() else np.nan,
                "false_alarms": false.mean() if len(false) else np.nan,
                "auc": time_dependent_auc(known, by_run),
                "note": note,
            }
        )
    return pd.DataFrame(rows)


def _left_out(runs: pd.DataFrame, by_run: dict[str, Signal]) -> tuple[np.ndarray, np.ndarray]:
    """(The lead of each collapsed run in RL steps, NaN without an alarm before the onset; whether each other run had an alarm).

    The threshold for a run is chosen on the runs of the other seeds. A run for which none can be chosen is left out.
    """
    lead, false = [], []
    levels, event = reached(runs, by_run), runs.event.to_numpy(bool)
    for seed, mine in runs.groupby("seed", sort=False):
        others = (runs.seed != seed).to_numpy()
        threshold = _threshold(levels[others], event[others])
        if np.isnan(threshold):
            continue
        for run, collapsed, onset in zip(mine.index, mine.event, mine.onset, strict=True):
            at = alarm(by_run[run], threshold)
            if collapsed:
                lead.append(onset - at if at < onset else np.nan)
            else:
                false.append(np.isfinite(at))
    return np.array(lead, float), np.array(false, bool)
