"""500 damaged files of the kinds that a stranger can bring, or a crash leave: each is read, or refused by name."""

from __future__ import annotations

import json
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

from analysis.folders import FILES
from analysis.load import load as load_sweep
from faultline.tools.import_config import import_config
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.arms import flatten
from harness.compose import compose
from harness.config import parse_recorded
from harness.dumps import files
from harness.dumps.schema import ROUNDING
from harness.errors import UserError
from harness.run.folder import RunFolder
from sweeps.launchers.options import SlurmOptions
from sweeps.ledger import Sweep
from sweeps.search.spec import load
from sweeps.states import ENDS
from tests.analysis.synthetic import write
from tests.faultline.tools.replay.test_readers import ADVANTAGES, MASK, OLD, ROLLOUT, skyrl_pickle
from tests.fuzz.damage import damaged
from tests.fuzz.sound import Hang, alarm, message

ROOT = Path(__file__).parents[2]
SEED, EACH = 22, 36
VERL = {
    "algorithm": {
        "rollout_correction": {
            "rollout_is": "token",
            "rollout_is_threshold": 2.0,
            "rollout_rs": "token_k1",
            "rollout_rs_threshold": "0.6_1.4",
        }
    },
    "actor_rollout_ref": {"actor": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}},
}
SKYRL = {"trainer": {"algorithm": {"policy_loss_type": "dual_clip", "eps_clip_high": 0.28, "off_policy_correction": {
         "tis_ratio_type": "token", "sequence_mask_metric": "geometric",
         "token_mask_is_threshold_low": 0.5}}}}  # fmt: skip
TRL = {"loss_type": "grpo", "delta": 4, "epsilon_high": 0.28, "vllm_importance_sampling_correction": True, "beta": 0.01,
       "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 2.0}  # fmt: skip
LINES = [{"step": i // 2, "group": 0, "reward": 0.5 * i, "tokens": [1, 2], "mask": [True, i > 0],
          "logp_rollout": [-1.0, -0.5], "logp_old": [-1.25, -0.5],
          "advantages": [1.0, 1.0]} for i in range(4)]  # fmt: skip
LEDGER = [
    {"event": "planned", "run": "a1", "time": 1.0, "arm": "fp32", "seed": 0, "steps": 4},
    {"event": "submitted", "run": "a1", "time": 2.0, "batch": ""},
    {"event": "started", "run": "a1", "time": 3.0, "job": "local", "step": 0},
    {"event": "ended", "run": "a1", "time": 4.0, "state": "done"},
]
METRICS = [{"step": step, "actor/loss": 0.1 * step, "eval/reward": 0.5, "eval/stderr": 0.02} for step in range(5)]
EVENTS = [{"kind": "collapse", "step": 3, "time": 1.0, "detector": "drawdown", "onset": 2}]


class Reader(NamedTuple):
    """name: of the file. kind: see `damaged`. content: when whole. read: reads it and checks the result."""

    name: str
    kind: str
    content: Callable[[Path], bytes]
    read: Callable[[Path], None]


def _json(value: Any) -> Callable[[Path], bytes]:
    return lambda _: json.dumps(value).encode()


def _yaml(value: Any) -> Callable[[Path], bytes]:
    return lambda _: yaml.safe_dump(value).encode()


def _rows(values: list[Any]) -> Callable[[Path], bytes]:
    return lambda _: b"".join(json.dumps(value).encode() + b"\n" for value in values)


def _file(path: str) -> Callable[[Path], bytes]:
    return lambda _: (ROOT / path).read_bytes()


def _parquet(folder: Path) -> bytes:
    arrays = {"mask": MASK.astype(bool), "logp_old": OLD, "logp_rollout": ROLLOUT, "advantages": ADVANTAGES}
    files.write(folder / "whole.parquet", arrays)
    return (folder / "whole.parquet").read_bytes()


def _tensors(folder: Path) -> bytes:
    arrays = {"response_mask": MASK, "old_log_probs": OLD, "rollout_log_probs": ROLLOUT, "advantages": ADVANTAGES}
    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, folder / "whole.pt")
    return (folder / "whole.pt").read_bytes()


def _pickle(_: Path) -> bytes:
    arrays = {"loss_mask": MASK, "action_log_probs": OLD, "rollout_logprobs": ROLLOUT}
    return skyrl_pickle({name: torch.tensor(array) for name, array in arrays.items()}, {"pad_size": 0})


def _recorded(name: str) -> Callable[[Path], bytes]:
    """A file of one of the two runs of a sweep."""

    def content(folder: Path) -> bytes:
        for seed in (0, 1):
            write(folder / "sweep", "rollout/precision=fp32", seed=seed, steps=20)
        return (folder / "sweep" / "fp32-1" / name).read_bytes()

    return content


def read_sweep(path: Path) -> None:
    """Read the sweep for a report: whatever became of one run, the other counts."""
    results = load_sweep(path.parents[1])
    assert "fp32-0" in results.runs.index and results.runs.seed.dtype.kind == "i"
    assert len(results.evaluations) >= 5  # those of the sound run: at the steps 0, 5, 10, 15 and 20


def read_import(path: Path) -> None:
    """Import it: the result is an experiment file whose every number YAML reads back."""
    written = yaml.safe_load(import_config(path))
    assert set(written) >= {"defaults", "correction"}


def read_preset(path: Path) -> None:
    """Bounds are numbers or none."""
    correction = presets([str(path)])[str(path)].correction
    for bound in (correction.weight.lower, correction.weight.upper):
        assert bound is None or (bound >= 0 and not isinstance(bound, bool))


def read_search(path: Path) -> None:
    """The ends of each axis are in order."""
    spec = load(path, [])
    assert all(distribution is not None for distribution in spec.distributions.values())


def read_site(path: Path) -> None:
    SlurmOptions(site=str(path)).check()


def read_config(path: Path) -> None:
    """Read the config the way a report does."""
    config = parse_recorded(RunFolder(path.parent).read(path.name))
    assert flatten(config.model_dump(mode="json"))


def read_metrics(path: Path) -> None:
    """Steps ascend, each once."""
    steps = [row["step"] for row in RunFolder(path.parent).metrics()]
    assert steps == sorted(set(steps)) and all(type(step) is int for step in steps)


def read_events(path: Path) -> None:
    assert all(isinstance(event, dict) for event in RunFolder(path.parent).events())


def read_ledger(path: Path) -> None:
    """Every state is one that there is."""
    for run, state in Sweep(path.parents[1]).states().items():
        assert isinstance(run, str) and state.state in ("queued", "submitted", "running", "cancelled", *ENDS)
        assert type(state.seed) is int and type(state.steps) is int and isinstance(state.arm, str)


def read_dump(path: Path) -> None:
    """Read every batch: its log-probabilities are finite and at most 0 wherever the mask is set."""
    for batch in Dump(path).batches():
        assert len(batch.mask) == len(batch.logp_rollout) == len(batch.logp_old) == batch.offsets[-1]
        for logp in (batch.logp_rollout, batch.logp_old):
            assert np.isfinite(logp[batch.mask]).all() and (logp[batch.mask] <= ROUNDING).all()
        assert batch.advantages is None or np.isfinite(batch.advantages[batch.mask]).all()


READERS = [
    Reader("theirs.yaml", "yaml", _yaml(VERL), read_import),
    Reader("theirs.json", "json", _json(SKYRL), read_import),
    Reader("trl.yaml", "yaml", _yaml(TRL), read_import),
    Reader("preset.yaml", "yaml", _file("experiments/conf/correction/skyrl/recommended.yaml"), read_preset),
    Reader("search.yaml", "yaml", _file("sweeps/conf/search/token_upper.yaml"), read_search),
    Reader("site.yaml", "yaml", _file("slurm/sites/example.yaml"), read_site),
    Reader(
        "config.json",
        "json",
        lambda _: json.dumps(compose("rollout/precision=fp32", "kl=k3")).encode(),
        read_config,
    ),
    Reader("recorded/config.json", "json", _file("tests/harness/config/recorded/7f745f8053ff.json"), read_config),
    Reader("metrics.jsonl", "jsonl", _rows(METRICS), read_metrics),
    Reader("events.jsonl", "jsonl", _rows(EVENTS), read_events),
    *(Reader(f"sweep/fp32-1/{name}", Path(name).suffix[1:], _recorded(name), read_sweep) for name in FILES),
    Reader(".sweep/ledger.jsonl", "jsonl", _rows(LEDGER), read_ledger),
    Reader("dump.jsonl", "jsonl", _rows(LINES), read_dump),
    Reader("dump.parquet", "binary", _parquet, read_dump),
    Reader("dump.pt", "binary", _tensors, read_dump),
    Reader("dump.pkl", "binary", _pickle, read_dump),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_whole_file_is_read(reader, tmp_path):
    path = tmp_path / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.content(tmp_path))
    reader.read(path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_is_read_or_refused_by_name(reader, tmp_path):
    whole, path = reader.content(tmp_path), tmp_path / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    wrong = []
    for number in range(EACH):
        content = damaged(random.Random(f"{SEED} {reader.name} {number}"), whole, reader.kind)
        path.write_bytes(content)
        try:
            with alarm((reader.name, number)):
                reader.read(path)
        except UserError as error:
            text = message(error)
            if path.stem not in text and path.name not in text and not _names_a_key(text, whole):
                wrong.append(f"{number}: names neither file nor key: {text[:300]}")
        except (Exception, Hang, SystemExit, KeyboardInterrupt) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
            wrong.append(f"{number}: {what} {content[:200]!r}")
    assert not wrong, f"{len(wrong)} of {EACH}\n" + "\n".join(wrong[:12])


def _names_a_key(text: str, whole: bytes) -> bool:
    """An error of a value names its key, and is shown with the file's name by whoever read it."""
    return any(key.encode() in whole for key in text.replace("=", " ").replace(":", " ").replace(".", " ").split())
