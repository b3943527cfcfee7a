"""`python -m tests.oracles.trl_batches [FOLDER]`: print what replay says of first batches of TRL's own trainer, from the record.

With FOLDER the batches are made there first, those that are missing, and recorded. TRL's GRPOTrainer and its own vLLM sample
SmolLM2-135M; `make llm vllm .venv/oracles/installed` installs them. A batch takes a process of two minutes. Start one command at
a time: TRL's rendezvous has one port. A folder keeps what an earlier version of this file made: name a new one after a change.
"""

from __future__ import annotations

import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.boundary import command
from harness.errors import UserError
from tests.oracles.first_batches import ASKED, MODEL, RESPONSES, SAMPLES, TOKENS, Setting, Trainer, main, reward

SETTINGS = {
    "temperature 1": Setting({"temperature": 1.0}, "consistent"),
    "temperature 0.7": Setting({"temperature": 0.7}, "consistent"),
    "temperature 0.7, raw log-probabilities": Setting({"temperature": 0.7, "logprobs_mode": "raw_logprobs"}, "raw_logprobs"),
    "top_p 0.9": Setting({"top_p": 0.9}, "truncated_sampling"),
    "top_k 20": Setting({"top_k": 20}, "truncated_sampling"),
    "min_p 0.1": Setting({"min_p": 0.1}, "truncated_sampling"),
    "repetition_penalty 1.2": Setting({"repetition_penalty": 1.2}, ""),
}
"""Keys of GRPOConfig, and `logprobs_mode` of TRL's vLLM. TRL 1.16.0 asks for processed log-probabilities. The third is what it
asked for before its pull request 4163, and what a vLLM server does that is started without `--logprobs-mode`. In each the seed
of TRL's vLLM and the first sync of weights are replaced (`_dump`)."""


def dump(setting: Setting, seed: int, folder: Path) -> None:
    """Have TRL write its first batch into `folder`, before the update."""
    process = get_context("spawn").Process(target=_dump, args=(setting, seed, folder))
    process.start()
    process.join()
    if process.exitcode:
        raise UserError(f"TRL's trainer ended with code {process.exitcode}")


def _dump(setting: Setting, seed: int, folder: Path) -> None:
    import tests.oracles.site.sitecustomize  # noqa: F401, where TRL is
    from harness.rollouts import vllm_support  # noqa: F401, sets what vLLM reads when it is imported

    # isort: split
    import torch
    import trl.generation.vllm_generation as engine
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from faultline.integrations.trl import record

    theirs, keys = engine.LLM, dict(setting.keys)
    of_engine = {"logprobs_mode": keys.pop("logprobs_mode", "processed_logprobs"), "seed": seed}  # TRL's seed is 0
    engine.LLM = lambda **options: theirs(**options | of_engine)
    # vLLM has the checkpoint's weights already. On a CPU it packs them, and TRL's way to load others finds nothing to load into.
    engine.VLLMGeneration.sync_weights = lambda self: None
    config = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], save_strategy="no", seed=seed,
        per_device_train_batch_size=16, gradient_accumulation_steps=RESPONSES // 16, num_generations=SAMPLES,
        max_completion_length=TOKENS, max_steps=1, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=96, **keys,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": asked}]} for asked in ASKED])
    tokenizer = AutoTokenizer.from_pretrained(MODEL)

    class First(GRPOTrainer):
        def _prepare_inputs(self, batch: Any) -> Any:
            super()._prepare_inputs(batch)
            sys.exit()  # the batch is written, and the update would take minutes

    trainer = First(model, _reward, config, prompts, processing_class=tokenizer)
    record(trainer, folder)
    trainer.train()


def _reward(completions: list[Any], **_: Any) -> list[float]:
    return [reward(one[0]["content"]) for one in completions]


TRL = Trainer("TRL", SETTINGS, (1710, 1711, 1712), dump, "step-*.parquet")

if __name__ == "__main__":
    with command("interrupted; the same command goes on"):
        main(TRL, sys.argv[1:])
