"""First batches of other trainers: their table, how they are made and read, and what their trainers are told of a CPU."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from faultline.tools.replay.example import example
from harness.errors import UserError
from tests.oracles.first_batches import VARIABLES, Setting, Trainer, made, recorded, run, table
from tests.oracles.skyrl_batches import SKYRL
from tests.oracles.trl_batches import TRL
from tests.oracles.verl_batches import OF_VERL, logged


def rows(setting: str, answers: list[tuple[str, str]]) -> list[dict]:
    return [
        {"setting": setting, "kind": kind, "named": named, "mean_ratio": 1 + 0.1 * place, "z": 2.0 * place, "k3": 10.0**-place}
        for place, (kind, named) in enumerate(answers)
    ]


def test_the_table_by_hand():
    """An alarm of another name, or without one, is not right. Where no fault has a name no answer is."""
    found = [("fault", "truncated_sampling"), ("fault", "swapped"), ("unknown", "")]
    frame = pd.DataFrame(
        rows("top_p 0.9", found) + rows("repetition_penalty 1.2", found[2:]) + rows("temperature 1", [("consistent", "")])
    )
    shown = table(TRL, frame).set_index("TRL's setting")
    assert shown.loc["top_p 0.9"].tolist() == [
        "1.0000 to 1.2000", "0.0 to 4.0", "1.0e-02 to 1.0e+00", "1 truncated_sampling, 1 swapped, 1 unknown", "1 of 3",
    ]  # fmt: skip
    assert shown["right"].tolist() == ["1 of 3", "no name is right", "1 of 1"]


def copying(name: str) -> Trainer:
    """A trainer by the name of a shipped dump, which it leaves once: a second call would find its folder there."""

    def dump(setting: Setting, seed: int, folder: Path) -> None:
        if name:
            shutil.copy(example(name), folder / "step-1.parquet")

    return Trainer("copy", {"T 0.7, raw": Setting({}, "raw_logprobs")}, (1,), dump, "step-*.parquet")


def test_batches_are_made_once_and_answered(tmp_path):
    """The folder's name has no comma, where Hydra would split it. The shipped dump is the first seed's in SkyRL's record."""
    for _ in range(2):
        (row,) = made(copying("raw"), tmp_path).to_dict("records")
    assert [path.name for path in tmp_path.iterdir()] == ["_0.7_raw-1"]
    (shipped,) = recorded(SKYRL).query("setting == 'temperature 0.7' and seed == 1730").to_dict("records")
    assert {key: row[key] for key in ("kind", "named", "responses", "tokens")} == {
        "kind": "fault", "named": "raw_logprobs", "responses": 128, "tokens": shipped["tokens"],
    }  # fmt: skip
    assert row["mean_ratio"] == pytest.approx(shipped["mean_ratio"], rel=1e-5)


def test_a_trainer_that_leaves_no_batch_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"copy left 0 files step-\*.parquet, not one"):
        made(copying(""), tmp_path)


def test_what_a_failed_trainer_left_is_not_taken_for_its_batch(tmp_path):
    """It wrote its batch, and then failed. The same command runs it again."""
    calls = []

    def dump(setting: Setting, seed: int, folder: Path) -> None:
        shutil.copy(example("raw"), folder / "step-1.parquet")
        calls.append(folder.name)
        if len(calls) == 1:
            raise UserError("ended with code 1")

    trainer = copying("raw")._replace(dump=dump)
    with pytest.raises(UserError, match="ended with code 1"):
        made(trainer, tmp_path)
    assert len(made(trainer, tmp_path)) == 1 and calls == ["_0.7_raw-1.unfinished"] * 2


def test_a_trainer_that_fails_is_refused_and_its_output_kept(tmp_path):
    """There is no such module. Where the system grants no network of its own, unshare says so instead."""
    with pytest.raises(UserError, match=r"no_such_module ended with code 1; see .*log.txt"):
        run("no_such_module", {}, {}, tmp_path)
    assert re.search("No module named no_such_module|unshare: ", (tmp_path / "log.txt").read_text())


def test_verls_own_metrics_are_read_and_compared(tmp_path):
    """k3_kl − kl is 0.25, and the batch's mean ratio 1.2."""
    (tmp_path / "log.txt").write_text("step:1 - rollout_corr/kl:-0.05 - rollout_corr/k3_kl:0.2 - other:1\n")
    assert logged(tmp_path, 1.2) == {"logged_off": pytest.approx(0.05)}
    (tmp_path / "log.txt").write_text("rollout_corr/kl:0.1")
    with pytest.raises(UserError, match="verl printed no rollout_corr/k3_kl"):
        logged(tmp_path, 1.2)


def ran(code: str, variables: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | VARIABLES | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_is_replaced_in_verl_is_there():
    """verl finds the CPU as its platform. The worker's method that is replaced and vLLM's that replaces it have these names."""
    ran(
        "from verl.plugin.platform import get_platform\n"
        "assert type(get_platform()).__name__ == 'Cpu' and get_platform().is_available()\n"
        "from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension as theirs\n"
        "from tests.oracles.verl_cpu_vllm import Extension\n"
        "assert theirs.update_weights_from_ipc is not Extension.update_weights_from_ipc\n"
        "from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
        "assert GPUModelRunner.reload_weights\n",
        OF_VERL,
    )


def test_the_methods_that_are_replaced_in_skyrl_are_there():
    """Each method that the classes of `skyrl_cpu` override is SkyRL's, by this name."""
    ran(
        "from tests.oracles import skyrl_cpu as ours\n"
        "from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase as worker\n"
        "from skyrl.train.entrypoints.main_base import BasePPOExp as run\n"
        "from skyrl.train.trainer import RayPPOTrainer as trainer\n"
        "for mine, theirs in ((ours.PolicyWorker, worker), (ours.First, run)):\n"
        "    for name in vars(mine):\n"
        "        assert name.startswith('__') or hasattr(theirs, name), name\n"
        "assert trainer.train_critic_and_policy\n",
        {},
    )
