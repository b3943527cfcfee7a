"""Every reader of a file that a stranger can bring, on what hypothesis finds: it reads, or raises a UserError."""

from __future__ import annotations

import json
import math
import random
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.tools.import_config import import_config
from faultline.tools.replay.presets import presets
from harness.config import parse_recorded
from harness.errors import UserError
from harness.run import jsonl
from harness.yaml_file import read_yaml
from tests.fuzz.test_files import SKYRL, TRL, VERL, read_dump

FIXED = settings(max_examples=120, deadline=None, derandomize=True)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4))
numbers = st.floats() | st.integers() | st.none() | st.sampled_from([-0.5, -1.0, 0.0, 1e-7, -1e300])


def paths(tree: dict, prefix: str = "") -> list[str]:
    """The keys of nested dictionaries, dots between."""
    below = ((f"{prefix}{key}", value) for key, value in tree.items())
    return [path for key, value in below for path in (paths(value, f"{key}.") if isinstance(value, dict) else [key])]


def in_file(name: str, content: bytes, read) -> None:
    """Write it, read it; a UserError is a fine answer."""
    with tempfile.TemporaryDirectory() as folder, suppress(UserError):
        path = Path(folder) / name
        path.write_bytes(content)
        read(path)


@FIXED
@given(st.binary(max_size=300) | st.text(alphabet="[]{}:,-&*!?|>'\"%@# \n\tabx01.~<", max_size=80).map(str.encode))
def test_yaml(content):
    in_file("a.yaml", content, read_yaml)


@pytest.mark.slow
@FIXED
@given(trees)
def test_yaml_reads_what_json_writes(tree):
    """JSON is YAML, but for a key that stands twice and for numbers without a YAML spelling."""
    written = json.dumps(tree)
    if "NaN" in written or "Infinity" in written:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.json").write_text(written, encoding="utf-8")
        assert json.dumps(read_yaml(Path(folder) / "a.json")) == written or "\\u" in written or "e" in written


THEIRS = sorted({*paths(VERL), *paths(SKYRL), *paths(TRL), "algorithm", "trainer", "epsilon"})


@pytest.mark.slow
@FIXED
@given(st.dictionaries(st.sampled_from(THEIRS), trees, max_size=6) | trees)
def test_import_config(tree):
    def read(path: Path) -> None:
        assert isinstance(yaml.safe_load(import_config(path)), dict)

    in_file("a.json", json.dumps(tree).encode(), read)


CORRECTION = ["weight", "reject", "ratio", "normalize", "correction", "proximal", "level", "upper"]
SECTIONS = ["seed", "task", "model", "loss", "correction", "collapse", "rollout", "kl", "x"]


@pytest.mark.slow
@FIXED
@given(st.dictionaries(st.sampled_from(CORRECTION), trees, max_size=5))
def test_presets(tree):
    in_file("a.yaml", json.dumps(tree).encode(), lambda path: presets([str(path)]))


@pytest.mark.slow
@FIXED
@given(st.dictionaries(st.sampled_from(SECTIONS), trees, max_size=9))
def test_a_recorded_config(tree):
    with suppress(UserError):
        parse_recorded(tree)


@pytest.mark.slow
@FIXED
@given(st.lists(trees, max_size=5), st.binary(max_size=40))
def test_json_lines(rows, rest):
    """Rows that were written come back, whatever a kill left behind them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows) + rest)
        read = jsonl.read(path)[: len(rows)]
    assert [json.dumps(row) for row in read] == [json.dumps(row if isinstance(row, dict) else None) for row in rows]


per_token = st.lists(numbers, max_size=4) | trees
rows = st.fixed_dictionaries(
    {"logp_rollout": per_token, "logp_old": per_token},
    optional={"mask": st.lists(st.integers(0, 2) | st.booleans(), max_size=4) | trees}
    | {name: trees for name in ("step", "advantages", "reward", "segments", "version", "group", "tokens")},
)


@pytest.mark.slow
@FIXED
@given(st.lists(rows, max_size=4))
def test_a_dump_of_json_lines(rows):
    in_file("a.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows), read_dump)


FLAT = [pa.float64(), pa.int64(), pa.string(), pa.null(), pa.binary()]
TYPES = [*FLAT, *(pa.list_(kind) for kind in (pa.float32(), pa.float64(), pa.int64(), pa.bool_(), pa.string())),
         pa.large_list(pa.float32()), pa.list_(pa.list_(pa.float32()))]  # fmt: skip
NAMES = ["logp_rollout", "logp_old", "mask", "step", "reward", "advantages", "segments", "version", "prompt", "x"]


@FIXED
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TYPES), min_size=1), st.integers(0, 3), st.integers(0))
def test_a_parquet_dump_of_any_types(columns, count, seed):
    """Columns of types that they should not have, with values, nulls and lists of lengths that differ."""
    rng = random.Random(seed)
    table = {name: pa.array([_value(rng, kind) for _ in range(count)], kind) for name, kind in columns.items()}
    with tempfile.TemporaryDirectory() as folder, suppress(UserError):
        pq.write_table(pa.table(table), Path(folder) / "a.parquet")
        read_dump(Path(folder) / "a.parquet")


def _value(rng, kind: pa.DataType):
    if rng.random() < 0.1 or pa.types.is_null(kind):
        return None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.choice((0, 1, 2, 2, 2)))]
    if pa.types.is_floating(kind):
        return rng.choice((-0.5, -1.0, -2.0, 0.0, 1.0, math.nan, -math.inf))
    if pa.types.is_integer(kind):
        return rng.choice((0, 1, 2, -1, 2**62))
    return {"bool": rng.random() < 0.5, "string": rng.choice(("x", "", "-0.5")), "binary": b"x"}[str(kind)]


TENSORS = ["response_mask", "old_log_probs", "rollout_log_probs", "advantages", "token_level_scores", "responses", "x",
           "completion_mask", "tool_mask", "old_per_token_logps", "sampling_per_token_logps"]  # fmt: skip
EACH_OF = [
    *(torch.ones(2, 2, dtype=dtype) for dtype in (torch.long, torch.bool, torch.uint8, torch.complex64)),
    *(torch.zeros(shape) for shape in ((), (2,), (0, 2), (2, 2), (2, 2, 2))),
    torch.full((2, 2), math.nan), -torch.ones(2, 2, dtype=torch.bfloat16), torch.zeros(2, 2).to_sparse(), "x", None, 1,
]  # fmt: skip


@FIXED
@given(st.dictionaries(st.sampled_from(TENSORS), st.sampled_from(EACH_OF), max_size=7))
def test_a_dictionary_of_tensors(tensors):
    with tempfile.TemporaryDirectory() as folder, suppress(UserError):
        torch.save(tensors, Path(folder) / "step-1.pt")
        read_dump(Path(folder) / "step-1.pt")


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.pkl", "a.pt"])
@FIXED
@given(content=st.binary(max_size=200))
def test_a_dump_of_any_bytes(name, content):
    in_file(name, content, read_dump)
