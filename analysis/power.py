"""`faultline power SWEEP`: the number of seeds that a claim about rewards needs, by their spread in runs without a mismatch."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

import pandas as pd

from analysis.load import load
from analysis.statistics.planning import (
    LARGEST,
    least_seeds,
    power_of_difference,
    power_of_equivalence,
    seeds_needed,
    spread_of,
)
from harness.errors import UserError

LEVEL = 0.05
"""Largest p-value, Holm-adjusted, at which a claim about rewards counts as shown."""


def plan(
    source: Path | str,
    *,
    difference: float,
    margin: float,
    power: float,
    comparisons: int = 1,
    seeds: Collection[int] = (),
) -> pd.DataFrame:
    """A row per control arm: the spread of its last rewards over seeds, and the number of seeds per arm that a claim needs.

    An arm is a group of runs alike but for the seed; a control arm is uncorrected, with rollouts in the trainer's precision. A
    claim compares two arms. difference: true difference of mean rewards to detect. margin: difference within which arms count as
    equivalent. power: wanted probability of success. comparisons: number of comparisons under Holm's adjustment; the first must
    reach p ≤ LEVEL / comparisons. seeds: those to read; all if empty. The number of seeds is given for the measured spread and
    for its upper 80 % limit, and lets an exact test reach p ≤ LEVEL / comparisons. Raises UserError if no control arm has two
    ended runs, if all rewards of one are equal, and if an argument is out of bounds.
    """
    for name, value, most in (("--difference", difference, 1), ("--margin", margin, 1), ("--power", power, 0.999)):
        if not 0 < value <= most:
            raise UserError(f"{name} {value:g}: give a number above 0 and at most {most:g}")
    if comparisons < 1:
        raise UserError(f"--comparisons {comparisons}: give 1 or more")
    alpha = LEVEL / comparisons
    results = load(source, seeds)
    ended = results.ended[results.ended.control]
    rows, alike = [], []
    for arm, runs in ended.groupby("arm", sort=False):
        rewards = results.rewards.final[runs.index].dropna().to_numpy()
        if len(rewards) < 2:
            continue
        measured, limit = spread_of(rewards)
        if measured <= 1e-9:
            alike.append(arm)
            continue
        claims = {
            f"difference of {difference:g}": (partial(power_of_difference, difference=difference), 2),
            f"equivalence within {margin:g}": (partial(power_of_equivalence, margin=margin), 1),
        }
        row = {"control": arm, "seeds": len(rewards), "mean": float(rewards.mean()), "spread": measured, "upper limit": limit}
        for claim, (power_of, sides) in claims.items():
            least = least_seeds(alpha, sides)
            needs = [seeds_needed(partial(power_of, spread=spread, alpha=alpha), power, least) for spread in (measured, limit)]
            row[claim] = " to ".join(f"over {LARGEST}" if need is None else str(need) for need in needs)
        rows.append(row)
    if not rows:
        why = f"the rewards of {alike[0]} are all equal" if alike else "no control has two ended runs"
        raise UserError(f"{source}: {why}; the spread between seeds needs runs of an uncorrected arm in the trainer's precision")
    return pd.DataFrame(rows)
