"""A sample of the accepted configs really runs, a step with evaluation and checkpoint, or ends in a UserError."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import FINISHED
from harness.run.loop import train
from harness.validate import check
from tests.fuzz import overrides
from tests.fuzz.sound import alarm, check_sound, message
from tests.harness.conftest import TINY

pytestmark = pytest.mark.slow
SEED, COUNT = 5, 16
VALUES = (
    "loss.",
    "advantage.",
    "correction.",
    "kl.",
    "reduce.",
    "collapse.",
    "proximal",
    "routing.",
    "seed",
)
NUMBERS = (
    "actor.lr", "actor.eps", "actor.betas", "actor.weight_decay", "actor.max_grad_norm", "actor.scoring",
    "actor.zero_stage", "rollout.temperature", "rollout.top_p", "rollout.top_k", "rollout.kv_cache",
    "rollout.engine.", "evaluation.policy",
)  # fmt: skip
"""Keys that do not make a run larger."""
ENDS = (
    "1e-9",
    "1e-6",
    "1e-3",
    "0",
    "1",
    "2",
    "100",
    "1000",
    "1e6",
    "1e9",
    "inf",
    "0.999999",
    "true",
    "false",
    "fp32",
    "none",
)


def drawn(seed: int) -> Iterator[tuple[str, ...]]:
    """Choices of groups with one to four values at the ends of what is accepted, or anywhere."""
    rng = random.Random(seed)
    for chosen in overrides.bases(rng, 10_000):
        chosen = tuple(text for text in chosen if "engine=vllm" not in text and "model=" not in text)
        keys = [key for key in overrides.keys(chosen) if key.startswith((*VALUES, *NUMBERS))]
        for _ in range(20):
            picked = rng.sample(keys, rng.choice((1, 1, 2, 4)))
            yield (*chosen, *(f"{key}={rng.choice((rng.choice(ENDS), overrides.value(rng)))}" for key in picked))


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """COUNT configs that the checks accept, no two with the same choice of groups."""
    root, configs, seen = tmp_path_factory.mktemp("runs"), {}, set()
    small = [text for text in TINY if not text.startswith(("steps", "actor.lr"))]
    for case in drawn(SEED):
        if case[:2] in seen:
            continue
        try:
            config = parse(compose(*small, "steps=1", f"run.root={root}", "run.sweep=fuzzed", *case))
            check(config)
        except UserError:
            continue
        seen.add(case[:2])
        configs[case] = config
        if len(configs) == COUNT:
            return configs
    raise AssertionError("too few configs are accepted")


@pytest.mark.parametrize("number", range(COUNT))
def test_an_accepted_config_runs(accepted, number):
    case, config = list(accepted.items())[number]
    check_sound(config)
    with alarm(case):
        try:
            assert train(config) in FINISHED
        except UserError as error:
            assert message(error)
