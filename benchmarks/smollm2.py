"""One RL step of SmolLM2, fp32, against TRL's GRPOTrainer, on 64 responses of 64 tokens each.

Faultline and TRL train the same weights by GRPO with one optimizer step per batch. Each has its own process, so that neither
holds the other's memory. No response ends early. TRL trains on its whole batch at once, by default; Faultline uses micro-batches.
A CPU takes one step, by processor time; a GPU a first step and ten more, by the clock. With vLLM, Faultline also samples by it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measure import Case, clock, trainer
from benchmarks.trl import grpo
from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.models import hub_model, hub_tokenizer
from harness.rollouts.vllm_support import installed
from harness.tasks import PAD
from harness.tasks.text import Text

NEEDS = ("smollm2", "trl")
LENGTH = 64
OVERRIDES = ("+experiment=smollm2/base", "rollout/precision=fp32", f"task.answer_length={LENGTH}", "rollout.prompts=16",
             "rollout.group_size=4")  # fmt: skip


VLLM = "ours, vLLM in BF16, eager"
SIDES: dict[str, tuple[str, ...]] = {
    "ours": (), VLLM: ("rollout/engine=vllm", "rollout.engine.eager=true", "rollout/precision=bf16"),
}  # fmt: skip
"""Config overrides of Faultline's run by the name under which it is printed."""


def cases(who: str = "") -> Iterator[Case]:
    """Generate the case of one side, `who`: a key of `SIDES` or "TRL"; without `who`, run each in its own process."""
    on_gpu = torch.cuda.is_available()
    measured: dict[str, Any] = {"rounds": 10, "clock": clock} if on_gpu else {"rounds": 1, "warm": False}
    if not who:
        for side in ("ours", *([VLLM] if on_gpu and installed() else []), "TRL"):
            subprocess.run([sys.executable, "-W", "ignore", "-m", "benchmarks", "smollm2", side], check=True)
    elif who == "TRL":
        yield Case("", {who: _theirs()}, memory=True, **measured)
    else:
        endless = property(lambda task: (), lambda task, tokens: None)  # no token ends a response
        with patch.object(Text, "stop", endless, create=True), trainer(*OVERRIDES, *SIDES[who]) as run:
            yield Case("", {who: partial(next, map(run.step, count(1)))}, memory=True, **measured)


def _theirs() -> Callable[[], None]:
    config = parse(compose(*OVERRIDES))
    tokenizer = hub_tokenizer(config.model)
    prompts = [tokenizer.decode(row[row != PAD]) for row in build_task(config).prompts()]

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        assert all(len(ids) == LENGTH for ids in completion_ids)
        return [len(set(ids)) / LENGTH for ids in completion_ids]  # any reward that differs within a group

    return grpo(hub_model(config.model), config, reward, tokenizer, prompts, LENGTH)
