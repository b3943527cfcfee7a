"""Which diagnostic warned before a collapse: its lead time, its false alarms, and its ranking of runs at any step.

A diagnostic alarms at the first step at which its running median over WINDOW steps passes a threshold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from analysis.statistics.survival import ENOUGH

WINDOW = 5
"""Steps of the running median: one noisy step is no alarm."""
HORIZON = 50
"""Steps ahead in which the time-dependent AUC looks for a collapse."""

DIAGNOSTICS = {
    "rollout_corr/k3_kl": 1,
    "mismatch/ess_sequence": -1,
    "mismatch/log_ratio_max_abs": 1,
    "actor/grad_norm": 1,
    "actor/entropy": -1,
    "rollout_corr/training_ppl": 1,
    "correction/weight_zero": 1,
}
"""Metric -> +1 if a high value is the warning, −1 if a low one."""


class Signal(NamedTuple):
    """One diagnostic of one run: steps, and the extreme of its running median so far, signed so that high is bad."""

    steps: np.ndarray
    level: np.ndarray
    smooth: np.ndarray


def signals(steps: pd.DataFrame, metric: str) -> dict[str, Signal]:
    """The diagnostic of each run that recorded it."""
    sign = DIAGNOSTICS[metric]
    found = {}
    for run, rows in steps.loc[steps[metric].notna(), ["run", "step", metric]].groupby("run", observed=True):
        smooth = (sign * rows[metric]).rolling(WINDOW, min_periods=1).median().to_numpy()
        found[run] = Signal(rows.step.to_numpy(), np.maximum.accumulate(smooth), smooth)
    return found


def alarm(signal: Signal, threshold: float) -> float:
    """The first step at or above the threshold, NaN if there is none."""
    at = np.searchsorted(signal.level, threshold)
    return float(signal.steps[at]) if at < len(signal.steps) else np.nan


def auc_at(score: np.ndarray, case: np.ndarray) -> float:
    """P(score of a case > score of a control), ties half: the area under the ROC curve."""
    cases = int(case.sum())
    controls = len(case) - cases
    return float((rankdata(score)[case].sum() - cases * (cases + 1) / 2) / (cases * controls))


def time_dependent_auc(runs: pd.DataFrame, found: dict[str, Signal], ahead: int = HORIZON, spacing: int = 5) -> float:
    """Cumulative AUC, averaged over landmarks t and sources of mismatch with the number of cases as weight.

    Runs of one source are ranked, since K3 separates fp8 from fp32 without predicting a collapse. At t, of the runs that have not
    collapsed, cases collapse in (t, t + ahead] and controls are recorded beyond t + ahead without a collapse. Runs whose record
    ends in between are left out. The score is the running median at t. NaN without a case and a control.
    """
    known = runs.loc[[run for run in runs.index if run in found]]
    if known.empty:
        return np.nan
    first = np.array([found[run].steps[0] for run in known.index])
    total, weight = 0.0, 0
    for t in range(spacing, int(known.step.max()), spacing):
        risk = known[~(known.event & (known.onset <= t)) & (known.step > t) & (first <= t)]
        case = (risk.event & (risk.onset <= t + ahead)).to_numpy()
        control = ((~risk.event | (risk.onset > t + ahead)) & (risk.step >= t + ahead)).to_numpy()
        for source in risk.source[case].unique():
            used = (case | control) & (risk.source == source).to_numpy()
            if case[used].all():
                continue
            score = np.array([_at(found[run], t) for run in risk.index[used]])
            total += auc_at(score, case[used]) * case[used].sum()
            weight += int(case[used].sum())
    return total / weight if weight else np.nan


def _at(signal: Signal, step: int) -> float:
    return float(signal.smooth[np.searchsorted(signal.steps, step, side="right") - 1])


def best_threshold(runs: pd.DataFrame, found: dict[str, Signal]) -> float:
    """The threshold that maximises the share detected minus the share of false alarms; NaN without both kinds of runs.

    It lies halfway between the levels that runs reached on either side of it; of equals the middle one is taken.
    """
    tops = np.array([found[run].level[-1] for run in runs.index])
    event = runs.event.to_numpy(bool)
    if not event.any() or event.all():
        return np.nan
    # A detection comes before the onset, so what counts of a collapsed run is its level just before.
    before = [found[run].level[found[run].steps < onset] for run, onset in runs.onset[event].items()]
    reached = np.array([level[-1] if len(level) else -np.inf for level in before])
    levels = np.unique([*tops[~event], *reached[reached > -np.inf]])
    candidates = np.concatenate([levels[:1], (levels[1:] + levels[:-1]) / 2])  # beside an infinite level: infinity
    skill = (reached >= candidates[:, None]).mean(1) - (tops[~event] >= candidates[:, None]).mean(1)
    best = candidates[skill >= skill.max() - 1e-12]
    return float(best[len(best) // 2])


def evaluate(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row per diagnostic: the share of collapsed runs detected, median_lead (RL steps), the share of other runs with a false
    alarm, and auc, `HORIZON` steps ahead.

    The threshold that judges a run was chosen on the runs of the other seeds. Sources of mismatch without a collapse are left
    out: a run without mismatch raises no false alarm. Without a collapsed run, another run and a second seed the cells are
    missing, and `note` says why.
    """
    if runs.event.any():
        runs = runs[runs.source.isin(runs.source[runs.event])]
    rows = []
    for metric in DIAGNOSTICS:
        if metric not in steps or steps[metric].isna().all():
            continue
        found = signals(steps, metric)
        known = runs.loc[[run for run in runs.index if run in found]]
        lead, false = _left_out(known, found)
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
                "auc": time_dependent_auc(known, found),
                "note": note,
            }
        )
    return pd.DataFrame(rows)


def _left_out(runs: pd.DataFrame, found: dict[str, Signal]) -> tuple[np.ndarray, np.ndarray]:
    """(lead of each collapsed run, NaN if there was no alarm before; whether each other run had a false alarm)."""
    lead, false = [], []
    for seed in runs.seed.unique():
        threshold = best_threshold(runs[runs.seed != seed], found)
        if np.isnan(threshold):
            continue
        for run in runs[runs.seed == seed].itertuples():
            at = alarm(found[run.Index], threshold)
            if run.event:
                lead.append(run.onset - at if at < run.onset else np.nan)
            else:
                false.append(np.isfinite(at))
    return np.array(lead, float), np.array(false, bool)
