"""`import-config --launch`: a ready experiment, and the command that runs it."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from transformers import TrainingArguments

from faultline.cli import main
from faultline.tools.import_config import import_config, launch, trl
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


@pytest.mark.slow
def test_a_command_of_verl_runs_as_it_was_imported(tmp_path, capsys):
    model = make(tmp_path / "model")
    questions = tmp_path / "gsm8k.jsonl"
    sums = [{"question": f"{a}+{b}", "answer": f"#### {a + b}"} for a in range(5) for b in range(4)]
    questions.write_text("\n".join(map(json.dumps, sums)))
    theirs = VERL | {"data.train_files": ["data/gsm8k/train.parquet"], "actor_rollout_ref.model.path": model}
    written(tmp_path / "pr 2953.yaml", theirs)
    overrides = [*SMALL, f"run.root={tmp_path}", f"task.path={questions}", "task.held_out=4"]
    overrides += ["rollout/engine=local", "actor.scoring=forward"]
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
    assert row["rollout_corr/k3_kl"] > 0  # of bf16 against the same, which computes log π_old by another pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "overrides", "message"),
    [
        ({"actor_rollout_ref.model.path": None}, [], r"model\.path is missing: name the model that --launch is to train"),
        (
            {"data.train_files": "train.parquet"},
            [],
            r"theirs\.yaml does not say task\.path, task\.verifier; give your data and reward: "
            r"append after --launch \S+/conf: task\.path=questions\.jsonl task\.verifier=module:function",
        ),
        (
            {"data.train_files": "q.jsonl"},
            [],
            r"does not say task\.verifier; give your data and reward: append after --launch \S+/conf: task\.verifier=module:fun",
        ),
        (
            {"data.train_files": "/nowhere/q.jsonl"},
            ["task.verifier=math:sqrt"],
            r"task\.path=/nowhere/q\.jsonl: no such file; append task\.path=FILE\.jsonl after --launch DIR",
        ),
        (
            {"data.train_files": "train.parquet"},
            [f"task.path={__file__}", "task.held_out_path=none.jsonl", "task.held_out=null", "task.verifier=math:sqrt"],
            r"task\.held_out_path=none\.jsonl: no such file",
        ),
        (
            {"data.train_files": "train.parquet"},
            [f"task.path={__file__}", "task.verifier=no_such_module:check"],
            r"task\.verifier: verifiers=no_such_module:check: there is no module no_such_module; write package\.module:function",
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
def test_every_format_has_its_model_and_data(tmp_path, monkeypatch, capsys, theirs, keys):
    monkeypatch.chdir(tmp_path)
    Path(keys[1]).touch()
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


def launched_with(tmp_path, theirs):
    """The experiment that --launch makes of a recipe, and its comments."""
    written(tmp_path / "theirs.yaml", theirs)
    text = launch(tmp_path / "theirs.yaml", tmp_path / "conf")[1]
    return parse(compose("+experiment=theirs", f"hydra.searchpath=[file://{tmp_path / 'conf'}]")), text


VERL_TRAINER = {"actor_rollout_ref.model.path": "M", "data.train_files": "gsm8k.parquet", "algorithm.adv_estimator": "grpo"}
SKYRL_TRAINER = {"trainer.algorithm.use_tis": False, "trainer.policy.model.path": "M", "data.train_data": "gsm8k.parquet"}


@pytest.mark.parametrize("theirs", [VERL_TRAINER, SKYRL_TRAINER])
def test_the_trainers_of_verl_and_skyrl_have_their_defaults(tmp_path, theirs):
    """verl 0.9.1's actor.yaml and engine/fsdp.yaml, SkyRL 0.3.0's OptimizerConfig and MixedPrecisionConfig, torch's AdamW."""
    config, text = launched_with(tmp_path, theirs)
    actor = config.actor
    assert (actor.lr, actor.weight_decay, actor.betas, actor.eps) == (1e-6, 0.01, (0.9, 0.999), 1e-8)
    assert (actor.dtype, actor.masters) == ("bf16", "fp32")
    assert "'s defaults of keys not set: lr=1e-06, weight_decay=0.01, " in text


MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
LENGTHS = {"trainer.max_prompt_length": 1024, "generator.sampling_params.max_generate_length": 3072}


@pytest.mark.parametrize(
    ("theirs", "tokens"),
    [
        (VERL_TRAINER, None),
        (VERL_TRAINER | {MICRO: 0}, None),
        (VERL_TRAINER | {MICRO: 4}, 4 * (512 + 512)),
        (VERL_TRAINER | {MICRO: 4, "data.max_prompt_length": 1024, "data.max_response_length": 3072}, 16384),
        (VERL_TRAINER | {"actor_rollout_ref.actor.use_dynamic_bsz": True, MICRO: 4}, 16384),
        (SKYRL_TRAINER, 512 + 1024),
        (SKYRL_TRAINER | LENGTHS | {"trainer.micro_train_batch_size_per_gpu": 2}, 8192),
        (SKYRL_TRAINER | LENGTHS | {"trainer.max_tokens_per_microbatch": 32768}, 32768),
        (SKYRL_TRAINER | {"trainer.max_tokens_per_microbatch": -1}, 512 + 1024),
    ],
)
def test_a_pass_is_as_large_as_in_the_other_program(tmp_path, theirs, tokens):
    """The lengths' defaults: verl's data/legacy_data.yaml; SkyRL's TrainerConfig and SamplingParams."""
    config, text = launched_with(tmp_path, theirs)
    assert config.actor.micro_tokens == tokens and "not translated: trainer.m" not in text
    assert config.actor.zero_stage == 3 and config.actor.gradient_checkpointing


@pytest.mark.parametrize(
    "theirs",
    [
        VERL_TRAINER | {"actor_rollout_ref.model.lora_rank": 32},
        SKYRL_TRAINER | {"trainer.policy.model.lora.rank": 32},
    ],
)
def test_adapters_are_launched_without_divided_weights(tmp_path, theirs):
    config, _ = launched_with(tmp_path, theirs)
    assert (config.actor.lora.rank, config.actor.zero_stage) == (32, 2)


@pytest.mark.parametrize(
    ("given", "dtype", "masters"),
    [
        ({"actor_rollout_ref.actor.fsdp_config.dtype": "float16"}, "fp16", "fp32"),
        ({"actor_rollout_ref.actor.fsdp_config.dtype": "float32"}, "fp32", "fp32"),
        ({"actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16"}, "bf16", "none"),
    ],
)
def test_the_trainer_of_verl_has_what_the_recipe_sets(tmp_path, given, dtype, masters):
    optim = {"lr": 2e-6, "weight_decay": 0.1, "betas": [0.8, 0.9], "override_optimizer_config": {"eps": 1e-15}}
    config, text = launched_with(tmp_path, VERL_TRAINER | {"actor_rollout_ref.actor.optim": optim} | given)
    actor = config.actor
    assert (actor.lr, actor.weight_decay, actor.betas, actor.eps) == (2e-6, 0.1, (0.8, 0.9), 1e-15)
    assert (actor.dtype, actor.masters) == (dtype, masters) and "lr=1e-06" not in text


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (VERL_TRAINER | {"actor_rollout_ref.actor.fsdp_config.dtype": "bfloat16"}, "in verl in bf16"),
        (SKYRL_TRAINER | {"trainer.policy.fsdp_config.mixed_precision.param_dtype": "bf16"}, "in SkyRL in bf16"),
    ],
)
def test_without_launch_a_dtype_of_verl_or_skyrl_is_a_warning(tmp_path, theirs, told):
    written(tmp_path / "theirs.yaml", theirs)
    text = import_config(tmp_path / "theirs.yaml")
    assert f"the trainer computes in fp32 here, {told}" in text
    assert "actor" not in yaml.safe_load(text)


def test_an_unknown_dtype_of_verl_is_reported(tmp_path):
    _, text = launched_with(tmp_path, VERL_TRAINER | {"actor_rollout_ref.actor.fsdp_config.dtype": "fp8"})
    assert "# not translated: actor_rollout_ref.actor.fsdp_config.dtype=fp8: accepted are bfloat16, " in text


def launched(tmp_path, theirs):
    """The experiment that --launch makes of a TRL recipe, and its comments."""
    return launched_with(tmp_path, {"model_name_or_path": "M", "dataset_name": "openai/gsm8k"} | theirs)


def test_a_recipe_of_trl_with_vllm_samples_with_it(tmp_path):
    keys = {"vllm_mode": "colocate", "vllm_tensor_parallel_size": 2, "vllm_enable_sleep_mode": True}
    config, text = launched(tmp_path, {"use_vllm": True, "max_steps": 9} | keys)
    engine = config.rollout.engine
    assert (engine.name, engine.tensor_parallel, engine.sleep) == ("vllm", 2, True)
    assert "not translated" not in text and "WARNING" not in text


def test_a_recipe_of_trl_without_vllm_samples_with_the_local_engine(tmp_path):
    config, _ = launched(tmp_path, {"use_vllm": False, "loss_type": "grpo"})
    assert config.rollout.engine.name == "local"


@pytest.mark.slow
def test_a_server_of_trl_becomes_an_engine_in_the_process(tmp_path):
    config, text = launched(tmp_path, {"use_vllm": True, "vllm_mode": "server"})
    assert config.rollout.engine.name == "vllm"
    assert "# note: vllm_mode=server: vLLM runs in the trainer's process here, as in TRL's colocate. " in text
    assert "No option of `trl vllm-serve` is read: choose rollout/precision yourself\n" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "dtype", "masters"),
    [
        ({}, "bf16", "fp32"),  # BaseConfig.__post_init__ of TRL 0.29 and 1.16: bf16 = not fp16 where it is not set
        ({"dtype": "float32"}, "bf16", "fp32"),
        ({"bf16": True}, "bf16", "fp32"),
        ({"bf16": True, "dtype": "float32"}, "bf16", "fp32"),
        ({"bf16": True, "dtype": "bfloat16"}, "bf16", "none"),
        ({"bf16": False, "torch_dtype": "bfloat16"}, "bf16", "none"),
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, "bf16", "none"),
        ({"bf16": False}, "fp32", "fp32"),
        ({"fp16": True}, "fp16", "fp32"),
    ],
)
def test_the_trainer_computes_in_the_dtype_of_trl(tmp_path, keys, dtype, masters):
    config, text = launched(tmp_path, {"use_vllm": True} | keys)
    assert (config.actor.dtype, config.actor.masters) == (dtype, masters)
    assert ("# note: bf16 is not set: on in TRL 1.16" in text) == (keys in ({}, {"dtype": "float32"}))


def test_the_defaults_of_trl_that_differ_are_written(tmp_path):
    """Of GRPOConfig in TRL 1.16, and of TrainingArguments in the installed transformers."""
    config, text = launched(tmp_path, {"use_vllm": True})
    actor = config.actor
    assert (actor.lr, actor.betas, actor.eps) == (1e-6, (0.9, 0.999), 1e-8)
    assert (actor.schedule.name, config.task.answer_length) == ("linear", 512)
    theirs = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    assert {key: trl.DEFAULTS[key] for key in trl.DEFAULTS if key.startswith("adam_")} == {
        key: theirs[key] for key in ("adam_beta1", "adam_beta2", "adam_epsilon")
    }
    assert "# note: TRL 1.16's defaults of keys not set: learning_rate=1e-06, adam_beta1=0.9, adam_beta2=0.999" in text


def test_what_a_recipe_of_trl_sets_is_no_default(tmp_path):
    given = {"learning_rate": 2e-6, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "max_completion_length": 64}
    config, text = launched(tmp_path, {"use_vllm": True, "gradient_checkpointing": True} | given)
    actor = config.actor
    assert (actor.lr, actor.betas, actor.eps, config.task.answer_length) == (2e-6, (0.8, 0.95), 1e-6, 64)
    assert actor.gradient_checkpointing and "TRL 1.16's defaults" not in text


def test_without_launch_the_trainer_stays_fp32_with_a_warning(tmp_path):
    """The embedded engine in the trainer's dtype would have a ratio of exactly 1."""
    written(tmp_path / "theirs.yaml", {"use_vllm": True, "bf16": True, "max_steps": 9})
    text = import_config(tmp_path / "theirs.yaml")
    assert "# WARNING: bf16=True: the trainer computes in fp32 here, in TRL in bf16" in text
    assert "# note: TRL 1.16's defaults of keys not set, which --launch alone writes: learning_rate=1e-06" in text
    assert "actor" not in yaml.safe_load(text)
    written(tmp_path / "theirs.yaml", {"use_vllm": True, "bf16": False, "max_steps": 9})
    assert "WARNING" not in import_config(tmp_path / "theirs.yaml")


def test_a_dtype_of_weights_without_a_counterpart_is_reported(tmp_path):
    config, text = launched(tmp_path, {"use_vllm": True, "dtype": "auto"})
    assert config.actor.masters == "fp32" and "# not translated: dtype=auto: the weights are fp32 here" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_warning_stands_once_on_a_terminal(tmp_path, monkeypatch, capsys, terminal):
    """The printed file has it. Where that is redirected, standard error has it too."""
    written(tmp_path / "theirs.yaml", {"use_vllm": True, "num_train_epochs": 1})
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    main(["import-config", str(tmp_path / "theirs.yaml")])
    out, err = capsys.readouterr()
    assert out.count("# WARNING: num_train_epochs=1") == 1 and err.count("# WARNING: num_train_epochs=1") == (not terminal)


def test_a_launch_warns_on_a_terminal_too(tmp_path, monkeypatch, capsys):
    theirs = {"num_train_epochs": 1, "model_name_or_path": "M", "dataset_name": "gsm8k"}
    written(tmp_path / "theirs.yaml", {"use_vllm": True} | theirs)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / "conf")])
    assert capsys.readouterr().err.count("# WARNING: num_train_epochs=1") == 1


GPUS = {"trainer.n_gpus_per_node": 8, "trainer.nnodes": 1}
TRL_TRAINER = {"use_vllm": True, "model_name_or_path": "M", "dataset_name": "gsm8k"}
PLACED = "trainer.placement.policy_num_"
TRAIN = "-m experiments.train --config-dir {folder} +experiment=theirs steps=2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "command"),
    [
        (VERL_TRAINER | GPUS, f"torchrun --nproc-per-node 8 {TRAIN}"),
        (VERL_TRAINER | {"trainer.n_gpus_per_node": 4}, f"torchrun --nproc-per-node 4 {TRAIN}"),
        (VERL_TRAINER | GPUS | {"trainer.nnodes": 2},
         f"srun --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 python {TRAIN}"),
        (VERL_TRAINER | {"trainer.n_gpus_per_node": 1}, "faultline train --config-dir {folder} +experiment=theirs steps=2"),
        (SKYRL_TRAINER | {f"{PLACED}gpus_per_node": 4, f"{PLACED}nodes": 1}, f"torchrun --nproc-per-node 4 {TRAIN}"),
        (TRL_TRAINER | {"num_processes": 4}, f"torchrun --nproc-per-node 4 {TRAIN}"),
    ],
)  # fmt: skip
def test_the_command_starts_a_rank_on_each_gpu_of_the_recipe(tmp_path, capsys, theirs, command):
    written(tmp_path / "theirs.yaml", theirs)
    folder = str(tmp_path / "conf")
    main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", folder, "steps=2"])
    out, err = capsys.readouterr()
    assert out == command.format(folder=folder) + "\n"
    assert "does not say on how many GPUs" not in err and "trainer.n" not in err
    ranks = {"torchrun": theirs.get("trainer.n_gpus_per_node", 4), "srun": 16, "faultline": 1}[command.split()[0]]
    assert re.search(
        rf"^its memory: .*faultline memory --ranks {ranks} --config-dir {folder} \+experiment=theirs steps=2$", err, re.M
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "theirs",
    [
        VERL_TRAINER | {"trainer.nnodes": 1},
        VERL_TRAINER | {"trainer.n_gpus_per_node": "${N}", "trainer.nnodes": 1},
        VERL_TRAINER | {"trainer.n_gpus_per_node": 8, "trainer.nnodes": "${N}"},
        SKYRL_TRAINER,
        TRL_TRAINER,
        TRL_TRAINER | {"num_processes": 16, "num_machines": 2},
    ],
)
def test_a_recipe_without_a_number_of_gpus_is_told(tmp_path, capsys, theirs):
    written(tmp_path / "theirs.yaml", theirs)
    main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / "conf")])
    out, err = capsys.readouterr()
    assert out.startswith("faultline train ")
    assert (
        "theirs.yaml does not say on how many GPUs it runs, and this command takes one: for 8 on one node write "
        "torchrun --nproc-per-node 8 -m experiments.train in place of faultline train\n"
    ) in err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trainer.n_gpus_per_node": 7}, "256 rows cannot be shared evenly by 7 ranks"),
        ({"trainer.n_gpus_per_node": 0}, "trainer.n_gpus_per_node=0: must be a whole number of at least 1"),
        ({"trainer.nnodes": 1.5}, "trainer.nnodes=1.5: must be a whole number of at least 1"),
    ],
)
def test_a_number_of_gpus_that_no_run_can_have_is_refused(tmp_path, capsys, changed, message):
    written(tmp_path / "theirs.yaml", VERL_TRAINER | GPUS | changed)
    with pytest.raises(SystemExit):
        main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / "conf")])
    assert message in capsys.readouterr().err and not (tmp_path / "conf").exists()


def test_a_launch_names_each_key_that_is_not_translated(tmp_path, capsys):
    lost = {"actor_rollout_ref.actor.shuffle": True, "trainer.logger": "wandb", "actor_rollout_ref.actor.entropy_coeff": -1}
    written(tmp_path / "theirs.yaml", VERL_TRAINER | GPUS | lost)
    main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / "conf")])
    err = capsys.readouterr().err
    assert f"written: {tmp_path}/conf/experiment/theirs.yaml\n" in err
    assert "3 keys were not translated; comments of the file have their values:\n" in err
    assert sorted(lost) == sorted(line.strip() for line in err.splitlines() if line.startswith("  "))
    (tmp_path / "conf/experiment/theirs.yaml").unlink()
    written(tmp_path / "theirs.yaml", VERL_TRAINER | GPUS)
    main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / "conf")])
    assert "every key was translated, or is a note in the file\n" in capsys.readouterr().err


def test_a_run_that_no_gpu_holds_is_told(tmp_path, capsys):
    """A KL term keeps the first weights in BF16: 2 bytes of each of 7.6e9 numbers. Those of 32B are too many beside vLLM's."""
    theirs = VERL_TRAINER | GPUS | {MICRO: 4, "actor_rollout_ref.rollout.name": "vllm"}
    said = []
    for number, (size, kl) in enumerate([("7B", False), ("7B", True), ("32B", True)]):
        model = {"actor_rollout_ref.model.path": f"Qwen/Qwen2.5-{size}-Instruct", "actor_rollout_ref.actor.use_kl_loss": kl}
        written(tmp_path / "theirs.yaml", theirs | model)
        main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(tmp_path / f"conf{number}")])
        said += re.findall(r"^its memory: (\d+) GB a GPU(.*) by faultline", capsys.readouterr().err, re.M)
    (small, nothing), (with_kl, as_little), (large, told) = said
    assert int(with_kl) - int(small) == pytest.approx(2 * 7.6156, abs=1)
    assert int(with_kl) < 141 < int(large) and (nothing, as_little, told) == (",", ",", ", more than an H200 has,")


def test_an_imported_run_is_sized(tmp_path, capsys):
    model = make(tmp_path / "model")
    written(tmp_path / "theirs.yaml", VERL_TRAINER | GPUS | {"actor_rollout_ref.model.path": model})
    conf = tmp_path / "the conf"
    main(["import-config", str(tmp_path / "theirs.yaml"), "--launch", str(conf)])
    ((most, command),) = re.findall(r"^its memory: (\d+) GB a GPU, by faultline (.*)$", capsys.readouterr().err, re.M)
    main(shlex.split(command))
    out = capsys.readouterr().out
    assert "GB of each GPU; Ψ = " in out and "N = 8" in out
    (sums,) = re.findall(r"^sum +(.*)$", out, re.M)
    assert most == f"{max(map(float, sums.split())):.0f}"
    for folder, message in ((tmp_path / "none", "no such folder"), (tmp_path, "experiment/theirs")):
        with pytest.raises(SystemExit):
            main(["memory", "--config-dir", str(folder), "+experiment=theirs"])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "engine", "alpha", "sync"),
    [
        ({"actor_rollout_ref.model.lora_rank": 32}, "actor_rollout_ref.rollout.name", 16, "merged"),
        ({"actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.model.lora_alpha": 64}, None, 64, "apart"),
        ({"trainer.policy.model.lora.rank": 32, "trainer.policy.model.lora.alpha": 64}, None, 64, "apart"),
        ({"actor_rollout_ref.model.lora_rank": 32, "actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16"}, None, 16, "apart"),
    ],
)
def test_adapters_of_a_recipe_are_trained_with_its_own_model(keys, engine, alpha, sync, tmp_path):
    """verl's and SkyRL's alpha is 16 by default, half of the rank: their factor is then 0.5, and ours 2."""
    skyrl = "trainer.policy.model.lora.rank" in keys
    model = {"trainer.policy.model.path" if skyrl else "actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B"}
    recipe = model | ({"trainer.algorithm.advantage_estimator": "grpo"} if skyrl else {"algorithm.adv_estimator": "grpo"}) | keys
    written(tmp_path / "recipe.yaml", recipe | ({engine: "vllm"} if engine else {}))
    small = import_config(tmp_path / "recipe.yaml")
    assert "lora_rank=32: all weights of the small model are trained" in small or "lora.rank=32: all weights" in small
    text = import_config(tmp_path / "recipe.yaml", ready=True)
    actor = yaml.safe_load(text)["actor"]
    assert actor["lora"] == {"rank": 32, "sync": sync} and "masters" not in actor  # which adapters refuse
    assert ("vLLM gets merged weights here" in text) == (sync == "merged")
    assert ("adapters have the factor 0.5 there and 2 here" in text) == (alpha == 16)
