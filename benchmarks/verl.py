"""Correction, diagnostics and loss against verl 0.9.1's functions on the same tensors; Faultline's give all of verl's outputs."""

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.losses import ppo
from algos.objective import Objective
from algos.reductions import Counts
from benchmarks.measure import Case

NEEDS = ("verl",)
SHAPES = ((256, 1024), (512, 8192))
SPEC = Correction(
    weight=Weight("token", "truncate", None, 2.0), reject={"k3_rs": Reject("geometric", "k3", None, 0.01)}, denominator="kept"
)
"""The correction that verl calls decoupled_k3_rs_token_tis."""
OBJECTIVE = Objective(functools.partial(ppo, eps_low=0.2, eps_high=0.2, dual_clip=3.0), SPEC, "old", "token_mean")
TOKEN_TIS = OBJECTIVE._replace(correction=Correction(weight=SPEC.weight))


def cases() -> Iterator[Case]:
    """Generate three cases per batch shape: forward, forward with backward, and token truncation compared with the loss."""
    theirs = _verl()
    for rows, columns in SHAPES:
        shape = f"{rows} responses of up to {columns} tokens"
        logp, batch = _batch(rows, columns)
        for name, backward in (("forward", False), ("forward and backward", True)):
            runs = {who: functools.partial(run, logp, batch, backward) for who, run in (("ours", _ours), ("verl", theirs))}
            torch.testing.assert_close(*(run().detach() for run in runs.values()), rtol=1e-4, atol=1e-6)
            yield Case(f"{shape}, {name}", runs, rounds=7, memory=True)
        yield Case(f"{shape}, token truncation", _truncation(logp.requires_grad_(), batch), rounds=7)


def _ours(logp: Tensor, batch: Batch, backward: bool) -> Tensor:
    """Compute correction, loss and all diagnostics, which include those of verl, with Faultline's code; return the loss."""
    logp = logp.detach().requires_grad_(backward)
    corrected, rows = correct_with_diagnostics(batch, SPEC)
    loss, _ = OBJECTIVE(logp, batch, corrected, Counts.of(corrected.counted))
    if backward:
        loss.backward()
    finish_diagnostics(rows, SPEC)
    return loss


def _verl() -> Callable[[Tensor, Batch, bool], Tensor]:
    """Return a function that computes correction, metrics and loss with verl's code, and returns the loss."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.workers.config.actor import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1)
    settings = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.01"}

    def run(logp: Tensor, b: Batch, backward: bool) -> Tensor:
        logp, policies = logp.detach().requires_grad_(backward), (b.logp_old, b.logp_rollout)
        weights, mask, _ = compute_rollout_correction_and_rejection_mask(*policies, b.mask.float(), **settings)
        weights = weights.batch["rollout_is_weights"]
        loss, _ = compute_policy_loss_vanilla(b.logp_old, logp, b.advantages, mask, "token-mean", config, weights)
        if backward:
            loss.backward()
        return loss

    return run


def _truncation(logp: Tensor, batch: Batch) -> dict[str, Callable[[], object]]:
    """Return two functions on log-probabilities, without a model: the loss with backward, and the correction that precedes it."""
    corrected = correct(batch, TOKEN_TIS.correction)
    counts = Counts.of(corrected.counted)
    return {
        "loss and backward": lambda: TOKEN_TIS(logp, batch, corrected, counts)[0].backward(),
        "correction": functools.partial(correct, batch, TOKEN_TIS.correction),
    }


def _batch(rows: int, columns: int) -> tuple[Tensor, Batch]:
    """Return random log π_θ [rows, columns] and a ragged batch, some of whose tokens are clipped and responses rejected."""
    generator = torch.Generator().manual_seed(0)
    normal = functools.partial(torch.randn, rows, columns, generator=generator)
    old = -2 * torch.rand(rows, columns, generator=generator)
    scale = 0.05 + 0.2 * torch.rand(rows, 1, generator=generator)
    rollout, logp = (old + scale * normal()).clamp(max=0), (old + 0.02 * normal()).clamp(max=0)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, columns).contiguous()
    length = torch.randint(columns // 4, columns + 1, (rows, 1), generator=generator)
    return logp, Batch(rollout, torch.arange(columns)[None] < length, old, advantages)
