"""One RL step, fp32, from prompts to the optimizer, against TRL's GRPOTrainer.

Faultline and TRL train the same weights on equally many prompts, responses and tokens, by GRPO with one optimizer step per batch.
TRL generates with transformers. It omits the old policy's log-probabilities, which one step per batch does not need; Faultline's
run computes them. Steps take turns in one process. Learning changes the speed of Faultline's steps, but not of TRL's.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerCallback

from benchmarks.measure import Case, trainer
from harness.build import build_task
from harness.config import Config
from harness.tasks.chain import Chain
from harness.train.warmstart import start

NEEDS = ("trl",)
SPANS = {"early": range(2, 13), "from step 75": range(75, 100)}
RUNS = {"the default run": ("rollout/precision=fp32",), "the demo, a mixture of experts": ("+experiment=edge/fp32",)}


def cases() -> Iterator[Case]:
    """Generate, for each run of `RUNS`, a case of its first steps and a case of later ones."""
    for what, overrides in RUNS.items():
        with trainer(*overrides) as run:
            runs = {"ours": partial(next, map(run.step, count(1))), "TRL": _theirs(run.config)}
            done = 0
            for name, span in SPANS.items():
                for step in list(runs.values()) * (span.start - 2 - done):  # the first round of a case is left out
                    step()
                yield Case(f"{what}, {name}", runs, rounds=len(span))
                done = span.stop - 1


def _theirs(config: Config) -> Callable[[], None]:
    task = build_task(config)

    def reward(prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        ids = torch.tensor([[int(word) for word in prompt.split()] for prompt in prompts])
        answers = torch.full((len(ids), task.answer_length), -1)
        for row, completion in zip(answers, completion_ids, strict=True):
            row[: len(completion)] = torch.tensor(completion)
        return task.reward(ids.numpy(), answers.numpy()).tolist()

    prompts = [" ".join(map(str, row)) for row in task.prompts().tolist()]
    return grpo(start(config, task).net, config, reward, _tokenizer(task), prompts, task.answer_length)


def grpo(
    net: PreTrainedModel, config: Config, reward: Callable[..., list[float]], tokenizer: Any, prompts: list[str], length: int
) -> Callable[[], None]:
    """Return a function that trains one step of TRL, from prompts to optimizer. Between calls TRL's loop waits in a thread."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    go: SimpleQueue[None] = SimpleQueue()
    gone: SimpleQueue[BaseException | None] = SimpleQueue()

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            go.get()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            gone.put(None)

    rows = config.rollout.prompts * config.rollout.group_size
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ):
        os.environ.pop("LOCAL_RANK", None)  # the run sets it, and it would make accelerate wrap the model for several processes
        settings = GRPOConfig(
            folder, per_device_train_batch_size=rows, gradient_accumulation_steps=1, num_generations=config.rollout.group_size,
            max_completion_length=length, max_steps=10**6, beta=0.0, learning_rate=config.actor.lr,
            temperature=config.rollout.temperature, lr_scheduler_type="constant", max_grad_norm=config.actor.max_grad_norm,
            bf16=False, gradient_checkpointing=False, use_cpu=not torch.cuda.is_available(), report_to=[],
            logging_steps=10**6, save_strategy="no", disable_tqdm=True, generation_kwargs={"min_new_tokens": length},
            loss_type="dapo",
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": prompts})
        theirs = GRPOTrainer(net, reward, settings, data, processing_class=tokenizer, callbacks=[Turns()])
    assert theirs.accelerator.distributed_type == "NO"

    def train() -> None:
        try:
            theirs.train()
        except BaseException as error:  # raised in the measuring thread, which waits for the step
            gone.put(error)

    Thread(target=train, daemon=True).start()

    def step() -> None:
        go.put(None)
        if error := gone.get():
            raise error

    return step


def _tokenizer(task: Chain) -> PreTrainedTokenizerFast:
    """Return a tokenizer that writes token n as "n". The start token also stands for padding and end, which never occur."""
    words, special = {str(number): number for number in range(task.vocab_size)}, str(task.bos)
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=special))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special, eos_token=special)
