"""Whether an engine that another library loads really holds the actor's new weights: a few of its responses, scored by the actor.

Two faults are looked for. *Wrong or half-loaded weights*: the engine's log-probabilities of what it sampled are off the actor's
by more than its precision explains. *Stale weights*: the engine answers the same prompts with the same bits as before, though
the actor's own answer has moved by more than the precision could hide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.rollouts import Rollout, RolloutEngine
from harness.tasks import PAD

if TYPE_CHECKING:
    from harness.train.actor import Actor

TOLERANCES = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.3}
"""Mean |log μ − log π| in nats, 20 times or more what is normal (docs/vllm.md), so that a policy in trouble does not trip it."""
QUANTISED = 1.0
"""The same for weights, activations or a KV cache of 8 bits. Weights of another policy give several nats."""
UNNOTICED = 0.1
"""Share of the tolerance by which the actor's answer may move before an engine whose answer has not moved counts as stale."""


def tolerance(precision: PrecisionConfig, kv_cache: str) -> float:
    """What an engine in this precision may be off by."""
    return TOLERANCES[precision.compute] if precision.weights is None and kv_cache == "compute" else QUANTISED


class SyncCheck:
    """To be called after each load of the actor's current weights. prompts [n, P]; uniforms [n, T], the same every time."""

    def __init__(self, prompts: Tensor, uniforms: Tensor):
        self.prompts, self.uniforms = prompts, uniforms
        self.before: tuple[Rollout, Tensor] | None = None  # the engine's last change of answer, and the actor's word on it

    @torch.no_grad()
    def __call__(self, engine: RolloutEngine, actor: Actor) -> float | None:
        """Mean |log μ − log π|, nats; None where the policy is lost to NaN. UserError if the engine holds others."""
        rollout = engine.generate(self.prompts, self.uniforms)
        logp = actor.logp(self.prompts, rollout.tokens)[0]
        if not logp.isfinite().all():
            return None  # for the collapse detectors to tell
        off = (rollout.logp - logp).abs()[rollout.tokens != PAD].mean().item()
        limit = engine.tolerance
        if not off <= limit:
            raise UserError(
                f"rollout weights: after a sync the engine's log-probabilities are off the actor's by {off:.2g} nats on average, "
                f"more than {limit:g}: they were not loaded as they are. Start again to resume; if this much mismatch is "
                "what the run is about, raise rollout.engine.sync_tolerance"
            )
        if self.before is not None and _same(self.before[0], rollout):
            moved = (logp - self.before[1]).abs()[rollout.tokens != PAD].max().item()
            if moved > UNNOTICED * limit:
                raise UserError(
                    f"rollout weights: the actor has moved by {moved:.2g} nats, and the engine answers bit for bit as before: "
                    "it holds old weights. Start again to resume"
                )
        else:
            self.before = rollout, logp
        return off


def _same(a: Rollout, b: Rollout) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.logp, b.logp)
