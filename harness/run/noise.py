"""Search for synthetic noise whose K3 equals that of a run's rollouts, to separate a mismatch's size from its structure."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.diagnostics.mismatch import finish_mismatch, mismatch_rows
from algos.diagnostics.rows import merge
from harness.build import local_engine, needs_own_sampler, own_precision
from harness.errors import UserError
from harness.rollouts import RolloutEngine
from harness.run.restore import Checkpoint, parts_at
from harness.seeding import generator
from harness.train.parts import Parts

VERSIONS = 16
"""Number of rollouts over which the K3 of an engine is averaged. The matching noise is drawn anew for each."""
ROUNDS = 8
"""Maximum number of iterations of the search for the noise level."""
CLOSE = 1.02
"""Factor within which the K3 of synthetic noise and that of a run's rollouts count as equal, which ends the search."""


def matching_noise(checkpoint: Checkpoint, prompts: int = 64) -> tuple[float, float, float]:
    """Find the noise level whose K3 equals that of the run's rollouts, for the policy at a checkpoint.

    Returns (noise level, its K3, the K3 of the rollouts), K3 in nats per token. The level is the parameter `noise` of a
    LocalEngine in the trainer's precision. prompts: number of training prompts for the measurement. K3 = E[ρ − 1 − log ρ] with
    ρ = π_old/μ. The K3 of a small perturbation grows as its square. So the search sets noise ← noise·√(K3 of the rollouts / K3 of
    the noise) until the two agree. Raises UserError if the rollouts have no mismatch, if no noise has their K3 (top_p alone may
    cause more), or if the run never samples from the trainer's own policy.
    """
    config = checkpoint.config
    if not needs_own_sampler(config):
        raise UserError("--noise: measured along the local engine's path; the run needs actor.scoring=exact")
    with parts_at(checkpoint) as parts:
        synced = {name: weight.detach().clone() for name, weight in parts.actor.synced_weights()}
        own = {name: weight.detach().clone() for name, weight in parts.actor.weights()}
        parts.scorer.own_policy.load_weights(own.items(), 0)
        target = _k3(parts, parts.sampler.engine, synced, prompts)
        if not target > 0:
            raise UserError("--noise: the rollouts of this run have no mismatch (K3 is 0), so there is nothing to match")
        noise = 0.01
        for _ in range(ROUNDS):
            r = config.rollout
            sampling = {"top_p": r.top_p, "top_k": r.top_k, "record_support": r.replay_sampling_mask}
            engine = local_engine(parts.scorer.plan, own_precision(config), noise=noise, **sampling)
            reached = _k3(parts, engine, own, prompts)
            if 1 / CLOSE < reached / target < CLOSE:
                return noise, reached, target
            noise *= (target / reached) ** 0.5
    raise UserError(f"--noise: none has the K3 of the rollouts, {target:.2e}; the last one tried, {noise:.2e}, has {reached:.2e}")


def _k3(parts: Parts, engine: RolloutEngine, weights: dict[str, Tensor], prompts: int) -> float:
    """Mean K3 of an engine with `weights`, in nats per token, over VERSIONS rollouts.

    Prompts and random numbers are equal for all engines.
    """
    sampler = parts.sampler
    rows = sampler.prompts[:prompts].repeat_interleave(sampler.config.rollout.group_size, dim=0)
    mismatches = []
    for version in range(VERSIONS):
        engine.load_weights(weights.items(), version)
        uniforms = torch.rand(len(rows), sampler.task.answer_length, generator=generator(0, "matching noise", version))
        mismatches.append(mismatch_rows(parts.scorer.scored_batch(rows, sampler.generate(engine, rows, uniforms))))
    return float(finish_mismatch(merge(mismatches))["rollout_corr/k3_kl"])
