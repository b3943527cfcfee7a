"""What a sweep says, in sentences, each with its count and its uncertainty; and the tables as people read them."""

from __future__ import annotations

import pandas as pd

from analysis import survival, tables
from analysis.load import Sweep
from analysis.performance import rewards
from analysis.problems import version

HEALTHY = 0.95
"""Held-out reward that a healthy run reaches on a perfectible task."""


def answer(sweep: Sweep, table: pd.DataFrame, warned: pd.DataFrame) -> list[str]:
    """The answer to "does the rollout's precision matter, and does a correction help?"; `table` from tables.outcomes, `warned`
    from tables.warnings."""
    runs = sweep.runs
    said = [f"{runs.event.sum()} of {len(runs)} runs in {runs.arm.nunique()} arms collapsed."]
    said += [_control(sweep)]
    for precision, plain in runs[(runs.correction == "none") & (runs.precision != tables.CONTROL)].groupby(
        "precision", sort=False
    ):
        said.append(f"Uncorrected {precision} rollouts: {_share(plain)} collapsed.")
        corrected = runs[(runs.precision == precision) & (runs.correction != "none")]
        parts = [f"{name} {_share(part, interval=False)}" for name, part in corrected.groupby("correction", sort=False)]
        said += [f"With a correction under {precision}: {'; '.join(parts)}."] if parts else []
    said.append(_order(table))
    never = int((runs.outcome == "never learned").sum())
    said += [f"Never learned, which is another outcome than a collapse: {never} of {len(runs)} runs."] if never else []
    said += [_warned(warned)] if len(warned) and warned.detected.notna().any() else []
    return [sentence for sentence in said if sentence]


def _share(runs: pd.DataFrame, interval: bool = True) -> str:
    share = survival.fraction(runs.event.sum(), len(runs))
    band = f" (95 % interval {share.lower:.0%} to {share.upper:.0%})" if interval else ""
    return f"{runs.event.sum()} of {len(runs)}{band}"


def _control(sweep: Sweep) -> str:
    control = sweep.runs[(sweep.runs.precision == tables.CONTROL) & (sweep.runs.correction == "none")]
    if control.empty:
        return "There is no fp32 control in the sweep, so nothing here can be put down to the mismatch."
    if control.event.any():
        return f"The fp32 control collapsed too, in {_share(control)} runs: here a collapse is not the mismatch's doing alone."
    best = rewards(control, sweep.steps).best
    reached = int((best >= HEALTHY).sum())
    return f"The fp32 control never collapsed in {len(control)} runs; {reached} of them reached a held-out reward of {HEALTHY}."


def _order(table: pd.DataFrame) -> str:
    """Which comparisons hold after Holm's correction, or why none can."""
    known = table[table.reference != ""]
    if known.empty:
        return ""
    held = known[known["Holm p"] <= tables.SIGNIFICANT].sort_values("Holm p")
    if len(held):
        parts = []
        for row in held.head(4).to_dict("records"):
            gained = f"{row['steps gained']:+.0f} steps of health ({row['gained low']:+.0f} to {row['gained high']:+.0f})"
            parts.append(f"{row['arm']} against {row['reference']} {gained}, Holm p = {row['Holm p']:.2g}")
        more = f", and {len(held) - 4} more" if len(held) > 4 else ""
        return f"Told from chance: {'; '.join(parts)}{more}."
    runs = int(known.runs.min())
    least = survival.smallest_p(runs, runs)
    why = f"with {runs} seeds an arm full separation gives p = {least:.2g}, times {len(known)} comparisons"
    return f"No difference between an arm and its reference is told from chance (Holm p > {tables.SIGNIFICANT}; {why}): " + (
        "too few seeds to carry an order, so read this as a description of these runs."
        if least * len(known) > tables.SIGNIFICANT
        else "what is seen may be chance."
    )


def _warned(table: pd.DataFrame) -> str:
    skill = table.detected - table["false alarms"]
    if not skill.max() > 0:
        return "No diagnostic saw collapses more often than it alarmed for nothing (thresholds chosen on the other seeds)."
    best = table.loc[skill.idxmax()]
    return (
        f"Of the diagnostics, {best.diagnostic} warned best: it saw {best.detected:.0%} of {best['collapsed runs']} collapses, "
        f"at the median {best['median lead (steps)']:.0f} steps ahead, with false alarms in {best['false alarms']:.0%} of "
        f"{best['other runs']} other runs (threshold chosen on the other seeds)."
    )


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """tables.outcomes with estimates and intervals in one cell."""

    def cell(row: dict, value: str, low: str, high: str, form: str) -> str:
        known = value in row and pd.notna(row[value])
        return f"{row[value]:{form}} [{row[low]:{form}}, {row[high]:{form}}]" if known else "–"

    rows = []
    for row in table.to_dict("records"):
        outcome = {
            "arm": row["arm"],
            "collapsed": f"{row['collapsed']}/{row['runs']} [{row['share low']:.0%}, {row['share high']:.0%}]",
            "never learned": row["never learned"] or "",
            "RMST (steps)": f"{row['RMST (steps)']:.0f}",
            "steps gained on": row["reference"] or "–",
            "steps gained": cell(row, "steps gained", "gained low", "gained high", "+.0f") if row["reference"] else "–",
            "exact p, Holm": f"{row['exact p']:.2g}, {row['Holm p']:.2g}" if pd.notna(row["exact p"]) else "–",
            "final reward, IQM": cell(row, "final IQM", "IQM low", "IQM high", ".3f"),
            "note": row["said"],
        }
        rows.append(outcome)
    return pd.DataFrame(rows)


def provenance(sweep: Sweep) -> str:
    """Code, versions and machines of the runs."""
    processes = [process for processes in sweep.provenance.values() for process in processes]
    if not processes:
        return "No run has recorded where it was made."
    commits = sorted({version(process) for process in processes})
    machines = sorted({f"{p['host']}, {p['device']}, {p['platform']}, torch {p['packages']['torch']}" for p in processes})
    return f"Commit {' and '.join(commits)}; {'; '.join(machines)}."
