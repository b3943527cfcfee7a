"""The built-in detectors of collapse and of its warnings, D1 to D6, and the detector of learning.

R_k is `eval/reward` at evaluation k, the held-out reward of the policy that `evaluation.policy` names. σ_k is its recorded
standard error, clustered by prompt. The responses to one prompt are not independent, so σ_k does not follow from R_k and the
number of responses.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Annotated, Any

from annotated_types import Interval

from algos.parameters import Count, Share
from harness.collapse import Event

Probability = Annotated[float, Interval(ge=0, le=1)]
Factor = Annotated[float, Interval(gt=1, le=1e9)]
Ess = Annotated[float, Interval(ge=0, lt=1)]
NullBand = Annotated[float, Interval(ge=0, le=1e3)]
Fraction = Annotated[float, Interval(gt=0, lt=1)]
Spread = Annotated[float, Interval(gt=0, le=1e9)]
Steps = Annotated[int, Interval(ge=0, le=10**9)]
FAULT = "diagnosis/fault_"
"""Prefix of metrics, one for each fault that a diagnosis found in the log-probabilities. The rest of the name is the fault."""
Reading = list[float]
"""Reward and standard error of one evaluation, as a list of two numbers."""


class Drawdown:
    """D1, a collapse: the held-out reward R stays far below M, its best value so far.

    The event is `consecutive` evaluations j ≥ warm in a row with M_j − R_j ≥ max(delta·(M_j − floor), 3σ_j). Its onset is the
    step of the first of these. R_j is the held-out reward of evaluation j ≥ 0. M_j is the maximum over i ≤ j of the median of
    R_{i−2..i}, with fewer terms at the start. σ_j is the larger standard error of R_j and M_j, because a reward of 0 has
    standard error 0. Each j also needs M_j > floor, and either M_j − R_0 ≥ 3σ_0 or R_j ≤ R_0 − 3σ_0; else the run never learned.

    delta: share of the gain M − floor that is lost. warm: number of evaluations not tested. floor: reward of random answers.
    """

    role = "collapse"

    def __init__(self, *, delta: Share, consecutive: Count, warm: Steps, floor: Probability):
        self.delta, self.consecutive, self.warm, self.floor = delta, consecutive, warm, floor
        self.state: dict[str, Any] = {"first": None, "last": [], "best": None, "seen": 0, "down": 0, "onset": None}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s = self.state
        if "eval/reward" not in metrics:
            return None
        now = [metrics["eval/reward"], metrics["eval/stderr"]]
        s["seen"] += 1
        s["first"] = s["first"] or now
        s["last"] = [*s["last"], now][-3:]
        s["best"] = max(s["best"] or now, _median(s["last"]))
        if s["seen"] <= self.warm or not self._down(now):
            s["down"], s["onset"] = 0, None
            return None
        s["down"] += 1
        s["onset"] = step if s["down"] == 1 else s["onset"]
        if s["down"] < self.consecutive:
            return None
        return {"onset": s["onset"], "best": s["best"][0], "reward": now[0]}

    def _down(self, now: Reading) -> bool:
        (reward, error), (best, error_best), (first, error_first) = now, self.state["best"], self.state["first"]
        deep = best - reward >= max(self.delta * (best - self.floor), 3 * max(error, error_best))
        moved = best - first >= 3 * error_first or reward <= first - 3 * error_first
        return best > max(reward, self.floor) and deep and moved


class Learning:
    """Event "learned": the median of the last three held-out rewards exceeds the first reward R_0 by 3σ, or R_0 ≥ `solved`.

    σ is the larger standard error of the median and of R_0. A finished run with neither this event nor a collapse never learned.
    """

    role = "learned"

    def __init__(self, *, solved: Probability):
        self.solved = solved
        self.state: dict[str, Any] = {"first": None, "last": []}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s = self.state
        if "eval/reward" not in metrics:
            return None
        now = [metrics["eval/reward"], metrics["eval/stderr"]]
        s["first"] = s["first"] or now
        s["last"] = [*s["last"], now][-3:]
        (reward, error), (first, error_first) = _median(s["last"]), s["first"]
        margin = 3 * max(error, error_first)
        if first < self.solved and not reward - first >= max(margin, 1e-12):
            return None
        return {"onset": step, "reward": reward}


class Numerical:
    """D2, a collapse: numerical failure of a run.

    Any of these is a failure: a loss, gradient norm or entropy that is not finite; a rollout without a finite log-probability;
    a gradient norm, before clipping, of over `factor` times its trailing median in `hits` of the last `hits_window` steps; more
    than half of the optimizer steps skipped over the last `window` steps. The trailing median is that of the last `window`
    usable steps. A step is usable if no norm of the last `hits_window` steps exceeded `factor` times its median.
    """

    role = "collapse"

    def __init__(self, *, factor: Factor, window: Count, hits: Count, hits_window: Count):
        if hits > hits_window:
            raise ValueError(f"collapse.detectors.numerical.hits={hits}: must be at most hits_window={hits_window}")
        self.factor, self.window, self.hits, self.hits_window = factor, window, hits, hits_window
        self.state: dict[str, Any] = {"norms": [], "exceeded": [], "skipped": []}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s = self.state
        watched = ("actor/loss", "actor/grad_norm", "actor/entropy")
        bad = [name for name in watched if not math.isfinite(metrics.get(name, 0.0))]
        if bad:
            return {"onset": step, "cause": f"{bad[0]} is not finite"}
        if metrics.get("mismatch/dropped", 0) and "mismatch/ess_token" not in metrics:
            return {"onset": step, "cause": "no rollout log-probability is finite"}
        s["skipped"] = [*s["skipped"], metrics.get("actor/skipped", 0.0)][-self.window :]
        if len(s["skipped"]) == self.window and sum(s["skipped"]) > self.window / 2:
            return {"onset": step, "cause": "more than half of the optimizer steps skipped"}
        if "actor/grad_norm" not in metrics:
            return None  # skipped steps, or the last row, which holds an evaluation only
        norm, full = metrics["actor/grad_norm"], len(s["norms"]) >= self.window
        exceeded = full and norm > self.factor * median(s["norms"])
        s["exceeded"] = [*s["exceeded"], step if exceeded else None][-self.hits_window :]
        steps = [at for at in s["exceeded"] if at is not None]
        if not steps:
            s["norms"] = [*s["norms"], norm][-self.window :]
        if len(steps) < self.hits:
            return None
        return {"onset": steps[0], "cause": f"gradient norm above {self.factor:g} times its median"}


class Distribution:
    """D3, a warning: the rollout policy has drifted away from the trainer's policy.

    One of two conditions on the ratios ρ = π_old/μ must hold for `consecutive` steps in a row. The onset is the first of these
    steps. Either the effective sample size of the responses' ratios, as a share, is below `ess`. Or, after step `last`,
    K3 = E[ρ − 1 − log ρ] is above both 3 · `null_band` and `factor` times its median over the steps `first` to `last`.
    null_band: K3 between two executions of the same weights, in nats per token, caused by the engines' rounding alone.
    """

    role = "warning"

    def __init__(self, *, ess: Ess, factor: Factor, first: Steps, last: Steps, null_band: NullBand, consecutive: Count):
        if first > last:
            raise ValueError(f"collapse.detectors.distribution.first={first}: must be at most last={last}")
        self.ess, self.factor, self.null_band = ess, factor, null_band
        self.first, self.last, self.consecutive = first, last, consecutive
        self.state: dict[str, Any] = {"reference": [], "low": [], "far": []}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s, k3 = self.state, metrics.get("rollout_corr/k3_kl")
        if k3 is None:
            return None
        if self.first <= step <= self.last:
            s["reference"] = [*s["reference"], k3]
        far = step > self.last and s["reference"] and k3 > max(self.factor * median(s["reference"]), 3 * self.null_band)
        alarms = {
            "low": (metrics["mismatch/ess_sequence"] < self.ess, f"sequence ESS below {self.ess:g}"),
            "far": (bool(far), f"K3 above {self.factor:g} times its start"),
        }
        return _lasting(s, step, self.consecutive, alarms)


class Entropy:
    """D4, a warning: the policy's entropy is below `share` · H_0 for `consecutive` steps in a row, the first being the onset.

    H_0 is the entropy of the first step. On a task with a single answer, low entropy may mean success. So the event only
    counts as the cause of a reward drawdown that follows (`harness.collapse.outcome`).
    """

    role = "warning"

    def __init__(self, *, share: Fraction, consecutive: Count):
        self.share, self.consecutive = share, consecutive
        self.state: dict[str, Any] = {"first": None, "low": []}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s, entropy = self.state, metrics.get("actor/entropy")
        if entropy is None:
            return None
        s["first"] = entropy if s["first"] is None else s["first"]
        alarms = {"low": (entropy < self.share * s["first"], f"entropy below {self.share:g} of its start")}
        return _lasting(s, step, self.consecutive, alarms)


class Length:
    """D4, a warning: the lengths of the responses degenerate.

    For `consecutive` steps in a row more than a fraction `share` of the responses are cut off at the maximum length. Or more
    than that fraction have the same length, although at some earlier step no length was so frequent. The onset is the first of
    these steps. The detector reads `rollout/truncated` and `rollout/same_length`, recorded only by tasks whose responses can end
    early. A correction that rejects long responses can cause this event.
    """

    role = "warning"

    def __init__(self, *, share: Fraction, consecutive: Count):
        self.share, self.consecutive = share, consecutive
        self.state: dict[str, Any] = {"long": [], "same": [], "varied": False}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s, truncated = self.state, metrics.get("rollout/truncated")
        if truncated is None:
            return None
        same = metrics.get("rollout/same_length", 0.0)
        varied = s.get("varied", False)  # absent in checkpoints from before it was recorded
        alarms = {
            "long": (truncated > self.share, f"more than {self.share:g} of the responses cut off"),
            "same": (varied and same > self.share, f"more than {self.share:g} of the responses of one length"),
        }
        s["varied"] = varied or same <= self.share
        return _lasting(s, step, self.consecutive, alarms)


class Weights:
    """D5, a warning: degenerate importance weights, by the criteria of verl's README on rollout importance sampling.

    One of five conditions must hold for `consecutive` steps in a row, and the onset is the first of these steps. The mean
    weight is outside [`low`, `high`]. Or the standard deviation of the weights is above `std`. Or their effective sample
    size, as a share of the tokens, is below `ess`. Or the filters reject more than a share `masked` of the tokens. Or the filter
    named veto rejects tokens of more than a share `veto` of the responses. Weights are read after bounding
    (`rollout_corr/rollout_is_*`), even if the correction does not apply them. The share of vetoed responses is recorded every
    diagnostics.every steps, and compared with `veto` at these steps alone. `std` or `veto` None: its condition is not tested.
    """

    role = "warning"

    def __init__(
        self,
        *,
        low: Fraction,
        high: Factor,
        ess: Ess,
        masked: Fraction,
        consecutive: Count,
        std: Spread | None = None,
        veto: Fraction | None = None,
    ):
        self.low, self.high, self.ess, self.masked, self.consecutive = low, high, ess, masked, consecutive
        self.std, self.veto = std, veto
        self.state: dict[str, Any] = {"mean": [], "ess": [], "masked": []}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        s = self.state
        if "rollout_corr/rollout_rs_masked_fraction" not in metrics:
            return None
        mean, ess = (metrics.get(f"rollout_corr/rollout_is_{name}", 1.0) for name in ("mean", "eff_sample_size"))
        masked = metrics["rollout_corr/rollout_rs_masked_fraction"]
        alarms = {
            "mean": (not self.low <= mean <= self.high, f"mean weight outside of {self.low:g} to {self.high:g}"),
            "ess": (ess < self.ess, f"ESS of the weights below {self.ess:g}"),
            "masked": (masked > self.masked, f"more than {self.masked:g} of the tokens rejected"),
        }
        if self.std is not None:
            std = metrics.get("rollout_corr/rollout_is_std", 0.0)
            alarms["std"] = std > self.std, f"standard deviation of the weights above {self.std:g}"
        vetoed = metrics.get("rollout_corr/rollout_rs_veto_seq_masked_fraction")
        if self.veto is not None and vetoed is not None:
            alarms["veto"] = vetoed > self.veto, f"more than {self.veto:g} of the responses vetoed"
        return _lasting(s, step, self.consecutive, alarms)


class FaultAlarm:
    """D6, a warning: `consecutive` diagnoses of the log-probabilities in a row name the same fault.

    A diagnosis is made every diagnostics.every steps. The onset is the step of the first of these
    diagnoses, and the cause names the fault. docs/diagnosis.md says what to check.
    """

    role = "warning"

    def __init__(self, *, consecutive: Count):
        self.consecutive = consecutive
        self.state: dict[str, Any] = {}

    def observe(self, step: int, metrics: dict[str, float]) -> Event | None:
        if "diagnosis/faulty" not in metrics:
            return None
        named = {name.removeprefix(FAULT) for name in metrics if name.startswith(FAULT)}
        alarms = {name: (name in named, f"fault of the log-probabilities: {name}") for name in {*self.state, *named}}
        return _lasting(self.state, step, self.consecutive, alarms)


def _lasting(state: dict[str, Any], step: int, consecutive: int, alarms: dict[str, tuple[bool, str]]) -> Event | None:
    """Return the event of the first alarm that has held at the last `consecutive` steps; its onset is the step where it began.

    alarms: name of an alarm -> (whether it holds at `step`, its cause). state: name -> latest steps in a row at which it held.
    """
    for name, (holds, _) in alarms.items():
        state[name] = [*state.get(name, []), step] if holds else []
    events = ({"onset": state[name][0], "cause": cause} for name, (_, cause) in alarms.items() if len(state[name]) >= consecutive)
    return next(events, None)


def _median(readings: list[Reading]) -> Reading:
    """Median of up to three rewards, with its standard error. Two rewards give their mean and the larger standard error."""
    ordered = sorted(readings)
    if len(ordered) == 2:
        return [(ordered[0][0] + ordered[1][0]) / 2, max(ordered[0][1], ordered[1][1])]
    return ordered[len(ordered) // 2]
