"""Collapse as an event: online detectors over the metrics of a run.

A detector sees every recorded step once, in order, and reports an event at most once. Its state is plain JSON, so that it
goes into a checkpoint. Definitions: D1 and D2; R_k is the held-out reward of the trainer's own policy at evaluation k.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Protocol

from algos.registry import Registry

DETECTORS = Registry("detectors", {"drawdown": "harness.collapse:Drawdown", "numerical": "harness.collapse:Numerical"})


class Detector(Protocol):
    """`state` holds everything it remembers and may be replaced by an earlier one."""

    state: dict[str, Any]

    def observe(self, step: int, metrics: dict[str, float]) -> dict[str, Any] | None:
        """The event {"onset": step, ...} if this step completes one, else None."""


class Drawdown:
    """D1: a sustained drawdown of the held-out reward.

    First k ≥ warm with M_j − R_j ≥ max(δ·(M_j − floor), 3σ_j) for m evaluations j in a row; the onset is the first of them.
    M_j = max over i ≤ j of the median of R_{i−2..i} (of as many as there are at the start); σ_j² = R(1−R)/n
    at R_j or at M_j, whichever is larger: at R_j = 0 alone it would be 0, and any dip of a small evaluation an event.
    Guard: M − R_0 ≥ 3σ_0 or R ≤ R_0 − 3σ_0, else the run never learned, which is another outcome. `warm` counts evaluations,
    `floor` is the reward of chance.
    """

    def __init__(self, *, delta: float, m: int, warm: int, floor: float):
        if not (0 < delta <= 1 and m >= 1 and warm >= 0):
            raise ValueError(f"drawdown: delta={delta}, m={m}, warm={warm}: needs 0 < delta ≤ 1, m ≥ 1, warm ≥ 0")
        self.delta, self.m, self.warm, self.floor = delta, m, warm, floor
        self.state: dict[str, Any] = {"rewards": [], "best": -math.inf, "onset": None, "run": 0, "fired": False}

    def observe(self, step: int, metrics: dict[str, float]) -> dict[str, Any] | None:
        if "eval/reward" not in metrics or self.state["fired"]:
            return None
        s, reward, n = self.state, metrics["eval/reward"], metrics["eval/samples"]
        s["rewards"].append(reward)
        s["best"] = max(s["best"], median(s["rewards"][-3:]))
        if len(s["rewards"]) <= self.warm or not self._down(reward, n):
            s["run"], s["onset"] = 0, None
            return None
        s["run"] += 1
        s["onset"] = step if s["run"] == 1 else s["onset"]
        if s["run"] < self.m:
            return None
        s["fired"] = True
        return {"onset": s["onset"], "best": s["best"], "reward": reward}

    def _down(self, reward: float, n: float) -> bool:
        best, first = self.state["best"], self.state["rewards"][0]
        drop = best - reward
        noise = max(_standard_error(reward, n), _standard_error(best, n))
        deep = drop >= max(self.delta * (best - self.floor), 3 * noise) and drop > 0
        margin = 3 * _standard_error(first, n)
        return deep and (best - first >= margin or reward <= first - margin)


class Numerical:
    """D2: numerical failure.

    A non-finite loss, gradient norm or entropy (so non-finite log-probabilities of the trainer's); or no finite
    log-probability in a whole rollout; or a pre-clip gradient norm
    above `factor` times its trailing median (of `window` steps before, frozen while it is exceeded) in `hits` of the last `of`
    steps; or more than half of the optimizer steps skipped over the last `window`.
    """

    def __init__(self, *, factor: float, window: int, hits: int, of: int):
        if not (factor > 1 and window >= 1 and 1 <= hits <= of):
            values = f"factor={factor}, window={window}, hits={hits}, of={of}"
            raise ValueError(f"numerical: {values}: needs factor > 1, window ≥ 1, 1 ≤ hits ≤ of")
        self.factor, self.window, self.hits, self.of = factor, window, hits, of
        self.state: dict[str, Any] = {"norms": [], "exceeded": [], "skipped": [], "fired": False}

    def observe(self, step: int, metrics: dict[str, float]) -> dict[str, Any] | None:
        s = self.state
        if s["fired"]:
            return None
        watched = ("actor/loss", "actor/grad_norm", "actor/entropy")
        bad = [name for name in watched if not math.isfinite(metrics.get(name, 0.0))]
        if bad:
            s["fired"] = True
            return {"onset": step, "cause": f"{bad[0]} is not finite"}
        if metrics.get("mismatch/dropped", 0) and "mismatch/ess_token" not in metrics:
            s["fired"] = True
            return {"onset": step, "cause": "no rollout log-probability is finite"}
        s["skipped"] = [*s["skipped"], metrics.get("actor/skipped", 0.0)][-self.window :]
        if len(s["skipped"]) == self.window and sum(s["skipped"]) > self.window / 2:
            s["fired"] = True
            return {"onset": step, "cause": "more than half of the optimizer steps skipped"}
        if "actor/grad_norm" not in metrics:
            return None  # skipped steps, or the last row, which holds an evaluation only
        norm, full = metrics["actor/grad_norm"], len(s["norms"]) >= self.window
        exceeded = full and norm > self.factor * median(s["norms"])
        s["exceeded"] = [*s["exceeded"], step if exceeded else None][-self.of :]
        steps = [at for at in s["exceeded"] if at is not None]
        if not steps:
            s["norms"] = [*s["norms"], norm][-self.window :]
        if len(steps) < self.hits:
            return None
        s["fired"] = True
        return {"onset": steps[0], "cause": f"gradient norm above {self.factor:g} times its median"}


def _standard_error(rate: float, n: float) -> float:
    return math.sqrt(max(rate * (1 - rate), 0.0) / n)
