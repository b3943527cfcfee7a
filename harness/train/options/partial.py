"""rollout.partial_tokens: responses are sampled in parts, one per step, each by the engine's weights at its step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.rollouts import Rollout, RolloutEngine
from harness.rollouts.routes import no_route
from harness.tasks import PAD
from harness.train.data.responses import Responses
from harness.train.options.ahead import SampledAhead


class PartialRollouts(SampledAhead):
    """Option that samples each response in parts of `rollout.partial_tokens` tokens, one part per step."""

    def _sampled(self, step: int, begun: Rollout | None) -> Rollout:
        """Return the responses of `step` with one more part, on all ranks. begun: the t tokens so far, [B, t]; None if none."""
        inner, start = self.inner, 0 if begun is None else begun.tokens.shape[1]
        with inner.clock.phase("generate"):
            prompts, uniforms = inner.draw_prompts(step), inner.draw_uniforms(step)[:, start : start + self.part]
            share = inner.ranks.share
            if begun is None:
                rollout = inner.replayable(started(inner.engine, share(prompts), share(uniforms)))
            else:
                own = Rollout(**{name: share(part) for name, part in begun._asdict().items() if part is not None})
                rollout = continued(inner.engine, share(prompts), own, share(uniforms), inner.task.stop)
        inner.clock.sampled_tokens += int(rollout.written[:, start:].sum()) * inner.ranks.size
        return inner.gather(rollout)

    def describe(self, responses: Responses) -> dict[str, Tensor]:
        """Metrics of responses, including the age of the oldest token and the share of responses sampled by several versions."""
        rollout = responses.rollout
        version = torch.where(rollout.written, rollout.version, rollout.version[:, :1])
        return self.inner.describe(responses) | {
            "rollout/version_lag_max": self.inner.version - version.amin(),
            "rollout/mixed_versions": (version.amax(1) > version.amin(1)).double().mean(),
        }


def started(engine: RolloutEngine, prompts: Tensor, uniforms: Tensor) -> Rollout:
    """Sample the first n tokens of responses, for `continued` to extend. prompts: [B, P]. uniforms: [B, n], random numbers."""
    nothing = torch.zeros(len(prompts), 0, dtype=torch.int64, device=prompts.device)
    everyone = torch.ones(len(prompts), dtype=torch.bool)
    return engine.resume(prompts, Rollout(nothing, nothing.float(), nothing), everyone, uniforms)


def continued(engine: RolloutEngine, prompts: Tensor, begun: Rollout, uniforms: Tensor, stop: tuple[int, ...]) -> Rollout:
    """Extend responses by n tokens, sampled by the engine's present weights where a response has not ended.

    begun: the responses so far, [B, t]. prompts: [B, P]. uniforms: [B, n]. stop: tokens that end a response. Each token keeps
    the log-probability, version, experts and sampling mask of the forward pass that sampled it.
    """
    last, n = begun.tokens[:, -1], uniforms.shape[1]
    going = (last != PAD) & ~torch.isin(last, torch.tensor(stop, dtype=last.dtype, device=last.device))
    if not going.any():
        return _joined(begun, {}, going, n)
    more = engine.resume(prompts, begun, going, uniforms)
    return _joined(begun, more._asdict(), going, n)


def _joined(begun: Rollout, more: dict[str, Tensor | None], going: Tensor, n: int) -> Rollout:
    """Append n tokens to responses `begun`: the last n of the rollout `more` where `going` is true, padding elsewhere."""
    parts = {}
    for name, before in begun._asdict().items():
        if before is None:
            continue
        nothing = PAD if name == "tokens" else no_route(before.dtype) if name == "expert_ids" else 0
        after = F.pad(torch.zeros_like(before[:, :0]), (0, 0) * (before.ndim - 2) + (0, n), value=nothing)
        if (new := more.get(name)) is not None:
            after[going] = new[:, -n:].to(after)
        parts[name] = torch.cat([before, after], 1)
    return Rollout(**parts)
