"""Reading and writing dumps as parquet files: written completely or not at all, read one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.dumps.schema import COLUMNS, ROUTED_EXPERTS, SAMPLING_MASK, VERSION, VERSION_KEY
from harness.errors import UserError, first_line
from harness.files import replacing


def write(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write one training batch as one row group, replacing `path` atomically. columns: padded arrays, as for `tabulate`.

    The folder of `path` is made if it is missing. If the folder above is missing too, FileNotFoundError is raised, because a
    run that was moved away must get no second folder.
    """
    table = tabulate(columns).replace_schema_metadata({VERSION_KEY: str(VERSION)})
    path.parent.mkdir(exist_ok=True)
    with replacing(path.parent, path.name) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def tabulate(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Convert padded arrays to a table with one row per response.

    columns: named as in `schema.COLUMNS`, [B, T] per token or [B] per response. `mask` is required. Values beyond the last
    True of a row are padding and left out. ROUTED_EXPERTS [B, L, layers, k] has the largest number of its integer type where
    nothing was computed. SAMPLING_MASK [B, T, bytes] has one bit per token of the vocabulary, the lowest bit of a byte first.
    """
    mask = columns["mask"]
    used = np.arange(mask.shape[1]) < np.where(mask.any(1), mask.shape[1] - mask[:, ::-1].argmax(1), 0)[:, None]
    offsets = pa.array(np.concatenate([[0], np.cumsum(used.sum(1))]), pa.int32())
    floats = pa.from_numpy_dtype(columns["logp_rollout"].dtype)
    arrays = {}
    for name, values in columns.items():
        if name == ROUTED_EXPERTS:
            arrays[name] = _nested(values)
            continue
        if name == SAMPLING_MASK:
            arrays[name] = pa.ListArray.from_arrays(offsets, _token_sets(values, used))
            continue
        kind = COLUMNS[name].type(floats)
        if name == "prompt":
            arrays[name] = pa.array(list(values), kind)
        elif COLUMNS[name].per_token:
            arrays[name] = pa.ListArray.from_arrays(offsets, pa.array(values[used], kind.value_type))
        else:
            arrays[name] = pa.array(values, kind)
    return pa.table(arrays)


def unpadded(tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The column `prompt` from padded token ids [B, P]: for each row the ids where `mask` [B, P] is nonzero, as an array [B]."""
    rows = (row[own] for row, own in zip(tokens, mask.astype(bool), strict=True))
    return np.fromiter(rows, object, len(tokens))


def _nested(ids: np.ndarray) -> pa.Array:
    """Convert expert ids [B, L, layers, k] to nested lists: positions, layers, experts. Positions not computed are left out."""
    computed = ids[:, :, 0, 0] != np.iinfo(ids.dtype).max
    values = ids[computed]
    layers = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), ids.shape[3])
    places = pa.FixedSizeListArray.from_arrays(layers, ids.shape[2])
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(computed.sum(1))]), pa.int32()), places)


def _token_sets(bits: np.ndarray, used: np.ndarray) -> pa.Array:
    """Convert sampling masks [B, T, bytes] to list<int32> of ids per `used` token. Responses are unpacked one by one."""
    ids, sizes = [], [np.zeros(1, np.int64)]
    for row, own in zip(bits, used, strict=True):
        places, tokens = np.unpackbits(row[own], axis=-1, bitorder="little").nonzero()
        ids.append(tokens)
        sizes.append(np.bincount(places, minlength=int(own.sum())))
    ends = pa.array(np.concatenate(sizes).cumsum(), pa.int32())
    return pa.ListArray.from_arrays(ends, pa.array(np.concatenate(ids), pa.int32()))


def read(path: Path, aliases: Mapping[str, str] | None = None) -> Iterator[pa.Table]:
    """Iterate over the row groups of a parquet file. Columns outside the schema are left out.

    aliases: another program's name of a column -> the name in COLUMNS, used if a file has only the former. Raises UserError on
    a file that is truncated, not parquet, of a later schema version, or has columns of wrong types.
    """
    if path.exists() and not path.is_file():  # to open a pipe may take for ever
        raise UserError(f"{path}: not a regular file; give a parquet file")
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a whole parquet file ({first_line(error)}); copy or dump it again") from None
    with file:
        _check_version(path, file.schema_arrow)
        have = file.schema_arrow.names
        theirs = {ours: name for name, ours in (aliases or {}).items() if name in have and ours not in have}
        names = [theirs.get(name, name) for name in COLUMNS if theirs.get(name, name) in have]
        if twice := [name for name in names if have.count(name) > 1]:
            raise UserError(f"{path}: column {' and '.join(twice)} stands there more than once; drop one and write it again")
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group, columns=names)
            except (pa.ArrowInvalid, OSError) as error:
                raise UserError(f"{path}: row group {group} is unreadable ({first_line(error)}); dump it again") from None
            yield typed(path, table.rename_columns([name for name in COLUMNS if theirs.get(name, name) in have]))


def typed(path: Path, table: pa.Table) -> pa.Table:
    """Cast the columns to the types of the schema; floats keep their precision. Raises UserError naming a column that fails."""
    for i, name in enumerate(table.column_names):
        column, given = COLUMNS[name], table.schema.field(i).type
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        inner = given.value_type if any(is_list(given) for is_list in lists) else given
        expected = column.type(inner if pa.types.is_floating(inner) else pa.float64())
        if given != expected:
            try:
                if not _is_number(inner, truth=name == "mask"):
                    raise pa.ArrowNotImplementedError  # pyarrow would parse text and count days
                numbers = name == "mask" and not pa.types.is_boolean(inner)
                cast = _truth(table[name]) if numbers else table[name].cast(expected)
                table = table.set_column(i, name, cast)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise UserError(f"{path}: column {name} is {given}, which is no {expected}; see docs/dumps.md") from None
    return table


def _is_number(kind: pa.DataType, truth: bool) -> bool:
    """Whether a column type is an integer, a float or null. truth: whether boolean is accepted too."""
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    return number or (truth and pa.types.is_boolean(kind))


def _truth(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert lists of 0 and 1 to booleans. Any other number becomes null, which `schema.problems` reports."""
    kind = COLUMNS["mask"].type(pa.float64())
    values = pc.list_flatten(column)
    truth = pc.if_else(pc.equal(values, 1), True, pc.if_else(pc.equal(values, 0), False, pa.scalar(None, pa.bool_())))
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    null = column.is_null().combine_chunks()
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, truth.combine_chunks(), kind, mask=null)])


def _check_version(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY, str(VERSION).encode()).decode()
    if not version.isdigit() or int(version) > VERSION:
        raise UserError(f"{path}: dump schema version {version}, this program reads up to {VERSION}; update it")
