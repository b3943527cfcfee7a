"""Part of `make bench`: a whole RL step, from prompts to the optimizer, against TRL's GRPOTrainer.

Both train the same weights on as many prompts, responses and tokens, by GRPO with one optimizer step a batch, in fp32. TRL
generates by transformers and scores no old policy, which one step a batch does not need; the run scores its own exactly.
Steps take turns in one process. TRL's do not depend on what the policy has learned, the run's do.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from experiments.bench.measure import milliseconds, ratio, timed
from harness.build import build_task
from harness.compose import compose
from harness.config import Config, parse
from harness.run.folder import RunFolder
from harness.tasks.chain import Chain
from harness.train.trainer import Trainer
from harness.train.warmstart import start
from harness.validate import check

STEPS, EARLY, LATE = 100, range(1, 13), range(75, 100)
"""Steps of each run, and those that are compared."""
RUNS = {"the default run": ("rollout/precision=fp32",), "the demo, a mixture of experts": ("+experiment=demo/fp32",)}


def main() -> None:
    """Print the ratios of an early and of a late step, of a dense model and of a mixture of experts."""
    if find_spec("trl") is None:
        print("\nTRL is not installed: `make bench` puts it on the path of this part")
        return
    torch.set_num_threads(1)
    for what, overrides in RUNS.items():
        with tempfile.TemporaryDirectory() as root:
            against_trl(what, parse(compose(*overrides, "tracking=disabled", f"run.root={root}")))


def against_trl(what: str, config: Config) -> None:
    """STEPS steps of each in turns; steps that evaluate are left out of both."""
    task = build_task(config)
    assert isinstance(task, Chain)
    folder = RunFolder(config.path)
    with folder.claim():
        trainer = Trainer(check(config), folder)
        net = start(config, task).net
        number, seconds = iter(range(1, STEPS)), {}

        def turn() -> None:
            step = next(number)
            seconds[step] = timed(lambda: trainer.step(step))

        theirs = grpo(net, config, _tokenizer(task), [" ".join(map(str, row)) for row in task.prompts().tolist()], turn)
    rows = config.rollout.prompts * config.rollout.group_size
    print(f"\none RL step of {what}, fp32, {rows} responses of {task.answer_length} tokens, against TRL {_version()}:")
    for name, steps in (("early", EARLY), ("from step 75", LATE)):
        ours = [seconds[step] for step in steps if step % config.evaluation.every]
        them = [theirs[step] for step in steps if step % config.evaluation.every]
        print(f"  {name}: {milliseconds(ours)}, TRL {milliseconds(them)}, {ratio(them, ours)} times as fast", flush=True)


def grpo(
    net: PreTrainedModel, config: Config, tokenizer: PreTrainedTokenizerFast, prompts: list[str], turn: Callable[[], None]
) -> dict[int, float]:
    """Processor seconds of TRL's steps 1 to STEPS, `turn` being called between each two of them."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    task, rows = build_task(config), config.rollout.prompts * config.rollout.group_size
    seconds: dict[int, float] = {}

    class Turns(TrainerCallback):
        began = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds[state.global_step] = time.process_time() - self.began
            if state.global_step < STEPS:
                turn()
            self.began = time.process_time()

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        ids = torch.tensor([[int(word) for word in prompt.split()] for prompt in prompts])
        answers = torch.full((len(ids), task.answer_length), -1)
        for row, completion in zip(answers, completion_ids, strict=True):
            row[: len(completion)] = torch.tensor(completion)
        return task.reward(ids.numpy(), answers.numpy()).tolist()

    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ):
        os.environ.pop("LOCAL_RANK", None)  # set by the run, it would make accelerate wrap the model for several processes
        settings = GRPOConfig(
            folder, per_device_train_batch_size=rows, gradient_accumulation_steps=1, num_generations=config.rollout.group_size,
            max_completion_length=task.answer_length, max_steps=STEPS, learning_rate=config.actor.lr, beta=0.0,
            temperature=config.rollout.temperature, lr_scheduler_type="constant", max_grad_norm=config.actor.max_grad_norm,
            bf16=False, gradient_checkpointing=False, use_cpu=True, report_to=[], logging_steps=10**6, save_strategy="no",
            disable_tqdm=True, generation_kwargs={"min_new_tokens": task.answer_length}, loss_type="dapo",
        )  # fmt: skip
        trainer = GRPOTrainer(
            net, reward, settings, Dataset.from_dict({"prompt": prompts}), processing_class=tokenizer, callbacks=[Turns()]
        )
        assert trainer.accelerator.distributed_type == "NO"
        trainer.train()
    return seconds


def _tokenizer(task: Chain) -> PreTrainedTokenizerFast:
    """Number n is written "n"; beginning of sequence stands for padding and end, neither of which occurs."""
    words = {str(number): number for number in range(task.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=str(task.bos)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = str(task.bos)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special, eos_token=special)


def _version() -> str:
    import trl

    return trl.__version__


if __name__ == "__main__":
    main()
