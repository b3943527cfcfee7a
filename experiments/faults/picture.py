"""`python -m experiments.faults.picture RECORD OUT`: draw the confusion matrix of the diagnoses in RECORD into the file OUT.

A row is an injected fault at the middle of its tested sizes, or no fault. A column is an answer of the diagnosis.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from algos.faults import FAULTS
from analysis.figures.style import HEAT
from experiments.faults.plan import HELD_OUT
from experiments.faults.report import NAMES, read


def confusion(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers of dumps: a row per injected fault at its middle size (or "clean"), a column per answer of the diagnosis."""
    chosen = frame[frame["middle"] | (frame["fault"] == "clean")]
    order = ["consistent", *FAULTS.names(), "unknown"]
    table = pd.crosstab(chosen["fault"], chosen["said"])
    columns = [answer for answer in order if answer in table]

    def place(fault: str) -> tuple[bool, int]:
        answer = "consistent" if fault == "clean" else NAMES.get(fault, fault)
        return fault in HELD_OUT, order.index(answer) if answer in order else len(order)

    return table.loc[sorted(table.index, key=place), columns]


def picture(counts: pd.DataFrame) -> Figure:
    """Draw the table of `confusion`. The shade of a cell is its share of the dumps in its row."""
    figure, axis = plt.subplots(figsize=(9, 0.27 * len(counts) + 1.6), layout="constrained")
    axis.imshow(counts.div(counts.sum(axis=1), axis=0), cmap=HEAT, vmin=0, vmax=1, aspect="auto")
    for row, numbers in enumerate(counts.to_numpy()):
        for column, number in enumerate(numbers):
            if number:
                dark = number > 0.6 * numbers.sum()
                axis.text(column, row, str(number), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    labels = [f"{fault} (left out)" if fault in HELD_OUT else fault for fault in counts.index]
    axis.set_yticks(range(len(counts)), labels)
    axis.set_xticks(range(counts.shape[1]), list(counts.columns), rotation=40, ha="right")
    axis.set_xlabel("answer of the diagnosis")
    axis.set_ylabel("injected, at its middle size")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


if __name__ == "__main__":
    picture(confusion(read(Path(sys.argv[1])))).savefig(Path(sys.argv[2]), dpi=150)
