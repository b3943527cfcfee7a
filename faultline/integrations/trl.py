"""Dumps and diagnoses of batches from TRL's GRPOTrainer, by one line between building the trainer and training.

    from faultline.integrations import trl

    trainer = GRPOTrainer(...)
    trl.record(trainer, "dump", diagnose=10)
    trainer.train()

A TrainerCallback cannot do this: TRL passes the model and the state to callbacks, and never a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    computes it by one more forward pass of the trainer. Tokens without a log μ from vLLM (NaN) are masked. Batches of
    evaluation are left out.

    Raises UserError on an interval below 1, and on a trainer that has no log μ. A batch with images raises UserError if TRL
    does not compute log π_old.
    """
    check_intervals(every=every, diagnose=diagnose)
    if not trainer.use_vllm and getattr(trainer, "rollout_func", None) is None:
        raise UserError("TRL keeps no log-probabilities of transformers' own generation: set use_vllm=True in GRPOConfig")
    theirs = trainer._generate_and_score_completions

    def recording(inputs: Any) -> dict[str, Any]:
        out = theirs(inputs)
        step, rank = trainer.state.global_step, trainer.accelerator.process_index
        written = folder is not None and step % every == 0
        diagnosed = diagnose is not None and step % diagnose == 0
        if not trainer.model.training or not (written or diagnosed):
            return out
        made = columns(out, _logp_old(trainer, out), step)
        if folder is not None and written:
            path = Path(folder) / f"step-{step:08d}-{trainer._step}-rank-{rank}.parquet"
            try:
                files.write(path, made)
            except OSError as error:  # a full disk ends no training
                print(f"faultline: {path} is not written: {error}", flush=True)
        if diagnosed and rank == 0:
            tensors = {name: torch.from_numpy(values) for name, values in made.items()}
            prompts = out["prompt_ids"].cpu().unique(dim=0, return_inverse=True)[1]
            batch = Batch(tensors["logp_rollout"], tensors["mask"], tensors["logp_old"], prompt=prompts)
            print_diagnosis("TRL", step, batch, tensors["tokens"])
        return out

    trainer._generate_and_score_completions = recording  # type: ignore[method-assign]


def columns(out: Mapping[str, Any], logp_old: Tensor, step: int) -> dict[str, np.ndarray]:
    """Columns of a dump from `out`, the output of TRL's `_generate_and_score_completions`. Advantages are per token, [B, T]."""
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
    """Log π_old of the completions in `out`, [B, T]: TRL's own if present, else computed with the trainer's present weights."""
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
