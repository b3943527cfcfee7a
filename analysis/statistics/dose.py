"""Dose and response: the reward of a policy over the size of its mismatch, which synthetic noise on the weights causes.

Runs with noise that differ only in seed form an arm, a point of a curve. The dose of an arm is the median over runs of K3,
itself the median over steps. Its response r is the mean over runs of the mean of the last 3 held-out evaluations. The arms of
one correction and one persistence (correlation of the noise from one version of the weights to the next) form a curve. A curve
begins at dose 0 with the control, which has no noise. Its fit f minimises Σ n_i·(f_i − r_i)² over f_0 ≥ f_1 ≥ …, with n_i runs
at dose i (isotonic regression). f is linear in √K3 between doses, since √K3 grows as the log ratio does. Beyond the largest
dose f is undefined.
    tolerated dose at a margin m = min {d: f(d) ≤ mean of the control − m}
Bands are percentiles over resamples: the runs of each arm and of the control are drawn with replacement. The doses stay fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.measures import median
from analysis.statistics.tests import Interval

KEYS = ("rollout.engine.noise", "rollout.engine.noise_persistence", "rollout.engine.noise_seed")
"""Config keys of the synthetic noise on the weights: its size, its correlation between versions of the weights, its seed."""
LAST = 3
"""Number of held-out evaluations at the end of a run whose mean reward is the run's response."""
LEAST = 3
"""Minimum number of sizes of the synthetic noise to which a curve of reward over K3 is fitted."""
MARGIN = 0.05
"""Default loss of mean held-out reward, against runs without noise, from which a K3 of noise counts as no longer tolerated."""
REPS = 1000


class Curve(NamedTuple):
    """A curve of the reward of `policy` over K3, from runs that differ only in seed and in the size of synthetic noise.

    setting: config values of the runs that differ in the sweep, in words. persistence: correlation of the noise between versions
    of the weights. doses: K3 in nats per token, ascending [D]. responses: per dose, an array of the runs' rewards. control:
    rewards of the runs without noise. measured: median correlation of the log ratios over 20 weight syncs, NaN if unmeasured.
    level: fitted reward at K3 = 0 and at each dose [1 + D]; drawn: the same for each bootstrap draw [REPS, 1 + D]; both None for
    fewer than LEAST doses. reference: mean of `control` in each draw [REPS].
    """

    policy: str
    loss: str
    setting: str
    correction: str
    persistence: float
    doses: np.ndarray
    responses: list[np.ndarray]
    control: np.ndarray
    measured: float
    level: np.ndarray | None
    drawn: np.ndarray | None
    reference: np.ndarray

    @property
    def family(self) -> tuple[str, str, str]:
        """(policy, loss, other config values), shared by all curves of reward over K3 with the same runs without noise."""
        return self.policy, self.loss, self.setting

    @property
    def few(self) -> int:
        """Number of runs of the curve's point (noise of one size, or no noise) that has the fewest runs."""
        return min(map(len, (self.control, *self.responses)))

    def at(self, k3: np.ndarray | float) -> np.ndarray:
        """The fitted reward at `k3`, and the lower and upper end of its 95 % band, [3, ...]; NaN beyond the largest fitted K3."""
        assert self.level is not None and self.drawn is not None
        known, asked = np.sqrt([0.0, *self.doses]), np.sqrt(np.asarray(k3, float))
        draws = np.array([np.interp(asked, known, level) for level in self.drawn])
        band = np.stack([np.interp(asked, known, self.level), *np.quantile(draws, [0.025, 0.975], axis=0)])
        return np.where(asked <= known[-1] * (1 + 1e-9), band, np.nan)

    def tolerated(self, margin: float) -> Interval:
        """The least K3 at which the fit is `margin` below the mean reward without noise, with a 95% interval; inf if none."""
        assert self.level is not None and self.drawn is not None
        known = np.sqrt([0.0, *self.doses])
        value = _crossing(known, self.level, self.control.mean() - margin)
        draws = [_crossing(known, level, mean - margin) for level, mean in zip(self.drawn, self.reference, strict=True)]
        return Interval(value, *map(float, np.quantile(draws, [0.025, 0.975], method="inverted_cdf")))


class Real(NamedTuple):
    """Runs that differ only in seed, and whose mismatch comes from the number format `precision`, not from synthetic noise.

    k3: median of the runs, in nats per token. measured: median correlation of the log ratios over 20 weight syncs, NaN if
    unmeasured. responses: held-out reward of `policy` at the end of each run. setting: other config values, in words.
    """

    policy: str
    loss: str
    setting: str
    correction: str
    precision: str
    k3: float
    measured: float
    responses: np.ndarray

    @property
    def family(self) -> tuple[str, str, str]:
        """(policy, loss, other config values). Only a curve of reward over synthetic noise with the same three is compared."""
        return self.policy, self.loss, self.setting


def _crossing(places: np.ndarray, level: np.ndarray, wanted: float) -> float:
    """The least K3 at which a fitted reward falls to `wanted`, inf if never. places, level: √K3 and reward of its points."""
    below = np.flatnonzero(level <= wanted)
    if not len(below):
        return np.inf
    i = below[0]
    if i == 0:
        return 0.0
    share = (level[i - 1] - wanted) / (level[i - 1] - level[i])
    return float((places[i - 1] + share * (places[i] - places[i - 1])) ** 2)


def fit(responses: list[np.ndarray]) -> np.ndarray:
    """Isotonic regression: non-increasing values [N] nearest to the means of N groups in least squares, weighted by size."""
    from scipy.optimize import isotonic_regression  # takes long to import, and few sweeps have noise

    means, runs = [values.mean() for values in responses], [len(values) for values in responses]
    return isotonic_regression(means, weights=runs, increasing=False).x


def points(
    runs: pd.DataFrame, configs: Mapping[str, Any], steps: pd.DataFrame, measures: pd.DataFrame, policies: Mapping[str, str]
) -> pd.DataFrame:
    """A row per run and per policy whose held-out reward the run recorded: the run's K3, and the reward at its end.

    Columns: policy, loss, setting, correction, precision, control, seed, noise (its size), persistence (correlation of the noise
    between versions of the weights), k3, measured (correlation of the log ratios over 20 weight syncs), response (reward).
    runs: the ended ones, from `Results.runs_but(KEYS)`. policies: the policy in words, by the metric of its held-out reward.
    """
    engines = {run: configs[run]["rollout"]["engine"] for run in runs.index}
    measures = measures.loc[runs.index]  # to assign a longer column to a table without rows would give it rows
    table = runs[["loss", "setting", "correction", "precision", "control", "seed"]].assign(
        noise=pd.Series({run: engine.get("noise", 0.0) for run, engine in engines.items()}, dtype=float),
        persistence=pd.Series({run: engine.get("noise_persistence", 0.0) for run, engine in engines.items()}, dtype=float),
        k3=measures.k3,
        measured=measures.persistence,
    )
    parts = []
    for metric, policy in policies.items():
        if metric in steps:
            evaluated = steps[["run", metric]].dropna().groupby("run", observed=True)[metric]
            response = evaluated.apply(lambda values: values.tail(LAST).mean()).reindex(runs.index)
            parts.append(table.assign(policy=policy, response=response))
    if not parts:
        return table.assign(policy="", response=np.nan)[:0]
    return pd.concat(parts).dropna(subset=["response", "k3"])


def curves(table: pd.DataFrame) -> list[Curve]:
    """Curves of reward over K3, each of runs that differ only in seed and in the size of the noise; uncorrected ones first.

    table: from `points`. Noise in a precision without control runs (uncorrected, without a mismatch) is left out.
    """
    if table.empty:
        return []
    controls = {key: part for key, part in table[table.control].groupby(["policy", "loss", "setting"], sort=False)}
    noisy = table[table.noise > 0].assign(plain=lambda rows: rows.correction != "none")
    noisy = noisy.sort_values(["plain", "correction", "persistence"], kind="stable")
    fitted = []
    for key, part in noisy.groupby(["policy", "loss", "setting", "correction", "persistence"], sort=False):
        control = controls.get(key[:3])
        if control is None:
            continue
        part = part[part.precision == control.precision.iloc[0]]
        if part.empty:
            continue
        arms = [(arm.k3.median(), arm.response.to_numpy()) for _, arm in part.groupby("noise")]
        arms.sort(key=lambda arm: arm[0])
        fitted.append(_curve(key, arms, control.response.to_numpy(), median(part.measured)))
    return fitted


def _curve(
    key: tuple[str, str, str, str, float], arms: list[tuple[float, np.ndarray]], control: np.ndarray, measured: float
) -> Curve:
    doses, responses = np.array([dose for dose, _ in arms]), [values for _, values in arms]
    rng = np.random.default_rng(0)
    draws = [[values[rng.integers(0, len(values), len(values))] for values in (control, *responses)] for _ in range(REPS)]
    reference = np.array([drawn[0].mean() for drawn in draws])
    level = drawn = None
    if len(doses) >= LEAST:
        level, drawn = fit([control, *responses]), np.array([fit(values) for values in draws])
    return Curve(*key, doses, responses, control, measured, level, drawn, reference)


def precisions(table: pd.DataFrame) -> list[Real]:
    """The runs whose mismatch comes from their precision alone, grouped by everything but the seed, for each policy.

    table: a row per run and policy, from `points`. The precision of the control runs, which have no mismatch, is left out.
    """
    if table.empty:
        return []
    own = table[table.control].groupby(["policy", "loss", "setting"]).precision.first().to_dict()
    other = table[(table.noise == 0) & ~table.control]
    return [
        Real(
            policy,
            loss,
            setting,
            correction,
            precision,
            part.k3.median(),
            median(part.measured),
            part.response.to_numpy(),
        )
        for (policy, loss, setting, correction, precision), part in other.groupby(
            ["policy", "loss", "setting", "correction", "precision"], sort=False
        )
        if own.get((policy, loss, setting), precision) != precision
    ]
