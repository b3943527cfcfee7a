"""The hooks in the real programs: verl's DataProto through its own function, and TRL's GRPOTrainer on a tiny model."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from scipy.special import log_softmax
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from verl import DataProto
from verl.trainer.ppo import rollout_corr_helper

import faultline
from faultline.integrations import trl, verl
from harness.errors import UserError
from tests.oracles.comparing import batch
from tests.oracles.site.sitecustomize import ORACLES


def proto(seed=0, dtype=torch.float32, **tensors) -> tuple[DataProto, faultline.Batch]:
    _, b = batch(seed)
    named = {"response_mask": b.mask.long(), "old_log_probs": b.logp_old.to(dtype), "rollout_log_probs": b.logp_rollout.to(dtype)}
    return DataProto.from_dict(tensors=named | tensors), b


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_of_verl_is_dumped_as_it_is(tmp_path, dtype):
    responses, scores = torch.arange(96).view(8, 12), torch.eye(8, 12, dtype=torch.float32)
    prompts = {"prompts": torch.arange(24).view(8, 3), "attention_mask": torch.tensor([[0, 1, 1, *[1] * 12]] * 8)}
    data, b = proto(dtype=dtype, responses=responses, advantages=torch.ones(8, 12), token_level_scores=scores, **prompts)
    data.non_tensor_batch["uid"] = np.array(list("bbaaddcc"), dtype=object)
    path = verl.dump(data, tmp_path, step=3)
    assert path.name == "step-00000003.parquet"
    (read,) = faultline.load(path)
    for mine, theirs in ((read.logp_old, b.logp_old), (read.logp_rollout, b.logp_rollout)):
        assert torch.equal(mine[read.mask], theirs.to(dtype).float()[b.mask])
    assert (read.advantages[read.mask] == 1).all()
    assert read.prompt.tolist() == [1, 1, 0, 0, 3, 3, 2, 2]
    assert pq.read_table(path)["prompt"].to_pylist() == [[3 * i + 1, 3 * i + 2] for i in range(8)]  # without the left padding
    with pytest.raises(UserError, match=r"verl's batch has no rollout_log_probs: set .*calculate_log_probs=True"):
        verl.dump(data.pop(["old_log_probs"]), tmp_path, step=4)


def test_verls_own_function_is_recorded_before_it_rejects(tmp_path, monkeypatch, capsys):
    """Every second batch, of which the first is told. After a restart steps go on from the last file."""
    name = "compute_rollout_correction_and_add_to_batch"
    theirs = getattr(rollout_corr_helper, name)
    monkeypatch.setattr(rollout_corr_helper, name, theirs)  # so that the test's end takes the hook out
    settings = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.9_1.1"}
    verl.install(tmp_path, every=2)
    for seed in range(4):
        data, b = proto(seed)
        corrected, metrics = getattr(rollout_corr_helper, name)(data, settings)
        again, expected = theirs(proto(seed)[0], settings)
        assert metrics == expected and torch.equal(corrected.batch["response_mask"], again.batch["response_mask"])
        assert corrected.batch["response_mask"].sum() < b.mask.sum()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002.parquet", "step-00000004.parquet"]
    first = tmp_path / "step-00000002.parquet"
    assert capsys.readouterr().out == f"faultline: wrote {first}; now try: faultline replay {tmp_path}\n"
    for read, seed in zip(faultline.load(tmp_path), (1, 3), strict=True):
        assert torch.equal(read.logp_old[read.mask], batch(seed)[1].logp_old.float()[batch(seed)[1].mask])
    monkeypatch.setattr(rollout_corr_helper, name, theirs)
    (tmp_path / "step-00000009-9-rank-0.parquet").touch()  # a dump of TRL
    verl.install(tmp_path, every=1)
    getattr(rollout_corr_helper, name)(proto(0)[0], settings)
    assert (tmp_path / "step-00000005.parquet").exists()


def test_verl_imports_the_hook_that_its_environment_names(tmp_path):
    code = f"""
import sys, typing, typing_extensions
sys.path += [{str(ORACLES)!r}]
import torch
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
logps = -torch.ones(2, 3)
data = DataProto.from_dict(tensors=dict(response_mask=torch.ones(2, 3), old_log_probs=logps, rollout_log_probs=1.5 * logps))
compute_rollout_correction_and_add_to_batch(data, {{}})
"""
    hook = {"VERL_USE_EXTERNAL_MODULES": "faultline.integrations.verl", "FAULTLINE_DUMP": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | hook)
    assert done.returncode == 0, done.stderr
    (read,) = faultline.load(tmp_path)
    assert read.logp_old.tolist() == [[-1.0] * 3] * 2 and read.logp_rollout.tolist() == [[-1.5] * 3] * 2


def test_verls_batches_are_diagnosed_in_a_line(monkeypatch, capsys):
    """Every second batch, by uid. Log-probabilities to base 2 are named. No folder, no dump."""
    name = "compute_rollout_correction_and_add_to_batch"
    theirs = getattr(rollout_corr_helper, name)
    monkeypatch.setattr(rollout_corr_helper, name, theirs)
    verl.install(diagnose_every=2)
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (64, 20, 50)).repeat(4, 0)  # samples of a prompt share their odds
    chosen = (logits + rng.gumbel(size=logits.shape)).argmax(-1)[..., None]
    logp = torch.from_numpy(np.take_along_axis(log_softmax(logits, -1), chosen, -1)[..., 0]).float()
    rounding = torch.from_numpy(-np.abs(rng.normal(0, 1e-5, logp.shape))).float()
    for base in (1.0, math.log(2)):
        tensors = {"response_mask": torch.ones(256, 20), "old_log_probs": logp, "rollout_log_probs": (logp + rounding) / base}
        uid = np.repeat(np.arange(64), 4).astype(str).astype(object)
        for _ in range(2):
            getattr(rollout_corr_helper, name)(DataProto.from_dict(tensors=tensors, non_tensors={"uid": uid}), {})
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("faultline: "))
    assert first.startswith("faultline: step 2: consistent mean ratio 1.0000 ")
    assert second.startswith("faultline: step 4: FAULT log_base: ") and "base 2" in second


@pytest.mark.parametrize("trainer", ["ray_trainer.py", "v1/trainer_base.py"])
def test_both_trainers_of_verl_call_that_function_before_they_compute_advantages(trainer):
    """They need a cluster and packages that are not here, so their source is read."""
    text = (ORACLES / "verl/trainer/ppo" / trainer).read_text()
    call = r"compute_rollout_correction_and_add_to_batch\((data|batch), rollout_corr_config\)"
    calls = [m.start() for m in re.finditer(call, text)]
    later = [m.start() for m in re.finditer(r"(data|batch) = compute_advantage\w*\(", text)]
    assert len(calls) == 1 and any(place > calls[0] for place in later)


VOCABULARY = {"<pad>": 0, "<eos>": 1, **{str(i): i + 2 for i in range(10)}}


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")


def grpo_trainer(folder: Path, rollouts: list, **settings) -> GRPOTrainer:
    """Sampling is by a bf16 copy of the weights at that time, which is kept in `rollouts` with what it drew."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": len(VOCABULARY)}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, pad_token_id=0, eos_token_id=1))
    model.save_pretrained(folder / "model")
    model.config._name_or_path = str(folder / "model")  # where TRL takes the reference model of beta from

    def rollout(prompts: list[str], trainer: GRPOTrainer) -> dict:
        now = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
        engine = Qwen3ForCausalLM(model.config).eval()
        engine.load_state_dict(now)
        engine.to(torch.bfloat16)
        drawn = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for prompt in prompts:
            ids, logps = trainer.processing_class(prompt)["input_ids"], []
            start = len(ids)
            for _ in range(5):
                with torch.no_grad():
                    logp = engine(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
                token = int(torch.multinomial(logp.exp(), 1))
                ids, logps = [*ids, token], [*logps, float(logp[token])]
                if token == 1:
                    break
            for name, value in zip(drawn, (ids[:start], ids[start:], logps), strict=True):
                drawn[name].append(value)
        rollouts.append((now, drawn))
        return drawn

    arguments = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 5, "max_steps": 2}
    arguments["learning_rate"] = 1e-2
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "bf16": False}
    config = GRPOConfig(output_dir=str(folder / "trl"), **arguments | quiet | settings)
    data = Dataset.from_list([{"prompt": f"{i} {i + 1}"} for i in range(8)])

    def reward(completions, **_):
        return [float(len(set(text))) for text in completions]

    return GRPOTrainer(model, reward, config, data, processing_class=tokenizer(), rollout_func=rollout)


@pytest.mark.parametrize("iterations", [1, 2])
def test_what_grpo_trains_on_is_dumped(tmp_path, iterations, capsys):
    """log μ as sampled, log π_old and its entropy by a forward of the fp32 weights at that time, and the prompts.

    With two iterations TRL itself computes log π_old, and generates once for both. The reference model of beta gives no entropy.
    """
    rollouts = []
    trainer = grpo_trainer(tmp_path, rollouts, num_iterations=iterations, per_device_train_batch_size=8, beta=0.1)
    trl.record(trainer, tmp_path / "dump", diagnose=2)
    trainer.train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("faultline: ")]
    assert len(lines) == 1 and lines[0].startswith("faultline: step 0: consistent mean ratio ")
    names = [f"step-0000000{i}-{i}-rank-0.parquet" for i in range(0, 2, iterations)]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == names
    batches = faultline.load(tmp_path / "dump")
    assert len(batches) == len(rollouts) == len(names)
    tables = [pq.read_table(tmp_path / "dump" / name) for name in names]
    for read, table, (weights, drawn) in zip(batches, tables, rollouts, strict=True):
        assert read.prompt.tolist() == [0] * 4 + [1] * 4 and table["prompt"].to_pylist() == drawn["prompt_ids"]
        trainer.model.load_state_dict(weights)
        for row, (prompt, completion, logps) in enumerate(zip(*drawn.values(), strict=True)):
            length = len(completion)
            assert read.mask[row].sum() == length
            assert read.logp_rollout[row, :length].tolist() == pytest.approx(logps, abs=1e-6)
            with torch.no_grad():
                logits = trainer.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            exact = logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
            torch.testing.assert_close(read.logp_old[row, :length], exact, atol=2e-5, rtol=0)
            entropy = table["entropy"][row].as_py()
            assert entropy == pytest.approx(torch.distributions.Categorical(logits=logits).entropy().tolist(), abs=2e-5)
    replayed = faultline.replay(tmp_path / "dump", ["token_truncate"])
    assert 0 < replayed.mismatch["rollout_corr/k3_kl"] < 1e-2  # bf16 against fp32


def test_generations_of_one_optimizer_step_are_of_different_prompts(tmp_path):
    """Two passes of four responses make a step, and each generates for a prompt of its own."""
    settings = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "max_steps": 1}
    trainer = grpo_trainer(tmp_path, [], **settings)
    trl.record(trainer, tmp_path / "dump")
    trainer.train()
    (read,) = faultline.load(tmp_path / "dump")
    assert read.prompt.tolist() == [0] * 4 + [1] * 4


def test_tokens_that_vllm_does_not_tell_and_those_of_tools_are_masked():
    nan = float("nan")
    out = {
        "completion_ids": torch.tensor([[5, 6, 7]]),
        "completion_mask": torch.tensor([[1, 1, 1]]),
        "tool_mask": torch.tensor([[1, 1, 0]]),
        "sampling_per_token_logps": torch.tensor([[-1.0, nan, -2.0]]),
        "advantages": torch.tensor([0.5]),
        "prompt_ids": torch.tensor([[0, 8]]),
        "prompt_mask": torch.tensor([[0, 1]]),
    }
    columns = trl.columns(out, torch.tensor([[-1.0, -1.0, -1.0]]), torch.ones(1, 3), 4, np.zeros(1, int))
    assert columns["mask"].tolist() == [[True, False, False]] and columns["step"].tolist() == [4]
    assert columns["advantages"].tolist() == [[0.5] * 3]


def test_a_trainer_without_sampled_log_probabilities_is_refused(tmp_path):
    trainer = grpo_trainer(tmp_path, [])
    trainer.rollout_func = None
    with pytest.raises(UserError, match="set use_vllm=True in GRPOConfig"):
        trl.record(trainer, tmp_path)
    for refused in (lambda: trl.record(trainer, tmp_path, every=0), lambda: verl.install(tmp_path, every=0)):
        with pytest.raises(UserError, match="every=0: give a whole number of at least 1"):
            refused()


def test_an_interval_that_is_no_number_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FAULTLINE_DUMP", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_DUMP_EVERY", "ten")
    with pytest.raises(UserError, match="FAULTLINE_DUMP_EVERY=ten: give a whole number of at least 1"):
        verl._install_from_environment()
