"""Scores of a benchmark's entries over regimes and seeds, after rliable (Agarwal et al. 2021, arXiv 2108.13264).

An entry is a loss, an advantage or a correction, and a regime a task and model with a source of mismatch. A table of runs has
the columns entry, regime, seed, outcome, start (the first held-out reward), and the last held-out reward of each deployed
policy, `trainer` and `sampler`. Two entries are for reference: NONE, without a correction, and CONTROL, without a mismatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from scipy.stats import trim_mean

from harness.errors import UserError

NONE, CONTROL = "none", "control"
"""Entries that the benchmark needs in every regime (task, model, source of mismatch): no correction, and no mismatch."""
POLICIES = ("trainer", "sampler")
"""Policies that may be deployed after training. A table of runs has the last held-out reward of each in a column of its name."""
FLOOR = 0.25
"""Minimum divisor of `normalised`, as a share of the reward that training without a mismatch gains. Less may be chance."""
RESAMPLES = 2000


def normalised(runs: pd.DataFrame, policy: str) -> pd.DataFrame:
    """A row per run with its gain: 0 for no correction, about 1 for CONTROL, the runs without a mismatch.

    Columns: entry (correction, loss or advantage), regime (task, model and mismatch), seed, outcome, gain.

    gain = (e − e_none)/max(c − n, FLOOR·(c − b)), where e is the run's last reward and e_none that of the same seed without
    correction. c, n and b are means of a regime over seeds: the control's last reward, that without correction, and the control's
    first reward. Raises UserError if the control gains nothing in a regime, because such a regime has no scale.
    """
    ends = runs.set_index(["regime", "seed"])
    none = ends[ends.entry == NONE][policy]
    control = runs[runs.entry == CONTROL].groupby("regime")
    end, start = control[policy].mean(), control["start"].mean()
    harm = np.maximum(end - none.groupby("regime").mean(), FLOOR * (end - start))
    if flat := sorted(harm.index[~(harm > 0)]):
        raise UserError(
            f"{', '.join(flat)}: the exact control gains nothing there, so a gain has no scale; leave such regimes out"
        )
    own = none.reindex(ends.index).to_numpy()
    gain = (runs[policy].to_numpy() - own) / harm.reindex(runs.regime).to_numpy()
    return runs[["entry", "regime", "seed", "outcome"]].assign(gain=gain)


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the middle half of all values, by which rliable (arXiv 2108.13264) aggregates over tasks and seeds."""
    return float(trim_mean(np.asarray(values, dtype=float), 0.25, axis=None))


def interval(gains: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the interquartile mean by a bootstrap of seeds. gains: [seeds, regimes].

    A regime is a task and model with a source of mismatch. Each resample draws as many seeds as there are, with replacement, and
    takes them in every regime: the gains of a seed are correlated, because it has the same prompts and noise in all regimes, and
    the same warm start in regimes with the same task and model. rliable draws independently in each task instead. The regimes
    are held fixed, so the interval says nothing about other regimes. The scale of the gains is held fixed too.
    """
    rng = np.random.default_rng(seed)
    drawn = gains[rng.integers(0, len(gains), (RESAMPLES, len(gains)))].reshape(RESAMPLES, -1)
    low, high = np.quantile(trim_mean(drawn, 0.25, axis=1), [0.025, 0.975])
    return float(low), float(high)


def improvement(ends: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    """Probability that a run of one correction ends with more reward than a run of a second: mean of P(x > y) + P(x = y)/2.

    The mean is over regimes (task, model and mismatch). ends: for each regime, the last rewards x of the runs of the first
    correction. others: for the same regimes, the last rewards y of the runs of the second.
    """
    wins = [((x[:, None] > y) + 0.5 * (x[:, None] == y)).mean() for x, y in zip(ends, others, strict=True)]
    return float(np.mean(wins))


def scores(runs: pd.DataFrame, policy: str) -> pd.DataFrame:
    """A row per entry (such as a correction), by descending gain. NONE is the entry without a correction.

    Entries without a run in each regime (task, model and mismatch) and seed of NONE are left out. policy: column of the last
    rewards to score. Columns: entry, gain (interquartile mean), low, high (its 95 % interval), improvement (over NONE), worst
    (least mean gain of a regime), in (that regime), collapses, runs. Raises UserError if an entry has several rows of a regime
    and seed, and if NONE lacks a seed in one regime that it has in another.
    """
    if (twice := runs.duplicated(["entry", "regime", "seed"])).any():
        entry, regime, seed = runs.loc[twice.to_numpy(), ["entry", "regime", "seed"]].iloc[0]
        raise UserError(f"several rows of {entry}, {regime}, seed {seed}: which one counts is not told; leave one of each")
    none = runs[runs.entry == NONE]
    needed = set(zip(none.regime, none.seed, strict=True))
    for regime, seed in product(sorted(set(none.regime)), sorted(set(none.seed))):
        if (regime, seed) not in needed:
            raise UserError(f"{regime}: no run without a correction of seed {seed}, which other regimes have; run it as well")
    runs = runs[np.array([pair in needed for pair in zip(runs.regime, runs.seed, strict=True)], dtype=bool)]
    gains, rows = normalised(runs, policy), []
    without = [part[policy].to_numpy() for _, part in none.groupby("regime")]
    for entry, part in gains.groupby("entry"):
        if len(part) < len(needed):
            continue
        ends = [regime[policy].to_numpy() for _, regime in runs[runs.entry == entry].groupby("regime")]
        low, high = interval(part.pivot(index="seed", columns="regime", values="gain").to_numpy())
        worst = part.groupby("regime").gain.mean()
        row = {"entry": entry, "gain": interquartile_mean(part.gain), "low": low, "high": high}
        row |= {"improvement": improvement(ends, without), "worst": worst.min(), "in": worst.idxmin()}
        rows.append(row | {"collapses": int((part.outcome == "collapsed").sum()), "runs": len(part)})
    return pd.DataFrame(rows).sort_values("gain", ascending=False, ignore_index=True)
