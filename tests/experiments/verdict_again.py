"""The scoring of the study of the verdict, written a second time from the text of docs/decision.md alone.

It shares no code with experiments/verdict_study.py but the constants of the plan. Its records are endpoints.csv (a row per run
and deployed policy, trainer or sampler) and verdicts.csv (a row per uncorrected run). R[s, a] is a run's end: the mean held-out
reward of its last evaluations, for seed s and arm a.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from experiments.verdict_study import ARMS, EARLY, GRID, HARMED, MARGIN

DRAWN, PAIRS = 20_000, 17
"""Number of drawn patterns of signs, and the greatest number of pairs for which all patterns are enumerated instead."""
TOLERANCE = 9
"""Decimals to which rewards are compared, so that equal means of different rewards tie whatever their rounding error."""
CLAIMS = {
    "below": [("v2", "best constant"), ("verdict", "always none"), ("v2", "always token")],
    "equivalent": [("v2", "best constant")],
}
"""(rule, reference) of the claims of a policy, by kind: "below" compares shares of the gain, "equivalent" rewards."""


class Run(NamedTuple):
    """What a rule reads of an uncorrected run: K3, persistence over 20 syncs, tokens of a response, arm of the verdict."""

    k3: float
    persistence: float
    tokens: float
    verdict: str


Rule = Callable[[Run], str]


def v2(k3: float, persistence: float, tokens: float, short: str, long: str) -> Rule:
    """No correction below the cut-offs `k3` or `persistence`; else `short` up to `tokens` tokens of a response, or `long`."""
    return lambda run: "none" if run.k3 < k3 or run.persistence < persistence else short if run.tokens <= tokens else long


def rules(cutoffs: Mapping[str, float | str], best: str) -> dict[str, Rule]:
    """Every rule of the plan by name, for one deployed policy. cutoffs: of v2. best: the best constant."""
    named: dict[str, Rule] = {f"always {arm}": lambda run, arm=arm: arm for arm in ARMS}
    return {"verdict": lambda run: run.verdict, "v2": v2(**cutoffs), "best constant": lambda run: best, **named}


def with_regimes(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of endpoints.csv but for the controls, with a column regime, as in dense/int8."""
    return runs[runs.source != "exact"].assign(regime=lambda rows: rows.bed + "/" + rows.source)


def gain(runs: pd.DataFrame) -> pd.Series:
    """Gain of a bed, mean over seeds of end − start of its control's trainer, by bed."""
    control = runs[(runs.source == "exact") & (runs.policy == "trainer")]
    return (control.end - control.start).groupby(control.bed).mean()


def best_reward(ends: np.ndarray) -> tuple[float, int]:
    """B = 1/10·Σ_P 1/3·Σ_{s ∉ P} R[s, a(P)] with a(P) = argmax_a Σ_{s ∈ P} R[s, a], and in how many of the ten P arms tie.

    P: a pair of the five seeds. ends [5, arms]: R. A tie goes to the first arm, of which the plan says nothing.
    """
    total, ties = 0.0, 0
    for pair in combinations(range(5), 2):
        chosen = ends[list(pair)].sum(0).round(TOLERANCE)
        total += np.delete(ends, pair, axis=0)[:, np.argmax(chosen)].mean()
        ties += (chosen == chosen.max()).sum() > 1
    return total / 10, ties


def read_by_rules(runs: pd.DataFrame, verdicts: pd.DataFrame) -> dict[tuple[str, int], Run]:
    """What each uncorrected run shows, by (regime, seed). A persistence that was not measured is 0."""
    arms = verdicts.set_index(["regime", "seed"]).arm
    rows = with_regimes(runs[(runs.arm == "none") & (runs.policy == "trainer")]).fillna({"persistence_20": 0.0})
    return {
        (row.regime, row.seed): Run(row.k3, row.persistence_20, row.tokens, arms[row.regime, row.seed])
        for row in rows.itertuples()
    }


def regrets(runs: pd.DataFrame, verdicts: pd.DataFrame, policy: str, named: Mapping[str, Rule]) -> pd.DataFrame:
    """Table with a row per regime and rule (column arm): regret, share of the control's gain, and ties of `best_reward`.

    regret = B − 1/5·Σ_s R[s, rule(s)], B from `best_reward`. The plan scores both terms on the three seeds that did not choose
    the best arm. Each seed is among them in 6 of 10 choices, so the rule's term is its mean over the five seeds.
    """
    shown, gained, rows = read_by_rules(runs, verdicts), gain(runs), []
    for regime, part in with_regimes(runs[runs.policy == policy]).groupby("regime"):
        ends = part.pivot(index="seed", columns="arm", values="end")
        (best, ties), end = best_reward(ends[list(ARMS)].to_numpy()), ends.T.to_dict()
        for name, rule in named.items():
            regret = best - np.mean([end[seed][rule(shown[regime, seed])] for seed in ends.index])
            rows.append((name, regime, policy, regret, regret / gained[part.bed.iloc[0]], ties))
    return pd.DataFrame(rows, columns=["arm", "regime", "policy", "regret", "share", "ties"])


def tuned(runs: pd.DataFrame, verdicts: pd.DataFrame, policy: str) -> tuple[int, str]:
    """Place in GRID of v2's cut-offs, and the constant, with the least mean share of the gain lost. Ties go to the first."""
    named = {place: v2(*astuple(cutoffs)) for place, cutoffs in enumerate(GRID)}
    named |= {arm: lambda run, arm=arm: arm for arm in ARMS}
    means = regrets(runs, verdicts, policy, named).groupby("arm").share.mean().round(TOLERANCE)
    return int(np.argmin(means[list(range(len(GRID)))])), list(ARMS)[np.argmin(means[list(ARMS)])]


def flipped(differences: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Σ_i ±d_i for every pattern of signs, or for DRAWN of them; and the number of observed patterns to count besides."""
    n = len(differences)
    if n <= PAIRS:
        return np.array(np.meshgrid(*[(-1, 1)] * n)).reshape(n, -1).T @ differences, 0
    return rng.choice([-1, 1], (DRAWN, n)) @ differences, 1


def two_sided(differences: np.ndarray, rng: np.random.Generator) -> float:
    """p = share of the patterns of signs with |Σ ±d_i| ≥ |Σ d_i|, the drawn ones and the observed one."""
    sums, more = flipped(differences, rng)
    return (np.sum(np.abs(sums).round(TOLERANCE) >= abs(differences.sum()).round(TOLERANCE)) + more) / (len(sums) + more)


def one_sided(differences: np.ndarray, rng: np.random.Generator) -> float:
    """p = share of the patterns of signs with Σ ±d_i ≥ Σ d_i, the drawn ones and the observed one."""
    sums, more = flipped(differences, rng)
    return (np.sum(sums.round(TOLERANCE) >= differences.sum().round(TOLERANCE)) + more) / (len(sums) + more)


def holm(p: list[float]) -> np.ndarray:
    """Holm: the i-th smallest of m p-values becomes max_{j ≤ i} min(1, (m − j + 1)·p_(j)), i from 1."""
    adjusted, highest = np.empty(len(p)), 0.0
    for rank, place in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = highest
    return adjusted


def claims(rows: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per policy and claim: difference of the means over regimes, p, holm_p, and whether the claim holds.

    rows: of `regrets`. "below" is two-sided in the share d_i = x_i − y_i. "equivalent" is the larger p of two one-sided tests, of
    regrets d_i + MARGIN and MARGIN − d_i. Each test draws its signs from a generator of seed 0, as the project's tests do.
    """
    found = []
    for policy, part in rows.groupby("policy"):
        share, regret = (part.pivot(index="regime", columns="arm", values=column) for column in ("share", "regret"))
        for kind, pairs in CLAIMS.items():
            for rule, reference in pairs:
                table, rng = (share if kind == "below" else regret), np.random.default_rng(0)
                d = (table[rule] - table[reference]).to_numpy()
                p = two_sided(d, rng) if kind == "below" else max(one_sided(d + MARGIN, rng), one_sided(MARGIN - d, rng))
                found.append(
                    {"policy": policy, "claim": kind, "arm": rule, "reference": reference, "difference": d.mean(), "p": p}
                )
    table = pd.DataFrame(found)
    table["holm_p"] = table.groupby("policy").p.transform(lambda p: holm(p.tolist()))
    table["holds"] = (table.holm_p <= 0.05) & ((table.claim == "equivalent") | (table.difference < 0))
    return table


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """By policy and rule: mean and worst share over regimes, and least and greatest mean if one source is left out."""
    source = rows.regime.str.split("/").str[1]
    by = ["policy", "arm"]
    without = pd.concat([rows[source != one].groupby(by).share.mean() for one in source.unique()], axis=1)
    whole = rows.groupby(by).share
    columns = {"mean": whole.mean(), "worst": whole.max(), "least": without.min(axis=1), "greatest": without.max(axis=1)}
    return pd.DataFrame(columns)


def tau(one: float, five: float, twenty: float) -> float:
    """τ = 1 + 2·Σ_{k=1..20} ρ_k, with ρ linear between ρ_0 = 1 and the measured ρ_1, ρ_5 and ρ_20; NaN counts as 0."""
    zero, one, five, twenty = np.nan_to_num([1.0, one, five, twenty])
    stretches = (zero, one, 1), (one, five, 4), (five, twenty, 15)
    return 1 + 2 * sum(start + (end - start) * k / length for start, end, length in stretches for k in range(1, length + 1))


def costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Table by regime, of the trainer's policy without correction: cost, share of collapses, onset, and early measurements.

    cost = (mean end of the control − mean end without correction)/gain. Measurements are medians over seeds, and dose is K3·τ of
    the medians. spread is 1 − ESS, which grows with the mismatch as the others do.
    """
    own = runs[runs.policy == "trainer"]
    control, gained = own[own.source == "exact"].groupby("bed").end.mean(), gain(runs)
    lags = [f"persistence_{lag}" for lag in (1, 5, 20)]
    rows = {}
    for regime, part in with_regimes(own[own.arm == "none"]).groupby("regime"):
        bed, middle = part.bed.iloc[0], part[["k3", "identity", "gradient", "ess", *lags]].median()
        rows[regime] = {
            "cost": (control[bed] - part.end.mean()) / gained[bed],
            "collapsed": (part.outcome == "collapsed").mean(),
            "onset": part.onset[part.outcome == "collapsed"].median(),
            "k3": middle.k3,
            "dose": max(0.0, middle.k3 * tau(*middle[lags])),
            "spread": 1 - middle.ess,
            "identity": middle.identity,
            "gradient": middle.gradient,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def law(fitted: pd.DataFrame, held_out: pd.DataFrame) -> dict[str, float]:
    """Mean |cost − a·√dose| of held-out regimes by dose, with a = Σ √dose·cost/Σ dose of `fitted`; "none" predicts no cost."""
    errors = {"none": held_out.cost.abs().mean()}
    for name in ("dose", "k3"):
        dose, new = fitted[name], held_out[name]
        errors[name] = (held_out.cost - (np.sqrt(dose) * fitted.cost).sum() / dose.sum() * np.sqrt(new)).abs().mean()
    return errors


def forecast(held_out: pd.DataFrame) -> tuple[dict[str, float], float]:
    """AUC by early measurement, U/(n_1·n_0) of Mann and Whitney, of harm against no harm; and the lead in steps.

    Harm is a cost of at least HARMED, or a collapse of most seeds. The lead is the median onset of the latter less EARLY.
    """
    most = held_out.collapsed > 0.5
    harm = (held_out.cost >= HARMED) | most
    n, events = len(harm), int(harm.sum())
    auc = {
        name: (rankdata(held_out[name])[harm].sum() - events * (events + 1) / 2) / (events * (n - events))
        for name in ("k3", "dose", "spread", "identity", "gradient")
    }
    return auc, held_out.onset[most].median() - EARLY
