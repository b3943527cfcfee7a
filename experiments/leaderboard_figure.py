"""The leaderboard's figure: gain in reward over no correction, by loss or correction, for trainer's and sampling policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analysis.figures.style import png, subplots
from analysis.marks import CONTROL as BLACK
from analysis.marks import HUES, NEUTRAL
from analysis.statistics.benchmark import CONTROL, NONE

TITLES = {"trainer": "trainer's policy deployed", "sampler": "sampling policy deployed"}


def finding(tables: Mapping[str, pd.DataFrame]) -> str:
    """Title of the leaderboard's figure: how many entries have an interval of the trainer's gain above 0, how many below."""
    table = tables["trainer"]
    entries = table[~table.entry.isin([NONE, CONTROL])]
    helps, harms = int((entries.low > 0).sum()), int((entries.high < 0).sum())
    return f"Of {len(entries)} losses and corrections {helps} beat no correction, {harms} do worse, the rest are not told apart"


def draw(tables: Mapping[str, pd.DataFrame], regimes: int, file: Path) -> str:
    """Draw the gain in reward of each loss and correction, with its interval, into `file`. Returns the title.

    tables: table of scores by deployed policy, trainer or sampler. regimes: number of regimes, for the title.
    """
    order = tables["trainer"].entry.to_list()
    title = finding(tables)
    figure, (axes,) = subplots(1, len(tables), 1.4 + 0.17 * len(order), sharey=True)
    for axis, (policy, table) in zip(axes, tables.items(), strict=True):
        for row in table.to_dict("records"):
            place = order.index(row["entry"])
            hue = BLACK if row["entry"] in (NONE, CONTROL) else HUES["bf16"] if row["low"] > 0 else NEUTRAL
            axis.plot([row["low"], row["high"]], [place, place], color=hue, linewidth=1.5)
            axis.plot(row["gain"], place, "o", color=hue, markersize=4)
        axis.axvline(0, color=NEUTRAL, linewidth=0.8)
        axis.axvline(1, color=NEUTRAL, linewidth=0.8)
        axis.set_title(TITLES[policy], fontsize=9)
        axis.set_xlabel("gain: none 0, exact control 1")
        axis.set_xlim(-1.5, 1.5)
    axes[0].set_yticks(range(len(order)), order, fontsize=7)
    axes[0].invert_yaxis()
    figure.suptitle(f"{title}\n(middle half of {regimes} regimes x 3 seeds)", fontsize=10)
    file.write_bytes(png(figure, dpi=130))
    return title
