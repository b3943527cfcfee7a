"""One RL step, fp32, from prompts to the optimizer, against TRL's GRPOTrainer.

Both train the same weights on as many prompts, responses and tokens, by GRPO with one optimizer step per batch, in fp32. TRL
generates by transformers and does not score the old policy, which one step per batch does not need; the run scores its own
exactly. Steps take turns in one process. The speed of TRL's steps does not depend on what the policy has learned; the run's does.
"""

import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.measure import line, timed
from benchmarks.steps import in_span, trainer
from harness.build import build_task
from harness.config import Config
from harness.tasks.chain import Chain
from harness.train.warmstart import start

NEEDS = ("trl",)
STEPS = 100
SPANS = {"early": range(1, 13), "from step 75": range(75, STEPS)}
RUNS = {"the default run": ("rollout/precision=fp32",), "the demo, a mixture of experts": ("+experiment=demo/fp32",)}


def main() -> None:
    for what, overrides in RUNS.items():
        with tempfile.TemporaryDirectory() as root, trainer(root, *overrides) as run:
            against_trl(what, run)


def against_trl(what: str, run: Any) -> None:
    """Time STEPS steps of the run and of TRL in turns; steps that evaluate are left out of both."""
    config, task = run.config, build_task(run.config)
    number, seconds = iter(range(1, STEPS)), {}

    def turn() -> None:
        step = next(number)
        seconds[step] = timed(lambda: run.step(step))

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        ids = torch.tensor([[int(word) for word in prompt.split()] for prompt in prompts])
        answers = torch.full((len(ids), task.answer_length), -1)
        for row, completion in zip(answers, completion_ids, strict=True):
            row[: len(completion)] = torch.tensor(completion)
        return task.reward(ids.numpy(), answers.numpy()).tolist()

    prompts = [" ".join(map(str, row)) for row in task.prompts().tolist()]
    theirs = grpo(start(config, task).net, config, reward, _tokenizer(task), prompts, task.answer_length, STEPS, turn)
    rows = config.rollout.prompts * config.rollout.group_size
    print(f" {what}, {rows} responses of {task.answer_length} tokens, against TRL {version('trl')}:")
    for name, span in SPANS.items():
        ours, them = (in_span(taken, span, config.evaluation.every) for taken in (seconds, theirs))
        print(line(name, ours, "TRL", them), flush=True)


def grpo(
    net: PreTrainedModel, config: Config, reward: Callable[..., list[float]], tokenizer: Any, prompts: list[str],
    length: int, steps: int, turn: Callable[[], None] = lambda: None,
) -> dict[int, float]:  # fmt: skip
    """Processor seconds of TRL's steps 1 to `steps`; `turn` is called between consecutive steps."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    seconds: dict[int, float] = {}

    class Turns(TrainerCallback):
        began = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds[state.global_step] = time.process_time() - self.began
            if state.global_step < steps:
                turn()
            self.began = time.process_time()

    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ):
        os.environ.pop("LOCAL_RANK", None)  # the run sets it, and it would make accelerate wrap the model for several processes
        settings = GRPOConfig(
            folder, per_device_train_batch_size=config.rollout.prompts * config.rollout.group_size, gradient_accumulation_steps=1,
            num_generations=config.rollout.group_size, max_completion_length=length, max_steps=steps, beta=0.0,
            learning_rate=config.actor.lr, temperature=config.rollout.temperature, lr_scheduler_type="constant",
            max_grad_norm=config.actor.max_grad_norm, bf16=False, gradient_checkpointing=False, use_cpu=True, report_to=[],
            logging_steps=10**6, save_strategy="no", disable_tqdm=True, generation_kwargs={"min_new_tokens": length},
            loss_type="dapo",
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": prompts})
        theirs = GRPOTrainer(net, reward, settings, data, processing_class=tokenizer, callbacks=[Turns()])
        assert theirs.accelerator.distributed_type == "NO"
        theirs.train()
    return seconds


def _tokenizer(task: Chain) -> PreTrainedTokenizerFast:
    """A tokenizer that writes number n as "n". Beginning of sequence also stands for padding and end, which never occur."""
    words, special = {str(number): number for number in range(task.vocab_size)}, str(task.bos)
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=special))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special, eos_token=special)
