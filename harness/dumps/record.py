"""A run's own dump: the batch of one step, as its trainer holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.dumps.files import write
from harness.run.folder import RunFolder, writing

if TYPE_CHECKING:
    from torch import Tensor

    from harness.train.trainer import Sampled


def dump(
    *, folder: RunFolder, step: int, sampled: Sampled, order: list[Tensor], logp: Tensor, rewards: Tensor, version: Tensor
) -> None:
    """Write dumps/step-<step>.parquet in the run folder. Raises UserError when the disk refuses.

    sampled: the responses of all ranks. order: the rows of each mini-batch. logp [B, T]: log π_θ of each token just before its
    own optimizer step. rewards: [prompts, samples]. version [B, T]: of the weights that sampled each token.
    """
    batch = sampled.batch
    minibatch = np.empty(len(batch.mask), dtype=np.int64)
    for number, rows in enumerate(order):
        minibatch[rows.cpu().numpy()] = number
    tensors = {
        "reward": rewards.flatten(),
        "prompt": sampled.prompts,
        "tokens": sampled.tokens,
        "mask": batch.mask,
        "logp_rollout": batch.logp_rollout,
        "logp_old": batch.logp_old,
        "logp": logp,
        "advantages": batch.advantages,
        "version": version,
    }
    if batch.segments is not None:
        tensors["segments"] = batch.segments
    columns = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    columns["step"] = np.full(len(minibatch), step)
    columns["group"] = np.repeat(np.arange(rewards.shape[0]), rewards.shape[1])
    columns["minibatch"] = minibatch
    path = folder.path / "dumps" / f"step-{step:08d}.parquet"
    with writing(path):
        write(path, columns)
