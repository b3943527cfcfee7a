"""Tables of a sweep for display. Most have a row per arm (runs alike but for the seed); cells add intervals to estimates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import column, metric
from analysis.results import Results
from analysis.statistics.dose import MARGIN, Curve, precisions
from analysis.statistics.outcomes import RESAMPLING
from analysis.statistics.performance import FEWEST
from analysis.statistics.survival import FEW
from analysis.statistics.tests import equivalent_p, fraction, holm, non_inferior_p

SHOWN = {
    "final_reward": ".3f",
    "best_reward": ".3f",
    "k3": ".1e",
    "ess_sequence_min": ".3f",
    "log_ratio_max": ".2f",
    "persistence": ".2f",
}
"""Number formats of the columns of `Results.measures` in the table of runs. Persistence is shown only if a run measured it."""
LISTED = "Each cell lists the seeds in order. K3 is the median over steps, ESS the minimum, |log ratio| the maximum."
MATRIX = (
    "Each cell: collapsed of ended runs; mean last held-out reward (minimum to maximum); mean difference from the control of the "
    "same loss and setting over shared seeds."
)
INTERVALS = "Brackets hold 95% intervals. Parentheses hold intervals of at most five seeds, which cover less than 95%."
OUTCOMES = (
    "Share collapsed: Clopper-Pearson interval. RMST: restricted mean survival time, to a horizon common to all arms. "
    "Differences are against the reference arm; those of the mean are over shared seeds. "
    "The p-values are exact: log-rank for the time to collapse, permutation of the means for the last reward. "
    f"Holm's adjustment covers the comparisons of one question, precision or correction. {INTERVALS}"
)

EQUIVALENCE = (
    "Against the reference arm. A small p refutes that the arm is worse by the margin or more, or that the two differ by "
    "the margin or more (two one-sided tests). Each p is of an exact permutation of runs. Holm's adjustment covers the table. "
    "The tests suppose that arms differ by a shift. A rare collapse is none, so the last column has the largest share of "
    "collapses that the arm's runs leave possible (95%). A claim about the mean does not cover them."
)

RESPONSE = (
    "Arms with synthetic noise. K3 is the median over steps and seeds, the reward the mean of the last three held-out "
    "evaluations. The tolerated K3 is where a fit that never rises has lost the margin against the control. "
    f"Parentheses hold intervals of at most {FEW} seeds, which cover less than 95%."
)
REAL = (
    "Real precisions beside the curves of noise under the same correction. Persistence is that of the log ratios over 20 syncs. "
    "Each curve is read at the K3 of the precision, with its band over seeds; – where the precision lies beyond it."
)


def runs(results: Results) -> pd.DataFrame:
    """The table of runs: a row per arm (runs alike but for the seed). Each cell lists a measure, or the outcome, by seed."""
    measured = results.measures
    shown = {name: form for name, form in SHOWN.items() if name != "persistence" or measured[name].notna().any()}
    cells = pd.DataFrame({name: measured[name].map(_number(form)) for name, form in shown.items()})
    cells["outcome"] = [_outcome(run, results.evaluated[run.Index]) for run in results.runs.itertuples()]
    rows = []
    for arm in results.arms:
        mine = results.runs[results.runs.arm == arm].sort_values("seed")
        joined = {name: " / ".join(cells.loc[mine.index, name]) for name in cells}
        rows.append({"arm": arm, "seeds": ", ".join(map(str, mine.seed)), **joined})
    return pd.DataFrame(rows)


def _number(form: str) -> Callable[[float], str]:
    return lambda value: "–" if pd.isna(value) else format(value, form)


def _outcome(run: Any, evaluated: int) -> str:
    if run.outcome in ("never learned", "survived") and evaluated < FEWEST:
        return "too short to tell"
    if run.outcome == "collapsed":
        return f"{run.detector} at {run.onset:.0f}{f', after {run.cause}' if run.cause else ''}"
    return run.state if run.outcome == "unfinished" else run.outcome


def outcomes(results: Results) -> pd.DataFrame:
    """The table of outcomes, a row per arm (runs alike but for the seed): collapses, time to collapse, last reward, p-values."""
    rows = []
    for row in results.outcomes.to_dict("records"):
        known = row["known"]
        share = f" [{row['collapsed_share_low']:.0%}, {row['collapsed_share_high']:.0%}]" if known else ""
        reward = estimate(row, "reward_gained", "+.3f", row.get("shared_seeds", 0))
        reward += f"; {row['reward_holm_p']:.2g}" if pd.notna(row["reward_holm_p"]) else ""
        rows.append(
            {
                "arm": row["arm"],
                "collapsed": f"{row['collapsed']}/{known}{share}",
                "never_learned": row["never_learned"] or "",
                "not_ended": row["unfinished"] or "",
                f"RMST to {row['horizon']:.0f} (steps)": f"{row['rmst']:.0f}" if known else "–",
                "reference": row["reference"] or "–",
                "RMST difference (steps)": estimate(row, "steps_gained", "+.0f", known),
                "p, Holm-adjusted p": _p(row["collapse_p"], row["collapse_holm_p"]),
                "final_iqm": estimate(row, "final_iqm", ".3f", known),
                "final_mean": estimate(row, "final_mean", ".3f", known),
                "difference of the mean; Holm-adjusted p": reward,
                "note": row["note"],
            }
        )
    return pd.DataFrame(rows)


def equivalence(results: Results, margin: float) -> pd.DataFrame:
    """The table of equivalence: the mean last reward of each arm minus that of its reference, and p of tests against `margin`.

    An arm is a group of runs alike but for the seed. Its reference is the arm without a correction or without a mismatch.
    """
    rng, final, rows = np.random.default_rng(RESAMPLING), results.rewards.final[results.ended.index].dropna(), []
    arm = results.runs.arm[final.index]
    for name, reference in results.references.items():
        x, y = final[arm == name].to_numpy(), final[arm == reference].to_numpy()
        if reference and len(x) > 1 and len(y) > 1:
            row = {"arm": name, "reference": reference, "runs": f"{len(x)}, {len(y)}", "difference": x.mean() - y.mean()}
            tests = {"not worse": non_inferior_p(x, y, margin, rng=rng), "equivalent": equivalent_p(x, y, margin, rng=rng)}
            fallen = int(results.ended.event[results.ended.arm == name].sum())
            possible = fraction(fallen, len(x)).upper
            rows.append(row | {"margin": margin} | tests | {"collapses up to": f"{possible:.0%}"})
    table = pd.DataFrame(rows)
    for claim in ("not worse", "equivalent") if rows else ():
        adjusted = holm(table[claim].to_numpy())
        table[f"{claim}: p, Holm-adjusted p"] = [_p(p, q) for p, q in zip(table.pop(claim), adjusted, strict=True)]
    return table


def _p(p: float, adjusted: float) -> str:
    return f"{p:.2g}, {adjusted:.2g}" if pd.notna(p) else "–"


def pooled(results: Results) -> pd.DataFrame:
    """The table of mean last reward over losses and seeds, a row per precision and correction, with intervals."""
    table = results.pooled
    if table.empty:
        return table
    plain = table[["precision", "correction", "strata", "runs"]].copy()
    for name in ("final_iqm", "final_mean"):
        plain[name] = [estimate(row, name, ".3f", row["runs"]) for row in table.to_dict("records")]
    return plain


def estimate(row: dict, name: str, form: str, seeds: float) -> str:
    """The estimate `name` of a row as text, `0.961 [0.952, 0.970]`. Parentheses mark too few seeds for 95% coverage."""
    if pd.isna(row.get(name)):
        return "–"
    if pd.isna(row[f"{name}_low"]):
        return f"{row[name]:{form}} (no spread)"
    low, high = (format(row[f"{name}_{end}"], form) for end in ("low", "high"))
    return f"{row[name]:{form}} " + (f"({low} to {high})" if seeds <= FEW else f"[{low}, {high}]")


def matrix(results: Results) -> pd.DataFrame:
    """The matrix of collapses and last rewards: precision and correction against loss and other config values."""
    table = results.combinations
    cells: dict[str, dict[str, str]] = {place: {} for place in table.down}
    for row in table.to_dict("records"):
        never = f" ({row['never_learned']} never learned)" if row["never_learned"] else ""
        spread = f" ({row['least']:.2f} to {row['most']:.2f})" if row["known"] > 1 else ""
        last = f"; {row['mean']:.2f}{spread}" if pd.notna(row["mean"]) else ""
        difference = f"; {round(row['from_control'], 2) + 0.0:+.2f}" if pd.notna(row["from_control"]) else ""
        cells[row["down"]][row["across"]] = f"{row['collapsed']}/{row['known']}{never}{last}{difference}"
    return pd.DataFrame.from_dict(cells, orient="index").rename_axis("").reset_index().fillna("–")


def warnings(results: Results) -> pd.DataFrame:
    """The table of diagnostics as warnings of a collapse: a row per diagnostic, with lead, detections and false alarms."""
    table = results.warnings
    return table.assign(diagnostic=table.diagnostic.map(metric)) if len(table) else table


def robustness(results: Results) -> pd.DataFrame:
    """The table of numbers of runs with a drawdown, by its definition: a row per arm (runs alike but for the seed)."""
    table = results.robustness.copy()
    table.columns = [column(name) for name in table]
    return table.rename_axis("arm").reset_index()


def response(results: Results) -> pd.DataFrame:
    """The table of reward over the K3 of synthetic noise: a row per curve, with the K3 that costs the margin of reward."""
    margin, rows = results.margin or MARGIN, []
    for curve in results.curves:
        ends = [f"{values.mean():.3f}" for values in (curve.responses[0], curve.responses[-1])]
        row = {
            "policy": curve.policy,
            **{name: value for name, value in zip(("loss", "setting"), curve.family[1:], strict=True) if value},
            "correction": curve.correction,
            "persistence": curve.persistence,
            "measured": curve.measured,
            "doses": len(curve.doses),
            "K3": f"{curve.doses[0]:.1e} to {curve.doses[-1]:.1e}",
            "reward at these": " to ".join(ends),
            "control": f"{curve.control.mean():.3f}",
        }
        rows.append(row | {f"K3 that costs {margin:g}": _tolerated(curve, margin)})
    return pd.DataFrame(rows)


def _tolerated(curve: Curve, margin: float) -> str:
    if curve.level is None:
        return "too few doses"
    interval = curve.tolerated(margin)
    value, low, high = (f"above {curve.doses[-1]:.1e}" if np.isinf(end) else f"{end:.1e}" for end in interval)
    return f"{value} " + (f"({low} to {high})" if curve.few <= FEW else f"[{low} to {high}]")


def real(results: Results) -> pd.DataFrame:
    """The table of rewards in real precisions, beside those that the curves of synthetic noise have at the same K3.

    A row per policy and group of runs alike but for the seed, if there is a curve with their loss and correction.
    """
    fitted = [curve for curve in results.curves if curve.level is not None]
    rows = []
    for arm in precisions(results.dosed):
        beside = [curve for curve in fitted if (curve.family, curve.correction) == (arm.family, arm.correction)]
        if beside:
            row = {name: getattr(arm, name) for name in ("policy", "loss", "setting", "precision", "correction")}
            row |= {"K3": f"{arm.k3:.1e}", "persistence": arm.measured, "seeds": len(arm.responses)}
            row |= {"reward": f"{arm.responses.mean():.3f}"}
            rows.append(row | {f"curve of persistence {curve.persistence:g}": _read(curve, arm.k3) for curve in beside})
    return pd.DataFrame(rows)


def _read(curve: Curve, k3: float) -> str:
    value, low, high = curve.at(k3)
    return "–" if np.isnan(value) else f"{value:.3f} ({low:.3f} to {high:.3f})"
