"""Part of `make bench`: forward and backward of SmolLM2 where responses share their prompt, against every row alone.

Prompts of 47 tokens, as those of `task=arithmetic`, with four responses each.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from experiments.bench.measure import in_turns, milliseconds, ratio
from harness.compose import compose
from harness.config import parse
from harness.models import hub_model
from harness.train.model.actor import DeepSpeedActor

MODEL, PROMPT, PROMPTS, GROUP, LENGTHS, ROUNDS = Path("models/smollm2"), 47, 2, 4, (8, 16, 64), 3


def main() -> None:
    """Print processor time of both for each length of the responses, and their ratio."""
    if not MODEL.exists():
        print(f"\n{MODEL} is not there (`make llm`): shared prompts are not measured")
        return
    torch.set_num_threads(1)
    config = parse(compose("+experiment=smollm2/base", "rollout/precision=fp32"))
    actor = DeepSpeedActor(hub_model(config.model), config.actor)
    print(f"\nforward and backward of SmolLM2, fp32, {PROMPTS} prompts of {PROMPT} tokens with {GROUP} responses each")
    for length in LENGTHS:
        seconds = in_turns(ROUNDS, {name: partial(_pass, actor, length, name == "shared") for name in ("shared", "alone")})
        shared, alone = seconds["shared"], seconds["alone"]
        print(f"  {length} tokens: {milliseconds(shared)}, alone {milliseconds(alone)}, {ratio(alone, shared)} times as fast")


def _pass(actor: DeepSpeedActor, length: int, shares: bool) -> None:
    actor.shares = shares
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 1000, (PROMPTS, PROMPT), generator=generator).repeat_interleave(GROUP, 0)
    tokens = torch.randint(0, 1000, (PROMPTS * GROUP, length), generator=generator)
    actor.backward(actor.logp(prompts, tokens)[0].mean(), last=False)


if __name__ == "__main__":
    main()
