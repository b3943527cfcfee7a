"""The parts of a comparison: a random batch, and named tensors that either side computes from it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import LOSSES
from harness.build import build_objective
from harness.compose import compose
from harness.config import Config, parse

TOLERANCE = 1e-6
NORM = 40


class Case(NamedTuple):
    """compare(seed) → (ours, theirs), named tensors; a name may have several cases, as one for each reduction."""

    name: str
    compare: Callable[[int], tuple[dict, dict]]


def batch(seed: int, kind: str = "", *, by_token: bool = False) -> tuple[Tensor, Batch]:
    """log π_θ, and 8 responses of up to 12 tokens, two a prompt, one with a hole; fp64.

    Mismatch and update reach past every bound that is compared. kind: "empty response", the sixth; or "beyond 20" nats, both
    log ratios on some tokens. Those of the fifth response add up to −4, or to 0 if each is clamped to ±20 first.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = functools.partial(torch.randn, 8, 12, generator=generator, dtype=torch.float64)
    old = -0.1 - 2 * torch.rand(8, 12, generator=generator, dtype=torch.float64)
    rollout = (old + 0.4 * normal()).clamp(max=-1e-3)
    logp = (old + 0.3 * normal()).clamp(max=-1e-3)
    rollout[:2] = old[:2] + 1e-4 * normal()[:2]  # a narrow band on the mean ratio keeps some
    logp[:2] = old[:2] + 1e-4 * normal()[:2]
    rollout[2] = old[2]
    rollout[2, 1] -= 0.8  # of this row a token mask takes one token, and leaves a mean ratio of 1
    length = torch.randint(2, 13, (8, 1), generator=generator)
    mask = torch.arange(12)[None] < length
    mask[-1], mask[-1, 3:5] = True, False
    if kind == "empty response":
        mask[5] = False
    if kind == "beyond 20":
        mask[4] = torch.arange(12) < 2
        rollout[4, :2], old[4, :2] = torch.tensor([[-21.0, -4.0], [-1.0, -28.0]])
        old[3, 0], rollout[5, 1], logp[5, 0], logp[6, 1] = -26, -25, -27, -29
    advantages = normal() if by_token else normal()[:, :1].expand(8, 12).contiguous()
    ref = (logp + 0.3 * normal()).clamp(max=-1e-3)
    return logp, Batch(rollout, mask, old, advantages, logp_ref=ref, prompt=torch.arange(8) // 2)


def grouped(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(rewards [2, 4], mask [8, 6], the same rewards on the last token of each response [8, 6], values [8, 6], greedy [2])."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    length = torch.randint(2, 7, (8, 1), generator=generator)
    positions = torch.arange(6)[None]
    tokens = torch.where(positions == length - 1, rewards.view(8, 1), 0.0)
    values = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    return rewards, positions < length, tokens, values, torch.rand(2, generator=generator, dtype=torch.float64)


def with_gradient(function, logp: Tensor) -> dict[str, Tensor]:
    """The scalar `function(logp)` and its gradient."""
    leaf = logp.detach().clone().requires_grad_()
    value = function(leaf)
    return {"loss": value.detach(), "gradient": torch.autograd.grad(value, leaf)[0]}


def our_loss(logp: Tensor, b: Batch, objective: Objective) -> dict[str, Tensor]:
    """Loss, gradient and metrics of an objective; with ratio=current the correction is made from π_θ, as in a training step."""
    current = objective.correction.ratio == "current"
    corrected = correct(b, objective.correction, logp if current else None)
    chosen = objective.select(b, corrected.counted) if b.selected is None else b
    metrics = {}

    def value(leaf: Tensor) -> Tensor:
        loss, found = objective(leaf, chosen, corrected, Counts.of(corrected.counted, b.prompt))
        metrics.update(found)
        return loss

    return with_gradient(value, logp) | metrics


def objective(loss: str, reduction: str = "token_mean", proximal: str = "old", correction: Correction | None = None, **params):
    """An objective without a config."""
    norm = NORM if reduction == "seq_mean_token_sum_norm" else None
    return Objective(functools.partial(LOSSES[loss], **params), correction or Correction(), proximal, reduction, norm)


@functools.cache
def config(*overrides: str) -> Config:
    """A config as a run composes it."""
    return parse(compose(*overrides))


def preset(name: str, reduction: str) -> Objective:
    """The objective of `correction=<name>`."""
    norm = [f"reduce.norm={NORM}"] if reduction == "seq_mean_token_sum_norm" else []
    return build_objective(config(f"correction={name}", f"reduce={reduction}", *norm))


def our_metrics(b: Batch, spec: Correction, policy: Tensor | None = None) -> dict[str, Tensor]:
    """Every diagnostic of a correction, those of the mismatch included."""
    return finish_diagnostics(correct_with_diagnostics(b, spec, policy)[1], spec)


def shared(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, bool]:
    """Name → whether both sides agree to 1e-6, relative above 1; of the names that both have."""
    names = ours.keys() & theirs.keys()
    assert names, (ours.keys(), theirs.keys())
    close = functools.partial(torch.allclose, rtol=TOLERANCE, atol=TOLERANCE)
    return {n: close(torch.as_tensor(ours[n]).double(), torch.as_tensor(theirs[n]).double()) for n in names}
