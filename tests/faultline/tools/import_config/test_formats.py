"""The number formats in which another program's engine samples are translated, or their loss is a warning."""

import pytest
import yaml

from faultline.cli import main
from faultline.tools.import_config import import_config
from harness.compose import compose
from harness.config import parse

SKYRL = {"trainer.algorithm.use_kl_loss": False, "trainer.max_training_steps": 9}
VERL = {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 9}
INIT = "generator.inference_engine.engine_init_kwargs."
VLLM = "actor_rollout_ref.rollout.engine_kwargs.vllm."
BLOCK = "actor_rollout_ref.rollout.quantization"


def warnings_of(tmp_path, theirs):
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    lines = import_config(tmp_path / "theirs.yaml").splitlines()
    return [line.removeprefix("# WARNING: ") for line in lines if line.startswith("# WARNING: ")]


@pytest.mark.parametrize(
    ("theirs", "precision", "kv_cache"),
    [
        (SKYRL | {f"{INIT}quantization": "fp8"}, "fp8_tensor", None),
        (SKYRL | {f"{INIT}quantization": "fp8_per_block", f"{INIT}kv_cache_dtype": "fp8_e5m2"}, "fp8_block", "fp8_e5m2"),
        (SKYRL | {f"{INIT}kv_cache_dtype": "fp8"}, "bf16", "fp8_e4m3"),
        (SKYRL | {f"{INIT}dtype": "float16", "generator.inference_engine.model_dtype": "bfloat16"}, "fp16", None),
        (VERL | {BLOCK: "fp8"}, "fp8_block", None),
        (VERL | {f"{VLLM}quantization": "fp8_per_channel"}, "fp8_channel", None),
        (VERL | {BLOCK: "fp8", f"{VLLM}quantization": "fp8"}, "fp8_block", None),
        (VERL | {f"{VLLM}kv_cache_dtype": "auto"}, "bf16", "compute"),
        (VERL | {f"{VLLM}kv_cache_dtype": "bfloat16"}, "bf16", "compute"),
        (VERL | {f"{VLLM}dtype": "float32"}, "fp32", None),
        (VERL | {"actor_rollout_ref.rollout.logprobs_mode": "processed_logprobs", f"{VLLM}disable_cascade_attn": False}, "bf16",
         None),
    ],
)  # fmt: skip
def test_the_formats_of_the_engine(imported, tmp_path, theirs, precision, kv_cache):
    body, notes, lost = imported(theirs)
    assert body["options"].get("rollout/precision", "bf16") == precision and lost == []
    assert ("fp8_tensor here" in "".join(notes)) == (precision == "fp8_tensor")
    assert body.get("rollout", {}).get("kv_cache") == kv_cache
    assert warnings_of(tmp_path, theirs) == []


def test_the_example_of_skyrl_in_fp8_is_no_bf16_run(imported, tmp_path):
    """examples/train/text_to_sql/run_skyrl_sql_fp8.sh of SkyRL 0.3.0 sets this key. vLLM's format depends on the checkpoint."""
    (tmp_path / "run.sh").write_text(
        "python -m skyrl.train.entrypoints.main_base trainer.algorithm.advantage_estimator=grpo \\\n"
        f"  +{INIT}quantization=fp8 +{INIT}kv_cache_dtype=fp8\n"
    )
    text = import_config(tmp_path / "run.sh")
    assert f"note: {INIT}quantization=fp8: vLLM's, fp8_tensor here; fp8_block if the checkpoint has a weight_block_size" in text
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(text)
    rollout = parse(compose("+experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")).rollout
    assert (rollout.precision.name, rollout.kv_cache) == ("fp8_tensor", "fp8_e4m3")


def test_an_fp16_engine_with_fp8_weights(imported):
    body = imported(SKYRL | {"generator.inference_engine.model_dtype": "float16", f"{INIT}quantization": "fp8"})[0]
    assert body["options"]["rollout/precision"] == "fp8_tensor" and body["rollout"] == {"precision": {"compute": "fp16"}}


@pytest.mark.parametrize(
    ("program", "key", "value", "remedy"),
    [
        (SKYRL, f"{INIT}quantization", "awq", "Choose rollout/precision"),
        (VERL, BLOCK, "torchao", "Choose rollout/precision"),
        (VERL, f"{VLLM}quantization", "gptq", "Choose rollout/precision"),
        (VERL, "actor_rollout_ref.rollout.engine_kwargs.sglang.quantization", "fp8", "Choose rollout/precision"),
        (VERL, "actor_rollout_ref.rollout.dtype", "float8", "Choose rollout/precision"),
        (SKYRL, "generator.inference_engine.model_dtype", "float8", "Choose rollout/precision"),
        (SKYRL, f"{INIT}kv_cache_dtype", "fp8_inc", "Choose rollout.kv_cache of compute, fp8_e4m3, fp8_e5m2"),
        (VERL, "actor_rollout_ref.rollout.engine_kwargs.sglang.kv_cache_dtype", "fp8_e5m2", "Choose rollout.kv_cache"),
        (SKYRL, f"{INIT}logprobs_mode", "raw_logprobs", "The engine here logs processed_logprobs"),
        (VERL, "actor_rollout_ref.rollout.logprobs_mode", "raw_logits", "The engine here logs processed_logprobs"),
        (VERL, f"{VLLM}disable_cascade_attn", True, "vLLM here keeps its default"),
        (SKYRL, f"{INIT}disable_cascade_attn", True, "vLLM here keeps its default"),
        (SKYRL, "generator.engine_init_kwargs.quantization", "fp8", "Choose rollout/precision"),
    ],
)
def test_what_changes_the_logged_numbers_and_is_not_translated_is_a_warning(imported, tmp_path, program, key, value, remedy):
    (warning,) = warnings_of(tmp_path, program | {key: value})
    assert warning.startswith(
        f"{key}={value}: NOT TRANSLATED, and it changes the log-probabilities that the engine logs. {remedy}"
    )
    assert [line.partition(": ")[0] for line in imported(program | {key: value})[2]] == [f"{key}={value}"]


def test_such_a_warning_stands_on_the_terminal(tmp_path, capsys):
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(SKYRL | {f"{INIT}quantization": "awq"}))
    main(["import-config", str(tmp_path / "theirs.yaml")])
    assert f"# WARNING: {INIT}quantization=awq: NOT TRANSLATED" in capsys.readouterr().err


def test_a_dtype_of_the_trainer_is_none_of_the_engine(tmp_path):
    theirs = VERL | {"actor_rollout_ref.ref.fsdp_config.dtype": "bfloat16", "actor_rollout_ref.model.dtype": "x"}
    assert warnings_of(tmp_path, theirs) == []
