"""`python -m tests.oracles.verl_batches [FOLDER]`: print what replay says of first batches of verl's trainer, from the record.

With FOLDER the batches are made there first, those that are missing, and recorded. verl's `main_ppo` samples
SmolLM2-135M by vLLM on a CPU; `make llm vllm .venv/oracles/installed` installs them. A batch takes three minutes and 10 GB. Start
one command at a time. A folder keeps what an earlier version of this file made: name a new one after a change.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from harness.boundary import command
from harness.errors import UserError
from tests.oracles.first_batches import MODEL, RESPONSES, SAMPLES, TOKENS, Setting, Trainer, main, prompts, reward, run

SETTINGS = {
    "temperature 1": Setting({}, "consistent"),
    "temperature 0.7": Setting({"temperature": 0.7}, "consistent"),
    "temperature 0.7, raw log-probabilities": Setting({"temperature": 0.7, "logprobs_mode": "raw_logprobs"}, "raw_logprobs"),
    "top_p 0.9": Setting({"top_p": 0.9}, "truncated_sampling"),
    "top_k 20": Setting({"top_k": 20}, "truncated_sampling"),
}
"""Keys of `actor_rollout_ref.rollout`. verl 0.9.1 asks vLLM for processed log-probabilities. The third is what verl logged before
its pull request 4755."""
KEYS: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": RESPONSES // SAMPLES,
    "data.max_prompt_length": 64,
    "data.max_response_length": TOKENS,
    "data.dataloader_num_workers": 0,
    "reward.num_workers": 1,
    "actor_rollout_ref.model.path": MODEL,
    "actor_rollout_ref.model.use_remove_padding": False,  # needs flash-attn
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.ppo_mini_batch_size": RESPONSES // SAMPLES,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 16,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": SAMPLES,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 16,
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.rollout.free_cache_engine": False,
    "+actor_rollout_ref.rollout.enable_sleep_mode": False,
    "actor_rollout_ref.rollout.load_format": "auto",
    "actor_rollout_ref.rollout.max_model_len": 96,
    "actor_rollout_ref.rollout.max_num_seqs": 128,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 2048,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls": "tests.oracles.verl_cpu_vllm.Extension",
    "algorithm.rollout_correction.bypass_mode": False,
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.logger": "[console]",
    "trainer.val_before_train": False,
    "trainer.save_freq": -1,
    "trainer.test_freq": -1,
    "trainer.total_training_steps": 1,
    "trainer.critic_warmup": 2,  # verl's key that leaves out the update, which would take a minute
    "trainer.resume_mode": "disable",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    "+ray_kwargs.ray_init.num_gpus": 1,  # which does not exist
    "ray_kwargs.ray_init.num_cpus": 16,  # as many as its actors ask for
    "+ray_kwargs.ray_init.include_dashboard": False,
}
"""Keys of all batches: a small batch, and what a machine without a GPU needs."""
OF_VERL = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # its FSDP engine, which has no name of its own for a CPU
    "VERL_USE_EXTERNAL_MODULES": "tests.oracles.verl_cpu,faultline.integrations.verl",
}
"""Environment by which verl takes the CPU of `verl_cpu.py`, and Faultline's hook."""


def dump(setting: Setting, seed: int, folder: Path) -> None:
    """Have verl write its first batch into `folder`/dump."""
    folder = folder.resolve()
    asked = prompts(folder, {"data_source": "names", "reward_model": {"ground_truth": ""}})
    keys = KEYS | {f"actor_rollout_ref.rollout.{key}": value for key, value in setting.keys.items()}
    keys |= {"actor_rollout_ref.rollout.seed": seed, "data.seed": seed, "hydra.run.dir": folder / "hydra"}
    keys |= {"data.train_files": asked, "data.val_files": asked}
    keys |= {"reward.custom_reward_function.path": __file__, "reward.custom_reward_function.name": "scored"}
    run("verl.trainer.main_ppo", keys, OF_VERL | {"FAULTLINE_DUMP": str(folder / "dump")}, folder)


def scored(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """The reward in verl's form."""
    return reward(solution_str)


def logged(folder: Path, mean_ratio: float) -> dict[str, float]:
    """By how much the mean ratio by verl's metrics, k3_kl − kl + 1, is off that of the batch. Raises UserError without them."""
    printed = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    values = {name: re.findall(rf"rollout_corr/{name}:(\S+)", printed) for name in ("k3_kl", "kl")}
    if not all(values.values()):
        raise UserError(f"{folder / 'log.txt'}: verl printed no rollout_corr/k3_kl and rollout_corr/kl")
    return {"logged_off": float(values["k3_kl"][-1]) - float(values["kl"][-1]) - (mean_ratio - 1)}


VERL = Trainer("verl", SETTINGS, (1720, 1721, 1722), dump, "dump/step-*.parquet", logged)

if __name__ == "__main__":
    with command("interrupted; the same command goes on"):
        main(VERL, sys.argv[1:])
