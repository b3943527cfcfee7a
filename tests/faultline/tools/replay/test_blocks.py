"""A dump may hold anything that is a log-probability, in responses of any length: no padding, no warning, no text as a number."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faultline.tools.replay import collect as collecting
from faultline.tools.replay import effect
from faultline.tools.replay.advice import Advisor, Target
from faultline.tools.replay.collect import collect
from faultline.tools.replay.effect import blocks, padded
from faultline.tools.replay.family import Family, FlatTokens
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.verdict import judge
from harness.dumps import files
from harness.errors import UserError
from tests.faultline.tools.replay.cases import CONSISTENT, as_responses, random_columns

SPECS = {name: preset.correction for name, preset in presets(None).items()}
TARGET = Target(0.99, 0.9)


def ragged(lengths, seed=0):
    """Responses of these lengths with log ratios of 0.1 nats, as a table."""
    rng = np.random.default_rng(seed)
    rollout = [-rng.exponential(1.0, n) for n in lengths]
    old = [np.minimum(r + 0.1 * rng.standard_normal(len(r)), 0.0) for r in rollout]
    return pa.table({"logp_rollout": rollout, "logp_old": old})


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_long_response_does_not_pad_the_others(tmp_path):
    """300 responses of 20 tokens and one of a million: padded together 301 million values, in blocks the tokens themselves."""
    pq.write_table(ragged([20] * 150 + [1_000_000] + [20] * 150), tmp_path / "d.parquet")
    (responses,) = Dump(tmp_path / "d.parquet").batches()
    widths = [padded(block).mask.shape for block in blocks(responses)]
    assert [tuple(shape) for shape in widths] == [(300, 20), (1, 1_000_000)]


def test_blocks_hold_each_response_once_and_pad_at_most_twofold():
    lengths = np.random.default_rng(0).integers(0, 200, 400)
    columns = {"mask": np.arange(200) < lengths[:, None], "logp_rollout": np.full((400, 200), -1.0)}
    columns["logp_old"] = np.arange(80_000.0).reshape(400, 200) - 1e6  # each token its own value
    whole = as_responses(columns)
    parts = list(blocks(whole, cells=2000))
    assert len(parts) > 20
    assert sorted(np.concatenate([part.logp_old for part in parts])) == sorted(whole.logp_old)
    assert sum(len(part) for part in parts) == 400
    for part in parts:
        n = np.diff(part.offsets)
        assert len(part) * n.max() <= 2000 and n.max() <= 2 * max(n.min(), 1)
        rows = [part.logp_old[a:b] for a, b in zip(part.offsets[:-1], part.offsets[1:], strict=True)]
        assert all((np.diff(row) == 1).all() for row in rows)  # a response stays together, in order
    assert list(blocks(whole)) == [whole]


def test_blocks_change_no_number(tmp_path, monkeypatch):
    """Batch-normalised weights, GEPO and M2PO read the whole batch, the rest one response; 1e-12, the order of the sums."""
    files.write(tmp_path / "d.parquet", random_columns() | {"group": np.arange(24) % 7})
    one = collect(Dump(tmp_path), SPECS)
    monkeypatch.setattr(collecting, "blocks", lambda responses: blocks(responses, cells=30))
    many = collect(Dump(tmp_path), SPECS)
    assert one.skipped == many.skipped == {}
    for before, after in ((one.corrections, many.corrections), (one.profiles, many.profiles)):
        before, after = (frame.select_dtypes("number") for frame in (before.sort_values(list(before)[:3]),
                                                                     after.sort_values(list(after)[:3])))  # fmt: skip
        np.testing.assert_allclose(before, after, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(list(one.mismatch.values()), list(many.mismatch.values()), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_correction_of_whole_batches_is_left_out_where_they_pad_too_far(tmp_path, monkeypatch):
    files.write(tmp_path / "d.parquet", random_columns() | {"group": np.arange(24) % 7})
    monkeypatch.setattr(effect, "WHOLE", 100)
    found = collect(Dump(tmp_path), SPECS)
    assert set(found.skipped) == {"gepo", "m2po", "slime/mis", "slime/mis_rs"}
    assert set(found.skipped.values()) == {"needs a batch that pads to at most 100 values"}


def test_a_response_of_many_turns_does_not_widen_the_others():
    columns = random_columns() | {"segments": np.zeros((24, 20), dtype=np.int64)}
    columns["segments"][2] = np.arange(20)
    tokens = FlatTokens(as_responses(columns))
    last = int(tokens.segments[tokens.row == 2].max())
    assert len(tokens.in_segments.size) == 23 + last + 1


# --- numbers ---------------------------------------------------------------------------------------------------------


def row(old, rollout, **more):
    return {"logp_old": old, "logp_rollout": rollout, **more}


FAR = {
    "log-probabilities whose square overflows": [row([-1e300, -1.0], [-1.0, -1e300])],
    "a ratio of e^799": [row([-1.0] * 3, [-800.0] * 3)] * 3,
    "a ratio of e^-799": [row([-800.0] * 3, [-1.0] * 3)] * 3,
    "such ratios of several weight versions": [row([-800.0, -1], [-1.0, -800], version=[0, 1])] * 2,
    "a response without tokens": [row([-1.0], [-1.1]), row([], [])],
    "a response without tokens on its mask": [row([-1.0, -2], [-1.1, -2], mask=[0, 0]), row([-1.0], [-1.1])],
    "advantages and turns": [row([-1.0, -2], [-1.1, -2], advantages=[1, -1.0], segments=[0, 1])] * 4,
    "one response": [row([-1.0], [-1.0])],
    "equal policies": [row([0.0], [0.0])] * 12,
    "denormal numbers": [row([-1e-300], [-5e-324])] * 12,
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", FAR.values(), ids=FAR)
def test_nothing_warns_and_the_verdict_is_finite(tmp_path, rows):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    advisor = Advisor(TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replayed = collect(Dump(path), SPECS, advisor)
        verdict = judge("it", replayed, None, advisor.propose(), TARGET, CONSISTENT)
        replayed.thresholds.table()
    json.loads(verdict.model_dump_json(), parse_constant=pytest.fail)


def test_a_difference_of_far_probabilities_is_what_it_is():
    """μ = e^-800 is 0 beside π = e^-1; and the other way round."""
    tokens = FlatTokens(as_responses({"mask": np.ones((1, 2), bool), "logp_rollout": np.array([[-800.0, -1.0]]),
                                  "logp_old": np.array([[-1.0, -800.0]])}))  # fmt: skip
    np.testing.assert_allclose(Family("reject", "token", "prob_diff").units(tokens).values, [np.exp(-1), -np.exp(-1)], rtol=1e-15)


# --- types -----------------------------------------------------------------------------------------------------------


SOUND = {"logp_rollout": [[-1.0, -0.5]], "logp_old": [[-1.1, -0.4]]}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("logp_old", pa.array([["-1.1", "-0.4"]]), "column logp_old is list<element: string>, which is no list<item: double>"),
        ("logp_old", pa.array(["-1.1"]), "column logp_old is string"),
        ("step", pa.array(["3"]), "column step is string, which is no int64"),
        ("step", pa.array([3], pa.timestamp("s")), r"column step is timestamp\[ms\], which is no int64"),
        ("tokens", pa.array([[b"1", b"2"]]), "column tokens is list<element: binary>"),
        ("logp_rollout", pa.array([[True, False]]), "column logp_rollout is list<element: bool>"),
        ("mask", pa.array([["1", "0"]]), "column mask is list<element: string>, which is no list<item: bool>"),
        ("reward", pa.array(["0.5"]), "column reward is string, which is no double"),
    ],
)
def test_text_dates_and_booleans_are_no_numbers(tmp_path, column, values, message):
    pq.write_table(pa.table(SOUND | {column: values}), tmp_path / "d.parquet")
    with pytest.raises(UserError, match=f"d.parquet: {message}"):
        list(Dump(tmp_path / "d.parquet").batches())


@pytest.mark.parametrize("kind", [pa.list_(pa.float16()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 2)])
def test_lists_of_floats_of_any_kind_are_read(tmp_path, kind):
    """−1 and −0.5 are exact in all of them; a mask of large lists is one too."""
    mask = pa.array([[True, False]], pa.large_list(pa.bool_()))
    table = pa.table({"logp_rollout": pa.array([[-1.0, -0.5]], kind), "logp_old": pa.array([[-1.0, -0.5]], kind), "mask": mask})
    pq.write_table(table, tmp_path / "d.parquet")
    (batch,) = Dump(tmp_path / "d.parquet").batches()
    np.testing.assert_array_equal(batch.logp_old, [-1.0, -0.5])
    np.testing.assert_array_equal(batch.mask, [True, False])


@pytest.mark.parametrize("value", [["-1.1", "-0.4"], "-1.1"])
def test_text_in_a_line_of_json_is_a_bad_row(tmp_path, value):
    (tmp_path / "d.jsonl").write_text(json.dumps({"logp_rollout": [-1.0, -0.5], "logp_old": value}))
    with pytest.raises(UserError, match=r"d.jsonl, line 1, column logp_old: .* is no list"):
        list(Dump(tmp_path / "d.jsonl").batches())
