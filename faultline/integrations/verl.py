"""Dumps from verl, without changing verl's files. There are two ways:

    VERL_USE_EXTERNAL_MODULES=faultline.integrations.verl FAULTLINE_DUMP=dump python -m verl.trainer.main_ppo ...

writes each batch of verl's own trainers into the folder `dump`; with FAULTLINE_DUMP_EVERY=10, every tenth. In a trainer of your
own, call `dump(data, folder, step)` where data has both log-probabilities.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.dumps import files
from harness.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor
    from verl import DataProto

NEEDED = {
    "rollout_log_probs": "set actor_rollout_ref.rollout.calculate_log_probs=True",
    "old_log_probs": "call this after old_log_probs are computed, with algorithm.rollout_correction.bypass_mode=False",
    "response_mask": "call this after the response mask is computed",
}
"""Tensor that a dump of a verl batch needs -> the setting or call that provides it."""


def dump(data: DataProto, folder: Path | str, step: int) -> Path:
    """Write a verl batch as folder/step-<step>.parquet, and return its path.

    data: tensors [B, T] under verl's names. Those of NEEDED are required; responses, advantages and token_level_scores are
    written if present. Call it before rejection changes response_mask, so that the dump has all tokens. Raises UserError on a
    missing tensor.
    """
    batch = data.batch
    for name, remedy in NEEDED.items():
        if name not in batch.keys():  # noqa: SIM118  iterating a TensorDict gives its rows
            raise UserError(f"verl's batch has no {name}: {remedy}")
    mask = _numpy(batch["response_mask"]).astype(bool)
    columns = {
        "step": np.full(len(mask), step),
        "mask": mask,
        "logp_rollout": _numpy(batch["rollout_log_probs"]),
        "logp_old": _numpy(batch["old_log_probs"]),
    }
    optional = {name: _numpy(batch[name]) for name in ("responses", "advantages", "token_level_scores") if name in batch.keys()}  # noqa: SIM118
    if "responses" in optional:
        columns["tokens"] = optional["responses"]
    if "advantages" in optional:
        columns["advantages"] = optional["advantages"]
    if "token_level_scores" in optional:
        columns["reward"] = optional["token_level_scores"].sum(1).astype(np.float64)
    path = Path(folder) / f"step-{step:08d}.parquet"
    files.write(path, columns)
    return path


def install(folder: Path | str, every: int = 1) -> None:
    """Write each `every`-th batch that a trainer of verl 0.9 passes to its rollout correction from now on.

    With bypass_mode=False all trainers of verl do so, before a token is rejected and before advantages are computed. Steps
    count from the first batch; after a restart, from the last dump in the folder. A failed write is reported and stops nothing.
    Raises UserError on an `every` below 1.
    """
    if every < 1:
        raise UserError(f"every={every}: write each batch with 1, or every tenth with 10")
    from verl.trainer.ppo import rollout_corr_helper as helper

    theirs = helper.compute_rollout_correction_and_add_to_batch
    written = [int(path.stem.removeprefix("step-")) for path in Path(folder).glob("step-*.parquet")]
    step = max(written, default=0)

    @functools.wraps(theirs)
    def dumping(batch: DataProto, *arguments: Any, **named: Any) -> Any:
        nonlocal step
        step += 1
        if step % every == 0:
            try:
                dump(batch, folder, step)
            except OSError as error:
                print(f"faultline: batch {step} is not dumped: {error}", flush=True)
        return theirs(batch, *arguments, **named)

    helper.compute_rollout_correction_and_add_to_batch = dumping


def _numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype.itemsize == 2 and tensor.is_floating_point() else tensor).numpy()


def _install_from_environment() -> None:
    every = os.environ.get("FAULTLINE_DUMP_EVERY", "1")
    if not every.isdigit() or every == "0":
        raise UserError(f"FAULTLINE_DUMP_EVERY={every}: give a whole number of at least 1")
    install(os.environ["FAULTLINE_DUMP"], int(every))


if "FAULTLINE_DUMP" in os.environ:  # verl imports this module for VERL_USE_EXTERNAL_MODULES
    _install_from_environment()
