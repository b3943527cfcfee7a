"""Part of `make bench`: an RL step of SmolLM2 against TRL's GRPOTrainer, on 64 responses of 64 tokens each.

Each trains the same weights in fp32 by GRPO with one optimizer step a batch, in a process of its own, so that its peak of memory
is its own. No response ends early. TRL trains on its batch at once, as it does unless told otherwise; the run has micro-batches.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from experiments.bench.measure import milliseconds, ratio, timed
from harness.compose import compose
from harness.config import Config, parse

MODEL, STEPS, PROMPTS, GROUP, LENGTH = Path("models/smollm2"), 1, 16, 4, 64


def main() -> None:
    """Print processor time and peak memory of each, and their ratios."""
    if not MODEL.exists():
        print(f"\n{MODEL} is not there (`make llm`): an RL step of SmolLM2 is not measured")
        return
    if find_spec("trl") is None:
        print("\nTRL is not installed: `make bench` puts it on the path of this part")
        return
    taken = {}
    for who in ("ours", "trl"):
        command = [sys.executable, "-W", "ignore", "-m", "experiments.bench.smollm2", who]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        taken[who] = json.loads(done.stdout.splitlines()[-1])
    (ours, memory), (theirs, their_memory) = (taken[who] for who in ("ours", "trl"))
    print(f"\none RL step of SmolLM2, fp32, {PROMPTS * GROUP} responses of {LENGTH} tokens, {STEPS} steps each:")
    print(f"  {milliseconds(ours)}, TRL {milliseconds(theirs)}, {ratio(theirs, ours)} times as fast")
    print(
        f"  peak of the process {memory / 2**30:.2f} GiB, TRL's {their_memory / 2**30:.2f} GiB: {memory / their_memory:.2f} of it"
    )


def measure(who: str) -> None:
    """Print the seconds of each step and this process's peak memory in bytes, as JSON."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        config = parse(compose(
            "+experiment=smollm2/base", "rollout/precision=fp32", f"task.answer_length={LENGTH}", f"rollout.prompts={PROMPTS}",
            f"rollout.group_size={GROUP}", "tracking=disabled", f"run.root={root}",
        ))  # fmt: skip
        seconds = (_ours if who == "ours" else _trl)(config)
    print(json.dumps([seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))


def _ours(config: Config) -> list[float]:
    from harness.run.folder import RunFolder
    from harness.train.trainer import Trainer
    from harness.validate import check

    folder = RunFolder(config.path)
    with folder.claim():
        trainer = Trainer(check(config), folder)
        trainer.sampler.task.stop = ()
        for engine in (trainer.sampler.engine, trainer.scorer.policy):
            engine.stop = torch.tensor([], dtype=torch.int64)  # type: ignore[union-attr]  # the embedded engine's
        return [timed(lambda step=step: trainer.step(step)) for step in range(1, STEPS + 1)]


def _trl(config: Config) -> list[float]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from harness.build import build_task
    from harness.config import HubConfig
    from harness.models import hub_model, hub_tokenizer
    from harness.tasks import PAD

    assert isinstance(config.model, HubConfig)
    tokenizer, seconds = hub_tokenizer(config.model), []
    prompts = [tokenizer.decode(row[row != PAD]) for row in build_task(config).prompts()]

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds.append(time.process_time() - self.began)
            self.began = time.process_time()

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.process_time()

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        assert all(len(ids) == LENGTH for ids in completion_ids)
        return [len(set(ids)) / LENGTH for ids in completion_ids]  # whatever differs within a group

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            folder, per_device_train_batch_size=PROMPTS * GROUP, gradient_accumulation_steps=1, num_generations=GROUP,
            max_completion_length=LENGTH, max_steps=STEPS, learning_rate=config.actor.lr, beta=0.0, bf16=False,
            gradient_checkpointing=False, use_cpu=True, report_to=[], logging_steps=10**6, save_strategy="no", disable_tqdm=True,
            generation_kwargs={"min_new_tokens": LENGTH},
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": prompts})
        GRPOTrainer(hub_model(config.model), reward, settings, data, processing_class=tokenizer, callbacks=[Clock()]).train()
    return seconds


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
