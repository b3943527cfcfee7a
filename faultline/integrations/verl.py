"""Dumps and diagnoses from verl, without changing verl's files. There are two ways:

    VERL_USE_EXTERNAL_MODULES=faultline.integrations.verl FAULTLINE_DUMP=dump python -m verl.trainer.main_ppo ...

writes each batch of verl's own trainers into the folder `dump`; with FAULTLINE_DUMP_EVERY=10, every tenth. With
FAULTLINE_DIAGNOSE_EVERY=10 a line of verl's output has the diagnosis of every tenth batch, with dumps or without. In your own
trainer, call `dump(data, folder, step)`, where data has both log-probabilities.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from algos.batch import Batch
from faultline.integrations.diagnosis import check_intervals, print_diagnosis
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
"""Tensor of a verl batch that a dump needs -> the setting or call that provides it."""


def dump(data: DataProto, folder: Path | str, step: int) -> Path:
    """Write a verl batch as folder/step-<step>.parquet, and return the path of the file.

    data: tensors [B, T] under verl's names. Those of NEEDED are required; responses, prompts with attention_mask, advantages,
    entropys and token_level_scores are written if present, and uid as the group. entropys, which verl computes beside
    old_log_probs, sharpens the diagnosis. Call `dump` before rejection changes response_mask, so that the file has all tokens.
    Raises UserError on a missing tensor.
    """
    _check(data)
    batch = data.batch
    mask = _numpy(batch["response_mask"]).astype(bool)
    columns = {
        "step": np.full(len(mask), step),
        "mask": mask,
        "logp_rollout": _numpy(batch["rollout_log_probs"]),
        "logp_old": _numpy(batch["old_log_probs"]),
    }
    for name, theirs in {"tokens": "responses", "advantages": "advantages", "entropy": "entropys"}.items():
        if theirs in batch.keys():  # noqa: SIM118
            columns[name] = _numpy(batch[theirs])
    if "token_level_scores" in batch.keys():  # noqa: SIM118
        columns["reward"] = _numpy(batch["token_level_scores"]).sum(1).astype(np.float64)
    if (group := _groups(data)) is not None:
        columns["group"] = group
    if {"prompts", "attention_mask"} <= set(batch.keys()):
        prompts = _numpy(batch["prompts"])
        columns["prompt"] = files.unpadded(prompts, _numpy(batch["attention_mask"])[:, : prompts.shape[1]])
    path = Path(folder) / f"step-{step:08d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, columns)
    return path


def diagnose(data: DataProto, step: int) -> None:
    """Print the diagnosis of a verl batch in one line. Raises UserError naming a tensor that the batch lacks.

    With `responses`, `entropys`, `advantages` and `uid` it sees more. verl's own trainers compute advantages later.
    """
    _check(data)
    batch, group = data.batch, _groups(data)
    numbers = None if group is None else torch.from_numpy(group)
    made = Batch(
        batch["rollout_log_probs"],
        batch["response_mask"].bool(),
        batch["old_log_probs"],
        batch.get("advantages", None),
        prompt=numbers,
    )
    print_diagnosis("verl", step, made, batch.get("responses", None), batch.get("entropys", None))


def install(folder: Path | str | None = None, every: int = 1, diagnose_every: int | None = None) -> None:
    """From now on write or diagnose the batches that a trainer of verl 0.9 passes to its rollout correction.

    folder: where each `every`-th batch is written; None for no dumps. diagnose_every: batches between two diagnoses; None for
    none. With bypass_mode=False all trainers of verl pass every batch to the correction, before a token is rejected and before
    advantages are computed. Steps count from the first batch, or after a restart from the last dump in the folder. A failed
    write is reported and does not stop training. The first written file is named in the output. Raises UserError on an interval
    below 1.
    """
    check_intervals(every=every, diagnose_every=diagnose_every)
    from verl.trainer.ppo import rollout_corr_helper as helper

    theirs = helper.compute_rollout_correction_and_add_to_batch
    files_written = () if folder is None else Path(folder).glob(f"step-{8 * '[0-9]'}.parquet")
    step = max((int(path.stem.removeprefix("step-")) for path in files_written), default=0)
    told = False

    @functools.wraps(theirs)
    def observing(batch: DataProto, *arguments: Any, **named: Any) -> Any:
        nonlocal step, told
        step += 1
        if folder is not None and step % every == 0:
            try:
                written = dump(batch, folder, step)
                if not told:  # so that silence means a trainer that never calls this
                    print(f"faultline: wrote {written}; now try: faultline replay {folder}", flush=True)
                told = True
            except OSError as error:
                print(f"faultline: batch {step} is not dumped: {error}", flush=True)
        if diagnose_every is not None and step % diagnose_every == 0:
            diagnose(batch, step)
        return theirs(batch, *arguments, **named)

    helper.compute_rollout_correction_and_add_to_batch = observing


def _check(data: DataProto) -> None:
    for name, remedy in NEEDED.items():
        if name not in data.batch.keys():  # noqa: SIM118  iterating a TensorDict gives its rows
            raise UserError(f"verl's batch has no {name}: {remedy}")


def _groups(data: DataProto) -> np.ndarray | None:
    """Number of each response's prompt [B] by verl's uid, from 0; None if the batch has no uid."""
    prompts = data.non_tensor_batch.get("uid")
    return None if prompts is None else np.unique(prompts, return_inverse=True)[1]


def _numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype.itemsize == 2 and tensor.is_floating_point() else tensor).numpy()


def _install_from_environment() -> None:
    diagnose_every = _interval("FAULTLINE_DIAGNOSE_EVERY") if "FAULTLINE_DIAGNOSE_EVERY" in os.environ else None
    install(os.environ.get("FAULTLINE_DUMP"), _interval("FAULTLINE_DUMP_EVERY"), diagnose_every)


def _interval(name: str) -> int:
    text = os.environ.get(name, "1")
    if not text.isdigit() or text == "0":
        raise UserError(f"{name}={text}: give a whole number of at least 1")
    return int(text)


if os.environ.keys() & {"FAULTLINE_DUMP", "FAULTLINE_DIAGNOSE_EVERY"}:  # verl imports this module for VERL_USE_EXTERNAL_MODULES
    _install_from_environment()
