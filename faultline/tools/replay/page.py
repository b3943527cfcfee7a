"""The files that `faultline replay` writes: tables, one HTML page with figures, and CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from algos.diagnostics.pairs import Mean
from analysis.figures.style import literal, png, series, subplots
from analysis.frames import csv
from analysis.page import Section, page
from faultline.tools.replay.collect import Replayed
from faultline.tools.replay.figure import presets_figure, ratio_figure
from faultline.tools.replay.scales import SCALES
from faultline.tools.replay.terminal import (
    deployed,
    diagnosis_lines,
    first_line,
    gate_lines,
    headline,
    pastes,
    reasons,
    starved,
)
from faultline.tools.replay.verdict import PresetEffect, Verdict, with_null
from harness.files import output_folder, write_file

BOUNDS = (1.001, 1.01, 1.1, 1.5, 2.0, 5.0)
"""Bounds C that are columns of the page's table of ESS and kept tokens; the CSV file has all of them."""
CURVES = ("truncate-token", "mask-token", "truncate-sequence", "mask-sequence", "reject-geometric", "reject-worst_token")
"""Kinds of correction whose ESS and kept tokens are drawn over the bound C in the page's figure."""
IDENTITY = (
    "Mean ratio π_old/μ by place in the response, with two standard errors over prompts. It is 1 wherever μ sampled the tokens, "
    "whatever the precision, the staleness and the size of the mismatch. docs/diagnosis.md says what else is asked."
)
PARTS = (
    "At: last place of a bin, upper end of a bin of log μ, number of the turn or of the weights' version. The mean is 1 in "
    "each part known before a token is drawn. By log μ it rises or falls from bin to bin where the temperatures differ."
)
LEAVES = (
    "Left, full bar: effective sample size (ESS), 100 % if nothing is dropped and all weights are equal; the number repeats it. "
    "Pale bar: share of tokens with a weight above 0. Right: squared cosine of the weights and the exact ones, the ratios of "
    "whole responses. Exact weights would have 100 % there, and the agreement of no correction as their ESS. Presets with equal "
    "settings share a row."
)
BY_AGE = "Mismatch by age of the weights"


def summary(replayed: Replayed) -> list[str]:
    """Return lines of text on a dump: its size and its mismatch."""
    m, skipped = replayed.mismatch, f"; {replayed.bad} bad rows left out" if replayed.bad else ""
    batches = f"{replayed.batches:,} batch{'es' * (replayed.batches > 1)}"
    return [
        f"{replayed.tokens:,} tokens, {replayed.responses:,} responses, {batches}{skipped}",
        f"K1 {m['rollout_corr/kl']:.2e}, K3 {m['rollout_corr/k3_kl']:.2e} nats per token; "
        f"χ² token {m['rollout_corr/chi2_token']:.2e}, sequence {m['rollout_corr/chi2_seq']:.2e}; "
        f"ESS token {m['mismatch/ess_token']:.4f}, sequence {m['mismatch/ess_sequence']:.4f}; "
        f"largest |log ρ| {m['mismatch/log_ratio_max_abs']:.3g} nats; Pareto k of sequences {m['mismatch/pareto_k']:.2f}",
    ]


def corrections_table(replayed: Replayed, null: Replayed | None) -> pd.DataFrame:
    """Format the table of corrections; those of equal effect share a row. null: a dump without mismatch, for false rejections."""
    rows, others = [], {first: ", ".join(names) for first, *names in replayed.groups}
    for row in with_null(replayed, null).to_dict("records"):
        if row["correction"] not in others:
            continue
        shown = {
            "correction": row["correction"],
            "tokens kept": f"{row['effect/kept_tokens']:.4f}",
            "sequences kept": f"{row['effect/kept_sequences']:.4f}",
            "ESS": f"{row['effect/ess']:.4f}",
            "mean weight": f"{row['effect/weight_mean']:.4f}",
            "largest weight": f"{row['effect/weight_max']:.3g}",
            "agreement": f"{row['effect/agreement']:.4f}",
        }
        shown |= {"false rejections": f"{row['false_rejections']:.2e}"} if null is not None else {}
        rows.append(shown | {"same settings": others[row["correction"]]})
    return pd.DataFrame(rows)


def grid_table(replayed: Replayed, bounds: tuple[float, ...] = BOUNDS) -> pd.DataFrame:
    """Table with a row per kind of correction and a column per bound C. A cell: share of tokens kept, ESS."""
    rows = []
    for family, part in replayed.thresholds.table().groupby("family", sort=False):
        at = part.set_index("c").loc[list(bounds)]
        cells = {f"C = {c:g}": f"{row.kept_tokens:.3f}  {row.ess:.3f}" for c, row in at.iterrows()}
        rows.append({"family": family, **cells})
    return pd.DataFrame(rows)


def advice_table(advice: pd.DataFrame) -> pd.DataFrame:
    """Format the table of proposed bounds: a row per kind of correction, with interval and verdict."""
    formats = {"tokens kept": ".4f", "ESS": ".4f", "false rejections": ".2e"}
    number = lambda form: lambda value: "–" if pd.isna(value) else format(value, form)  # noqa: E731
    shown = advice.copy()
    for name in advice.columns.drop(["family", "verdict"]):
        shown[name] = advice[name].map(number(formats.get(name, ".5g")))
    return shown.rename(columns={"low": "C 2.5 %", "high": "C 97.5 %"})


def scales_table(k3: float) -> pd.DataFrame:
    """Table of the K3 of published runs, with `k3`, that of a dump, among them."""
    rows = [(scale.low, str(scale), scale.what, scale.source) for scale in SCALES]
    rows.append((k3, f"{k3:.1e}", "this dump", ""))
    return pd.DataFrame([row[1:] for row in sorted(rows)], columns=["K3, nats per token", "of", "source"])


def parts_table(verdict: Verdict) -> pd.DataFrame:
    """Table of the mean of π_old/μ in each part of the dump's tokens."""
    rows = [
        {
            "by": part.by,
            "at": f"{part.at:g}",
            "mean": f"{part.mean:.4f}",
            "error": "–" if part.error is None else f"{part.error:.4f}",
        }
        for part in verdict.diagnosis.mean_ratio_by
    ]
    return pd.DataFrame(rows, columns=["by", "at", "mean", "error"])


def write(
    folder: Path,
    verdict: Verdict,
    compared: dict[str, list[PresetEffect]],
    replayed: Replayed,
    null: Replayed | None,
    advice: pd.DataFrame,
    by_place: list[Mean],
) -> Verdict:
    """Write the page and CSV files. Returns the verdict with the page's path. Raises UserError if `folder` is a link.

    compared: name of a dump in the figure -> effect of each preset on it. by_place: mean of π_old/μ by token position.
    """
    folder = output_folder(folder)
    tables = {
        "corrections": with_null(replayed, null),
        "profiles": replayed.profiles,
        "thresholds": replayed.thresholds.table(),
        "advice": advice,
    }
    if len(replayed.versions):
        tables["versions"] = replayed.versions
    if null is not None:
        tables["null_thresholds"] = null.thresholds.table()
    for name, table in tables.items():
        write_file(folder, f"{name}.csv", csv(table))
    figure = presets_figure(compared, replayed.groups)
    write_file(folder, "replay.png", png(figure, dpi=130))
    write_file(folder, "replay.html", _page(verdict, figure, replayed, null, advice, by_place))
    return verdict.model_copy(update={"page": str((folder / "replay.html").resolve())})


def _page(
    verdict: Verdict,
    figure: Figure,
    replayed: Replayed,
    null: Replayed | None,
    advice: pd.DataFrame,
    by_place: list[Mean],
) -> str:
    control = " Dashed: the null, a dump of the control." if null is not None else ""
    skipped = [f"{correction} was not replayed: {why}" for correction, why in replayed.skipped.items()]
    settings = [Section("Settings", text=_settings(by_framework)) for by_framework in pastes(verdict)]
    behind = "Behind: optimizer steps between the weights that sampled a token and the newest of its batch."
    ages = [Section(BY_AGE, behind, table=replayed.versions)] if len(replayed.versions) > 1 else []
    presets = Section("What each preset leaves", LEAVES, figure=figure)
    identity = Section("Are the logged numbers the sampler's?", IDENTITY, figure=ratio_figure(by_place))
    found = verdict.diagnosis
    checks = (
        [Section("What to check", table=pd.DataFrame(found.check.items(), columns=["in", "set, or look at"]))]
        if found.check
        else []
    )
    sections = [
        *([presets, *settings, identity] if found.consistent else [*checks, identity, presets]),
        Section("How large the mismatch is", table=scales_table(verdict.mismatch.k3), wrapped=False),
        Section("What this dump cannot show", items=verdict.limitations),
        *ages,
        Section("The mean ratio by place, log μ, turn and version", PARTS, table=parts_table(verdict), wrapped=False),
        Section("Proposed bounds", table=advice_table(advice), wrapped=False),
        Section("Presets", table=corrections_table(replayed, null), items=skipped, wrapped=False),
        Section(
            "Every threshold",
            "C is the bound: a filter keeps ratios in [1/C, C], a truncation caps them at C. Kept: share of tokens with an "
            "effective weight above 0. ESS: of the effective weights over all tokens. Agreement with the exact sequence weight: "
            f"(Σ g·R)²/(Σ g²·Σ R²).{control}",
            figure=_curves(replayed, null),
        ),
        Section(
            "Weight by position and length",
            "Mean effective gradient weight by position of the token and by length of the response, in powers of two.",
            figure=_profiles(replayed),
        ),
        Section("Grid", "Each cell: share of tokens kept, ESS.", table=grid_table(replayed), wrapped=False),
    ]
    why = [*reasons(verdict), *starved(verdict)]
    told = [headline(verdict), *(f"{chosen}. {measured}" for chosen, measured in deployed(verdict)), *why]
    first = [*told, *diagnosis_lines(found)] if found.consistent and not found.copied else [first_line(found), *told]
    answer = [*first, *gate_lines(verdict), *summary(replayed)]
    asked = "is a correction needed, and which?" if found.consistent else "what is wrong with its log-probabilities?"
    return page(f"{verdict.dump.name}: {asked}", answer, sections)


def _settings(by_framework: dict[str, list[str]]) -> str:
    """Format settings of a correction, a block for each of verl, SkyRL, TRL and Faultline that can be copied and pasted."""
    blocks = ["\n".join([f"# {name}", *lines]) for name, lines in by_framework.items()]
    return "\n\n".join(blocks)


def _settled(table: pd.DataFrame, metrics: list[str]) -> float:
    """Largest log C to draw: 1.5 times the last at which a curve is more than 0.001 from its end, and at least log 2."""
    last = table.groupby("family")[metrics].transform("last")
    moving = ((table[metrics] - last).abs() > 1e-3).any(axis=1)
    return max(1.5 * np.log(table.c[moving].max()) if moving.any() else 0.0, np.log(2.0))


def _curves(replayed: Replayed, null: Replayed | None) -> Figure:
    metrics = {"kept_tokens": "share of tokens kept", "ess": "ESS", "agreement": "agreement"}
    tables = [(data.thresholds.table(), style) for data, style in ((replayed, "-"), (null, "--")) if data is not None]
    figure, axes = subplots(len(metrics), 1, 9.0, sharex=True)
    for axis, (metric, label) in zip(axes[:, 0], metrics.items(), strict=True):
        for table, style in tables:
            for i, family in enumerate(CURVES):
                part = table[table.family == family]
                axis.plot(np.log(part.c), part[metric], **series(i) | {"linestyle": style}, linewidth=1.3, label=family)
        axis.set_xscale("log")
        axis.set_ylabel(label)
        axis.set_ylim(-0.02, 1.02)
        axis.grid(alpha=0.25)
    end = max(_settled(table[table.family.isin(CURVES)], list(metrics)) for table, _ in tables)
    ticks = [t for t in np.log([1.0001, 1.001, 1.01, 1.1, 1.5, 2, 5, 20, 1e3, 1e6]) if t <= end]
    axes[-1, 0].set_xticks(ticks, [f"{np.exp(t):,.5g}" for t in ticks], rotation=45)
    axes[-1, 0].set_xlim(1e-5, end)
    axes[-1, 0].set_xlabel("bound C")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles[: len(CURVES)], labels[: len(CURVES)], loc="outside lower center", ncols=3)
    return figure


def _profiles(replayed: Replayed) -> Figure:
    own = [name for name in dict.fromkeys(replayed.profiles.correction) if "/" not in name] or list(
        replayed.corrections.correction
    )
    figure, (axes,) = subplots(1, 2, 3.6, sharey=True)
    for axis, by in zip(axes, ("position", "length"), strict=True):
        for i, name in enumerate(own):
            part = replayed.profiles[(replayed.profiles.correction == name) & (replayed.profiles.by == by)]
            axis.plot(part.upto, part.weight, **series(i), marker=".", label=literal(name))
        axis.set_xscale("log", base=2)
        axis.set_xlabel("position up to" if by == "position" else "length up to")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("mean effective weight")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
