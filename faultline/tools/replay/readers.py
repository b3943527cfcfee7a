"""Read dumps of other programs into tables of `harness.dumps.schema`, one reader per file type; see docs/replay.md.

.jsonl: prime-rl's token exports, or rows with this project's column names. .pkl: SkyRL's dumped TrainingInputBatch; no code
that the pickle names is run. .pt: a dictionary of tensors with verl's or TRL's names, read by `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from harness.dumps.files import tabulate, unpadded
from harness.dumps.schema import COLUMNS, LOGPS, Problem, absent
from harness.errors import UserError, first_line
from harness.room import out_of_memory

if TYPE_CHECKING:
    import torch

LINES = 4096
"""Maximum number of lines of a JSONL file that are read into one table."""

PARQUET = {
    "responses": "tokens",
    "response_mask": "mask",
    "rollout_log_probs": "logp_rollout",
    "old_log_probs": "logp_old",
    "entropys": "entropy",
}
"""Name of a parquet column in verl -> its name in this project."""

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
    "entropy": "entropys",
    "advantages": "advantages",
    "scores": "token_level_scores",
}
TRL = {
    "tokens": "completion_ids",
    "mask": "completion_mask",
    "logp_rollout": "sampling_per_token_logps",
    "logp_old": "old_per_token_logps",
    "advantages": "advantages",
    "tool_mask": "tool_mask",
}
SKYRL = {
    "tokens": "sequences",
    "mask": "loss_mask",
    "logp_rollout": "rollout_logprobs",
    "logp_old": "action_log_probs",
    "advantages": "advantages",
}
"""Name of a column in this project -> its name in SkyRL."""

NOT_READ = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    KeyError,
    TypeError,
    AttributeError,
    ValueError,
    IndexError,
    OverflowError,
)
"""Exceptions that loading a truncated or foreign pickle raises."""
UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
"""Exceptions that pyarrow raises on a value that does not fit the column's type."""

Columns = dict[str, np.ndarray]
"""Column -> padded array, [B, T] per token and [B] per response. The mask may still hold numbers instead of booleans."""


class _BadLine(Exception):
    """Raised for a line of JSON that is not a row. args: the faulty column and the problem."""


def read_jsonl(path: Path) -> Iterator[tuple[pa.Table, list[Problem]]]:
    """Read a JSONL file. Yields (table of at most LINES rows, problems of its lines). A faulty line or value is null."""
    with open(path, encoding="utf-8", errors="replace") as file:
        while lines := list(itertools.islice(file, LINES)):
            rows, problems = [], []
            for number, line in enumerate(lines):
                try:
                    rows.append(_json_row(path, line))
                except _BadLine as error:
                    rows.append({})
                    problems.append(Problem(number, *error.args))
            if not problems and (missing := absent(set().union(*rows))):
                have = ", ".join(list(json.loads(lines[0]))[:10]) or "none"
                columns = f"no column {' and '.join(missing)} (its keys are {have})"
                raise UserError(f"{path}: {columns}; docs/dumps.md lists what a dump holds")
            yield _tabulate_rows(rows, problems), problems


def read_skyrl(path: Path) -> Columns:
    """Read the pickle that SkyRL writes with `trainer.dump_data_batch=true`. Raises UserError on any other file."""
    try:
        state = _InertUnpickler(io.BytesIO(path.read_bytes())).load()
        arrays = {name: value for name, value in state["batch_dict"].items() if isinstance(value, dict)}
        theirs = {name: _skyrl_array(v) for name, v in arrays.items() if v.get("format", "numpy") in ("numpy", "torch")}
        sequences = theirs.get("sequences")
        if sequences is not None and "loss_mask" in theirs:  # prompt and response; the masks are of the response
            theirs["sequences"] = sequences[..., -theirs["loss_mask"].shape[-1] :]
        columns = _renamed(path, theirs, SKYRL, "SkyRL's", "rollout_logprobs needs generator.sampling_params.logprobs=1")
        if sequences is not None and "response_mask" in theirs:
            columns = _left_aligned(columns, theirs["response_mask"]) | {"prompt": _skyrl_prompts(sequences, theirs)}
        metadata = state.get("metadata") or {}
        if prompts := metadata.get("policy_prompt_boundaries"):  # (first row, row after the last) of each prompt
            columns["group"] = np.searchsorted([end for _, end in prompts], np.arange(len(columns["mask"])), side="right")
        pad = metadata.get("pad_size", 0)
    except NOT_READ as error:
        if out_of_memory(error):
            raise
        first = first_line(error)
        raise UserError(f"{path}: no whole SkyRL TrainingInputBatch ({first}); set trainer.dump_data_batch=true") from None
    rows = len(columns["mask"]) - (pad if isinstance(pad, int) else 0)  # SkyRL repeats responses to fill its workers
    return {name: values[:rows] for name, values in columns.items()}


def read_tensors(path: Path) -> Columns:
    """Read [B, T] tensors written by torch.save under verl's or TRL's names. Raises UserError on any other file."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except NOT_READ as error:
        if out_of_memory(error):
            raise
        # torch's own message, left out, advises to run the code that the file names
        what = "holds more than tensors" if zipfile.is_zipfile(path) else "is no whole file of torch.save"
        raise UserError(f"{path}: {what}; save a dictionary of tensors as docs/replay.md says") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: holds a {type(loaded).__name__}; save a dictionary of tensors, as docs/replay.md says")
    theirs = {}
    for name, value in loaded.items():
        if isinstance(value, torch.Tensor):
            try:
                theirs[str(name)] = _array(value)
            except (RuntimeError, TypeError) as error:
                if out_of_memory(error):
                    raise
                raise UserError(f"{path}: {name} is no plain tensor ({first_line(error)}); save its to_dense()") from None
    if not theirs.keys() & {*VERL.values(), *TRL.values()} - {"advantages"}:
        have = ", ".join(theirs) or "no tensor"
        raise UserError(f"{path}: no name of verl's DataProto.batch or of TRL's inputs (found {have}); docs/replay.md has them")
    if theirs.keys() & {*VERL.values()} - {"advantages"}:
        columns = _renamed(path, theirs, VERL, "verl's", "set actor_rollout_ref.rollout.calculate_log_probs=True")
        if "scores" in columns:
            columns["reward"] = columns.pop("scores").sum(1)
    else:
        columns = _renamed(path, theirs, TRL, "TRL's", "vllm_importance_sampling_correction=True computes both")
        if "tool_mask" in columns:
            tool = columns.pop("tool_mask")
            columns["mask"] = np.where(tool == 1, columns["mask"], tool)
    return columns


def tabulated(path: Path, columns: Columns) -> tuple[pa.Table, list[Problem]]:
    """Convert padded arrays of one batch to a table, and list the rows whose mask has numbers other than 0 and 1.

    The step is the number after `step` in the file's name, else the last number in the name.
    """
    mask, shape = columns["mask"], columns["mask"].shape
    bad = ~np.isin(mask, (0, 1))
    first = {row: bad[row].argmax() for row in np.flatnonzero(bad.any(1)).tolist()}
    problems = [Problem(row, "mask", f"{mask[row, at]} at token {at} is neither 0 nor 1") for row, at in first.items()]
    columns = columns | {"mask": mask.astype(bool)}
    numbers = re.findall(r"step[-_]?(\d+)", path.stem) or re.findall(r"\d+", path.stem)
    if numbers:
        columns["step"] = np.full(shape[0], int(numbers[-1]))
    try:
        return tabulate(columns), problems
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(f"{path}: {first_line(error)}; docs/dumps.md lists what a column holds") from None


def _renamed(path: Path, theirs: Columns, names: dict[str, str], whose: str, remedy: str) -> Columns:
    needed = [names[column] for column in ("mask", "logp_rollout", "logp_old")]
    if missing := [name for name in needed if name not in theirs]:
        mask = f"save {needed[0]} too, 1 on the response tokens that the loss counts and 0 elsewhere"
        remedies = [mask] * (needed[0] in missing) + [remedy] * bool({*missing} - {needed[0]})
        have = ", ".join(theirs) or "no tensor"
        raise UserError(f"{path}: {whose} {', '.join(missing)} missing (found {have}); {'; '.join(remedies)}")
    shape = theirs[names["mask"]].shape
    if len(shape) != 2 or 0 in shape:
        raise UserError(f"{path}: {names['mask']} has shape {list(shape)}; save [responses, tokens] of a whole batch")
    columns = {}
    for ours, name in names.items():
        if name not in theirs:
            continue
        values = theirs[name]
        if ours == "advantages" and values.shape == shape[:1]:  # one per response, as TRL has it
            values = np.broadcast_to(values[:, None], shape)
        if values.shape != shape:
            raise UserError(
                f"{path}: {name} has shape {list(values.shape)}, {names['mask']} {list(shape)}; save both of one batch"
            )
        kinds, what = ("iu", "integers") if ours == "tokens" else ("biuf", "real numbers")
        if ours in (*LOGPS, "entropy"):
            kinds, what = "f", "floats"
        if values.dtype.kind not in kinds:
            raise UserError(f"{path}: {name} holds {values.dtype}; save it as {what}")
        columns[ours] = values
    return columns


def _json_row(path: Path, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadLine("the whole line", f"no JSON object ({error})") from None
    if not isinstance(row, dict):
        raise _BadLine("the whole line", "no JSON object (another JSON value)")
    if "inference_logprobs" in row:
        rewards = row.get("rewards") or []
        if not isinstance(rewards, list):
            raise _BadLine("rewards", f"{str(rewards)[:40]!r} is no list of one reward per token")
        rewards = [reward for reward in rewards if reward is not None]
        return {ours: row.get(theirs) for ours, theirs in PRIME_RL.items()} | {"reward": rewards[-1] if rewards else None}
    if {"input", "output", "score"} <= row.keys() and "logp_rollout" not in row:
        raise UserError(
            f"{path}: this is verl's trainer.rollout_data_dir, which holds texts and scores but no log-probabilities; "
            "docs/replay.md says which line saves them"
        )
    versions = {"version": _spans(row)} if "weight_versions" in row and "version" not in row else {}
    return {name: row[name] for name in COLUMNS if name in row} | versions


def _spans(row: dict[str, Any]) -> list[int]:
    """Version of each token's weights, from vLLM's CompletionOutput.weight_versions: {"version", "start", "end"} per span."""
    versions: list[int] = []
    spans: list[Any] = row["weight_versions"] if isinstance(row["weight_versions"], list) else [None]
    for span in spans:
        try:
            if span["start"] != len(versions):
                raise ValueError
            versions += [int(span["version"])] * (span["end"] - span["start"])
        except (TypeError, KeyError, ValueError):
            what = f"{str(span)[:60]!r} at token {len(versions)} is no span of it; give version, a number, start and end"
            raise _BadLine("weight_versions", what) from None
    return versions


def _tabulate_rows(rows: list[dict[str, Any]], problems: list[Problem]) -> pa.Table:
    """Convert rows to a table. A value that does not fit its column becomes null and is added to the problems."""
    arrays = {}
    for name in COLUMNS:
        if any(name in row for row in rows):
            kind, values = COLUMNS[name].type(pa.float64()), [row.get(name) for row in rows]
            try:
                arrays[name] = _typed(values, kind)
            except UNFIT:
                values = [_fitting(i, name, value, kind, problems) for i, value in enumerate(values)]
                arrays[name] = pa.array(values, kind)
    return pa.table(arrays or {"reward": pa.nulls(len(rows), pa.float64())})


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert values to a pyarrow array of type `kind`. Raises one of UNFIT if a value does not fit.

    The type of the values is inferred first, because pyarrow would cut 1.5 to the integer 1.
    """
    if pa.types.is_integer(_inner(kind)):
        array = pa.array(values)
        if pa.types.is_floating(_inner(array.type)):
            return array.cast(kind)
    return pa.array(values, kind)


def _inner(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def _fitting(row: int, name: str, value: Any, kind: pa.DataType, problems: list[Problem]) -> Any:
    if name == "mask" and isinstance(value, list) and all(item in (0, 1) for item in value):
        return [bool(item) for item in value]
    try:
        _typed([value], kind)
        return value
    except UNFIT:
        problems.append(Problem(row, name, f"{str(value)[:40]!r} is no {'whole number' if kind == pa.int64() else kind}"))
        return None


class _Inert:
    """Replacement for every class and function that a pickle names. It keeps its arguments and runs nothing."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        """Do nothing when a pickle appends to a list subclass."""

    def extend(self, items: Any) -> None:
        """Do nothing when a pickle extends a list subclass."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Do nothing when a pickle sets an item of a dictionary subclass."""


class _InertUnpickler(pickle.Unpickler):
    """Unpickler for SkyRL's batches that imports nothing: every name but `_rebuild_tensor_batch` becomes `_Inert`."""

    def find_class(self, module: str, name: str) -> Any:
        return (lambda cls, state: state) if name == "_rebuild_tensor_batch" else _Inert


def _left_aligned(columns: Columns, response_mask: np.ndarray) -> Columns:
    """Move each response to the first place of its row. SkyRL 0.3 puts it at the end. All arrays are [B, T]."""
    length = response_mask.shape[1]
    places = (np.arange(length) + response_mask.argmax(1)[:, None]) % length
    return {name: np.take_along_axis(values, places, axis=1) for name, values in columns.items()}


def _skyrl_prompts(sequences: np.ndarray, theirs: Columns) -> np.ndarray:
    """The column `prompt` from SkyRL's `sequences` [B, L]: padding, prompt and response, in this order."""
    response = theirs["response_mask"]
    start = sequences.shape[1] - response.shape[1] + response.argmax(1)[:, None]
    return unpadded(sequences, (theirs["attention_mask"] != 0) & (np.arange(sequences.shape[1]) < start))


def _skyrl_array(value: dict[str, Any]) -> np.ndarray:
    if value.get("format") == "torch":
        import torch

        return _array(torch.load(io.BytesIO(value["data"]), map_location="cpu", weights_only=True))
    return np.frombuffer(value["data"], dtype=np.dtype(value["dtype"])).reshape(value["shape"])


def _array(tensor: torch.Tensor) -> np.ndarray:
    in_numpy = not tensor.is_floating_point() or tensor.element_size() >= 4  # no bfloat16 there, and no 8-bit format
    return (tensor if in_numpy else tensor.float()).detach().numpy()
