"""The plan of the confusion matrix, written down before a dump of it was made."""

from __future__ import annotations

from typing import NamedTuple

HELD_OUT = {"rope": "b", "penalty": "a", "draft": "a"}
"""Fault for which the diagnosis has no plug-in and no tuned threshold -> the question of the diagnosis to which it belongs.

rope: the trainer's rotary base differs. penalty: the sampler penalises repetition and logs the probabilities before the
penalty.
draft: a share of the tokens comes from another policy, and all are logged as the sampler's own. A diagnosis of one is right if
it is "unknown", or a fault of its question."""

SPENT = (*range(0, 1100), 1104)
"""Seeds on which rules and thresholds were built and tried. They are no evidence. 1104 edited six other recorded dumps."""


class Shape(NamedTuple):
    """The size of the dumps of a seed."""

    responses: int
    tokens: int


CHAIN = {1101: Shape(512, 10), 1102: Shape(256, 10), 1103: Shape(128, 40)}
"""Seed → dumps of the chain task's small policy, sampled in each precision of `SAMPLERS`, with every fault at every size."""
SAMPLERS = ("bf16", "fp8_tensor")

RUNS = (1101, 1102)
"""Seeds of the runs without a fault, 14 arms of 13 dumps each, and of the runs with old weights."""

RECORDED = (
    "vllm-fp16", "vllm-int8", "local-fp8_channel", "local-fp8_tensor", "long/vllm-int8", "long/vllm-fp8_channel",
)  # fmt: skip
"""Dumps of SmolLM2 by vLLM and by the local engine in experiments/study/smollm2, which are edited. They hold 128 responses of at
most 48 tokens, or 32 of at most 512. Unedited they were known while thresholds were set."""
EDIT_SEED = 1106

SMOLLM2 = {1105: Shape(128, 12)}
"""Seed → dumps of SmolLM2 by the local engine in BF16, with every fault at its middle size."""

AIM_NAMED = 0.95
"""Minimum share of the dumps at a fault's middle size that are named right, over all faults but the held-out ones."""
AIM_ACCUSED = 0.01
"""Maximum share of dumps without a fault that are not called consistent."""


def middle(sizes: tuple[float, ...]) -> float:
    """The middle one of a fault's sizes, or its only size."""
    return sizes[len(sizes) // 2]
