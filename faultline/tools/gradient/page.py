"""What a comparison of gradients shows: an answer in words, a table, and bias against standard deviation."""

from __future__ import annotations

import html
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pandas as pd

from analysis.figures.style import COLOURS, svg
from faultline.tools.gradient.methods import EXACT
from faultline.tools.replay.page import show

SHOWN = ("cosine", "norm ratio", "bias", "sd", "rmse")


def answer(table: pd.DataFrame) -> str:
    """Which correction is closest to the truth here, and what it costs in variance."""
    named = table[table.family.isna() & (table.method != EXACT)]
    plain, best, least = (
        named[named.method.str.endswith(" none")],
        named.loc[named.rmse.idxmin()],
        named.loc[named.bias.idxmin()],
    )
    text = f"Closest in mean squared error: {best.method} (bias {best.bias:.3g}, sd {best.sd:.3g}, rmse {best.rmse:.3g})."
    text += f" Least biased: {least.method} (bias {least.bias:.3g}, sd {least.sd:.3g})."
    if len(plain):
        none = plain.iloc[0]
        text += f" Uncorrected: bias {none.bias:.3g}, sd {none.sd:.3g}, rmse {none.rmse:.3g};"
        text += f" the least biased has {least.sd**2 / none.sd**2:.3g} times its variance."
    if "rmse low" in table and len(named) > 1:
        overlapping = named[(named["rmse low"] <= best["rmse high"]) & (named.method != best.method)]
        if len(overlapping):
            text += f" The interval of the closest overlaps with those of {len(overlapping)} of {len(named) - 1} others."
    return text


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """Formatted; intervals, where there are any, in brackets."""
    rows = []
    for row in table.to_dict("records"):
        cells = {"method": row["method"]}
        for name in SHOWN:
            interval = f" [{row[f'{name} low']:.3f}, {row[f'{name} high']:.3f}]" if f"{name} low" in row else ""
            cells[name] = f"{row[name]:.3f}{interval}"
        rows.append(cells)
    return pd.DataFrame(rows)


def present(table: pd.DataFrame, title: str, note: str, out: Path) -> Path:
    """Print the named methods, write gradient.html and gradient.csv into `out`; the page's path."""
    show(title, shown(table[table.family.isna()]))
    print(answer(table))
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "gradient.csv", index=False)
    page = out / "gradient.html"
    page.write_text(_page(table, title, note), encoding="utf-8")
    return page


def _page(table: pd.DataFrame, title: str, note: str) -> str:
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }}
table {{ border-collapse: collapse; font-size: 13px; }}
th, td {{ padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }}
td {{ font-variant-numeric: tabular-nums; }} svg {{ width: 100%; height: auto; }} .note {{ color: #555; }}
</style>
<h1>{html.escape(title)}</h1>
<p><b>{html.escape(answer(table))}</b></p>
{_figure(table)}
<p class="note">Bias and standard deviation relative to the length of the true gradient. A line runs along a family's bounds
C, whose values stand beside its points; toward the lower left is better. {html.escape(note)}</p>
{shown(table).to_html(index=False, border=0)}
</html>
"""


def _figure(table: pd.DataFrame) -> str:
    figure, axis = plt.subplots(figsize=(9, 6), layout="constrained")
    for i, (family, part) in enumerate(table.dropna(subset="family").groupby("family", sort=False)):
        axis.plot(part.bias, part.sd, color=COLOURS[i + 1], marker=".", linewidth=1.2, label=family)
        for row in part.itertuples():
            axis.annotate(
                f"{row.bound:g}", (row.bias, row.sd), fontsize=7, color=COLOURS[i + 1], xytext=(3, 3), textcoords="offset points"
            )
    for row in table[table.family.isna()].itertuples():
        axis.plot(row.bias, row.sd, marker="x", color=COLOURS[0])
        axis.annotate(row.method, (row.bias, row.sd), fontsize=8, xytext=(5, -9), textcoords="offset points")
    axis.set_xlabel("bias")
    axis.set_ylabel("standard deviation")
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
    return svg(figure)
