"""`faultline report SWEEP`: a table in the terminal and one self-contained HTML page with the curves."""

from __future__ import annotations

import html
import io
import json
from math import comb
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis import tables
from analysis.load import OPERATION, Sweep, differs, flatten, load

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933")
"""Okabe and Ito's palette, told apart by colour-blind readers too; the seeds of an arm differ by line style."""
STYLES = ("-", "--", ":", "-.")
SMOOTHED = 15
"""Steps of the running median of a curve that is recorded at every step."""
PANELS = (
    ("eval/reward", "held-out reward of the trainer's policy", "linear"),
    ("rollout_corr/k3_kl", "K3, mismatch KL (nats per token)", "log"),
    ("actor/grad_norm", "gradient norm before clipping", "log"),
)


def report(folder: Path) -> Path:
    """Print the arm table of the sweep in `folder` and write `report.html` and `report.md` there; returns the page's path."""
    sweep = load(folder)
    table = tables.arms(sweep)
    _print(table, folder)
    (folder / "report.md").write_text(table.to_markdown(index=False) + "\n")
    page = folder / "report.html"
    page.write_text(_page(folder.name, sweep, table), encoding="utf-8")
    return page


def curves(sweep: Sweep, arms: list[str]) -> str:
    """The three panels as SVG: a colour per arm, in the order of `arms`, a line style per seed, collapse onsets marked."""
    plt.rcParams["svg.fonttype"] = "none"
    plt.rcParams["svg.hashsalt"] = "faultline"
    figure, axes = plt.subplots(len(PANELS), 1, figsize=(9, 10.5), sharex=True, layout="constrained")
    seeds = sorted(sweep.runs.seed.unique())
    for axis, (metric, label, scale) in zip(axes, PANELS, strict=True):
        axis.set_yscale(scale)
        axis.set_ylabel(label)
        axis.grid(alpha=0.25)
        for run in sweep.runs.itertuples():
            steps = sweep.steps[sweep.steps.run == run.Index]
            if metric not in steps:
                continue
            rows = steps[["step", metric]].dropna()
            if scale == "log":
                rows = rows[rows[metric] > 0]  # the exact control has K3 = 0, which a log axis cannot show
            colour = COLOURS[arms.index(run.arm) % len(COLOURS)]
            style = STYLES[seeds.index(run.seed) % len(STYLES)]
            if metric != "eval/reward":  # every step, so noisy: the values faint, their running median on top
                axis.plot(rows.step, rows[metric], color=colour, alpha=0.12, linewidth=0.6)
                rows = rows.assign(**{metric: rows[metric].rolling(SMOOTHED, center=True, min_periods=1).median()})
            axis.plot(rows.step, rows[metric], color=colour, linestyle=style, linewidth=1.3)
            if run.event:
                axis.axvline(run.onset, color=colour, linewidth=0.8, alpha=0.6)
    axes[0].set_ylim(-0.02, 1.02)
    axes[-1].set_xlabel("RL step")
    handles = [plt.Line2D([], [], color=COLOURS[i % len(COLOURS)], label=arm) for i, arm in enumerate(arms)]
    for i, seed in enumerate(seeds):
        handles.append(plt.Line2D([], [], color="grey", linestyle=STYLES[i % len(STYLES)], label=f"seed {seed}"))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    plt.close(figure)
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _print(table: pd.DataFrame, folder: Path) -> None:
    shown = Table(title=f"{folder}: each cell lists the seeds in order", title_justify="left")
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.itertuples(index=False):
        shown.add_row(*map(str, row))
    console = Console()
    console = console if console.is_terminal else Console(width=170)
    console.print(shown)


def _page(name: str, sweep: Sweep, table: pd.DataFrame) -> str:
    seeds = sweep.runs.groupby("arm").seed.nunique()
    fewest = int(seeds.min())
    p = _smallest_p(fewest)
    caution = f"With {fewest} seeds an arm and full separation the exact two-sided permutation test gives at best p = {p:.2g}" + (
        ": too few to carry an order, so read this as a description of these runs." if p > 0.05 else "."
    )
    failed = sweep.runs[sweep.runs.state.isin(["failed", "preempted", "running", "queued"])]
    reasons = [f"{run.arm} seed {run.seed}: {run.state} at step {run.step}. {run.error}" for run in failed.itertuples()]
    unfinished = "".join(f"<li>{html.escape(reason)}</li>" for reason in reasons)
    flat = [flatten(config) for config in sweep.configs.values()]
    some = flat[0]
    settings = {key: some[key] for key in some if not differs(key, flat) and not key.startswith(OPERATION)}
    missing = "K3 of the exact control is 0 and has no line on a logarithmic axis."
    missing += " A vertical line is the onset of a collapse." if sweep.runs.event.any() else ""
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Faultline: {html.escape(name)}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }}
table {{ border-collapse: collapse; font-size: 13px; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: left; }}
td {{ white-space: nowrap; font-variant-numeric: tabular-nums; }}
svg {{ width: 100%; height: auto; }} pre {{ font-size: 12px; overflow-x: auto; }}
.note {{ color: #555; }}
</style>
<h1>{html.escape(name)}: does the rollout's precision matter, and does a correction help?</h1>
<p><b>{_answer(sweep)}</b> {caution}</p>
{table.to_html(index=False, border=0)}
<p class="note">Each cell lists the seeds in order. K3 is the median over the steps, ESS the lowest. Evaluation: held-out prompts,
the trainer's own policy. In the curves of K3 and the gradient norm the line is a running median of {SMOOTHED} steps.</p>
{f"<h2>Runs that did not finish</h2><ul>{unfinished}</ul>" if unfinished else ""}
<h2>Curves</h2>
{curves(sweep, list(table.arm))}
<p class="note">{missing}</p>
<h2>Settings that all arms share</h2>
<p class="note">{_provenance(sweep)}</p>
<pre>{html.escape("".join(f"{key}: {json.dumps(value)}{chr(10)}" for key, value in settings.items()))}</pre>
</html>
"""


def _provenance(sweep: Sweep) -> str:
    """Code, versions and machine of the runs; more than one of a kind is told."""
    entries = [entry for entries in sweep.provenance.values() for entry in entries]
    commits = sorted({f"{(e['commit'] or 'unknown')[:10]}{' with uncommitted changes' if e['diff'] else ''}" for e in entries})
    machines = sorted({f"{e['host']}, {e['device']}, {e['platform']}, torch {e['packages']['torch']}" for e in entries})
    return html.escape(f"Commit {' and '.join(commits)}; {' and '.join(machines)}.") if entries else ""


def _answer(sweep: Sweep) -> str:
    collapsed = sweep.runs.event.sum()
    final = sweep.steps.dropna(subset=["eval/reward"]).groupby("run", observed=True)["eval/reward"].last()
    arms = sweep.runs.arm.nunique()
    control = sweep.runs[sweep.runs.arm.str.startswith("fp32")]
    warning = " The fp32 control collapsed too, so the mismatch is not what these settings show." if control.event.any() else ""
    return (
        f"{collapsed} of {len(sweep.runs)} runs in {arms} arms collapsed; the last evaluations lie between {final.min():.3f} "
        f"and {final.max():.3f}.{warning}"
    )


def _smallest_p(n: int) -> float:
    """2/C(2n, n): the two-sided exact permutation p-value of two groups of n that separate fully."""
    return 2 / comb(2 * n, n)
