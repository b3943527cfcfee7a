"""Planned comparisons as data: pairs of arms (sets of runs alike but for the seed), the seeds that they need, and the test.

A study is a `StudyPlan` and a table with a row per run. The table has the columns arm and seed, the endpoint, and the columns by
which families of comparisons select rows, such as policy. `StudyPlan.compared` gives a row per comparison. The study itself
computes the endpoint, such as a run's final held-out reward, because a plan reads one number per run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind, ttest_rel

from analysis.frames import markdown
from analysis.statistics.tests import difference_p, holm_of_planned
from harness.errors import UserError

Test = Callable[..., float]
"""A statistical test, called as test(x, y, paired=...). It returns the p-value of an arm's values x [n] against its reference's
y [m]. paired: whether the i-th values form a pair."""


@dataclass(frozen=True)
class Comparisons:
    """A family of comparisons of arms (sets of runs alike but for the seed) that share Holm's adjustment of their p-values.

    pairs: (arm, reference arm) of each comparison.
    test: None if only differences are reported.
    where: values by column that select the runs that count, such as {"policy": "the trainer's own policy"}.
    holds: function of the differences within pairs of runs [n] that tells for each pair whether the hypothesis holds [n].
    """

    name: str
    pairs: Sequence[tuple[str, str]]
    test: Test | None = difference_p
    where: Mapping[str, object] = field(default_factory=dict)
    holds: Callable[[np.ndarray], np.ndarray] | None = None


def interval(x: np.ndarray, y: np.ndarray, paired: bool) -> tuple[float, float]:
    """The 95 % interval of the difference of the means of x and y: by Welch's t, or if paired by Student's t on x − y."""
    low, high = (ttest_rel(x, y) if paired else ttest_ind(x, y, equal_var=False)).confidence_interval()
    return low, high


def extremes(x: np.ndarray, y: np.ndarray, paired: bool) -> tuple[float, float]:
    """The smallest and the largest difference x − y of a pair, for comparisons with too few pairs for an interval."""
    return (x - y).min(), (x - y).max()


@dataclass(frozen=True)
class StudyPlan:
    """The comparisons of a study's arms (sets of runs alike but for the seed), and the runs that they need.

    endpoint: column with the compared number of a run.
    paired: column whose values pair the runs of two arms, such as seed or regime. Runs of an arm with equal values are averaged.
    None if runs are not paired.
    limits: function of (x, y, paired), such as `interval`, that returns the limits shown beside a difference.
    seeds: seeds that every arm needs; if empty, all runs count.
    more: further seeds that an arm needs, by arm.
    together: (arms, seeds), seeds that count once all of these arms have them.
    """

    families: Sequence[Comparisons]
    endpoint: str = "reward"
    paired: str | None = None
    limits: Callable[..., tuple[float, float]] = interval
    seeds: Collection[int] = ()
    more: Mapping[str, Collection[int]] = field(default_factory=dict)
    together: Sequence[tuple[Collection[str], Collection[int]]] = ()

    def complete(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The rows of `runs` whose arm (runs alike but for the seed) has all its planned seeds, on these seeds.

        Returns all rows if the plan names no seeds.
        """
        if not (self.seeds or self.more or self.together):
            return runs
        present = {arm: set(part.seed) for arm, part in runs.groupby("arm")}
        needed = {arm: {*self.seeds, *self.more.get(arm, ())} for arm in present}
        for arms, seeds in self.together:
            if all(present.get(arm, set()) >= needed.get(arm, set()) | set(seeds) for arm in arms):
                needed |= {arm: needed[arm] | set(seeds) for arm in arms}
        kept = {arm: seeds for arm, seeds in needed.items() if present[arm] >= seeds}
        return runs[np.array([seed in kept.get(arm, ()) for arm, seed in zip(runs.arm, runs.seed, strict=True)], dtype=bool)]

    def compared(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Table with a row per comparison of two arms (sets of runs alike but for the seed) that have all their seeds.

        Columns: family (comparisons that are adjusted together), the columns that select its runs, arm, reference, mean endpoint
        of the arm and of the reference, difference, low, high, p, holm_p, holds, pairs. low, high: its 95% interval. holds: the
        number of pairs in which the hypothesis holds. A planned comparison without runs counts in its family, with p = 1.
        """
        runs, rows = self.complete(runs), []
        for family in self.families:
            chosen = runs
            for name, value in family.where.items():
                chosen = chosen[chosen[name] == value]
            arms = {arm: part for arm, part in chosen.groupby("arm")}
            found = [self._row(family, *pair, *(arms[arm] for arm in pair)) for pair in family.pairs if arms.keys() >= set(pair)]
            if family.test:
                adjusted = holm_of_planned([row["p"] for row in found], len(family.pairs))
                found = [row | {"holm_p": p} for row, p in zip(found, adjusted, strict=True)]
            rows += found
        selected = dict.fromkeys(name for family in self.families for name in family.where)
        names = ["mean", "of reference", "difference", "low", "high", "p", "holm_p", "holds", "pairs"]
        return pd.DataFrame(rows, columns=["family", *selected, "arm", "reference", *names])

    def _row(self, family: Comparisons, arm: str, reference: str, one: pd.DataFrame, other: pd.DataFrame) -> dict[str, Any]:
        if self.paired:
            means = [part.groupby(self.paired)[self.endpoint].mean().dropna() for part in (one, other)]
            both = means[0].index.intersection(means[1].index)
            x, y = (mean[both].to_numpy() for mean in means)
        else:
            x, y = (part[self.endpoint].to_numpy() for part in (one, other))
        paired = self.paired is not None
        difference = (x - y).mean() if paired else x.mean() - y.mean()
        low, high = self.limits(x, y, paired)
        row = {"family": family.name, **family.where, "arm": arm, "reference": reference}
        row |= {"mean": x.mean(), "of reference": y.mean(), "difference": difference, "low": low, "high": high}
        if family.test:
            row["p"] = family.test(x, y, paired=paired)
        if family.holds:
            row |= {"holds": int(family.holds(x - y).sum()), "pairs": len(x)}
        return row


def recorded(folder: Path, remedy: str) -> pd.DataFrame:
    """Read `folder`/endpoints.csv with exact floating-point values. If it is missing, raises UserError that gives the remedy."""
    file = folder / "endpoints.csv"
    if not file.is_file():
        raise UserError(f"{file}: not there; {remedy}")
    return pd.read_csv(file, float_precision="round_trip")


def record(folder: Path, runs: pd.DataFrame) -> None:
    """Write a study's runs to `folder`/endpoints.csv with exact floating-point values, so that equal rewards stay equal."""
    folder.mkdir(parents=True, exist_ok=True)
    runs.to_csv(folder / "endpoints.csv", index=False)


def listed(commands: list[str], folder: Path) -> None:
    """Print the commands of runs that `folder`/endpoints.csv lacks, a line each. Says on the standard error if it lacks none."""
    print("".join(f"{line}\n" for line in commands), end="")
    if not commands:
        done = folder / "endpoints.csv"
        print(f"nothing to run: {done} has every run of this list; move it away to list them again", file=sys.stderr)


def publish(folder: Path, *tables: pd.DataFrame) -> None:
    """Write a study's tables to `folder`/table.md, and print them."""
    text = "\n\n".join(map(markdown, tables))
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)
