"""The outcome of each arm (runs alike but for the seed), compared with the arm without its correction or mismatch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.statistics import survival, tests
from analysis.statistics.arms import order
from analysis.statistics.performance import bootstrap, iqm, paired_difference

RESAMPLING = 0
"""Seed of every bootstrap, so that a report is reproducible."""
SIGNIFICANT = 0.05
"""Largest Holm-adjusted p-value at which a difference between two groups of runs counts as significant."""


def outcomes(runs: pd.DataFrame, final: pd.Series, references: dict[str, str], combinations: pd.DataFrame) -> pd.DataFrame:
    """A row per arm (runs alike but for the seed): outcomes, last rewards, and the comparison with its reference arm.

    collapsed: collapses among the `known` runs, whose outcome is known; collapsed_share: their share. rmst: restricted mean
    survival time up to the horizon τ, common to all arms, in optimizer steps; it uses the censored records of unfinished runs
    too. final_iqm, final_mean: of the last reward. steps_gained, reward_gained: difference from the `reference` arm, which is
    uncorrected or without a mismatch. Each estimate x has its interval x_low, x_high.
    collapse_p, reward_p: exact p of equal times to collapse and of equal last rewards. *_holm_p: Holm-adjusted over the
    comparisons of one `question` (precision or correction).
    least_p: the p if all runs of one arm were above those of the other. note: weaknesses of the comparison.
    runs: table of `Results.runs`. final: last reward by run. references: arm -> its reference arm. combinations: a row per arm
    with its places least, most and from_control.
    """
    placed = combinations.set_index("arm")[["least", "most", "from_control"]]
    tau = survival.horizon(runs)
    rows = []
    for arm in order(runs):
        mine = runs[runs.arm == arm]
        known = int((mine.outcome != "unfinished").sum())
        lived = survival.rmst(mine.time.to_numpy(), mine.event.to_numpy(bool), tau)[0] if known else np.nan
        row = {
            "arm": arm,
            "runs": len(mine),
            "known": known,
            "collapsed": int(mine.event.sum()),
            **_interval("collapsed_share", tests.fraction(int(mine.event.sum()), known)),
            "never_learned": int((mine.outcome == "never learned").sum()),
            "unfinished": len(mine) - known,
            "horizon": tau,
            "rmst": float(lived),
        }
        last = final[mine.index[mine.outcome != "unfinished"]].dropna()
        if len(last):
            row |= averages(last, mine.arm[last.index])
        rows.append(row | _against(runs, mine, references.get(arm), tau, final))
    table = pd.DataFrame(rows).join(placed, on="arm")
    for test in ("collapse", "reward"):
        of = table.groupby("question")[f"{test}_p"]
        table[f"{test}_holm_p"] = of.transform(lambda p: tests.holm(p.to_numpy()))
    return table


def _interval(name: str, interval: tests.Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.lower, f"{name}_high": interval.upper}


def averages(final: pd.Series, strata: pd.Series) -> dict[str, float]:
    """Interquartile mean final_iqm and mean final_mean of last rewards, with 95% limits *_low, *_high by a bootstrap."""
    middle = bootstrap(final, strata, iqm, np.random.default_rng(RESAMPLING))
    mean = bootstrap(final, strata, np.mean, np.random.default_rng(RESAMPLING))
    return _interval("final_iqm", middle) | _interval("final_mean", mean)


def _against(runs: pd.DataFrame, mine: pd.DataFrame, reference: str | None, tau: float, final: pd.Series) -> dict[str, object]:
    """Gains in steps and reward, with p-values, of the runs `mine` over those of the arm `reference`.

    Runs without a completed step are left out. tau: horizon of the restricted mean survival time.
    """
    never = int((mine.outcome == "never learned").sum())
    notes = [f"{never} never learned, counted as not collapsed"] if never else []
    untested = {"collapse_p": np.nan, "reward_p": np.nan}
    if reference is None:
        return {"reference": "", "question": "", **untested, "note": "; ".join(["no reference arm", *notes])}
    question = "precision" if (mine.correction == "none").all() else "correction"
    rng = np.random.default_rng(RESAMPLING)
    mine, other = mine[mine.time > 0], runs[(runs.arm == reference) & (runs.time > 0)]
    n, m = (int((part.outcome != "unfinished").sum()) for part in (mine, other))
    least = tests.smallest_p(n, m)
    if least > SIGNIFICANT:
        notes.insert(0, f"{n} against {m} runs: p ≥ {least:.2g}, too few for significance")
    comparison = {"reference": reference, "question": question, **untested, "least_p": least, "note": "; ".join(notes)}
    if not (n and m):
        return comparison
    gained = survival.rmst_difference(mine, other, tau, rng)
    both = pd.concat([mine, other])
    group = (both.arm == mine.arm.iloc[0]).to_numpy()
    # Without a collapse in either arm p is 1 by construction, so the pair does not count in Holm's adjustment.
    p = tests.logrank_p(both.time.to_numpy(), both.event.to_numpy(), group, rng) if both.event.any() else np.nan
    comparison |= _interval("steps_gained", gained) | {"paired_by_seed": survival.paired_by_seed(mine, other), "collapse_p": p}
    ended = (part[part.outcome != "unfinished"] for part in (mine, other))
    one, another = (pd.Series(final[part.index].to_numpy(), part.seed).dropna() for part in ended)
    if seeds := len(one.index.intersection(another.index)):
        comparison |= _interval("reward_gained", paired_difference(one, another, rng)) | {"shared_seeds": seeds}
    if len(one) and len(another):
        comparison["reward_p"] = tests.difference_p(one, another, rng=rng)
    return comparison


def pooled(runs: pd.DataFrame, final: pd.Series) -> pd.DataFrame:
    """A row per precision and correction: mean and interquartile mean of the last reward over the strata that all rows have.

    A stratum is a loss with the other config values that differ. Bootstraps draw runs within each stratum. The table is empty if
    there are fewer than two rows or two such strata.
    """
    runs = runs[runs.outcome != "unfinished"]
    runs = runs.assign(final=final[runs.index], stratum=runs.loss + " " + runs.setting).dropna(subset=["final"])
    runs = runs.sort_values("arm", key=lambda arms: arms.map(order(runs).index), kind="stable")
    groups = {key: part for key, part in runs.groupby(["precision", "correction"], sort=False)}
    common = set.intersection(*(set(part.stratum) for part in groups.values())) if groups else set()
    if len(groups) < 2 or len(common) < 2:
        return pd.DataFrame()
    rows = []
    for (precision, correction), part in groups.items():
        mine = part[part.stratum.isin(common)]
        row = {"precision": precision, "correction": correction, "strata": len(common), "runs": len(mine)}
        rows.append(row | averages(mine.final, mine.stratum))
    return pd.DataFrame(rows)
