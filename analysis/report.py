"""`faultline report SWEEP`: a sweep's results in words, figures and tables, as one HTML page, Markdown and CSV."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analysis import tables, verdicts
from analysis.caveats import count
from analysis.figures import FIGURES
from analysis.figures.style import PANEL, png
from analysis.frames import csv, markdown, plain, show, terminal
from analysis.load import load
from analysis.page import Section, page
from analysis.results import Results
from analysis.statistics.performance import HEALTHY
from analysis.statistics.predictors import HORIZON
from harness.arms import OPERATION
from harness.errors import UserError, printable
from harness.files import output_folder, write_file
from harness.progress import Progress

LISTED = 3
"""Maximum number of runs alike but for the seed for which the terminal lists each one."""
ROWS = 24
"""Maximum number of arms (runs alike but for the seed) for which the first figure has a row each; more would not fit."""
BEGIN, END = "<!-- begin: faultline report {} -->", "<!-- end: faultline report {} -->"
"""Lines in a Markdown file between which `--into` writes results. The braces stand for the sweep and the options given."""


def report(
    source: Path | str,
    out: Path | None = None,
    into: Path | None = None,
    seeds: Collection[int] = (),
    *,
    deployed: str | None = None,
    margin: float | None = None,
    trust: bool = False,
    pictures: bool = False,
) -> Path:
    """Write the report of a sweep, only of `seeds` if any are given, and print a table. Returns the path of report.html.

    report.html, its first figure as report.png, report.md, arms.csv, runs.csv and evaluations.csv go to `out`, by default the
    sweep's own folder. `into` is a Markdown file that gets the results between the lines BEGIN and END. deployed, trust: see
    `load`. margin: difference of mean reward within which arms (runs alike but for the seed) count as equivalent; None for no
    table of equivalence.
    pictures: whether to write every figure as figures/<name>.png too.
    """
    if margin is not None and not 0 < margin <= 1:
        raise UserError(f"--margin {margin:g}: give a number above 0 and at most 1")
    results = replace(load(source, seeds, deployed=deployed, trust=trust), margin=margin)
    out = out or results.folder
    if out is None:
        raise UserError(f"{source}: has no folder of its own; say where the report goes with --out FOLDER")
    answer = verdicts.answer(results)
    _print(results, answer)
    sections = _tables(results)
    out = output_folder(out)
    figures = _figures(results)
    if (first := figures[0].figure) is not None:
        write_file(out, "report.png", png(first))
    for part in figures if pictures else ():
        if part.figure is not None:
            write_file(out, f"figures/{part.name}.png", png(part.figure))
    write_file(out, "report.html", _page(results, answer, figures, sections, out))
    write_file(out, "report.md", _markdown(results, answer, sections))
    runs = results.runs.drop(columns=["onsets", "calm"]).join(results.measures)
    for name in sorted({name for onsets in results.runs.onsets for name in onsets}):
        runs[f"onset_{name}"] = [onsets.get(name) for onsets in results.runs.onsets]
    write_file(out, "arms.csv", csv(results.outcomes))
    write_file(out, "runs.csv", csv(runs, index=True))
    write_file(out, "evaluations.csv", csv(results.evaluations))
    if into is not None:
        chosen = {"seeds": ",".join(map(str, seeds)), "deployed": deployed, "margin": None if margin is None else f"{margin:g}"}
        command = " ".join([str(source), *(f"--{name} {value}" for name, value in chosen.items() if value)])
        insert(into, command, section(results, command, answer))
    return out / "report.html"


# --- what is shown -------------------------------------------------------------------------------------------------------


def _question(results: Results) -> tuple[str, str]:
    """The sweep's main question, as (the question, the name of the figure on the page's first screen)."""
    if results.control_only:
        rates = len({config["actor"]["lr"] for config in results.configs.values()})
        return "where is the control stable?", "frontier" if rates > 1 else _first(results)
    if len(results.arms) > PANEL:
        return "which loss and correction survive, against the control?", _first(results)
    return "does the rollout's precision matter, and does a correction help?", _first(results)


def _first(results: Results) -> str:
    return "ends" if len(results.arms) <= ROWS else "heatmaps"


def _tables(results: Results) -> list[Section]:
    """The tables of the report in their order, each with a note on how to read it."""
    probed = (
        f"Healthy runs reached a held-out reward of {HEALTHY} in at least one evaluation, a maximum over noisy values. "
        "K3 is the median over evaluations, ESS the minimum, |log ratio| the maximum."
    )
    pooled = (
        "Over the losses and settings that all rows have. The bootstrap draws runs within each of them. With n runs in each its "
        f"interval is too narrow by a factor of about √((n − 1)/n). {tables.INTERVALS}"
    )
    warned = (
        "Each threshold was chosen on the other seeds and is common to all losses. Sources of mismatch without a collapse are "
        f"left out. AUC: ranking of runs by whether they collapse within {HORIZON} steps."
    )
    optional = [
        Section("Mismatch of other precisions", probed, table=results.probes),
        Section("Last reward over losses and settings", pooled, table=tables.pooled(results)),
        Section("Reward by dose", tables.RESPONSE, table=tables.response(results)),
        Section("Real precisions on the curves", tables.REAL, table=tables.real(results)),
    ]
    if results.margin is not None:
        optional.append(Section("Claims of equivalence", tables.EQUIVALENCE, table=tables.equivalence(results, results.margin)))
    judged = f"Deployed as: {results.judged}."
    arms = Section("Arms", f"{tables.LISTED} {judged}", table=tables.runs(results))
    return [
        arms,
        *(section for section in optional if section.table is not None and len(section.table)),
        Section("Losses and corrections, in numbers", f"{tables.MATRIX} {judged}", table=tables.matrix(results)),
        Section("Outcomes", f"{tables.OUTCOMES} {judged}", table=tables.outcomes(results)),
        Section("Warnings", warned, table=tables.warnings(results)),
        Section("Causes", "Cause: the earliest warning in the 50 steps up to the onset.", table=results.causes),
        Section(
            "Other definitions of a collapse",
            "Runs that collapse by a drawdown alone: by the share δ of the way to chance, for m evaluations in a row.",
            table=tables.robustness(results),
        ),
        Section("Cost, in numbers", "Median seconds of a step; mean share of tokens.", table=results.costs),
    ]


def _figures(results: Results) -> list[Section]:
    """A section per figure, then one that lists the figures with nothing to show. The figure of the main question comes first."""
    first = _question(results)[1]
    drawn, progress = {}, Progress(len(FIGURES))
    for name in [first, *(name for name in FIGURES if name != first)]:
        drawn[name] = FIGURES[name].draw(results)
        progress.show(f"{len(drawn)} of {len(FIGURES)} figures")
    figures = [
        Section(FIGURES[name].title, FIGURES[name].explain(figure), figure=figure, anchor=name)
        for name, figure in drawn.items()
        if not isinstance(figure, str)
    ]
    reasons: dict[str, list[str]] = {}
    for name, reason in drawn.items():
        if isinstance(reason, str):
            reasons.setdefault(reason, []).append(FIGURES[name].title)
    empty = "; ".join(f"{', '.join(titles)} ({reason})" for reason, titles in reasons.items())
    return [*figures, Section("Figures not drawn", f"{empty}." if empty else "", anchor="not-drawn")]


def _page(results: Results, answer: list[str], figures: list[Section], sections: list[Section], out: Path) -> str:
    caveats, link = [], None
    if results.caveats:
        caveats = [Section("Caveats", items=results.caveats, anchor="caveats", warning=True)]
        link = "caveats", f"Caveats: {len(results.caveats)}."
    settings = Section("Shared settings", text=_settings(results))
    *figures, empty = figures
    shown = [*figures[:1], sections[0], *caveats, *figures[1:], *sections[1:], settings, *([empty] if empty.note else [])]
    title = f"{results.name}: {_question(results)[0]}"
    return page(title, answer, shown, verdicts.provenance(results), link, _runs(results, out), results.marks.arms)


def _runs(results: Results, out: Path) -> dict[str, dict[str, Any]]:
    """By run id, the data beside each run's curve on the page: arm, seed, folder, and config values in which runs differ."""
    rows = {}
    for run, flat in results.flat.items():
        settings = {key: json.dumps(value) for key, value in flat.items() if key not in results.shared}
        href = "" if results.folder is None else f"./{quote(os.path.relpath(results.folder / run, out))}/"
        rows[run] = {"arm": results.runs.arm[run], "seed": int(results.runs.seed[run]), "href": href, "settings": settings}
    return rows


def _settings(results: Results) -> str:
    kept = {key: value for key, value in results.shared.items() if key.partition(".")[0] not in OPERATION}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in kept.items())


def _markdown(results: Results, answer: list[str], sections: list[Section]) -> str:
    parts = [f"# {plain(results.name)}", _list(answer)]
    if results.caveats:
        parts += ["## Caveats", _list(results.caveats)]
    for part in sections:
        parts += [f"## {part.title}", part.note, *([markdown(part.table)] if part.table is not None else [])]
    parts += ["## Shared settings", f"```\n{_settings(results)}```", plain(verdicts.provenance(results))]
    return "\n\n".join(parts) + "\n"


def _list(sentences: list[str]) -> str:
    return "\n".join(f"- {plain(sentence)}" for sentence in sentences)


def _print(results: Results, answer: list[str]) -> None:
    """Print a table, then the answer and the caveats. The table lists each run if they are few, else outcomes over seeds."""
    few = results.runs.groupby("arm").size().max() <= LISTED and len(results.arms) <= PANEL
    table, note = (tables.runs(results), tables.LISTED) if few else (tables.matrix(results), tables.MATRIX)
    show(f"{results.name}. {note}", table)
    console = terminal()
    for sentence in [*answer, *results.caveats]:
        console.print(printable(sentence), markup=False, highlight=False)


# --- into another file ---------------------------------------------------------------------------------------------------


def section(results: Results, command: str, answer: list[str]) -> str:
    """The summary of a report as Markdown for a README: answer, matrix of outcomes, and provenance with the `command`."""
    caveats = [f"The report lists {count(len(results.caveats), 'caveat')}."] if results.caveats else []
    origin = f"Made by `faultline report {command} --into README.md`. {verdicts.provenance(results)}"
    return "\n\n".join([_list([*answer, *caveats]), markdown(tables.matrix(results)), f"{tables.MATRIX} {origin}"])


def insert(path: Path, command: str, text: str) -> None:
    """Replace the text between the lines BEGIN and END of `command` in a Markdown file. Raises UserError if one is missing."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    begin, end = BEGIN.format(command), END.format(command)
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise UserError(f"{path}: needs the line {begin} once and after it the line {end} once; the results go between them")
    head, tail = before[: before.index(begin) + len(begin)], before[before.index(end) :]
    path = path.resolve()  # so that a symbolic link is kept
    write_file(path.parent, path.name, f"{head}\n{text}\n{tail}")
