"""`import-config --launch`: a ready experiment, and the command that runs it."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from faultline.cli import main
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import RunFolder
from harness.run.loop import train
from tests.harness.tasks.tools_model import make

VERL = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 4,
    "data.max_prompt_length": 60,
    "data.max_response_length": 8,
    "data.truncation": "error",
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.behav_imp_weight_cap": 2,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 2,
    "trainer.total_training_steps": 1,
    "trainer.nnodes": 1,
}
"""The command of verl's pull request 2953, scaled down to a model of two layers and one step; data and model are added."""
SMALL = ["tracking=disabled", "evaluation.prompts=2", "evaluation.samples=2"]


def written(path, config) -> None:
    path.write_text(yaml.safe_dump(config))


def test_a_command_of_verl_runs_as_it_was_imported(tmp_path, capsys):
    model = make(tmp_path / "model")
    questions = tmp_path / "gsm8k.jsonl"
    sums = [{"question": f"{a}+{b}", "answer": f"#### {a + b}"} for a in range(5) for b in range(4)]
    questions.write_text("\n".join(map(json.dumps, sums)))
    theirs = VERL | {"data.train_files": ["data/gsm8k/train.parquet"], "actor_rollout_ref.model.path": model}
    written(tmp_path / "pr 2953.yaml", theirs)
    overrides = [*SMALL, f"run.root={tmp_path}", f"task.path={questions}", "task.held_out=4", "rollout/engine=local"]
    main(["import-config", str(tmp_path / "pr 2953.yaml"), "--launch", str(tmp_path / "conf"), *overrides])
    words = shlex.split(capsys.readouterr().out)
    assert words == ["faultline", "train", "--config-dir", str(tmp_path / "conf"), "+experiment=pr-2953", *overrides]
    text = (tmp_path / "conf/experiment/pr-2953.yaml").read_text()
    assert "# not translated: trainer.nnodes=1\n" in text
    assert "# note: data.train_files=data/gsm8k/train.parquet: no run reads it here; task=gsm8k reads it from the hub\n" in text
    config = parse(compose(*words[4:], f"hydra.searchpath=[file://{tmp_path / 'conf'}]"))
    task, rollout = config.task, config.rollout
    assert (task.name, task.max_prompt, task.answer_length, task.long_prompts) == ("gsm8k", 60, 8, "error")
    assert (config.model.path, config.warmstart, rollout.precision.name, config.run.sweep) == (model, None, "bf16", "pr-2953")
    assert (rollout.prompts, rollout.group_size, config.actor.num_minibatches, config.steps) == (4, 2, 2, 1)
    assert (config.kl.name, config.correction.weight.upper, config.actor.gradient_checkpointing) == ("k3", 2, True)
    assert train(config) == "done"
    row = RunFolder(config.path).metrics()[0]
    assert row["rollout_corr/k3_kl"] > 0  # of bf16 against fp32


@pytest.mark.parametrize(
    ("changed", "overrides", "message"),
    [
        ({"actor_rollout_ref.model.path": None}, [], r"model\.path is missing: name the model that --launch is to train"),
        (
            {"data.train_files": "train.parquet"},
            [],
            r"theirs\.yaml does not say task\.path, task\.verifier; give your data and reward: "
            r"task\.path=questions\.jsonl task\.verifier=module:function",
        ),
        (
            {"data.train_files": "q.jsonl"},
            [],
            r"does not say task\.verifier; give your data and reward: task\.verifier=module:fun",
        ),
        ({}, ["task.answer_length=none"], r"task\.answer_length"),
        ({}, ["actor.num_minibatches=3"], r"actor\.num_minibatches=3 does not divide the 8 responses"),
    ],
)
def test_what_is_not_ready_is_not_written(tmp_path, capsys, changed, overrides, message):
    given = VERL | {"data.train_files": "gsm8k.parquet", "actor_rollout_ref.model.path": "Qwen/Qwen3-8B"} | changed
    written(tmp_path / "theirs.yaml", {key: value for key, value in given.items() if value is not None})
    with pytest.raises(SystemExit) as raised:
        main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / "conf"), *overrides])
    assert raised.value.code == 2 and not (tmp_path / "conf").exists()
    with pytest.raises(UserError, match=message):
        raise UserError(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("theirs", "keys"),
    [
        ({"trainer.algorithm.use_tis": True, "trainer.algorithm.tis_imp_ratio_cap": 2.0, "trainer.policy.model.path": "M",
          "data.train_data": ["q.jsonl"], "trainer.max_prompt_length": 99, "generator.sampling_params.max_generate_length": 77},
         ("M", "q.jsonl", 99, 77)),
        ({"loss_type": "dapo", "use_vllm": True, "model_name_or_path": "M", "dataset_name": "q.json", "max_prompt_length": 9,
          "max_completion_length": 7}, ("M", "q.json", 9, 7)),
    ],
)  # fmt: skip
def test_every_format_has_its_model_and_data(tmp_path, capsys, theirs, keys):
    written(tmp_path / "theirs.yaml", theirs)
    arguments = ["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path), "task.verifier=math:sqrt"]
    main(arguments)
    made = yaml.safe_load((tmp_path / "experiment/theirs.yaml").read_text())
    assert (made["model"]["path"], made["task"]["path"], made["task"]["max_prompt"], made["task"]["answer_length"]) == keys
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(arguments)
    assert "theirs.yaml: is there already; remove it, or give --launch another folder" in capsys.readouterr().err


def test_the_complete_example_of_the_page(tmp_path, monkeypatch, capsys):
    """Its command on its first file writes its second, to the letter."""
    theirs, here = re.findall(r"```yaml\n(.*?)```", Path("docs/import.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(theirs)
    main(["import-config", "theirs.yaml", "--launch", "conf"])
    assert Path("conf/experiment/theirs.yaml").read_text().rstrip("\n") == here.rstrip("\n")
    assert capsys.readouterr().out == "faultline train --config-dir conf +experiment=theirs\n"
