"""Shell recipes become configs without being executed. Each recipe has the settings of its source, in words of its own."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from faultline.cli import main
from faultline.tools.import_config import import_config
from faultline.tools.import_config.shell import LARGEST_SCRIPT, parse_overrides, read_script
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.validate import check
from tests.faultline.tools.import_config.expected import NONE, correction, keep, weight

GSM8K = "$HOME/data/gsm8k"
VERL_TAIL = 'trainer.logger=\'["console","wandb"]\' trainer.nnodes=1 trainer.n_gpus_per_node=8'
SKYRL_TAIL = 'trainer.logger="wandb" trainer.strategy=fsdp generator.batched=true trainer.resume_mode=null $@'
SKYRL_DATA = """data.train_data="['$DATA_DIR/train.parquet']" data.val_data="['$DATA_DIR/validation.parquet']" """
VETO = keep("worst_token", "ratio", 1e-4, None)
RECIPES = {  # source → (text, (loss, advantage), correction, what else the experiment holds, a line of its comments)
    "verl pull request 2953, truncated importance sampling with FSDP": (
        f"""
set -x
export VLLM_USE_V1=1
TIS_CAP=${{TIS_CAP:-2}}   # of the token weight
train_files="['{GSM8K}/train.parquet']"
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_files="$train_files" data.train_batch_size=1024 \\
    data.max_prompt_length=512 data.max_response_length=1024 data.truncation='error' \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.behav_imp_weight_cap="${{TIS_CAP}}" actor_rollout_ref.rollout.calculate_log_probs=True \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 trainer.total_epochs=15 {VERL_TAIL} $@
""",
        ("ppo", "grpo"), correction(weight("token", upper=2)),
        {"actor.lr": 1e-6, "actor.num_minibatches": 4, "rollout.prompts": 1024, "rollout.group_size": 5, "kl.coef": 0.001},
        "# WARNING: trainer.total_epochs=15: a run here counts steps, not epochs"),
    "verl, examples/rollout_importance_sampling/run_with_rollout_is.sh, October 2025": (
        """#!/usr/bin/env bash
set -xeuo pipefail
rollout_is=true                 # apply the weights
rollout_is_threshold=2.0
rollout_is_threshold_lower=null
rollout_is_level=token
rollout_is_mode=truncate
rollout_is_veto_threshold=1e-4
TRAIN_FILE=${TRAIN_FILE:-"data/train.parquet"}
adv_estimator=gae
lam=0.95
python3 -m verl.trainer.main_ppo \\
    data.train_files="${TRAIN_FILE}" data.train_batch_size=128 algorithm.adv_estimator=${adv_estimator} \\
    algorithm.gamma=1.0 algorithm.lam=${lam} algorithm.rollout_is=${rollout_is} \\
    algorithm.rollout_is_threshold=${rollout_is_threshold} \\
    algorithm.rollout_is_threshold_lower=${rollout_is_threshold_lower} \\
    algorithm.rollout_is_level=${rollout_is_level} algorithm.rollout_is_mode=${rollout_is_mode} \\
    algorithm.rollout_is_veto_threshold=${rollout_is_veto_threshold} \\
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=32 trainer.total_epochs=10

echo "Rollout IS: level ${rollout_is_level}, threshold = ${rollout_is_threshold}"
""",
        ("ppo", "gae"), correction(weight("token", upper=2.0), {"veto": VETO}),
        {"advantage": {"gamma": 1.0, "lam": 0.95}, "actor.lr": 5e-7, "actor.num_minibatches": 4},
        "# WARNING: trainer.total_epochs=10"),
    "verl, examples/rollout_correction/run_with_rollout_corr.sh": (
        """
rollout_is="sequence"
rollout_is_batch_normalize="true"
rollout_rs="null"
bypass_mode="true"     # skips log π_old
loss_type="reinforce"  # or "ppo_clip"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.train_batch_size=128 \\
    algorithm.rollout_correction.rollout_is=${rollout_is} \\
    algorithm.rollout_correction.rollout_is_threshold=2.0 \\
    algorithm.rollout_correction.rollout_is_batch_normalize=${rollout_is_batch_normalize} \\
    algorithm.rollout_correction.rollout_rs=${rollout_rs} algorithm.rollout_correction.rollout_rs_threshold=null \\
    algorithm.rollout_correction.bypass_mode=${bypass_mode} algorithm.rollout_correction.loss_type=${loss_type} \\
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=32
""",
        ("pg", "rloo"), correction(weight("sequence", upper=2.0), ratio="current", normalize="batch"), {"actor.lr": 5e-7},
        "# note: rollout_is_batch_normalize: bypass mode divides by the mean of a micro-batch"),
    "verl, examples/rollout_correction/run_with_rollout_corr_multi_rs.sh": (
        """
rollout_rs="token_k1,seq_max_k2"
rollout_rs_threshold="0.6_1.6,2.5"
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    algorithm.rollout_correction.rollout_is="token" algorithm.rollout_correction.rollout_is_threshold=2.0 \\
    algorithm.rollout_correction.rollout_rs=\\'${rollout_rs}\\' \\
    algorithm.rollout_correction.rollout_rs_threshold=\\'${rollout_rs_threshold}\\' \\
    algorithm.rollout_correction.bypass_mode="true" algorithm.rollout_correction.loss_type="ppo_clip" \\
    actor_rollout_ref.actor.optim.lr=3e-6
""",
        ("ppo", "grpo"),
        correction(weight("token", upper=2.0, apply=False), {"token_k1": keep("token", "ratio", 1 / 1.6, 1 / 0.6),
                                                             "seq_max_k2": keep("worst_token", "k2", None, 2.5)}, "current"),
        {"proximal": "rollout", "actor.lr": 3e-6}, "# note: bypass mode with ppo_clip: verl computes the weights"),
    "verl, one_step_off_policy/shell/dapo_7b_math_fsdp2_64_64_ris.sh": (
        """
RAY_DATA_HOME=${RAY_DATA_HOME:-"${HOME}/verl"}
MODEL_PATH=${MODEL_PATH:-"${RAY_DATA_HOME}/models/Qwen2.5-Math-7B"}
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 28))
actor_ppo_max_token_len=$(((max_prompt_length + max_response_length) * 2))
enable_overlong_buffer=True
overlong_buffer_len=$((1024 * 4))
# decoupled_geo_rs:
#    rollout_rs: seq_mean_k1
python -m verl.experimental.one_step_off_policy.main_ppo \\
    data.truncation='left' data.max_prompt_length=${max_prompt_length} data.max_response_length=${max_response_length} \\
    data.train_batch_size=512 actor_rollout_ref.rollout.n=16 algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path="${MODEL_PATH}" +actor_rollout_ref.model.override_config.max_position_embeddings=32768 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${actor_ppo_max_token_len} \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.clip_ratio_c=10.0 actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.loss_agg_mode="token-mean" \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=${enable_overlong_buffer} \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=${overlong_buffer_len} \\
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \\
    trainer.logger=['console','tensorboard'] trainer.total_epochs=10 trainer.total_training_steps=400 \\
    algorithm.rollout_correction.rollout_is=null algorithm.rollout_correction.rollout_is_threshold=null \\
    algorithm.rollout_correction.rollout_rs=seq_mean_k1 \\
    algorithm.rollout_correction.rollout_rs_threshold="0.999_1.001" algorithm.rollout_correction.bypass_mode=false
""",
        ("ppo", "grpo"),
        correction(NONE, {"seq_mean_k1": keep("geometric", "ratio", 1 / 1.001, 1 / 0.999)}, denominator="kept"),
        {"steps": 400, "actor.micro_tokens": 61440, "loss.eps_high": 0.28, "loss.dual_clip": 10.0,
         "actor.num_minibatches": 16, "rollout.group_size": 16},
        "# note: trainer.total_epochs=10: trainer.total_training_steps is set, and ends the run here"),
    "verl, fully_async_policy/shell/dapo_7b_math_fsdp2_64_64_mis.sh": (
        """
rollout_is=token
rollout_rs_threshold="0.99_1.001"
total_rollout_steps=$(((512*400)))
CORRECTION=(
    algorithm.rollout_correction.rollout_is=${rollout_is}   # the weight
    algorithm.rollout_correction.rollout_is_threshold=2.0
    # the author's filter
    algorithm.rollout_correction.rollout_rs=seq_mean_k1
    "algorithm.rollout_correction.rollout_rs_threshold=${rollout_rs_threshold}"
)
CORRECTION+=(rollout.total_rollout_steps="${total_rollout_steps}")
python -m verl.experimental.fully_async_policy.fully_async_main \\
    algorithm.adv_estimator=grpo data.train_batch_size=0 data.gen_batch_size=1 "${CORRECTION[@]}" \\
    async_training.staleness_threshold=0.5 "$@" 2>&1 | tee run.log
""",
        ("ppo", "grpo"),
        correction(weight("token", upper=2.0), {"seq_mean_k1": keep("geometric", "ratio", 1 / 1.001, 1 / 0.99)},
                   denominator="kept"),
        {}, "# not translated: rollout.total_rollout_steps=204800"),
    "SkyRL, examples/train/tis_correction/run_dapo_tis.sh": (
        f"""
DATA_DIR="{GSM8K}"
NUM_GPUS=4
TIS_IMP_RATIO_CAP=2.0
TIS_TYPE=token
ENFORCE_EAGER=true # TODO: try `False`
uv run --isolated --extra fsdp -m examples.train.tis_correction.main_tis_dapo \\
  {SKYRL_DATA} trainer.algorithm.advantage_estimator="grpo" trainer.algorithm.policy_loss_type="dual_clip" \\
  trainer.algorithm.eps_clip_low=0.2 trainer.algorithm.eps_clip_high=0.28 trainer.algorithm.clip_ratio_c=10.0 \\
  trainer.algorithm.dynamic_sampling.type=filter trainer.algorithm.dynamic_sampling.max_sample_batches=30 \\
  trainer.algorithm.loss_reduction="token_mean" trainer.algorithm.use_kl_loss=false \\
  trainer.algorithm.off_policy_correction.tis_ratio_type=$TIS_TYPE \\
  trainer.algorithm.off_policy_correction.token_tis_ratio_clip_high=$TIS_IMP_RATIO_CAP \\
  trainer.policy.model.path="Qwen/Qwen2.5-1.5B-Instruct" trainer.epochs=20 trainer.train_batch_size=1024 \\
  trainer.policy_mini_batch_size=256 trainer.policy.optimizer_config.lr=1.0e-6 generator.n_samples_per_prompt=5 \\
  generator.inference_engine.num_engines=$NUM_GPUS generator.inference_engine.enforce_eager=$ENFORCE_EAGER {SKYRL_TAIL}
""",
        ("ppo", "grpo"), correction(weight("token", upper=2.0)),
        {"loss.dual_clip": 10.0, "loss.eps_high": 0.28, "rollout.filter.max_rounds": 30, "actor.num_minibatches": 4,
         "rollout.prompts": 1024, "rollout.group_size": 5}, "# WARNING: trainer.epochs=20"),
    "SkyRL, examples/train/flash_rl/run_dapo_gsm8k_flashrl_0.5b_fp8.sh, as of use_tis": (
        f"""
: "${{DATA_DIR:="{GSM8K}"}}"
: "${{NUM_GPUS:=4}}"
TIS_IMP_RATIO_CAP=2.0
USE_TIS=true
uv run --isolated --extra flashrl --env-file .env.fp8 -- python -m examples.flash_rl.main_dapo_flashrl \\
  {SKYRL_DATA} trainer.algorithm.advantage_estimator="grpo" trainer.algorithm.policy_loss_type="dual_clip" \\
  trainer.algorithm.use_tis=$USE_TIS trainer.algorithm.tis_imp_ratio_cap=$TIS_IMP_RATIO_CAP \\
  trainer.algorithm.use_kl_loss=false trainer.policy.model.path="Qwen/Qwen2.5-0.5B-Instruct" \\
  trainer.placement.policy_num_gpus_per_node=$NUM_GPUS {SKYRL_TAIL}
""",
        ("ppo", "grpo"), correction(weight("token", upper=2.0)), {"loss.dual_clip": 3.0}, "num_gpus_per_node=4"),
    "SkyRL, examples/train/algorithms/cispo/run_cispo_gsm8k.sh": (
        f"""
DATA_DIR="{GSM8K}"
POLICY_LOSS="cispo"
CISPO_EPS_CLIP_LOW=1
CISPO_EPS_CLIP_HIGH=4
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base {SKYRL_DATA} \\
  trainer.algorithm.policy_loss_type="$POLICY_LOSS" trainer.algorithm.cispo.cispo_eps_clip_low=$CISPO_EPS_CLIP_LOW \\
  trainer.algorithm.cispo.cispo_eps_clip_high=$CISPO_EPS_CLIP_HIGH trainer.algorithm.use_kl_loss=false {SKYRL_TAIL}
""",
        ("cispo", None), correction(NONE), {"loss.lower": 0, "loss.upper": 5}, "not translated"),
    "SkyRL, examples/train/ppo/run_ppo.sh": (
        f"""
DATA_DIR="{GSM8K}"
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base {SKYRL_DATA} \\
  trainer.algorithm.advantage_estimator="gae" trainer.critic.model.path="Qwen/Qwen2.5-1.5B-Instruct" \\
  trainer.epochs=20 trainer.train_batch_size=1024 trainer.policy_mini_batch_size=256 trainer.critic_mini_batch_size=256 \\
  trainer.algorithm.use_kl_loss=true {SKYRL_TAIL}
""",
        ("ppo", "gae"), correction(NONE), {"critic.lr": 5e-6, "critic.cliprange_value": 0.2, "kl.coef": 0.001},
        "# not translated: trainer.critic.model.path=Qwen/Qwen2.5-1.5B-Instruct"),
}  # fmt: skip
TRL = {  # of the paper index of its documentation: settings of GRPOConfig
    "Group Sequence Policy Optimization": (
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "beta": 0.0, "epsilon": 3e-4, "epsilon_high": 4e-4,
         "gradient_accumulation_steps": 1, "steps_per_generation": 4},
        ("gspo", "grpo"), correction(NONE), {"loss": {"eps_low": 3e-4, "eps_high": 4e-4}, "actor.num_minibatches": 4}),
    "Truncated importance sampling": (
        {"use_vllm": True, "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_truncate",
         "vllm_importance_sampling_clip_max": 2.0},
        ("ppo", "grpo"), correction(weight("sequence", upper=2.0)), {}),
    "Masked importance sampling": (
        {"use_vllm": True, "vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 2.0,
         "vllm_importance_sampling_clip_min": 0.5},
        ("ppo", "grpo"), correction(weight("sequence", "mask", 0.5, 2.0)), {}),
    "ScaleRL": (
        {"loss_type": "cispo", "epsilon_high": 5.0, "num_generations": 16, "scale_rewards": "batch",
         "cast_lm_head_to_fp32": True},
        ("cispo", "grpo_batch_std"), correction(NONE), {"rollout.group_size": 16, "loss.upper": 5.0}),
}  # fmt: skip


COMMANDS = [  # a command of TRL -> keys of GRPOConfig
    ("accelerate launch --num_processes 8 train.py --use_vllm true --learning_rate 1e-6 --top_k -1",
     {"num_processes": 8, "use_vllm": True, "learning_rate": 1e-6, "top_k": -1}),
    ("L=sapo\npython3 train.py --loss_type=$L --bf16 \\\n --use-vllm True",
     {"loss_type": "sapo", "bf16": True, "use_vllm": True}),
    ("trl grpo --use_vllm --no_vllm_importance_sampling_correction --report_to wandb tensorboard",
     {"use_vllm": True, "vllm_importance_sampling_correction": False, "report_to": ["wandb", "tensorboard"]}),
    ("accelerate launch --config_file z.yaml -m mine.train --num_generations 4 --model_init_kwargs '{\"dtype\": \"bfloat16\"}'",
     {"config_file": "z.yaml", "num_generations": 4, "model_init_kwargs": {"dtype": "bfloat16"}}),
    ("trl vllm-serve --model M --port 8000 &\npython data.py --out d\npython train.py --use_vllm true --system_prompt 'a, b: c'",
     {"use_vllm": True, "system_prompt": "a, b: c"}),
    ("python prepare.py --use_vllm true\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo",
     {"algorithm.adv_estimator": "grpo"}),
]  # fmt: skip


@pytest.mark.parametrize(("script", "expected"), COMMANDS)
def test_the_words_of_a_command_of_trl(script, expected):
    """accelerate's own options are keys too, so that each is reported. Where Hydra's overrides stand, only they are keys."""
    assert keys(script) == expected


def test_a_command_of_trl_is_imported(tmp_path):
    (tmp_path / "run.sh").write_text(
        "accelerate launch --num_processes 8 train.py --use_vllm true --loss_type grpo --max_steps 9 \\\n"
        "  --vllm_importance_sampling_mode token_truncate --vllm_importance_sampling_clip_max 2\n"
    )
    body, options, text = made_of(tmp_path / "run.sh", tmp_path)
    assert (options, body["correction"]) == (("ppo", "grpo"), correction(weight("token", upper=2)))
    assert "# TRL config run.sh, translated." in text and "# not translated: num_processes=8\n" in text


def test_a_correction_in_a_command_of_trl_is_translated_or_an_error(tmp_path):
    (tmp_path / "run.sh").write_text("python train.py --use_vllm true --vllm_importance_sampling_clip_maxx 2\n")
    with pytest.raises(UserError, match=r"vllm_importance_sampling_clip_maxx=2: a correction's key that is not translated"):
        import_config(tmp_path / "run.sh")


def test_a_python_file_names_what_to_give(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("# don't\nargs = GRPOConfig(use_vllm=True)\n")
    with pytest.raises(UserError, match=r"Python is not read; TRL: give a YAML file of GRPOConfig's keys, as use_vllm: true$"):
        import_config(path)


def value(body, key):
    for part in key.split("."):
        body = body[part]
    return body


def made_of(path, tmp_path):
    """The imported experiment and its text; it composes and passes every check."""
    text = import_config(path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(text)
    check(parse(compose("+experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")))
    body = yaml.safe_load(text)
    options = {key: option for line in body.pop("defaults") for key, option in line.items()}
    return body, (options["override /loss"], options.get("override /advantage")), text


@pytest.mark.parametrize("source", RECIPES)
def test_a_recipe_is_imported_as_it_stands(tmp_path, source):
    script, options, expected, more, line = RECIPES[source]
    (tmp_path / "run.sh").write_text(script)
    text = import_config(tmp_path / "run.sh")
    body = yaml.safe_load(text)
    chosen = {key: option for line in body.pop("defaults") for key, option in line.items()}
    assert (chosen["override /loss"], chosen.get("override /advantage")) == options
    assert body["correction"] == expected
    if rate := more.get("actor.lr"):  # of a large model: a note names it, and the small model keeps its own
        assert f"# note: actor.lr={rate:g}: the recipe's" in text and "lr" not in body.get("actor", {})
    more = {key: theirs for key, theirs in more.items() if key != "actor.lr"}
    assert {key: value(body, key) for key in more} == more
    assert line in text and "${" not in text


@pytest.mark.parametrize("source", TRL)
def test_the_settings_of_trl_are_imported(tmp_path, source):
    theirs, options, expected, more = TRL[source]
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    body, chosen, _ = made_of(tmp_path / "theirs.yaml", tmp_path)
    assert (chosen, body["correction"]) == (options, expected)
    assert {key: value(body, key) for key in more} == more


def test_a_recipe_is_ready_to_run(tmp_path, capsys):
    """The command of pull request 2953, launched: model, task, lengths; and its missing steps on standard error."""
    (tmp_path / "tis.sh").write_text(next(iter(RECIPES.values()))[0])
    main(["import-config", str(tmp_path / "tis.sh"), "--launch", str(tmp_path / "conf"), "seed=4"])
    shown = capsys.readouterr()
    assert shown.out.startswith("torchrun --nproc-per-node 8 -m experiments.train --config-dir")
    assert "+experiment=tis seed=4" in shown.out
    assert "# WARNING: trainer.total_epochs=15" in shown.err
    body = yaml.safe_load((tmp_path / "conf/experiment/tis.yaml").read_text())
    assert (body["model"]["path"], body["task"]) == (
        "Qwen/Qwen2.5-0.5B-Instruct",
        {"max_prompt": 512, "answer_length": 1024, "long_prompts": "error"},
    )


def keys(text):
    return read_script(Path("run.sh"), text)


SCRIPTS = [
    ("p a.b=1 \\\n  a.c=2 # a.d=3\n", {"a.b": 1, "a.c": 2}),
    ("p +a.b=x ++a.c='y z' ~a.b\n", {"a.c": "y z"}),
    ("p a.b=1 a.b=2", {"a.b": 2}),
    ("p a.b=null a.c=True a.d=1e-6 a.e=0.5_5.0 a.f=[x,y]",
     {"a.b": None, "a.c": True, "a.d": 1e-6, "a.e": "0.5_5.0", "a.f": ["x", "y"]}),
    ("V=3; p a.b=$V a.c=${V} a.d=\"$V\" a.e='$V'", {"a.b": 3, "a.c": 3, "a.d": 3, "a.e": "$V"}),
    ("p a.b=${X:-4} a.c=${X-5} a.d=${X:-${Y:-6}}", {"a.b": 4, "a.c": 5, "a.d": 6}),
    (": ${X:=4}\nV=${X:+7}; p a.b=$X a.c=$V", {"a.b": 4, "a.c": 7}),
    ("E=; p a.b=${E:-4} a.c=\"${E-5}\"", {"a.b": 4, "a.c": ""}),
    ("A=(a.b=1 'a.c=x y')\nA+=( a.d=2 )\np \"${A[@]}\"", {"a.b": 1, "a.c": "x y", "a.d": 2}),
    ("A='a.b=1 a.c=2'; p $A", {"a.b": 1, "a.c": 2}),
    ("N=$((1024 * 2)); p a.b=$(( (N + 8) / 2 - 7 % 4 )) a.c=$((-7 / 2))", {"a.b": 1025, "a.c": -3}),
    ("p a.b=$((-7 % 3)) a.c=$((9007199254740993 / 1))", {"a.b": -1, "a.c": 9007199254740993}),
    ("A=1 B=2 p a.b=1 > out.log 2>&1 &", {"a.b": 1}),
    ("cat <<'EOF'\na.z=1 \"\nEOF\np a.b=1 <<< x", {"a.b": 1}),
    ("if [ -z \"$X\" ]; then\n  V=1\nfi\nfor S in 1 2; do :; done\np a.b=$V a.c=$S a.d=$(date) a.e=`date`/x",
     {"a.b": "${V}", "a.c": "${S}", "a.d": "${command}", "a.e": "${command}/x"}),
    ("f() {\n  V=1\n}\ncase $X in\n  a) W=2;;\nesac\nU=3\n[ -n \"$X\" ] && U2=1\np a.b=$V a.c=$W a.d=$U a.e=$U2",
     {"a.b": "${V}", "a.c": "${W}", "a.d": 3, "a.e": "${U2}"}),
    ("V=a/b; p a.b=${V##*/} a.c=${V,,} a.d=$1 a.e=${1:-9} a.f=$UNSET",
     {"a.b": "${V}", "a.c": "${V}", "a.d": "${1}", "a.e": 9, "a.f": "${UNSET}"}),
    ("p a.b=it\\'s a.c=\"say \\\"x\\\"\" \"$@\"", {"a.b": "it's", "a.c": 'say "x"'}),
    ("algorithm.x=1\n+a.b=2\n# a comment\ntrainer.y=z\n", {"algorithm.x": 1, "a.b": 2, "trainer.y": "z"}),
]  # fmt: skip


@pytest.mark.parametrize(("script", "expected"), SCRIPTS)
def test_the_keys_of_a_script(script, expected):
    """${NAME} stands for what only an execution shows."""
    assert keys(script) == expected


@pytest.mark.parametrize(
    "script", [s for s, expected in SCRIPTS if "${" not in str(expected) and not {">", "<"} & set(s) and "p " in s]
)
def test_bash_hands_the_same_to_the_program(script):
    function = "p() { printf '%s\\0' \"$@\"; }\n"
    handed = subprocess.run(["bash", "-c", function + script], capture_output=True, text=True, check=True).stdout
    assert parse_overrides(Path("run.sh"), handed.split("\0")[:-1]) == keys(script)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo hello", r"no command sets a key, as `.* TRL: give a YAML file of GRPOConfig's keys, as use_vllm: true"),
        ("python train.py --use_vllm true\ntrl grpo --loss_type grpo", r"2 commands set keys; leave one"),
        ("trl grpo --config grpo.yaml --use_vllm true", r"--config grpo.yaml: import that file, with the command's keys"),
        ("p a.b=1\nq a.c=2", r"2 commands set keys; leave one"),
        ("p a.b=1\n  a.c=2", r"a.c=2 stands outside of the command; the line before it lacks its backslash"),
        ("p a.b=1,2", r"a.b=1,2: a sweep; leave one value"),
        ("p a.b='x", r"a quote or a bracket is not closed"),
        ("p a.b=" + "${A:-" * 9000, r"a quote or a bracket is not closed, or brackets are nested too deeply"),
        ("A=aaaaaaaa\n" + "A=$A$A\n" * 99 + "p a.b=$A", r"a variable grows beyond"),
    ],
)
def test_a_script_that_cannot_be_read_is_one_line(script, message):
    with pytest.raises(UserError, match=message) as caught:
        keys(script)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "script",
    ["p a.b=1 " + "(" * 30_000, '"${A:-' * 5_000, "A=(" * 20_000, "$((" * 20_000, "`" * 60_001, "<<E " * 15_000, "'\"" * 30_001,
     "p a.b=$((" + "9*" * 50 + "9))", "p a.b=$((1/0))"],
)  # fmt: skip
def test_no_script_hangs(script):
    started = time.process_time()  # of this process alone: a load beside it changes nothing
    with suppress(UserError):
        keys(script)
    assert time.process_time() - started < 10


def test_nothing_of_a_script_is_executed(tmp_path):
    made = tmp_path / "made"
    keys(f"touch {made}\nX=$(touch {made})\nY=`touch {made}`\n: ${{Z:=$(touch {made})}}\np a.b=$X$Y$Z$((a[$(touch {made})]))")
    assert not made.exists()


def test_what_is_not_known_is_an_error_where_it_counts(tmp_path):
    (tmp_path / "run.sh").write_text("p trainer.nnodes=$N actor_rollout_ref.actor.tis_imp_ratio_cap=$CAP")
    with pytest.raises(
        UserError, match=r"tis_imp_ratio_cap=\$\{CAP\}: resolve the config first, or write the value into the script"
    ):
        import_config(tmp_path / "run.sh")
    (tmp_path / "run.sh").write_text("p trainer.nnodes=$N actor_rollout_ref.actor.tis_imp_ratio_cap=2")
    assert "# not translated: trainer.nnodes=${N}" in import_config(tmp_path / "run.sh")


def test_what_no_key_here_needs_may_be_unknown(tmp_path):
    """verl's tuning recipes put a date into the project's name, others take the model's path from the environment.

    Both are reported; only --launch needs the path.
    """
    (tmp_path / "run.sh").write_text(
        'project=grpo-$(date +%m%d)\np algorithm.rollout_correction.rollout_is=token trainer.project_name="$project" '
        "actor_rollout_ref.model.path=$MODELS/Qwen3-8B algorithm.rollout_correction.rollout_is_threshold=3"
    )
    text = import_config(tmp_path / "run.sh")
    assert yaml.safe_load(text)["correction"]["weight"] == weight("token", upper=3)
    assert "# not translated: trainer.project_name=grpo-${command}\n" in text
    assert "# not translated: actor_rollout_ref.model.path=${MODELS}/Qwen3-8B\n" in text
    with pytest.raises(UserError, match=r"model\.path=\$\{MODELS\}/Qwen3-8B: resolve the config first"):
        import_config(tmp_path / "run.sh", ready=True)


def test_a_list_of_overrides(tmp_path):
    """Hydra's own .hydra/overrides.yaml, and lines of text."""
    lines = ["algorithm.adv_estimator=rloo", "+algorithm.rollout_correction.rollout_is=token", "rollout_is_threshold=3"]
    (tmp_path / "overrides.yaml").write_text(yaml.safe_dump(lines))
    (tmp_path / "overrides.txt").write_text("\n".join(lines[:2]) + "\nalgorithm.rollout_is_threshold=3\n")
    for name in ("overrides.yaml", "overrides.txt"):
        body = yaml.safe_load(import_config(tmp_path / name))
        assert body["correction"]["weight"] == weight("token", upper=3)


def test_a_script_is_of_bounded_size(tmp_path):
    (tmp_path / "run.sh").write_text("#" * (LARGEST_SCRIPT + 1))
    with pytest.raises(UserError, match="larger than 65536 bytes; that is no recipe"):
        import_config(tmp_path / "run.sh")
    (tmp_path / "run.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a text file"):
        import_config(tmp_path / "run.sh")
