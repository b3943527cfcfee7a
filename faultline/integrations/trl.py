"""Write dumps and print diagnoses of the batches of TRL's GRPOTrainer. Call `record` after building the trainer:

    from faultline.integrations.trl import record

    trainer = GRPOTrainer(...)
    record(trainer, "dump", diagnose=10)
    trainer.train()

A TrainerCallback cannot do this: TRL passes the model and the state to callbacks, and never a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from algos.batch import Batch
from faultline.integrations.diagnosis import check_intervals, print_diagnosis
from harness.dumps import files
from harness.errors import UserError

if TYPE_CHECKING:
    from trl import GRPOTrainer


def record(trainer: GRPOTrainer, folder: Path | str | None = None, every: int = 1, diagnose: int | None = None) -> None:
    """From now on write or diagnose the batches that the trainer generates.

    folder: where the batches of each `every`-th step are written, as step-<step>-<batch>-rank-<rank>.parquet; None for no dumps.
    diagnose: steps between two diagnoses; None for none. A diagnosis is a line that rank 0 prints of its own responses.

    log μ is TRL's sampling_per_token_logps. TRL has it with use_vllm=True, and from a rollout_func that returns logprobs. log
    π_old is TRL's old_per_token_logps. TRL computes it with vllm_importance_sampling_correction=True. Otherwise this hook
    computes it by one more forward pass of the trainer. The entropy of π_old is from the same pass. Tokens without a log μ from
    vLLM (NaN) are masked. Batches of evaluation are left out. With num_iterations above 1 a batch is recorded once, when
    it is generated.

    Raises UserError on an interval below 1, and on a trainer that has no log μ. A batch with images raises UserError if TRL
    does not compute log π_old.
    """
    check_intervals(every=every, diagnose=diagnose)
    if not trainer.use_vllm and getattr(trainer, "rollout_func", None) is None:
        raise UserError("TRL keeps no log-probabilities of transformers' own generation: set use_vllm=True in GRPOConfig")
    theirs = trainer._generate_and_score_completions
    generated = {"step": -1, "prompts": 0}  # prompts of all ranks that this optimizer step has generated for

    def recording(inputs: Any) -> dict[str, Any]:
        step, rank = trainer.state.global_step, trainer.accelerator.process_index
        if not trainer.model.training:
            return theirs(inputs)
        if generated["step"] != step:
            generated.update(step=step, prompts=0)
        first = generated["prompts"]
        generated["prompts"] += len(inputs) * trainer.accelerator.num_processes // trainer.num_generations
        written = folder is not None and step % every == 0
        diagnosed = diagnose is not None and step % diagnose == 0
        if not (written or diagnosed):
            return theirs(inputs)
        with _keeping_entropy(trainer) as entropies:
            out = theirs(inputs)
        logp_old, entropy = _scores(trainer, out, entropies)
        # TRL lines up the responses of all ranks and takes each num_generations of them for one prompt.
        group = first + (rank * len(inputs) + np.arange(len(inputs))) // trainer.num_generations
        made = columns(out, logp_old, entropy, step, group)
        if folder is not None and written:
            path = Path(folder) / f"step-{step:08d}-{trainer._step}-rank-{rank}.parquet"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write(path, made)
            except OSError as error:  # a full disk ends no training
                print(f"faultline: {path} is not written: {error}", flush=True)
        if diagnosed and rank == 0:
            names = ("logp_rollout", "mask", "logp_old", "advantages", "group", "tokens", "entropy")
            rollout, mask, old, advantages, prompts, tokens, spread = (torch.from_numpy(made[name]) for name in names)
            print_diagnosis("TRL", step, Batch(rollout, mask, old, advantages, prompt=prompts), tokens, spread)
        return out

    trainer._generate_and_score_completions = recording  # type: ignore[method-assign]


def columns(out: Mapping[str, Any], logp_old: Tensor, entropy: Tensor, step: int, group: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of a dump from `out`, the output of TRL's `_generate_and_score_completions`.

    logp_old, entropy [B, T]: log π_old and the entropy of π_old, in nats. step: the optimizer step. group [B]: number of each
    response's prompt within the step. Advantages are per token, [B, T]. Raises UserError if `out` has no log μ.
    """
    if "sampling_per_token_logps" not in out:
        raise UserError("TRL's batch has no sampling_per_token_logps: let rollout_func return logprobs, or set use_vllm=True")
    rollout = out["sampling_per_token_logps"].float()
    mask = out["completion_mask"].bool() & ~rollout.isnan()
    if "tool_mask" in out:
        mask = mask & out["tool_mask"].bool()
    advantages = out["advantages"].float()
    tensors = {
        "tokens": out["completion_ids"],
        "mask": mask,
        "logp_rollout": rollout,
        "logp_old": logp_old.float(),
        "entropy": entropy.float(),
        "advantages": advantages if advantages.ndim == 2 else advantages[:, None].expand_as(rollout),
    }
    prompt = files.unpadded(out["prompt_ids"].cpu().numpy(), out["prompt_mask"].cpu().numpy())
    whole = {"step": np.full(len(mask), step), "group": group, "prompt": prompt}
    return whole | {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


@contextmanager
def _keeping_entropy(trainer: GRPOTrainer) -> Iterator[list[Tensor]]:
    """Context manager that yields a list, to which the first pass of the trainer's model adds its entropy [B, T] in nats.

    TRL's output layer computes the entropy with every log-probability of this model, and drops it if it is not asked for.
    """
    theirs = trainer._get_per_token_logps_and_entropies
    kept: list[Tensor] = []

    def scoring(model: Any, *arguments: Any, **named: Any) -> Any:
        if model is not trainer.model or kept:  # the reference model's output layer computes no entropy
            return theirs(model, *arguments, **named)
        scores = theirs(model, *arguments, **named | {"compute_entropy": True})
        kept.append(scores[1])
        return scores

    trainer._get_per_token_logps_and_entropies = scoring
    try:
        yield kept
    finally:
        trainer._get_per_token_logps_and_entropies = theirs


def _scores(trainer: GRPOTrainer, out: Mapping[str, Any], entropies: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Log π_old of the completions in `out` and the entropy of π_old, [B, T] each, in nats.

    If `out` has log π_old, both are TRL's own, and the entropy is the first of `entropies`. Otherwise a forward pass with the
    trainer's present weights computes both.
    """
    if "old_per_token_logps" in out:
        return out["old_per_token_logps"], entropies[0]
    if "pixel_values" in out:
        raise UserError("a batch with images: set vllm_importance_sampling_correction=True, so that TRL computes log π_old")
    tokens = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
    mask = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
    with torch.no_grad():
        logp, entropy, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            tokens,
            mask,
            out["completion_ids"].shape[1],
            batch_size=trainer.args.per_device_train_batch_size,
            compute_entropy=True,
        )
    return logp, entropy
