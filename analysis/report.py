"""`faultline report SWEEP`: the answer in words, figures and tables, as one HTML page, Markdown and CSV."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis import tables, words
from analysis.figures import FIGURES
from analysis.figures.style import COLOURS
from analysis.load import Sweep, load
from analysis.page import page
from analysis.performance import HEALTHY
from harness.arms import OPERATION, shared
from harness.errors import UserError

LISTED = 3
"""Seeds an arm up to which the terminal lists each of them, of arms that are not too many."""
BEGIN, END = "<!-- begin: faultline report {} -->", "<!-- end: faultline report {} -->"
"""Lines of a Markdown file between which `--into` puts the results of that sweep and those seeds."""


def report(source: Path | str, out: Path | None = None, into: Path | None = None, seeds: Collection[int] = ()) -> Path:
    """Print the arm table of a sweep, of `seeds` only if any are given; write report.html, report.md, arms.csv, runs.csv and
    evaluations.csv to `out`, by default the sweep's own folder; put the results into the Markdown file `into`, between its two
    marks for them. Returns the page's path."""
    sweep = load(source, seeds)
    sweep = sweep._replace(problems=sweep.problems + tables.disagreements(sweep))
    if out is None and sweep.folder is None:
        raise UserError(f"{source}: has no folder of its own; say where the report goes with --out FOLDER")
    out = out or sweep.folder
    outcome, warned, arms = tables.outcomes(sweep), tables.warnings(sweep), tables.arms(sweep)
    answer = words.answer(sweep, outcome, warned)
    sections = _tables(sweep, outcome, warned, arms)
    few = sweep.runs.groupby("arm").size().max() <= LISTED and len(arms) <= len(COLOURS)
    _print(arms if few else words.matrix(sweep), "Each cell lists the seeds in order." if few else words.MATRIX, answer, sweep)
    out.mkdir(parents=True, exist_ok=True)
    rates = len({config["actor"]["lr"] for config in sweep.configs.values()})
    question = "does the rollout's precision matter, and does a correction help?"
    first = "survival" if sweep.runs.event.any() else "reward"  # without a collapse every survival curve is a flat line
    if sweep.runs.arm.nunique() > len(COLOURS):  # more than curves can tell apart at a glance
        question, first = "which loss and correction survive, against the control?", "heatmaps"
    if words.control_only(sweep):
        question, first = "where is the control stable?", "frontier" if rates > 1 else first
    names = [first, *(name for name in FIGURES if name != first)]
    drawn = {name: FIGURES[name].draw(sweep) for name in names}
    target = out / "report.html"
    target.write_text(
        page(f"{sweep.name}: {question}", answer, sweep.problems, drawn, sections, _settings(sweep), words.provenance(sweep)),
        encoding="utf-8",
    )
    (out / "report.md").write_text(_markdown(sweep, answer, sections), encoding="utf-8")
    outcome.to_csv(out / "arms.csv", index=False)
    sweep.runs.drop(columns="onsets").join(tables.measures(sweep)).assign(**_onsets(sweep)).to_csv(out / "runs.csv")
    tables.evaluations(sweep).to_csv(out / "evaluations.csv", index=False)
    if into is not None:
        asked = f"{source} --seeds {','.join(map(str, seeds))}" if seeds else str(source)
        insert(into, asked, section(sweep, asked, answer))
    return target


def _tables(sweep: Sweep, outcome: pd.DataFrame, warned: pd.DataFrame, arms: pd.DataFrame) -> dict[str, tuple[str, pd.DataFrame]]:
    """Title -> (how to read it, table)."""
    grid = tables.robustness(sweep).rename_axis("arm").reset_index()
    probed, pooled = tables.probes(sweep, HEALTHY), tables.pooled(sweep)
    reading = f"Runs of which at least one evaluation reached {HEALTHY}: a maximum over noisy evaluations, so it flatters. "
    reading += "K3 median, ESS and |log ratio| the worst, over evaluations."
    more = {"What mismatch other precisions would have had": (reading, probed)} if len(probed) else {}
    reading = "Last reward over the losses and settings that all rows have, with a bootstrap that draws runs within each; "
    reading += "of n runs in each it is too narrow, about √((n − 1)/n) of what it should be."
    last = {"Reward over losses and settings": (reading, pooled)} if len(pooled) else {}
    return more | {
        "Losses and corrections": (words.MATRIX, words.matrix(sweep)),
        "Outcomes": (
            "Collapsed of the ended runs with Clopper-Pearson's interval; RMST up to a horizon common to all arms; steps gained "
            "on the reference arm with a bootstrap over seeds, paired where both have the same; exact log-rank p and Holm's; "
            "last reward: interquartile mean, mean, and mean difference from the reference arm over the seeds that both have, "
            "with Holm's p of the exact permutation test of the means. Holm's correction is over the comparisons of one "
            "question: uncorrected arms against the control, corrected ones against uncorrected ones. Bootstraps in brackets "
            "are of 95 %; of up to five seeds they stand in parentheses, as an interval "
            "within the range of n values covers at most 1 − 2^(1−n) of the time: 75 % of three.",
            words.readable(outcome),
        ),
        **last,
        "Every run": ("Each cell lists the seeds in order. K3 is the median over steps up to a collapse, ESS the lowest.", arms),
        "What warned": (
            "Threshold chosen on the other seeds, common to all losses; sources of mismatch without a collapse are left out.",
            warned,
        ),
        "What was seen before a collapse": ("Cause: the earliest warning in the 50 steps up to the onset.", tables.causes(sweep)),
        "How the count depends on the definition": (
            "Runs that collapse by D1 alone: a drawdown by the share δ of the way to chance, for m evaluations in a row.",
            grid,
        ),
        "Cost": ("Median seconds of a step; mean share of tokens.", tables.costs(sweep)),
    }


def _onsets(sweep: Sweep) -> dict[str, pd.Series]:
    names = sorted({name for onsets in sweep.runs.onsets for name in onsets})
    return {f"onset {name}": sweep.runs.onsets.map(lambda onsets, name=name: onsets.get(name)) for name in names}


def _settings(sweep: Sweep) -> str:
    values = shared(sweep.configs.values())
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items() if key.partition(".")[0] not in OPERATION)


def _markdown(sweep: Sweep, answer: list[str], sections: dict[str, tuple[str, pd.DataFrame]]) -> str:
    parts = [f"# {sweep.name}", "\n".join(f"- {sentence}" for sentence in answer)]
    if sweep.problems:
        parts += ["## What failed, and what is uneven", "\n".join(f"- {problem}" for problem in sweep.problems)]
    for title, (reading, table) in sections.items():
        parts += [f"## {title}", reading, _table(table)]
    parts += ["## Settings that all runs share", f"```\n{_settings(sweep)}```", words.provenance(sweep)]
    return "\n\n".join(parts) + "\n"


def _table(table: pd.DataFrame) -> str:
    if table.empty:
        return "Nothing to list."
    told = table.rename(columns=_escaped).astype(object).map(_escaped)
    return told.where(told.notna(), None).to_markdown(index=False, floatfmt=".3g", missingval="–")


def _escaped(cell: object) -> object:
    return cell.replace("|", r"\|") if isinstance(cell, str) else cell


def section(sweep: Sweep, asked: str, answer: list[str]) -> str:
    """The results as a part of a README, a screen long: answer, table of loss x correction, and of what sweep and seeds."""
    told = [f"Uneven or failed: {len(sweep.problems)}, named in the report."] if sweep.problems else []
    origin = f"Made by `faultline report {asked} --into README.md`. {words.provenance(sweep)}"
    return "\n\n".join(
        ["\n".join(f"- {sentence}" for sentence in [*answer, *told]), _table(words.matrix(sweep)), f"{words.MATRIX} {origin}"]
    )


def insert(path: Path, asked: str, text: str) -> None:
    """Replace what stands between the marks of these results in a Markdown file. Raises UserError when they are not there."""
    before, begin, end = path.read_text(encoding="utf-8") if path.exists() else "", BEGIN.format(asked), END.format(asked)
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise UserError(f"{path}: needs the line {begin} once and after it the line {end} once; the results go between them")
    head, tail = before[: before.index(begin) + len(begin)], before[before.index(end) :]
    path.write_text(f"{head}\n{text}\n{tail}", encoding="utf-8")


def _print(table: pd.DataFrame, reading: str, answer: list[str], sweep: Sweep) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=170)
    shown = Table(title=f"{sweep.name}. {reading}", title_justify="left")
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.itertuples(index=False):
        shown.add_row(*map(str, row))
    console.print(shown)
    for sentence in [*answer, *sweep.problems]:
        console.print(sentence, markup=False, highlight=False)
