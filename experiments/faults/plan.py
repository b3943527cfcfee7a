"""The plan of the confusion matrix, written down before a dump of it was made.

This is the second plan. The first record, of seeds 1101 to 1106, named 169 of 181 dumps right at the middle size and 7 of 57
left-out faults; docs/diagnosis.md says what was changed after it.
"""

from __future__ import annotations

from typing import NamedTuple

HELD_OUT = {"bias": "a", "window": "b", "replica": "b"}
"""Fault for which the diagnosis has no plug-in and no tuned threshold -> the question of the diagnosis to which it belongs.

bias: the sampler adds a bias to some logits, and logs the probabilities before it. window: the trainer's attention has a sliding
window that the model does not have. replica: one of the sampler's engines missed its syncs.
A diagnosis of one is right if it is "unknown", or a fault of its question."""
FORMER = {"rope": "b"}
"""Fault that the first plan left out, and that still has no plug-in -> its question, by which it is judged as `HELD_OUT` are.

rope: the trainer's rotary base differs, by the factors between the models in use: 10,000, 500,000 and 1,000,000. The first plan
also left out penalty and draft, which are now expected to be called `sampler`."""

SPENT = (*range(0, 1110),)
"""Seeds on which rules and thresholds were built and tried, those of the first record among them. They are no evidence."""


class Shape(NamedTuple):
    """The size of the dumps of a seed."""

    responses: int
    tokens: int


CHAIN = {1201: Shape(512, 10), 1202: Shape(256, 10), 1203: Shape(128, 40)}
"""Seed → dumps of the chain task's small policy, sampled in each precision of `SAMPLERS`, with every fault at every size."""
SAMPLERS = ("bf16", "fp8_tensor")
DRAWS = 4
"""Number of dumps without a fault for each seed of `CHAIN` and each precision."""

RUNS = (1201,)
"""Seeds of the runs without a fault, 16 arms of 13 dumps each, and of the runs with old weights."""

RECORDED = (
    "vllm-fp16", "vllm-int8", "local-fp8_channel", "local-fp8_tensor", "long/vllm-int8", "long/vllm-fp8_channel",
)  # fmt: skip
"""Dumps of SmolLM2 by vLLM and by the local engine in experiments/study/smollm2, which are edited. They hold 128 responses of at
most 48 tokens, or 32 of at most 512. Unedited they were known while thresholds were set, and the first plan edited them too."""
EDIT_SEED = 1206

SMOLLM2 = {1205: Shape(128, 12)}
"""Seed → dumps of SmolLM2 by the local engine in BF16, with every fault at its middle size."""
VLLM = {1207: Shape(128, 12)}
"""Seed → dumps of SmolLM2 by vLLM in BF16 with the faults that can be set in it, and runs of the chain task with old weights."""
VLLM_CHAIN = {1208: Shape(512, 10)}
"""Seed → dumps of the chain task's small policy by vLLM in BF16, with the same faults at every size. Added while other dumps of
this plan were made, because SmolLM2 in vLLM costs 40 seconds of a core for each."""

AIM_NAMED = 0.95
"""Minimum share of the dumps at a fault's middle size that are named right, over all faults but the held-out ones."""
AIM_ACCUSED = 0.01
"""Maximum share of dumps without a fault that are not called consistent."""

REPLANNED = {"swapped": (0.05, 0.1, 0.2), "prefix": (0.05, 0.1, 0.2), "rope": (1.5, 3, 10)}
"""Fault → its sizes in the first plan, where they differ.

At the middle size of the first plan these faults could not matter, or no test could see them. Exchanged columns of K nats are
told apart by at most √(2·K·n) normal deviates for n tokens, the deviates of the best test of Neyman and Pearson; that was 2.6 to
3.5. Older prefixes and the rotary base left a K3 below twice that of FP8 without a fault."""


def middle(sizes: tuple[float, ...]) -> float:
    """The middle one of a fault's sizes, or its only size."""
    return sizes[len(sizes) // 2]
