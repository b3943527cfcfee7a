"""Correction, diagnostics and loss against verl 0.9.1's functions on the same tensors, with the outputs that verl has."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.losses import ppo
from algos.objective import Objective
from algos.reductions import Counts
from benchmarks.measure import in_turns, line, milliseconds, peak, ratio

NEEDS = ("verl",)
SHAPES, ROUNDS = ((256, 1024), (512, 8192)), 7
SPEC = Correction(
    weight=Weight("token", "truncate", None, 2.0), reject={"k3_rs": Reject("geometric", "k3", None, 0.01)}, denominator="kept"
)
"""The correction that verl calls decoupled_k3_rs_token_tis."""
OBJECTIVE = Objective(functools.partial(ppo, eps_low=0.2, eps_high=0.2, dual_clip=3.0), SPEC, "old", "token_mean")
TOKEN_TIS = OBJECTIVE._replace(correction=Correction(weight=SPEC.weight))


class Case(NamedTuple):
    """Inputs of one comparison: log π_θ [B, T], and the batch that it belongs to."""

    logp: Tensor
    batch: Batch


def main() -> None:
    theirs = _verl()
    for shape in SHAPES:
        case = _case(*shape)
        print(f" {shape[0]} responses of up to {shape[1]} tokens")
        for name, backward in (("forward", False), ("and backward", True)):
            runs = {"ours": functools.partial(ours, case, backward), "verl": functools.partial(theirs, case, backward)}
            losses = [run()[0].detach() for run in runs.values()]
            torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)
            seconds = in_turns(ROUNDS, runs)
            more, less = peak(runs["verl"]), peak(runs["ours"])
            print(f"{line(name, seconds['ours'], 'verl', seconds['verl'])}; "
                  f"memory {less >> 20} MiB, verl {more >> 20} MiB, {less / more:.2f}")  # fmt: skip
        _share(case)


def ours(case: Case, backward: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Faultline's loss and all its diagnostics: verl's, and those that verl does not have."""
    logp = case.logp.detach().requires_grad_(backward)
    corrected, rows = correct_with_diagnostics(case.batch, SPEC)
    loss, metrics = OBJECTIVE(logp, case.batch, corrected, Counts.of(corrected.counted))
    if backward:
        loss.backward()
    return loss, finish_diagnostics(rows, SPEC) | metrics


def _verl() -> Callable[[Case, bool], tuple[Tensor, dict[str, float]]]:
    """A function that computes correction, loss and metrics by verl's code, with verl's own metrics."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.workers.config.actor import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1)
    settings = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.01"}

    def run(case: Case, backward: bool) -> tuple[Tensor, dict[str, float]]:
        logp, b = case.logp.detach().requires_grad_(backward), case.batch
        policies = (b.logp_old, b.logp_rollout)
        weights, mask, metrics = compute_rollout_correction_and_rejection_mask(*policies, b.mask.float(), **settings)
        weights = weights.batch["rollout_is_weights"]
        loss, more = compute_policy_loss_vanilla(b.logp_old, logp, b.advantages, mask, "token-mean", config, weights)
        if backward:
            loss.backward()
        return loss, metrics | more

    return run


def _share(case: Case) -> None:
    """Print token TIS as a share of loss and backward, both on log-probabilities alone, without a model."""
    logp = case.logp.detach().requires_grad_()
    alone = functools.partial(correct, case.batch, TOKEN_TIS.correction)
    corrected = alone()
    counts = Counts.of(corrected.counted)
    seconds = in_turns(ROUNDS, {"alone": alone, "whole": lambda: TOKEN_TIS(logp, case.batch, corrected, counts)[0].backward()})
    cost = ratio(seconds["alone"], seconds["whole"])
    print(f"  token TIS: {milliseconds(seconds['alone'])}, {cost} of loss and backward ({milliseconds(seconds['whole'])})")


def _case(rows: int, columns: int) -> Case:
    """A ragged batch: mismatch of 0.05 to 0.25 nats by row, update of 0.02 nats per token; clips some tokens, rejects rows."""
    generator = torch.Generator().manual_seed(0)
    normal = functools.partial(torch.randn, rows, columns, generator=generator)
    old = -2 * torch.rand(rows, columns, generator=generator)
    scale = 0.05 + 0.2 * torch.rand(rows, 1, generator=generator)
    rollout, logp = (old + scale * normal()).clamp(max=0), (old + 0.02 * normal()).clamp(max=0)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, columns).contiguous()
    length = torch.randint(columns // 4, columns + 1, (rows, 1), generator=generator)
    return Case(logp, Batch(rollout, torch.arange(columns)[None] < length, old, advantages))
