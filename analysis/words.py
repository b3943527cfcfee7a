"""What a sweep says, in sentences, each with its count and its uncertainty; and the tables as people read them."""

from __future__ import annotations

import pandas as pd

from analysis import survival, tables
from analysis.load import Sweep
from analysis.performance import HEALTHY, rewards
from analysis.problems import version
from harness.arms import shared

MATRIX = (
    "Each cell: collapsed of ended runs; mean of their last held-out rewards (the least to the most); its difference from the "
    "control of the same loss, over shared seeds (a correction is tested against the uncorrected arm)."
)
QUESTIONS = {
    "precision": "Precision (uncorrected arms against the control of the same loss)",
    "correction": "Correction (corrected arms against uncorrected ones)",
}
SETTINGS = {
    "task.name": "task {}",
    "task.length": "length {}",
    "loss.name": "loss {}",
    "steps": "{} RL steps",
    "rollout.prompts": "{} prompts a step",
    "rollout.group_size": "{} responses a prompt",
    "actor.num_minibatches": "{} mini-batches",
    "actor.lr": "learning rate {:g}",
    "rollout.staleness": "staleness {}",
}
"""What a reader must know of all runs, where they share it; the settings at the page's end have the rest."""
TESTS = (("collapses", "exact p", "Holm p"), ("last rewards", "reward p", "reward Holm p"))
"""What is compared, and its columns of tables.outcomes."""
RANKED = 10
"""Collapses from which on diagnostics are ranked in words: the best of several at a handful is chance."""
LISTED = 5
"""Of what a sentence lists, the most; the tables have the rest."""


def answer(sweep: Sweep, table: pd.DataFrame, warned: pd.DataFrame) -> list[str]:
    """The answer to "does the rollout's precision matter, and does a correction help?"; `table` from tables.outcomes, `warned`
    from tables.warnings."""
    runs = sweep.runs[sweep.runs.outcome != "unfinished"]
    left = len(sweep.runs) - len(runs)
    more = f"; {left} more {'has' if left == 1 else 'have'} not ended, counted in no share" if left else ""
    hit = runs.arm[runs.event].nunique()
    said = [f"{runs.event.sum()} of {len(runs)} runs collapsed, in {hit} of {runs.arm.nunique()} arms{more}."]
    said += [_edge(sweep)] if control_only(sweep) else [*_verdicts(table), _control(sweep)]
    for source, part in runs[~runs.control].groupby("source", sort=False):
        plain, corrected = part[part.correction == "none"], part[part.correction != "none"]
        said += [f"Uncorrected {source} rollouts: {_share(plain)} collapsed{_where(plain)}."] if len(plain) else []
        parts = [f"{name} {len(p[p.event])} of {len(p)}{_where(p)}" for name, p in corrected.groupby("correction", sort=False)]
        said += [f"Collapsed with a correction under {source}: {'; '.join(parts)}."] if parts else []
    said += [_possible(runs)]
    if len(never := runs.arm[runs.outcome == "never learned"]):
        arms = [f"{arm} {number}" for arm, number in never.value_counts(sort=False).items()]
        told = f"{len(never)} of {len(runs)} runs ({_listed(arms)})"
        said.append(f"Never learned, which is another outcome than a collapse: {told}.")
    said += [_definitions(sweep)] if runs.event.any() else []
    said += [_warned(warned)] if len(warned) and warned.detected.notna().any() else []
    return [sentence for sentence in said if sentence]


def control_only(sweep: Sweep) -> bool:
    """Whether the sweep maps the control alone, over settings: it then answers where that is stable."""
    return bool(sweep.runs.control.all()) and sweep.runs.arm.nunique() > 1


def _edge(sweep: Sweep) -> str:
    runs = sweep.runs[sweep.runs.outcome != "unfinished"]
    best = rewards(runs, sweep.steps).best >= HEALTHY
    arms = pd.DataFrame({"reached": best.groupby(runs.arm).mean(), "collapsed": runs.event.groupby(runs.arm).any()})
    every, none = int((arms.reached == 1).sum()), int((arms.reached == 0).sum())
    seeds = runs.groupby("arm").size()
    each = _count(seeds.min(), "seed") if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()} seeds"
    return (
        f"The control alone, without mismatch but for staleness where that is set: of {_count(len(arms), 'setting')} with a run "
        f"that has ended ({each} each), every seed reached a held-out reward of {HEALTHY} in at least one evaluation in {every}, "
        f"some in {len(arms) - every - none} and none in {none}; at least one collapsed in {arms.collapsed.sum()}."
    )


def _share(runs: pd.DataFrame) -> str:
    """With its interval, of one arm alone: runs of several losses or settings are not draws of one share."""
    share = survival.fraction(runs.event.sum(), len(runs))
    band = f" (95 % interval {share.lower:.0%} to {share.upper:.0%})" if runs.arm.nunique() == 1 else ""
    return f"{runs.event.sum()} of {len(runs)}{band}"


def _where(runs: pd.DataFrame) -> str:
    """In which losses and settings, where there are several."""
    place = (runs.loss + " " + runs.setting).str.strip()
    if place.nunique() < 2 or not runs.event.any():
        return ""
    found = [f"{name} {part.sum()} of {len(part)}" for name, part in runs.event.groupby(place, sort=False) if part.any()]
    return f" ({_listed(found)})"


def _count(number: float, noun: str) -> str:
    return f"{number:.0f} {noun}{'' if number == 1 else 's'}"


def _listed(parts: list[str], between: str = ", ") -> str:
    return between.join([*parts[:LISTED], *([f"and {len(parts) - LISTED} more"] if len(parts) > LISTED else [])])


def _possible(runs: pd.DataFrame) -> str:
    """What an arm without a collapse leaves open, where the shares above are of several losses or settings, without interval."""
    arms = runs.groupby("arm").event.agg(["sum", "size"])
    fewest = arms["size"][arms["sum"] == 0].min()
    if pd.isna(fewest) or len(runs[["loss", "setting"]].drop_duplicates()) < 2:
        return ""
    upper = survival.fraction(0, int(fewest)).upper
    seen = _count(fewest, "run")
    return f"No collapse in {seen} of an arm, the fewest here, leaves open that up to {upper:.0%} would (95 % interval)."


def _control(sweep: Sweep) -> str:
    control = sweep.runs[sweep.runs.control & (sweep.runs.outcome != "unfinished")]
    if control.empty:
        what = "no finished control, with rollouts in the trainer's own precision"
        return f"There is {what}, in the sweep, so nothing here can be put down to the mismatch."
    name = " and ".join(control.precision.unique())
    if control.event.any():
        share = f"{_share(control)} runs{_where(control)}"
        which = "there" if _where(control) else "here"
        return f"The {name} control collapsed too, in {share}: {which} a collapse is not the mismatch's doing alone."
    best = rewards(control, sweep.steps).best
    reached = int((best >= HEALTHY).sum())
    seen = f"{reached} of them reached a held-out reward of {HEALTHY} in at least one evaluation"
    return f"The {name} control never collapsed in {_count(len(control), 'run')}; {seen}."


def _verdicts(table: pd.DataFrame) -> list[str]:
    """A sentence per question: which comparisons hold after Holm's correction over those of that question, or why none can."""
    said = []
    for question, title in QUESTIONS.items():
        rows = table[table.question == question]
        parts = [part for test in TESTS for part in [_tested(rows, *test)] if part]
        said += [f"{title}: {'; '.join(parts)}."] if parts else []
    return said


def _tested(rows: pd.DataFrame, what: str, p: str, holm: str) -> str:
    known = rows[rows[p].notna()]
    if known.empty:
        return ""
    times, held = _count(len(known), "comparison"), known[known[holm] <= tables.SIGNIFICANT].sort_values(holm)
    if len(held):
        shown = [
            f"{row['arm']} {_gained(row, p)} on {row['reference']}, Holm p = {row[holm]:.2g}" for row in held.to_dict("records")
        ]
        return f"{what} told from chance in {len(held)} of {times} ({_listed(shown, '; ')})"
    most = known.loc[known["least p"].idxmin()]
    if most["least p"] * len(known) > tables.SIGNIFICANT:
        least = f"{_count(most.known, 'seed')}: p ≥ {most['least p']:.2g}, times {times}"
        return f"{what} could not have been told from chance ({least})"
    return f"{what} not told from chance (least Holm p of {times}: {known[holm].min():.2g})"


def _gained(row: dict, p: str) -> str:
    if p == "reward p":
        return f"{row['reward gained']:+.3f}" if pd.notna(row.get("reward gained")) else "apart"
    spread = f" ({row['gained low']:+.0f} to {row['gained high']:+.0f})" if pd.notna(row["gained low"]) else ""
    never = f" ({row['never learned']} of its runs never learned)" if row["never learned"] else ""
    return f"{row['steps gained']:+.0f} steps without collapse{spread}{never}"


def _definitions(sweep: Sweep) -> str:
    """How many collapses other definitions of a drawdown would have counted."""
    grid = tables.robustness(sweep)
    counts = grid.sum(min_count=1).dropna()
    if counts.empty:
        return ""
    control = grid.loc[sorted(sweep.runs.arm[sweep.runs.control].unique())].sum()
    of = f", {_between(control)} of them in the control" if sweep.runs.control.any() else ""
    by = int((sweep.runs.detector[sweep.runs.event] == "drawdown").sum())
    return (
        f"{by} of these collapses {'is' if by == 1 else 'are'} dated by a drawdown of the reward; {len(counts)} definitions of "
        f"drawdown count {_between(counts)} runs{of}."
    )


def _between(counts: pd.Series) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low} to {high}" if low < high else str(low or "none")


def _warned(table: pd.DataFrame) -> str:
    if (collapses := int(table["collapsed runs"].max())) < RANKED:
        few = "1 collapse is" if collapses == 1 else f"{collapses} collapses are"
        return f"{few} too few to say which diagnostic warns best; the table has what each saw."
    skill = table.detected - table["false alarms"]
    if not skill.max() > 0:
        return "No diagnostic saw collapses more often than it alarmed for nothing (thresholds chosen on the other seeds)."
    best = table.loc[skill.idxmax()]
    seen = survival.fraction(round(best.detected * best["collapsed runs"]), int(best["collapsed runs"]))
    alarms = round(best["false alarms"] * best["other runs"])
    return (
        f"Of {len(table)} diagnostics, {best.diagnostic} warned best in these runs: it saw {seen.value:.0%} of "
        f"{best['collapsed runs']} collapses (95 % interval {seen.lower:.0%} to {seen.upper:.0%}), at the median "
        f"{best['median lead (steps)']:.0f} RL steps ahead, with false alarms in {alarms} of {best['other runs']} other runs "
        "of the same sources of mismatch (threshold chosen on the other seeds)."
    )


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """tables.outcomes with estimates and intervals in one cell."""

    def cell(row: dict, value: str, stem: str, form: str, seeds: str = "known") -> str:
        if pd.isna(row.get(value)):
            return "–"
        if pd.isna(row[f"{stem} low"]):
            return f"{row[value]:{form}} (no spread)"
        ends = [format(row[f"{stem} {end}"], form) for end in ("low", "high")]
        return f"{row[value]:{form}} " + (f"({' to '.join(ends)})" if row[seeds] <= survival.FEW else f"[{', '.join(ends)}]")

    rows = []
    for row in table.to_dict("records"):
        outcome = {
            "arm": row["arm"],
            "collapsed": f"{row['collapsed']}/{row['known']}"
            + (f" [{row['share low']:.0%}, {row['share high']:.0%}]" if row["known"] else ""),
            "never learned": row["never learned"] or "",
            "not ended": row["unfinished"] or "",
            f"RMST to {row['τ (steps)']:.0f} (steps)": f"{row['RMST (steps)']:.0f}" if row["known"] else "–",
            "steps gained on": row["reference"] or "–",
            "steps gained": cell(row, "steps gained", "gained", "+.0f"),
            "exact p, Holm": f"{row['exact p']:.2g}, {row['Holm p']:.2g}" if pd.notna(row["exact p"]) else "–",
            "final reward, IQM": cell(row, "final IQM", "IQM", ".3f"),
            "mean": cell(row, "final mean", "mean", ".3f"),
            "on reference, by seed; Holm's p of the means": cell(row, "reward gained", "reward", "+.3f", "shared seeds")
            + (f"; {row['reward Holm p']:.2g}" if pd.notna(row.get("reward Holm p")) else ""),
            "note": row["said"],
        }
        rows.append(outcome)
    return pd.DataFrame(rows)


def matrix(sweep: Sweep) -> pd.DataFrame:
    """tables.combinations with a cell per arm, as MATRIX says."""
    table = tables.combinations(sweep)
    cells: dict[str, dict[str, str]] = {place: {} for place in table.down}
    for found in table.to_dict("records"):
        never = f" ({found['never learned']} never learned)" if found["never learned"] else ""
        spread = f" ({found['least']:.2f} to {found['most']:.2f})" if found["known"] > 1 else ""
        last = f"; {found['mean']:.2f}{spread}" if pd.notna(found["mean"]) else ""
        apart = f"; {round(found['from control'], 2) + 0.0:+.2f}" if pd.notna(found["from control"]) else ""
        cells[found["down"]][found["across"]] = f"{found['collapsed']}/{found['known']}{never}{last}{apart}"
    return pd.DataFrame.from_dict(cells, orient="index").rename_axis("").reset_index().fillna("–")


def setting(sweep: Sweep) -> str:
    """What every run did, of what they share."""
    values = shared(sweep.configs.values())
    known = [text.format(values[key]) for key, text in SETTINGS.items() if key in values]
    return f"Every run: {', '.join(known)}." if known else ""


def provenance(sweep: Sweep) -> str:
    """What every run did; code, versions and machines of the runs."""
    processes = [process for processes in sweep.provenance.values() for process in processes]
    if not processes:
        return "No run has recorded where it was made."
    commits = sorted({version(process) for process in processes})
    machines = sorted({f"{p['host']}, {p['device']}, {p['platform']}, torch {p['packages']['torch']}" for p in processes})
    return f"{setting(sweep)} Commit {' and '.join(commits)}; {'; '.join(machines)}.".strip()
