"""The leaderboard's figure: gain in reward over no correction of all losses and corrections, for either deployed policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

import numpy as np
import pandas as pd

from analysis.figures.style import png, subplots
from analysis.marks import HUES, NEUTRAL
from analysis.statistics.benchmark import CONTROL, NONE

TITLES = {"trainer": "trainer's weights served", "sampler": "engine's weights served"}
LOSS = "loss "
"""Beginning of the name of a row that is a loss; all other rows are corrections."""
NAMED = 3
"""Number of named entries (losses or corrections) at each end of a row of points."""
LEAST = -2.0
"""Gain at the left edge of the figure. An entry with less is drawn there."""
BIN = 0.05
"""Width of the bins of gain whose entries are stacked in the figure."""


def counts(table: pd.DataFrame) -> tuple[int, int]:
    """Numbers of losses and corrections whose interval of the gain lies above 0, and below 0."""
    entries = _entries(table)
    return int((entries.low > 0).sum()), int((entries.high < 0).sum())


def finding(tables: Mapping[str, pd.DataFrame]) -> str:
    """Title of the leaderboard's figure: how many entries (losses or corrections) gain or lose in all seeds, and by chance.

    The interval of a gain over three seeds lies above 0 only if the mean of every seed does. Without an effect its probability is
    1/8, and as much below 0.
    """
    (better, worse), (better_sampler, worse_sampler) = counts(tables["trainer"]), counts(tables["sampler"])
    number = len(_entries(tables["trainer"]))
    return (
        f"In all three seeds {better} of {number} losses and corrections beat none for the trainer's policy and {worse} lose, "
        f"{better_sampler} and {worse_sampler} for the one that samples; by chance {number / 8:.0f}"
    )


def _entries(table: pd.DataFrame) -> pd.DataFrame:
    return table[~table.entry.isin([NONE, CONTROL])]


def stacked(gains: np.ndarray) -> np.ndarray:
    """Place of each gain in its stack, from 0: gains of one bin of width BIN are stacked in their order. gains: [entries]."""
    bins = np.floor(gains / BIN)
    return np.array([(bins[:i] == own).sum() for i, own in enumerate(bins)], dtype=int)


def draw(tables: Mapping[str, pd.DataFrame], regimes: int, file: Path) -> str:
    """Draw a point per loss and per correction at its gain in reward into `file`, and name the best and worst. Returns the title.

    tables: table of scores by deployed policy, trainer or sampler. regimes: number of regimes, for the title.
    """
    title = finding(tables)
    figure, (axes,) = subplots(1, len(tables), 4.2, sharex=True, sharey=True)
    for axis, (policy, table) in zip(axes, tables.items(), strict=True):
        entries = _entries(table)
        own = entries.entry.str.startswith(LOSS)
        for base, part in ((1.0, entries[own]), (0.0, entries[~own])):
            gains = part.gain.clip(lower=LEAST).to_numpy()
            heights = base + 0.06 * stacked(gains)
            hues = [HUES["bf16"] if row.low > 0 else HUES["fp8_tensor"] if row.high < 0 else NEUTRAL for row in part.itertuples()]
            axis.scatter(gains, heights, color=hues, s=22)
            for side, x, named in (("right", 0.99, part[:NAMED]), ("left", 0.01, part[NAMED:].tail(NAMED))):
                for line, row in enumerate(named.itertuples(), 1):
                    text = f"{row.entry.removeprefix(LOSS)} {row.gain:.2f}"
                    axis.text(x, base - 0.1 * line, text, transform=axis.get_yaxis_transform(), fontsize=7, ha=side, va="top")
        control = table[table.entry == CONTROL].iloc[0]
        axis.axvspan(control.low, control.high, color=NEUTRAL, alpha=0.12, linewidth=0, zorder=0)
        for gain, name, side in ((0.0, "no correction ", "right"), (control.gain, " no mismatch", "left")):
            axis.axvline(gain, color=NEUTRAL, linewidth=0.8, zorder=0)
            axis.text(gain, 1.02, name, transform=axis.get_xaxis_transform(), fontsize=7, ha=side)
        helps, harms = counts(table)
        axis.set_title(f"{TITLES[policy]}: {helps} better, {harms} worse", fontsize=9, pad=14)
        axis.set_xlabel(f"gain; {LEAST:g} or less at the left edge")
        axis.set_xlim(LEAST - 0.1, 1.2)
    axes[0].set_yticks([1.0, 0.0], ["losses", "corrections"])
    axes[0].set_ylim(-0.45, 1.55)
    of = f"interquartile means of {regimes} toy regimes x 3 seeds; blue: better in all seeds, orange: worse in all"
    figure.suptitle(fill(title, 100) + f"\n({of})", fontsize=9)
    file.write_bytes(png(figure, dpi=130))
    return title
