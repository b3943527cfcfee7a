"""Writes one step's batch to a Parquet file, called a dump."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from algos.batch import Batch
from harness.dumps.files import write
from harness.dumps.schema import ROUTED_EXPERTS, SAMPLING_MASK
from harness.files import refuse_links, writing
from harness.train.data.responses import Responses


def dump(folder: Path, step: int, responses: Responses, batch: Batch, order: list[Tensor], logp: Tensor) -> None:
    """Write a step's batch to dumps/step-<step>.parquet in the run folder. Raises Unavailable if the disk refuses.

    order: the rows of each mini-batch. logp [B, T]: log-probability of each token in nats just before the last optimizer step on
    it. It also fills the column logp_old of a run that scores no π_old.
    """
    minibatch = np.empty(len(batch.mask), dtype=np.int64)
    for number, rows in enumerate(order):
        minibatch[rows.cpu().numpy()] = number
    tensors = {
        "reward": responses.rewards.flatten(),
        "prompt": responses.prompts,
        "tokens": responses.rollout.tokens,
        "mask": batch.mask,
        "logp_rollout": batch.logp_rollout,
        "logp_old": logp if batch.logp_old is None else batch.logp_old,
        "logp": logp,
        "advantages": batch.advantages,
        "version": responses.rollout.version,
        "segments": batch.segments,
        ROUTED_EXPERTS: responses.rollout.expert_ids,
        SAMPLING_MASK: responses.rollout.support,
    }
    columns = {name: tensor.cpu().numpy() for name, tensor in tensors.items() if tensor is not None}
    columns["step"] = np.full(len(minibatch), step)
    columns["group"] = responses.prompt_numbers.cpu().numpy()
    columns["minibatch"] = minibatch
    name = f"dumps/step-{step:08d}.parquet"
    refuse_links(folder, name)
    with writing(folder / name):
        write(folder / name, columns)
