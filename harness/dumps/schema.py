"""Schema of a dump: its columns with their units, and the checks of its rows. One row is one response."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

VERSION = 1
"""Version of the dump schema, stored in the parquet metadata under `VERSION_KEY`. Files of a later version are refused."""
VERSION_KEY = b"faultline.dump_version"
ROUNDING = 1e-6
"""Tolerance in nats by which a log-probability may exceed 0, for fp32 rounding of a log-softmax near 0."""

LARGEST = 1e9
"""Maximum absolute value of a reward or an advantage. No task gives more, and squares of larger values may overflow."""


class Column(NamedTuple):
    """A dump column: its meaning, its unit, whether it has one value per response token, and whether every dump must have it."""

    meaning: str
    unit: str
    per_token: bool = True
    required: bool = False

    def type(self, floats: pa.DataType) -> pa.DataType:
        """The parquet type of the column. floats: type used for log-probabilities and advantages."""
        scalar = {"integer": pa.int64(), "bool": pa.bool_(), "reward": pa.float64()}.get(self.unit, floats)
        return pa.list_(scalar) if self.per_token else scalar


COLUMNS = {
    "step": Column("RL step; the responses of one step are one training batch", "integer", per_token=False),
    "group": Column("number of the prompt within the step, the same for its samples", "integer", per_token=False),
    "minibatch": Column("which optimizer step of the RL step trained on the response", "integer", per_token=False),
    "reward": Column("reward of the response", "reward", per_token=False),
    "prompt": Column("token ids of the prompt; its length is its own", "integer"),
    "tokens": Column("token ids of the response", "integer"),
    "mask": Column("true on response tokens that are trained on; absent: all are", "bool"),
    "logp_rollout": Column("log μ of the token, as the rollout engine reported it", "nats", required=True),
    "logp_old": Column("log π_old of the token, by the trainer's weights when the batch was taken", "nats", required=True),
    "logp": Column("log π_θ of the token when its mini-batch was trained on, before that optimizer step", "nats"),
    "entropy": Column("entropy of π_old at the token's place, by the pass that gave logp_old", "nats"),
    "repeat_prob": Column("π_old of all tokens that the response already has, by the pass that gave logp_old", "probability"),
    "advantages": Column("advantage of the token", "advantage"),
    "version": Column("optimizer steps done by the weights that sampled the token", "integer"),
    "segments": Column("number of the turn within the response, from 0", "integer"),
}
ROUTED_EXPERTS = "routed_experts"
"""Optional column of mixture-of-experts runs, which Faultline writes and does not read. It holds the ids of the experts chosen
in each layer, per position. The positions are those from the first token of the prompt to the last but one of the response."""
SAMPLING_MASK = "sampling_mask"
"""Optional column of runs with rollout.replay_sampling_mask: the token ids that top_p and top_k kept at each response token."""
LOGPS = ("logp_rollout", "logp_old", "logp")


class Problem(NamedTuple):
    """One invalid value of a dump. row: its row in the file or table, counted from 0."""

    row: int
    column: str
    what: str

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}: {self.what}"


class DumpedResponses(NamedTuple):
    """Responses of a dump as flat arrays. Response i has the values at offsets[i]:offsets[i+1]. Absent columns are None.

    Columns with one value per token, [n], are: mask, bool; logp_* and entropy in nats, repeat_prob and advantages, float32 or
    float64; version, segments and tokens, int64. Columns with one value per response, [N], are: step, group and minibatch, int64;
    reward, float64. offsets: int64 [N + 1].
    """

    offsets: np.ndarray
    mask: np.ndarray
    logp_rollout: np.ndarray
    logp_old: np.ndarray
    logp: np.ndarray | None
    entropy: np.ndarray | None
    repeat_prob: np.ndarray | None
    advantages: np.ndarray | None
    version: np.ndarray | None
    segments: np.ndarray | None
    tokens: np.ndarray | None
    step: np.ndarray | None
    group: np.ndarray | None
    minibatch: np.ndarray | None
    reward: np.ndarray | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, index: np.ndarray) -> DumpedResponses:
        """Select the responses with these numbers, in this order."""
        lengths = np.diff(self.offsets)[index]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.offsets[:-1][index] - offsets[:-1], lengths) + np.arange(offsets[-1])
        columns: dict[str, Any] = {name: getattr(self, name) for name in self._fields if name != "offsets"}
        taken: dict[str, Any] = {
            name: None if values is None else values[places if COLUMNS[name].per_token else index]
            for name, values in columns.items()
        }
        return DumpedResponses(offsets, **taken)


def problems(table: pa.Table) -> list[Problem]:
    """Invalid values in the rows of a dump `table`, in order, at most one per row. `absent` reports missing required columns."""
    first: dict[int, Problem] = {}
    for column in COLUMNS:
        if column in table.column_names:
            for row, what in _column_problems(table, column):
                first.setdefault(row, Problem(row, column, what))
    return [first[row] for row in sorted(first)]


def absent(names: Collection[str]) -> list[str]:
    """Required columns of a dump that are missing among `names`."""
    return [name for name, column in COLUMNS.items() if column.required and name not in names]


def responses(table: pa.Table) -> DumpedResponses:
    """Convert a dump `table` without invalid values to flat arrays. A column that only some rows have becomes None."""
    lengths = _lengths(table, "logp_rollout")
    offsets = np.concatenate([[0], np.cumsum(lengths)])

    def column(name: str) -> np.ndarray | None:
        if name not in table.column_names or table[name].null_count:
            return None  # a column that only some rows have cannot be used
        return _flat(table, name) if COLUMNS[name].per_token else table[name].to_numpy()

    mask = _mask_of(table, np.ones(len(table), dtype=bool), lengths)
    names = [name for name in DumpedResponses._fields if name not in ("offsets", "mask")]
    columns: dict[str, Any] = {name: column(name) for name in names}  # without problems none that is required is None
    return DumpedResponses(offsets, mask, **columns)


def _column_problems(table: pa.Table, name: str) -> Iterator[tuple[int, str]]:
    """Invalid values of one column, as pairs (row, description)."""
    column = COLUMNS[name]
    missing = table[name].is_null().to_numpy()
    if column.required:
        yield from ((int(row), "missing") for row in np.flatnonzero(missing))
    if not column.per_token:
        values = table[name].cast(pa.float64()).to_numpy()
        if name == "reward":
            bad, what = ~(np.abs(values) <= LARGEST), f"not finite, or beyond {LARGEST:g}"
        else:
            bad, what = values < 0, "below 0"
        yield from ((int(row), f"{values[row]:g} is {what}") for row in np.flatnonzero(~missing & bad))
        return
    if name == "prompt":
        return
    lengths, expected = _lengths(table, name), _lengths(table, "logp_rollout")
    wrong = ~missing & (lengths != expected)
    yield from ((int(row), f"{lengths[row]} values, logp_rollout has {expected[row]}") for row in np.flatnonzero(wrong))
    sound = ~missing & ~wrong
    inside = np.repeat(sound, lengths)
    values = _flat(table, name)
    used = inside & _mask_of(table, sound, lengths)

    def first(bad: np.ndarray, what: Callable[[int, int], str]) -> Iterator[tuple[int, str]]:
        """First value of each row in the mask `bad` of flat values, as pairs (row, what(flat index, position in the row))."""
        indices = np.flatnonzero(bad)
        ends = np.cumsum(lengths)
        rows, own = np.unique(np.searchsorted(ends, indices, "right"), return_index=True)
        for row, i in zip(rows.tolist(), indices[own].tolist(), strict=True):
            yield row, what(i, i - int(ends[row] - lengths[row]))

    if name == "mask":
        null = inside & pc.is_null(pc.list_flatten(table[name])).to_numpy()
        yield from first(null, lambda i, place: f"token {place} is neither true nor false")
    if name in (*LOGPS, "entropy", "repeat_prob", "advantages"):
        yield from first(used & ~np.isfinite(values), lambda i, place: f"{values[i]} at token {place}")
    if name == "entropy":
        yield from first(used & (values < -ROUNDING), lambda i, place: f"{values[i]:.4g} at token {place} is below 0")
    if name == "repeat_prob":
        outside = used & ~((values >= -ROUNDING) & (values <= 1 + ROUNDING))
        yield from first(outside, lambda i, place: f"{values[i]:.4g} at token {place} is no probability")
    if name in LOGPS:
        above = used & (values > ROUNDING)
        yield from first(above, lambda i, place: f"log-probability {values[i]:.4g} at token {place} is above 0; is it −log p?")
    if name == "advantages":
        beyond = used & (np.abs(values) > LARGEST)
        yield from first(beyond, lambda i, place: f"{values[i]:.4g} at token {place} is beyond {LARGEST:g}")
    if name in ("tokens", "version"):
        yield from first(used & (values < 0), lambda i, place: f"none, or below 0, at token {place}")
    if name == "segments":
        outside = used & ((values < 0) | (values >= np.repeat(lengths, lengths)))
        yield from first(outside, lambda i, place: f"{values[i]} at token {place}: turns count from 0")


def _mask_of(table: pa.Table, sound: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Value of `mask` at each value of a list column, as one flat array; True where the row has no usable mask.

    lengths: number of values in each row. sound: whether that number is the length of the response, for each row.
    """
    if "mask" not in table.column_names:
        return np.ones(lengths.sum(), dtype=bool)
    own = _lengths(table, "mask")
    fits = sound & (own == lengths)
    mask = _flat(table, "mask").astype(bool, copy=False)
    if fits.all():
        return mask
    used = np.ones(lengths.sum(), dtype=bool)
    used[np.repeat(fits, lengths)] = mask[np.repeat(fits, own)]
    return used


def _lengths(table: pa.Table, name: str) -> np.ndarray:
    lengths = pc.fill_null(pc.list_value_length(table[name]), 0)
    return lengths.to_numpy().astype(np.int64)


def _flat(table: pa.Table, name: str) -> np.ndarray:
    """All values of a list column as one array. Null becomes NaN among floats, −1 among integers, False among booleans."""
    values = pc.list_flatten(table[name])
    if values.null_count and not pa.types.is_floating(values.type):
        values = values.fill_null(pa.scalar(False if pa.types.is_boolean(values.type) else -1, values.type))
    return values.to_numpy()
