"""Dumps: written and read back bit for bit, every kind of bad row named by row and column, and what a run writes."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faultline.tools.replay.collect import collect
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.dumps import files
from harness.dumps.schema import COLUMNS, VERSION_KEY, absent, problems, responses
from harness.errors import Unavailable, UserError
from harness.files import writing
from harness.run.folder import RunFolder
from harness.run.loop import train


def columns(dtype=np.float32):
    """Two responses of three and one token; the second has padding."""
    return {
        "step": np.array([4, 4]),
        "group": np.array([0, 0]),
        "minibatch": np.array([0, 1]),
        "reward": np.array([1.0, 0.0]),
        "prompt": np.array([[7, 8], [7, 9]]),
        "tokens": np.array([[1, 2, 3], [4, 0, 0]]),
        "mask": np.array([[True, False, True], [True, False, False]]),
        "logp_rollout": np.array([[-0.1, -2.0, -1 / 3], [-1.5, 9.0, 9.0]], dtype=dtype),
        "logp_old": np.array([[-0.2, np.nan, -1 / 7], [-1.4, 9.0, 9.0]], dtype=dtype),
        "logp": np.array([[-0.2, np.nan, -1 / 7], [-1.4, 9.0, 9.0]], dtype=dtype),
        "entropy": np.array([[0.3, np.nan, 1 / 7], [0.0, -9.0, 9.0]], dtype=dtype),
        "repeat_prob": np.array([[0.0, np.nan, 1 / 7], [0.0, -9.0, 9.0]], dtype=dtype),
        "advantages": np.array([[0.5, 0.5, 0.5], [-0.5, 0.0, 0.0]], dtype=dtype),
        "version": np.array([[3, 3, 3], [3, 0, 0]]),
        "segments": np.array([[0, 0, 1], [0, 0, 0]]),
    }


def rows(**changes) -> pa.Table:
    """A table of three sound responses of two tokens, with some columns replaced; lists are per row."""
    sound = {
        "mask": [[True, True]] * 3,
        "logp_rollout": [[-1.0, -2.0]] * 3,
        "logp_old": [[-1.0, -2.0]] * 3,
        "version": [[5, 5]] * 3,
    }
    table = sound | changes
    return pa.table({name: pa.array(values, COLUMNS[name].type(pa.float64())) for name, values in table.items()})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_written_is_read_back_without_its_padding(tmp_path, dtype):
    given = columns(dtype)
    assert set(given) == set(COLUMNS)
    files.write(tmp_path / "step-4.parquet", given)
    (table,) = files.read(tmp_path / "step-4.parquet")
    assert problems(table) == [] and absent(table.column_names) == []
    read = responses(table)
    assert list(read.offsets) == [0, 3, 4]
    flat = [(0, 0), (0, 1), (0, 2), (1, 0)]
    for name in ("mask", "logp_rollout", "logp_old", "logp", "entropy", "repeat_prob", "advantages", "version", "segments"):
        expected = np.array([given[name][place] for place in flat])
        assert getattr(read, name).dtype == expected.dtype
        np.testing.assert_array_equal(getattr(read, name), expected)
    for name in ("step", "group", "minibatch", "reward"):
        np.testing.assert_array_equal(getattr(read, name), given[name])
    assert table["prompt"].to_pylist() == [[7, 8], [7, 9]] and table["tokens"].to_pylist() == [[1, 2, 3], [4]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"logp_old": [[-1.0, -2.0], [-1.0, 0.5], [-1.0, -2.0]]},
            "row 1, column logp_old: log-probability 0.5 at token 1 is above 0; is it −log p?",
        ),
        ({"logp_rollout": [[-1.0, -2.0], [-1.0, -2.0], [float("nan"), 3.0]]}, "row 2, column logp_rollout: nan at token 0"),
        ({"logp_rollout": [[-np.inf, -2.0], [-1.0, -2.0], [-1.0, -2.0]]}, "row 0, column logp_rollout: -inf at token 0"),
        ({"logp_old": [[-1.0, -2.0], [-1.0], [-1.0, -2.0]]}, "row 1, column logp_old: 1 values, logp_rollout has 2"),
        ({"mask": [[True, True], [True, True, True], [True, True]]}, "row 1, column mask: 3 values, logp_rollout has 2"),
        ({"logp_old": [None, [-1.0, -2.0], [-1.0, -2.0]]}, "row 0, column logp_old: missing"),
        ({"logp_old": [[None, -2.0], [-1.0, -2.0], [-1.0, -2.0]]}, "row 0, column logp_old: nan at token 0"),
        ({"version": [[5, 5], [5, 6], [5, None]]}, "row 2, column version: none, or below 0, at token 1"),
        ({"advantages": [[1.0, 1.0], [1.0, np.inf], [1.0, 1.0]]}, "row 1, column advantages: inf at token 1"),
        ({"entropy": [[0.5, 0.5], [0.5, -1.0], [0.5, 0.5]]}, "row 1, column entropy: -1 at token 1 is below 0"),
        ({"repeat_prob": [[0.5, 0.5], [0.5, 1.1], [0.5, 0.5]]}, "row 1, column repeat_prob: 1.1 at token 1 is no probability"),
        ({"entropy": [[0.5, 0.5], [0.5, np.nan], [0.5, 0.5]]}, "row 1, column entropy: nan at token 1"),
        ({"reward": [1.0, np.nan, 1.0]}, "row 1, column reward: nan is not finite, or beyond 1e+09"),
        ({"segments": [[0, 1], [0, 2], [0, 1]]}, "row 1, column segments: 2 at token 1"),
    ],
)
def test_a_bad_row_is_named_with_its_column(changes, expected):
    (problem,) = problems(rows(**changes))
    assert str(problem).startswith(expected)


def test_what_is_off_the_mask_may_hold_anything():
    mask = [[True, False]] * 3
    assert problems(rows(mask=mask, logp_old=[[-1.0, 7.0], [-1.0, np.nan], [-1.0, np.inf]], version=[[1, 2]] * 3)) == []


def test_a_run_that_was_moved_away_gets_no_second_folder(tmp_path):
    with pytest.raises(Unavailable, match="its folder was moved or removed"), writing(tmp_path / "gone"):
        files.write(tmp_path / "gone/dumps/a.parquet", columns())
    assert not (tmp_path / "gone").exists()
    files.write(tmp_path / "dumps/a.parquet", columns())
    assert (tmp_path / "dumps/a.parquet").is_file()


def test_a_required_column_that_is_absent_is_told_of():
    assert absent(rows().drop_columns("logp_old").column_names) == ["logp_old"]


def test_a_truncated_file_and_a_later_schema_are_refused(tmp_path):
    files.write(tmp_path / "a.parquet", columns())
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cut.parquet: not a whole parquet file"):
        list(files.read(tmp_path / "cut.parquet"))
    later = pq.read_table(tmp_path / "a.parquet").replace_schema_metadata({VERSION_KEY: "2"})
    pq.write_table(later, tmp_path / "later.parquet")
    with pytest.raises(UserError, match=r"later.parquet: dump schema version 2, this program reads up to 1; update it"):
        list(files.read(tmp_path / "later.parquet"))


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_dump_is_refused(tmp_path):
    """A reader of a pipe would wait for ever for a writer."""
    os.mkfifo(tmp_path / "step-1.parquet")
    with pytest.raises(UserError, match=r"step-1\.parquet: not a regular file"):
        list(files.read(tmp_path / "step-1.parquet"))


def test_a_column_of_another_type_is_refused(tmp_path):
    pq.write_table(pa.table({"logp_rollout": ["a"], "logp_old": [[-1.0]]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"column logp_rollout is string, which is no list<item: double>"):
        list(files.read(tmp_path / "a.parquet"))


def test_a_column_that_stands_there_twice_is_refused(tmp_path):
    logps = pa.array([[-1.0]])
    table = pa.table([logps, logps, logps], names=["logp_rollout", "logp_old", "logp_old"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet: column logp_old stands there more than once; drop one"):
        list(files.read(tmp_path / "a.parquet"))


def test_a_mask_of_numbers_is_read_if_they_are_0_and_1(tmp_path):
    mask = pa.array([[1.0, 0.0], None, [1.0, np.nan], [2.0, 1.0]])
    logps = pa.array([[-1.0, -2.0]] * 4)
    pq.write_table(pa.table({"mask": mask, "logp_rollout": logps, "logp_old": logps}), tmp_path / "a.parquet")
    (table,) = files.read(tmp_path / "a.parquet")
    assert table["mask"].to_pylist()[:2] == [[True, False], None]
    assert [str(problem) for problem in problems(table)] == [
        "row 2, column mask: token 1 is neither true nor false",
        "row 3, column mask: token 0 is neither true nor false",
    ]


OF_WEIGHTS = ("correction/raw_", "rollout_corr/rollout_is_")
"""The metrics of the distribution of a run's weights, which a replay of many corrections leaves out."""


@pytest.mark.parametrize(("correction", "minibatches"), [("token_truncate", 2), ("verl/decoupled_geo_rs_seq_tis", 1)])
@pytest.mark.slow
def test_replay_of_a_run_gives_what_the_run_has_logged(tiny, correction, minibatches):
    run = tiny("steps=2", "dump.every=1", f"actor.num_minibatches={minibatches}", f"correction={correction}")
    assert train(run) == "done"
    logged = RunFolder(run.path).metrics()
    for path, row in zip(sorted((run.path / "dumps").iterdir()), logged[:2], strict=True):
        found = collect(Dump(path), {"it": presets([correction])[correction].correction})
        (replayed,) = found.corrections.to_dict("records")
        replayed |= found.mismatch
        logs = [key for key in row if key.startswith(("correction/", "rollout_corr/")) or key in found.mismatch]
        compared = [key for key in logs if not key.startswith(OF_WEIGHTS)]
        assert len(compared) > 20
        for key in compared:  # fp32 log-probabilities, fp64 sums on both sides
            assert replayed[key] == pytest.approx(row[key], rel=1e-12, abs=1e-12), key
        (batch,) = Dump(path).batches()
        assert sorted(set(batch.minibatch)) == list(range(minibatches))
        first = np.repeat(batch.minibatch == 0, np.diff(batch.offsets))
        np.testing.assert_array_equal(batch.logp[first], batch.logp_old[first])  # the first optimizer step starts at π_old
        assert minibatches == 1 or (batch.logp[~first] != batch.logp_old[~first]).any()
