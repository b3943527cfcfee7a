"""Check that an engine whose weights another library loads really holds the actor's new weights.

The engine samples a few responses and the actor scores them. *Wrong or half-loaded weights*: the two log-probabilities differ
by more than the engine's precision explains. *Stale weights*: the engine answers with the same bits as before, although the
actor's own scores have moved by more than the precision can hide.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.precisions import COMPUTE
from harness.rollouts import Rollout, RolloutEngine
from harness.tasks import PAD

QUANTISED = 1.0
"""Tolerated mean |log μ − log π| of a quantised engine and the actor, in nats. Wrong weights give several nats."""
UNNOTICED = 0.1
"""An engine with unchanged log μ has stale weights if the actor's log π moved by more than this share of the tolerance."""


def tolerance(precision: PrecisionConfig, kv_cache: str) -> float:
    """Tolerated mean |log μ − log π|, in nats: QUANTISED with quantised weights or KV cache, else by compute dtype."""
    return COMPUTE[precision.compute].tolerance if precision.weights is None and kv_cache == "compute" else QUANTISED


class TrainedPolicy(Protocol):
    """Interface of the trained policy. The log-probabilities of a rollout engine are compared with those of this policy."""

    def logp(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Any]:
        """Return a pair: log π [B, T] of given tokens in nats, and a second value that is ignored."""


class SyncCheck:
    """Checks an engine after each load of the actor's weights, always on the same prompts [n, P] and random numbers [n, T]."""

    def __init__(self, prompts: Tensor, uniforms: Tensor):
        self.prompts, self.uniforms = prompts, uniforms
        self.before: tuple[Rollout, Tensor] | None = None
        """Last rollout that differed in tokens or log μ from the one before, and the actor's log π at that time.
        An equal rollout in a later check, although log π has moved, means stale weights. None before the first check."""

    @torch.no_grad()
    def __call__(self, engine: RolloutEngine, actor: TrainedPolicy) -> float | None:
        """Return mean |log μ − log π| in nats; None if log π is not finite. Raises UserError on wrong or stale weights."""
        rollout = engine.generate(self.prompts, self.uniforms)
        logp = actor.logp(self.prompts, rollout.tokens)[0]
        if not logp.isfinite().all():
            return None  # the collapse detectors report it
        off = (rollout.logp - logp).abs()[rollout.tokens != PAD].mean().item()
        limit = engine.tolerance
        assert limit is not None
        if not off <= limit:
            raise UserError(
                f"rollout weights: after a sync the engine's log-probabilities are off the actor's by {off:.2g} nats on average, "
                f"more than {limit:g}: the engine loaded wrong weights. Start again to resume; if this much mismatch is "
                "what the run is about, raise rollout.engine.sync_tolerance"
            )
        if self.before is not None and all(map(torch.equal, rollout[:2], self.before[0][:2])):  # equal tokens and log μ
            moved = (logp - self.before[1]).abs()[rollout.tokens != PAD].max().item()
            if moved > UNNOTICED * limit:
                raise UserError(
                    f"rollout weights: the actor has moved by {moved:.2g} nats, and the engine answers bit for bit as before: "
                    "it holds old weights. Start again to resume"
                )
        else:
            self.before = rollout, logp
        return off
