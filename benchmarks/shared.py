"""Forward and backward of SmolLM2, fp32, where responses share their prompt, against every row alone.

The batch has two prompts of 47 tokens, as long as those of `task=arithmetic`, with four responses each.
"""

from functools import partial

import torch

from benchmarks.measure import in_turns, line
from harness.compose import compose
from harness.config import parse
from harness.models import hub_model
from harness.train.model.actor import DeepSpeedActor

NEEDS = ("smollm2",)
PROMPT, PROMPTS, GROUP, ROUNDS = 47, 2, 4, 3


def main() -> None:
    config = parse(compose("+experiment=smollm2/base", "rollout/precision=fp32"))
    actor = DeepSpeedActor(hub_model(config.model), config.actor)
    for length in (8, 16, 64):
        seconds = in_turns(ROUNDS, {name: partial(_pass, actor, length, name == "shared") for name in ("shared", "alone")})
        print(line(f"{length} tokens", seconds["shared"], "alone", seconds["alone"]), flush=True)


def _pass(actor: DeepSpeedActor, length: int, shares: bool) -> None:
    actor.shares = shares
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 1000, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, 0)
    tokens = torch.randint(0, 1000, (PROMPTS * GROUP, length), generator=generator)
    actor.backward(actor.logp(prompts, tokens)[0].mean(), last=False)
