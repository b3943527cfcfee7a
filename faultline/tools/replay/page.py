"""What a replay shows: its tables, one HTML page with its figures, and CSV files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.style import COLOURS, subplots
from analysis.page import Section, page
from faultline.tools.replay.collect import Replayed

BOUNDS = (1.001, 1.01, 1.1, 1.5, 2.0, 5.0)
"""Bounds C of the grid that is printed; the CSV has all thresholds."""
CURVES = ("truncate-token", "mask-token", "truncate-sequence", "mask-sequence", "reject-geometric", "reject-worst_token")
"""Families in the figure."""


def summary(replayed: Replayed) -> list[str]:
    """The dump in two lines."""
    m, skipped = replayed.mismatch, f"; {replayed.bad} bad rows left out" if replayed.bad else ""
    return [
        f"{replayed.tokens:,} tokens, {replayed.responses:,} responses, {replayed.batches:,} batches{skipped}",
        f"K1 {m['rollout_corr/kl']:.2e}, K3 {m['rollout_corr/k3_kl']:.2e} nats per token; "
        f"χ² token {m['rollout_corr/chi2_token']:.2e}, sequence {m['rollout_corr/chi2_seq']:.2e}; "
        f"ESS token {m['mismatch/ess_token']:.4f}, sequence {m['mismatch/ess_sequence']:.4f}; "
        f"largest |log ρ| {m['mismatch/log_ratio_max_abs']:.3g} nats; Pareto k of sequences {m['mismatch/pareto_k']:.2f}",
    ]


def with_null(replayed: Replayed, null: Replayed | None) -> pd.DataFrame:
    """The corrections; with a null also false_rejections, the share of its tokens that each rejects (NaN: not replayed there)."""
    if null is None:
        return replayed.corrections
    kept = null.corrections.set_index("correction")["effect/kept_tokens"]
    return replayed.corrections.assign(false_rejections=1 - replayed.corrections.correction.map(kept))


def corrections_table(replayed: Replayed, null: Replayed | None) -> pd.DataFrame:
    """`with_null`, formatted."""
    rows = []
    for row in with_null(replayed, null).to_dict("records"):
        shown = {
            "correction": row["correction"],
            "tokens kept": f"{row['effect/kept_tokens']:.4f}",
            "sequences kept": f"{row['effect/kept_sequences']:.4f}",
            "ESS": f"{row['effect/ess']:.4f}",
            "mean weight": f"{row['effect/weight_mean']:.4f}",
            "largest weight": f"{row['effect/weight_max']:.3g}",
            "agreement": f"{row['effect/agreement']:.4f}",
        }
        rows.append(shown | ({"false rejections": f"{row['false_rejections']:.2e}"} if null is not None else {}))
    return pd.DataFrame(rows)


def grid_table(replayed: Replayed, bounds: tuple[float, ...] = BOUNDS) -> pd.DataFrame:
    """A row per family, a column per bound C: share of tokens kept, and ESS. Each bound is the nearest of the thresholds."""
    rows = []
    for family, part in replayed.thresholds.table().groupby("family", sort=False):
        near = [part.iloc[int(np.abs(np.log(part.c.to_numpy()) - np.log(c)).argmin())] for c in bounds]
        cells = {f"C = {c:g}": f"{row.kept_tokens:.3f}  {row.ess:.3f}" for c, row in zip(bounds, near, strict=True)}
        rows.append({"family": family, **cells})
    return pd.DataFrame(rows)


def advice_table(advice: pd.DataFrame) -> pd.DataFrame:
    """The proposals, formatted."""
    formats = {"tokens kept": ".4f", "ESS": ".4f", "false rejections": ".2e"}
    number = lambda form: lambda value: "–" if pd.isna(value) else format(value, form)  # noqa: E731
    shown = advice.copy()
    for name in advice.columns.drop(["family", "verdict"]):
        shown[name] = advice[name].map(number(formats.get(name, ".5g")))
    return shown.rename(columns={"low": "C 2.5 %", "high": "C 97.5 %"})


def write(folder: Path, name: str, replayed: Replayed, null: Replayed | None, advice: pd.DataFrame | None) -> Path:
    """Write replay.html and the CSV files into `folder`; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with_null(replayed, null).to_csv(folder / "corrections.csv", index=False)
    replayed.profiles.to_csv(folder / "profiles.csv", index=False)
    replayed.thresholds.table().to_csv(folder / "thresholds.csv", index=False)
    if null is not None:
        null.thresholds.table().to_csv(folder / "null_thresholds.csv", index=False)
    if advice is not None:
        advice.to_csv(folder / "advice.csv", index=False)
    target = folder / "replay.html"
    target.write_text(_page(name, replayed, null, advice), encoding="utf-8")
    return target


def _page(name: str, replayed: Replayed, null: Replayed | None, advice: pd.DataFrame | None) -> str:
    control = " Dashed: the null, a dump of the control." if null is not None else ""
    proposed = [Section("Proposed bounds", table=advice_table(advice), wrapped=False)] if advice is not None else []
    skipped = [f"{correction} was not replayed: {why}" for correction, why in replayed.skipped.items()]
    sections = [
        *proposed,
        Section(
            "Every threshold",
            "C is the bound: a filter keeps ratios in [1/C, C], a truncation caps them at C. Kept: share of tokens with an "
            "effective weight above 0. ESS: of the effective weights over all tokens. Agreement with the exact sequence weight: "
            f"(Σ g·R)²/(Σ g²·Σ R²).{control}",
            figure=_curves(replayed, null),
        ),
        Section("Presets", table=corrections_table(replayed, null), items=skipped, wrapped=False),
        Section(
            "Weight by position and length",
            "Mean effective gradient weight by position of the token and by length of the response, in powers of two.",
            figure=_profiles(replayed),
        ),
        Section("Grid", "Each cell: share of tokens kept, ESS.", table=grid_table(replayed), wrapped=False),
    ]
    return page(f"{name}: what each correction would have done", summary(replayed), sections)


def _settled(table: pd.DataFrame, metrics: list[str]) -> float:
    """log C from which on no curve moves any more, and at least log 2."""
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
                axis.plot(np.log(part.c), part[metric], color=COLOURS[i], linestyle=style, linewidth=1.3, label=family)
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
    figure.legend(handles[: len(CURVES)], labels[: len(CURVES)], loc="outside upper center", ncols=3, frameon=False)
    return figure


def _profiles(replayed: Replayed) -> Figure:
    own = [name for name in dict.fromkeys(replayed.profiles.correction) if "/" not in name] or list(
        replayed.corrections.correction
    )
    figure, (axes,) = subplots(1, 2, 3.6, sharey=True)
    for axis, by in zip(axes, ("position", "length"), strict=True):
        for i, name in enumerate(own):
            part = replayed.profiles[(replayed.profiles.correction == name) & (replayed.profiles.by == by)]
            style = ("-", "--", ":")[i // len(COLOURS) % 3]
            axis.plot(part.upto, part.weight, color=COLOURS[i % len(COLOURS)], linestyle=style, marker=".", label=name)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("position up to" if by == "position" else "length up to")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("mean effective weight")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return figure
