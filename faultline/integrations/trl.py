"""Dumps from TRL's GRPOTrainer: one line between building the trainer and training.

    from faultline.integrations import trl

    trainer = GRPOTrainer(...)
    trl.record(trainer, "dump")
    trainer.train()

A TrainerCallback cannot do this: TRL shows callbacks the model and the state, and never a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from harness.dumps import files
from harness.errors import UserError

if TYPE_CHECKING:
    from trl import GRPOTrainer


def record(trainer: GRPOTrainer, folder: Path | str, every: int = 1) -> None:
    """Write each `every`-th batch that the trainer generates from now on: folder/step-<step>-<batch>-rank-<rank>.parquet.

    log μ is TRL's sampling_per_token_logps. TRL has it with use_vllm=True, and from a rollout_func that returns logprobs.
    log π_old is TRL's old_per_token_logps. TRL computes it with vllm_importance_sampling_correction=True. Otherwise this hook
    computes it by one more forward pass of the trainer. Tokens without a log μ from vLLM (NaN) are masked.
    Evaluation is not written. Raises UserError on an `every` below 1 and on a trainer that has no log μ. A batch with images
    raises it if TRL does not compute log π_old.
    """
    if every < 1:
        raise UserError(f"every={every}: write each step with 1, or every tenth with 10")
    if not trainer.use_vllm and getattr(trainer, "rollout_func", None) is None:
        raise UserError("TRL keeps no log-probabilities of transformers' own generation: set use_vllm=True in GRPOConfig")
    theirs = trainer._generate_and_score_completions

    def recording(inputs: Any) -> dict[str, Any]:
        out = theirs(inputs)
        step = trainer.state.global_step
        if trainer.model.training and step % every == 0:
            rank = trainer.accelerator.process_index
            path = Path(folder) / f"step-{step:08d}-{trainer._step}-rank-{rank}.parquet"
            try:
                files.write(path, columns(out, _logp_old(trainer, out), step))
            except OSError as error:  # a full disk ends no training
                print(f"faultline: {path} is not written: {error}", flush=True)
        return out

    trainer._generate_and_score_completions = recording  # type: ignore[method-assign]


def columns(out: Mapping[str, Any], logp_old: Tensor, step: int) -> dict[str, np.ndarray]:
    """Columns of a dump from the output of TRL's `_generate_and_score_completions`: [B, T] each, advantages for each token."""
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
        "advantages": advantages if advantages.ndim == 2 else advantages[:, None].expand_as(rollout),
    }
    return {"step": np.full(len(mask), step)} | {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _logp_old(trainer: GRPOTrainer, out: Mapping[str, Any]) -> Tensor:
    """log π_old of the completions, [B, T]: TRL's if it has them, else computed with the weights that sampled them."""
    if "old_per_token_logps" in out:
        return out["old_per_token_logps"]
    if "pixel_values" in out:
        raise UserError("a batch with images: set vllm_importance_sampling_correction=True, so that TRL computes log π_old")
    tokens = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
    mask = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
    with torch.no_grad():
        size = trainer.args.per_device_train_batch_size
        logp, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model, tokens, mask, out["completion_ids"].shape[1], batch_size=size
        )
    return logp
