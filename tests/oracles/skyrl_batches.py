"""`python -m tests.oracles.skyrl_batches [FOLDER]`: print what replay says of first batches of SkyRL's trainer, from the record.

With FOLDER the batches are made there first, those that are missing, and recorded. SkyRL's `main_base` samples
SmolLM2-135M by vLLM on a CPU; `make llm vllm .venv/oracles/installed` installs them. A batch takes two minutes and 6 GB. A
folder keeps what an earlier version of this file made: name a new one after a change.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.boundary import command
from tests.oracles.first_batches import MODEL, RESPONSES, SAMPLES, TOKENS, Setting, Trainer, main, prompts, run

MODE = "generator.inference_engine.engine_init_kwargs.logprobs_mode"
PROCESSED = {MODE: "processed_logprobs"}
SETTINGS = {
    "temperature 1": Setting({}, "consistent"),
    "temperature 0.7": Setting({"temperature": 0.7}, "raw_logprobs"),
    "temperature 0.7, processed log-probabilities": Setting({"temperature": 0.7} | PROCESSED, "consistent"),
    "top_p 0.9": Setting({"top_p": 0.9}, ""),
    "top_p 0.9, processed log-probabilities": Setting({"top_p": 0.9} | PROCESSED, "truncated_sampling"),
    "top_k 20, processed log-probabilities": Setting({"top_k": 20} | PROCESSED, "truncated_sampling"),
}
"""Keys of `generator.sampling_params`, and vLLM's logprobs_mode. SkyRL 0.3.0 leaves the mode at vLLM's default, raw
log-probabilities. Those of the fourth setting are from before the cut: no rule sees that in these columns."""
KEYS: dict[str, Any] = {
    "trainer.override_entrypoint": "tests.oracles.skyrl_cpu",
    "trainer.dump_data_batch": "true",
    "trainer.policy.model.path": MODEL,
    "trainer.strategy": "fsdp",
    "trainer.algorithm.advantage_estimator": "grpo",
    "trainer.algorithm.use_kl_loss": "false",
    "trainer.placement.colocate_all": "false",
    "trainer.placement.colocate_policy_ref": "false",
    "trainer.flash_attn": "false",
    "trainer.remove_microbatch_padding": "false",  # needs flash-attn
    "trainer.gradient_checkpointing": "false",
    "trainer.train_batch_size": RESPONSES // SAMPLES,
    "trainer.policy_mini_batch_size": RESPONSES // SAMPLES,
    "trainer.micro_forward_batch_size_per_gpu": 16,
    "trainer.micro_train_batch_size_per_gpu": 16,
    "trainer.max_prompt_length": 64,
    "trainer.enable_ray_gpu_monitor": "false",
    "trainer.epochs": 1,
    "trainer.max_training_steps": 1,
    "trainer.eval_interval": -1,
    "trainer.eval_before_train": "false",
    "trainer.ckpt_interval": -1,
    "trainer.hf_save_interval": -1,
    "trainer.resume_mode": "none",
    "trainer.logger": "console",
    "trainer.project_name": "first",
    "trainer.run_name": "first",
    "data.val_data": "null",
    "data.dataloader.num_workers": 0,
    "data.dataloader.persistent_workers": "false",
    "environment.env_class": "names",
    "generator.max_input_length": 64,
    "generator.sampling_params.max_generate_length": TOKENS,
    "generator.sampling_params.logprobs": 1,
    "generator.n_samples_per_prompt": SAMPLES,
    "generator.use_cache_salt": "false",
    "generator.inference_engine.backend": "vllm",
    "generator.inference_engine.distributed_executor_backend": "mp",
    "generator.inference_engine.enforce_eager": "true",
    "generator.inference_engine.enable_ray_prometheus_stats": "false",
    "generator.inference_engine.max_num_seqs": 128,
    "generator.inference_engine.max_num_batched_tokens": 2048,
    "generator.inference_engine.engine_init_kwargs.max_model_len": 96,
    "generator.inference_engine.engine_init_kwargs.enable_scale_out": "true",  # vLLM 0.32 asks for it, SkyRL's 0.23 did not
}
"""Keys of all batches: a small batch, and what a machine without a GPU needs."""


def dump(setting: Setting, seed: int, folder: Path) -> None:
    """Have SkyRL write its first batch into `folder`/dumped_data."""
    folder = folder.resolve()
    asked = prompts(folder, {"data_source": "names", "env_class": "names", "reward_spec": {"method": "rule", "ground_truth": ""}})
    keys = {key if key == MODE else f"generator.sampling_params.{key}": value for key, value in setting.keys.items()}
    keys |= {"data.train_data": [str(asked)], "trainer.seed": seed, "trainer.export_path": folder}
    keys |= {"trainer.ckpt_path": folder / "checkpoints", "trainer.log_path": folder / "log"}
    run("skyrl.train.entrypoints.main_base", KEYS | keys, {}, folder)


SKYRL = Trainer("SkyRL", SETTINGS, (1730, 1731, 1732), dump, "dumped_data/*.pkl")

if __name__ == "__main__":
    with command("interrupted; the same command goes on"):
        main(SKYRL, sys.argv[1:])
