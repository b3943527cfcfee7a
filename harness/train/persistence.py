"""Persistence of the mismatch: engine and trainer score the same responses again 1, 5 and 20 syncs of the weights later.

l_s [R, T] is log π_s − log μ_s (trainer, engine) of fixed responses with the weights of sync s. The persistence over k syncs is

    persistence_k = Σ l_s·l_(s+k) / √(Σ l_s² · Σ l_(s+k)²)

summed over response tokens. persistence_k is 1 if the log ratios stay proportional, as between two fixed policies, and about
0 if those of each sync are independent. Means are not subtracted, since an offset common to all tokens persists too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.config import Config
from harness.errors import UserError
from harness.seeding import generator
from harness.tasks import PAD
from harness.train.sampler import Sampler
from harness.train.scorer import Scorer

LAGS = (1, 5, 20)
"""Numbers of syncs of the weights after which the log ratios of the same responses are measured again."""


class Persistence:
    """Measures the persistence of the mismatch in windows of `diagnostics.persistence.every` steps.

    At the start of a window the rollout engine responds to held-out prompts [R, P]. The log ratios of these responses are
    measured then, and again 1, 5 and 20 syncs later. Life cycle: `measure` after each sync and before the step's rollout,
    `state` and `restore` with a checkpoint.
    """

    def __init__(self, config: Config, sampler: Sampler, scorer: Scorer, held_out: Tensor):
        settings = config.diagnostics.persistence
        self.every, self.sampler, self.scorer = settings.every, sampler, scorer
        if settings.every is not None and settings.responses > len(held_out):
            raise UserError(
                f"diagnostics.persistence.responses={settings.responses}: only {len(held_out)} prompts are held out; "
                "ask for no more"
            )
        self.prompts = held_out[: settings.responses]
        length = sampler.task.answer_length
        self.uniforms = torch.rand(len(self.prompts), length, generator=generator(config.seed, "persistence"))
        self.tokens: Tensor | None = None
        self.written: Tensor | None = None
        self.first: Tensor | None = None

    def measure(self, step: int) -> dict[str, float]:
        """Return mismatch/persistence_k at step k in LAGS of a window; {} else, or if trainer and engine are one policy."""
        age = None if self.every is None else step % self.every
        if age not in (0, *LAGS) or self.scorer.policy is self.sampler.engine:  # all log ratios are 0 with one policy
            return {}
        with self.sampler.clock.phase("persistence"):
            if age == 0:
                rollout = self.sampler.generate(self.sampler.engine, self.prompts, self.uniforms)
                self.tokens, self.written = rollout.tokens, rollout.written
                self.first = self._log_ratio(self.tokens, self.written)
            elif self.tokens is not None and self.written is not None and self.first is not None:
                value = correlation(self.first, self._log_ratio(self.tokens, self.written))
                return {} if value is None else {f"mismatch/persistence_{age}": value}
        return {}

    def _log_ratio(self, tokens: Tensor, written: Tensor) -> Tensor:
        ranks, policy = self.sampler.ranks, None if self.scorer.policy is None else self.scorer.own_policy
        prompts_share, tokens_share = ranks.share(self.prompts), ranks.share(tokens)
        rollout = ranks.gather(self.sampler.engine.score(prompts_share, tokens_share))
        if policy is not None:
            own = ranks.gather(policy.score(prompts_share, tokens_share))
        else:
            own = self.scorer.forward(self.prompts, tokens)
        usable = written & rollout.isfinite() & own.isfinite()
        return torch.where(usable, own - rollout, 0.0)

    def state(self) -> dict[str, Tensor]:
        """Tensors by name for a checkpoint: the responses of the present measurement, and their first log ratios."""
        parts = {"tokens": self.tokens, "written": self.written, "first": self.first}
        return {name: part.contiguous() for name, part in parts.items() if part is not None}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the responses being measured. In old checkpoints without `written`, every token but PAD counts as written."""
        self.tokens, self.first = state.get("tokens"), state.get("first")
        self.written = state.get("written", None if self.tokens is None else self.tokens != PAD)


def correlation(one: Tensor, other: Tensor) -> float | None:
    """Correlation Σ xy/√(Σ x²·Σ y²), without centring, of two tensors x and y; None if x or y is 0 throughout."""
    one, other = one.double(), other.double()
    size = (one.square().sum() * other.square().sum()).sqrt().item()
    return (one * other).sum().item() / size if size else None
