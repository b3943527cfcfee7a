"""Dumps of other programs as tables of `harness.dumps.schema`, one reader per file type; docs/replay.md says how each is made.

.jsonl: prime-rl's token exports, or rows with this project's own column names. .pkl: SkyRL's dumped TrainingInputBatch, read
without running anything that the pickle names. .pt: a dictionary of tensors with verl's or TRL's names, read by
`torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from harness.dumps.files import tabulate
from harness.dumps.schema import COLUMNS, Problem
from harness.errors import UserError

LINES = 4096
"""Lines of a JSONL file that become one table."""

PRIME_RL = {
    "step": "step",
    "tokens": "token_ids",
    "mask": "loss_mask",
    "logp_rollout": "inference_logprobs",
    "logp_old": "trainer_logprobs",
    "advantages": "advantages",
}
VERL = {
    "tokens": "responses",
    "mask": "response_mask",
    "logp_rollout": "rollout_log_probs",
    "logp_old": "old_log_probs",
    "advantages": "advantages",
}
TRL = {
    "tokens": "completion_ids",
    "mask": "completion_mask",
    "logp_rollout": "sampling_per_token_logps",
    "logp_old": "old_per_token_logps",
    "advantages": "advantages",
}
SKYRL = {
    "mask": "loss_mask",
    "logp_rollout": "rollout_logprobs",
    "logp_old": "action_log_probs",
    "advantages": "advantages",
}
"""Our column -> theirs."""

Columns = dict[str, np.ndarray]
"""Padded arrays by column, [B, T] per token and [B] per response."""


def read_jsonl(path: Path) -> Iterator[tuple[pa.Table, list[Problem]]]:
    """Tables of at most LINES rows with the problems that only the text shows; such a row is all null in its table."""
    with open(path, encoding="utf-8", errors="replace") as file:
        start = 0
        while lines := list(itertools.islice(file, LINES)):
            rows, problems = [], []
            for number, line in enumerate(lines):
                try:
                    rows.append(_json_row(path, line))
                except ValueError as error:
                    rows.append({})
                    problems.append(Problem(number, "the whole line", f"no JSON object ({error})"))
            yield _tabulate_rows(rows, problems), problems
            start += len(lines)


def read_skyrl(path: Path) -> Columns:
    """SkyRL `trainer.dump_data_batch=true`: export_path/dumped_data/global_step_<n>_training_input.pkl."""
    try:
        state = _InertUnpickler(io.BytesIO(path.read_bytes())).load()
        theirs = {name: _skyrl_array(value) for name, value in state["batch_dict"].items() if _is_array(value)}
        metadata = state.get("metadata") or {}
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise UserError(f"{path}: no whole SkyRL TrainingInputBatch ({error}); set trainer.dump_data_batch=true") from None
    columns = _renamed(path, theirs, SKYRL, "SkyRL's", "rollout_logprobs needs generator.sampling_params.logprobs=1")
    if "sequences" in theirs:
        columns["tokens"] = theirs["sequences"][:, -columns["mask"].shape[1] :]
    pad = metadata.get("pad_size", 0)
    rows = len(columns["mask"]) - (pad if isinstance(pad, int) else 0)  # SkyRL repeats responses to fill its workers
    return {name: values[:rows] for name, values in columns.items()}


def read_tensors(path: Path) -> Columns:
    """A dictionary of [B, T] tensors, written by torch.save, with the names of verl's DataProto.batch or of TRL's inputs."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{path}: not a plain dictionary of tensors ({first}); write it as docs/replay.md says") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: holds a {type(loaded).__name__}; save a dictionary of tensors, as docs/replay.md says")
    theirs = {name: _array(value) for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if "old_log_probs" in theirs or "rollout_log_probs" in theirs:
        columns = _renamed(path, theirs, VERL, "verl's", "set actor_rollout_ref.rollout.calculate_log_probs=True")
        if "token_level_scores" in theirs:
            columns["reward"] = theirs["token_level_scores"].sum(1)
    else:
        columns = _renamed(path, theirs, TRL, "TRL's", "vllm_importance_sampling_correction=True computes both")
        if "tool_mask" in theirs:
            columns["mask"] = columns["mask"] & theirs["tool_mask"].astype(bool)
    return columns


def tabulated(path: Path, columns: Columns) -> pa.Table:
    """Padded arrays of one training batch as a table; the step is the last number in the file's name."""
    shape = columns["mask"].shape
    for name, values in columns.items():
        if values.shape[0] != shape[0] or (COLUMNS[name].per_token and values.shape != shape):
            raise UserError(f"{path}: {name} has shape {list(values.shape)}, the mask {list(shape)}")
    numbers = re.findall(r"\d+", path.stem)
    if numbers:
        columns = columns | {"step": np.full(shape[0], int(numbers[-1]))}
    return tabulate(columns)


def _renamed(path: Path, theirs: Columns, names: dict[str, str], whose: str, remedy: str) -> Columns:
    needed = [names[column] for column in ("mask", "logp_rollout", "logp_old")]
    if missing := [name for name in needed if name not in theirs]:
        raise UserError(f"{path}: {whose} {', '.join(missing)} missing (found {', '.join(theirs) or 'no tensor'}); {remedy}")
    columns = {ours: theirs[name] for ours, name in names.items() if name in theirs}
    mask = columns["mask"] = columns["mask"].astype(bool)
    if "advantages" in columns and columns["advantages"].ndim == 1:  # one per response, as TRL has it
        columns["advantages"] = np.broadcast_to(columns["advantages"][:, None], mask.shape)
    return columns


def _json_row(path: Path, line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("another JSON value")
    if "inference_logprobs" in row:
        rewards = [reward for reward in row.get("rewards") or [] if reward is not None]
        return {ours: row.get(theirs) for ours, theirs in PRIME_RL.items()} | {"reward": rewards[-1] if rewards else None}
    if {"input", "output", "score"} <= row.keys() and "logp_rollout" not in row:
        raise UserError(
            f"{path}: this is verl's trainer.rollout_data_dir, which holds texts and scores but no log-probabilities; "
            "docs/replay.md says which line saves them"
        )
    return {name: row[name] for name in COLUMNS if name in row}


def _tabulate_rows(rows: list[dict[str, Any]], problems: list[Problem]) -> pa.Table:
    """Rows as a table; a value that does not fit its column becomes null and a problem."""
    arrays = {}
    for name in COLUMNS:
        if any(name in row for row in rows):
            kind, values = COLUMNS[name].type(pa.float64()), [row.get(name) for row in rows]
            try:
                arrays[name] = pa.array(values, kind)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                values = [_fitting(i, name, value, kind, problems) for i, value in enumerate(values)]
                arrays[name] = pa.array(values, kind)
    return pa.table(arrays or {"reward": pa.nulls(len(rows), pa.float64())})


def _fitting(row: int, name: str, value: Any, kind: pa.DataType, problems: list[Problem]) -> Any:
    try:
        pa.array([value], kind)
        return value
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        problems.append(Problem(row, name, f"{str(value)[:40]!r} is no {kind}"))
        return None


class _Inert:
    """Stands for every class and function that a pickle names: holds what it is given and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """A list subclass would be filled by this."""

    def extend(self, items: Any) -> None:
        """Likewise."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """A dictionary subclass would be filled by this."""


class _InertUnpickler(pickle.Unpickler):
    """Reads SkyRL's batches and imports nothing: each name becomes inert but for the one that hands over the state."""

    def find_class(self, module: str, name: str) -> Any:
        return (lambda cls, state: state) if name == "_rebuild_tensor_batch" else _Inert


def _is_array(value: Any) -> bool:
    return isinstance(value, dict) and value.get("format", "numpy") in ("numpy", "torch")


def _skyrl_array(value: dict[str, Any]) -> np.ndarray:
    if value.get("format") == "torch":
        return _array(torch.load(io.BytesIO(value["data"]), map_location="cpu", weights_only=True))
    return np.frombuffer(value["data"], dtype=np.dtype(value["dtype"])).reshape(value["shape"])


def _array(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
