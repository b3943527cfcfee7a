"""Arms of a sweep (runs alike but for the seed): their order, their references, and their places in the report's matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import coarseness


def order(runs: pd.DataFrame) -> list[str]:
    """Names of arms (runs alike but for the seed) in display order. The control, which has no mismatch, comes first. The others
    follow by precision, from fine to coarse, then by loss, then uncorrected before corrected."""
    arms = runs.drop_duplicates("arm")

    def key(run: Any) -> tuple:
        return not run.control, coarseness(run.precision), run.loss, run.correction != "none", run.correction, run.setting

    return [run.arm for run in sorted(arms.itertuples(), key=key)]


def references(runs: pd.DataFrame) -> dict[str, str]:
    """The name of each arm's reference arm, by the arm's name. An arm (runs alike but for the seed) without one is absent.

    The reference of a corrected arm is the uncorrected arm with all else equal. That of an uncorrected arm is the control, with
    all but precision and noise equal. The control samples in the trainer's precision and has no synthetic noise, since noise
    counts as a mismatch.
    """
    arms = runs.drop_duplicates("arm")
    plain = {(a.precision, a.loss, a.setting): a.arm for a in arms[arms.correction == "none"].itertuples()}
    controls = {(a.loss, a.calm): a.arm for a in arms[arms.control].itertuples()}
    compared = {}
    for a in arms.itertuples():
        wanted = controls.get((a.loss, a.calm)) if a.correction == "none" else plain.get((a.precision, a.loss, a.setting))
        if wanted not in (None, a.arm):
            compared[a.arm] = wanted
    return compared


def combinations(runs: pd.DataFrame, final: pd.Series) -> pd.DataFrame:
    """A row per arm (runs alike but for the seed) with an ended run: its place in the report's matrix, and its outcomes.

    down, across: labels of the matrix's row and column. Precision with correction labels the rows and loss with setting the
    columns, or the reverse if there are more of the latter. setting: the other config values that differ. collapsed,
    never_learned: numbers of runs, out of `known` ended ones. mean, least, most: of the last reward `final`. from_control: mean
    over shared seeds of the difference of `final` from the control, the arm without a mismatch of the same loss and setting.
    """
    runs = runs[runs.outcome != "unfinished"]
    runs = runs.assign(final=final[runs.index], column=(runs.loss + " " + runs.setting).str.strip())
    controls = {column: part.set_index("seed").final for column, part in runs[runs.control].groupby("column")}
    rows = []
    for arm in order(runs):
        mine = runs[runs.arm == arm]
        first, last = mine.iloc[0], mine.final.dropna()
        control = None if first.control else controls.get(first.column)
        difference = np.nan if control is None else (mine.set_index("seed").final - control).mean()
        place = first.precision if first.correction == "none" else f"{first.precision} {first.correction}"
        row = {"arm": arm, "down": place, "across": first.column, "collapsed": int(mine.event.sum()), "known": len(mine)}
        row["never_learned"] = int((mine.outcome == "never learned").sum())
        reward = {"mean": last.mean(), "least": last.min(), "most": last.max()} if len(last) else {}
        rows.append(row | reward | {"from_control": difference})
    columns = ["arm", "down", "across", "collapsed", "known", "never_learned", "mean", "least", "most", "from_control"]
    table = pd.DataFrame(rows, columns=columns)
    wide = table.across.nunique() > table.down.nunique()
    return table.rename(columns={"down": "across", "across": "down"}) if wide else table
