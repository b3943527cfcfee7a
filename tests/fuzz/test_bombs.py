"""Small files that expand to much: each is refused by its name, in room for 64 MiB, although it would take several times that.

Each is read in a process of its own: one that has run other tests has freed memory, which it uses again without asking.
"""

import io
import json
import multiprocessing
import os
import struct
import zipfile
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import faultline
from analysis.load import load
from harness import room
from harness.errors import UserError
from sweeps.ledger import Sweep
from tests.analysis.synthetic import write
from tests.analysis.test_untrusted_runs import offline, record
from tests.harness.paused_runs import CONTEXT

pytestmark = pytest.mark.slow  # a process that imports torch, and files of millions of values
MILLIONS = 12_000_000
EMPTY_LISTS = ",".join(["[]"] * 3_000_000)
"""9 MB of JSON; Python takes 64 bytes for each list."""


def little(read, given):
    """What `read` returns within 64 MiB, or its UserError."""
    room.room = lambda: 64 << 20
    try:
        return read(given)
    except UserError as error:
        return error


def forked(read, given):
    """What `little` returns in a copy of this process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(little, read, given).result()


@pytest.fixture(scope="module")
def read_anew():
    """What `little` returns in a new process: a copy of one that has imported this file, and has read nothing."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        yield lambda read, given: pool.submit(forked, read, given).result()


def loaded(source):
    """The problems of the runs that were left out, and the rows of the others."""
    results = load(source)
    return results.damaged, results.steps.run.value_counts().to_dict()


def repeated(path, **options):
    """One response of equal tokens, which parquet writes as one value and a count."""
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(MILLIONS, np.int8)), pa.array([-1.0]))
    column = pa.ListArray.from_arrays(pa.array([0, MILLIONS], pa.int32()), values)
    pq.write_table(pa.table({"logp_rollout": column, "logp_old": column}), path, data_page_size=1 << 30, **options)


def compressed(path):
    repeated(path, compression="gzip", use_dictionary=False)


def one_value(path):
    """Tensors of shape [9000, 9000] that all have one number in memory."""
    names = ("response_mask", "old_log_probs", "rollout_log_probs")
    torch.save({name: torch.full((1,), -1.0).expand(9000, 9000) for name in names}, path)


def deflated(path):
    """torch.save stores its archive as it is; another program may compress it."""
    whole = io.BytesIO()
    torch.save({"response_mask": torch.ones(100, 200_000, dtype=torch.long), "old_log_probs": torch.zeros(1, 1)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))


def claims(path):
    """A pickle of protocol 4 that claims 10 GiB of bytes."""
    path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", 10 << 30) + b".")


def nested(path):
    path.write_text(f'{{"logp_rollout": [{EMPTY_LISTS}]}}\n')


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("repeated.parquet", repeated),
        ("compressed.parquet", compressed),
        ("one_value.pt", one_value),
        ("deflated.pt", deflated),
        ("claims.pkl", claims),
        ("nested.jsonl", nested),
    ],
)
def test_a_dump_that_expands_is_refused(read_anew, tmp_path, name, make):
    make(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 10_000_000
    for read in (faultline.load, faultline.replay):
        refused = read_anew(read, tmp_path / name)
        assert isinstance(refused, UserError) and f"{name}: takes more than" in str(refused)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", f'{{"step":1,"a":[{EMPTY_LISTS}]}}\n'),
        ("events.jsonl", f'{{"step":1,"kind":"x","a":[{EMPTY_LISTS}]}}\n'),
        ("status.json", f'{{"state":"done","a":[{EMPTY_LISTS}]}}\n'),
        ("metrics.jsonl", 3 << 30),
    ],
)
def test_a_run_that_expands_is_named_and_the_other_stands(read_anew, tmp_path, name, content):
    """content: of the file, or the number of its bytes, all zero and none on disk."""
    for seed in (0, 1):
        write(tmp_path / "sweep", "rollout/precision=fp32", seed=seed, steps=20)
    path = tmp_path / "sweep" / "fp32-1" / name
    path.write_text(content) if isinstance(content, str) else os.truncate(path, content)
    damaged, rows = read_anew(loaded, tmp_path / "sweep")
    assert f"{name}: takes more than" in damaged["fp32-1"] and rows["fp32-0"] == 21


def test_a_run_of_more_metrics_than_any_run_records_is_left_out(read_anew, tmp_path):
    for seed in (0, 1):
        write(tmp_path, "rollout/precision=fp32", seed=seed, steps=20)
    rows = [json.dumps({"step": step, f"k{step}": 1.0}) for step in range(1200)]  # 1200² cells
    (tmp_path / "fp32-1" / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    damaged, rows = read_anew(loaded, tmp_path)
    assert "fp32-1: its rows have 1200 metrics, and no run records more than 1000" in damaged["fp32-1"]
    assert rows == {"fp32-0": 21}


def test_a_wandb_run_that_expands_or_is_a_pipe_is_named_and_the_other_stands(read_anew, tmp_path):
    config = json.loads((write(tmp_path / "s", "rollout/precision=fp32", steps=4).path / "config.json").read_text())
    for number, name in enumerate(("sound", "sparse", "pipe")):
        path = tmp_path / "w" / f"offline-run-1-{name}" / f"run-{name}.wandb"
        whole = json.dumps({"config": config | {"seed": number}, "provenance": []})
        offline(path, record("config", record=whole), record("history", _step=0, actor__loss=0.5))
    os.truncate(tmp_path / "w" / "offline-run-1-sparse" / "run-sparse.wandb", 3 << 30)
    pipe = tmp_path / "w" / "offline-run-1-pipe" / "run-pipe.wandb"
    pipe.unlink()
    os.mkfifo(pipe)
    (tmp_path / "w" / "offline-run-1-gone").mkdir()
    (tmp_path / "w" / "offline-run-1-gone" / "run-gone.wandb").symlink_to("nowhere")
    damaged, rows = read_anew(loaded, f"wandb-offline:{tmp_path / 'w'}")
    assert list(rows) == ["sound"]
    assert "run-sparse.wandb: takes more than" in damaged["sparse"] and "regular file" in damaged["pipe"]


def test_a_ledger_that_expands_is_refused(read_anew, tmp_path):
    sweep = Sweep(tmp_path)
    sweep.home.mkdir(parents=True)
    (sweep.home / "ledger.jsonl").write_text(f'{{"event":"planned","a":[{EMPTY_LISTS}]}}\n')
    assert "ledger.jsonl: takes more than" in str(read_anew(Sweep.states, sweep))
