"""The plan for the confusion matrix of the diagnosis of dumps, written down before any of them was made.

This is the sixth plan. docs/diagnosis-record.md has the counts of the first five, and says what was changed after each. The
seeds of the fifth were 1501 to 1509.
"""

from __future__ import annotations

from typing import NamedTuple

HELD_OUT = {"head": "b", "adapter": "b", "min_p": "a"}
"""Faults for which the diagnosis has no plug-in and no tuned threshold, each with its question of docs/diagnosis.md.

a: are the logged numbers the sampler's? b: do sampler and trainer compute the same policy?

head: the sampler kept an older output head after a sync, as an engine does that packed a copy of tied weights. adapter: the
sampler did not merge an update of low rank. min_p: the sampler omits improbable tokens, but logs probabilities as if it did not.
The diagnosis of a held-out fault is right if it is "unknown", or names a fault of the same question."""
FORMER = {"rope": "b", "bias": "a", "window": "b", "replica": "b"}
"""Faults without a plug-in that an earlier plan left out, each with its question (a or b). They are judged as in `HELD_OUT`.

rope: the trainer's rotary base is too large, by up to the factor between models in use, 10,000 to 1,000,000. bias: the sampler
adds a bias to some logits, and logs the probabilities without it. window: the trainer's attention has a sliding window that the
model does not have. replica: one of the sampler's engines missed its syncs. The first plan also left out the faults penalty and
draft, which the diagnosis is expected to call `sampler`."""

SPENT = tuple(range(0, 1600))
"""Seeds of earlier plans, and seeds on which the diagnosis was built and tried. No planned dump has one of these seeds."""


class Shape(NamedTuple):
    """The size of the dumps of a seed: number of responses, and maximum number of tokens of a response."""

    responses: int
    tokens: int


CHAIN = {1601: Shape(512, 10), 1602: Shape(256, 10), 1603: Shape(128, 40)}
"""Size of the dumps of the chain task's small policy, by seed. Each seed has one dump per precision in `SAMPLERS`, fault and
size of the fault."""
MICRO_BATCHES = {1604: Shape(256, 10)}
"""Size of the dumps of the chain task's small policy that a trainer in BF16 scores in micro-batches, by seed. Its sums
depend on the size of the micro-batch (`real.MicroBatchBed`). Faults of sampler or trainer have the middle of their sizes."""
SAMPLERS = ("bf16", "fp8_tensor")
DRAWS = 4
"""Number of planned dumps without a fault for each seed of `CHAIN` and `MICRO_BATCHES` and each precision, and for each seed of
`VLLM_CHAIN`. Each kind of `sound.EDITS` has one more for each seed of `CHAIN` in each of `SAMPLERS`, and file of `RECORDED`."""

RUNS = (1601,)
"""Seeds of the RL runs: 20 kinds of runs without a fault, with 13 dumps each, and runs whose sampler uses old weights."""

RECORDED = (
    "vllm-fp16", "vllm-int8", "local-fp8_channel", "local-fp8_tensor", "long/vllm-int8", "long/vllm-fp8_channel",
)  # fmt: skip
"""Names of the files in experiments/study/smollm2 whose dumps are edited. vLLM or the local engine sampled them from SmolLM2:
128 responses of at most 48 tokens, or in `long` 32 of at most 512. The unedited dumps were known while thresholds were set.
Earlier plans edited them too."""
EDIT_SEED = 1609

SMOLLM2 = {1605: Shape(128, 12)}
"""Size of the dumps of SmolLM2 that the local engine samples in BF16, by seed. Each fault has the middle of its sizes."""
VLLM = {1607: Shape(128, 12)}
"""Size of the dumps of SmolLM2 that vLLM samples in BF16, by seed. Faults: `vllm.SIZES`. RL runs by vLLM have this seed too."""
VLLM_CHAIN = {1608: Shape(512, 10)}
"""Size of the dumps of the chain task's small policy that vLLM samples in BF16, by seed. The faults are those of `vllm.SIZES`
except `prefix`, at the sizes of `real.SIZES`. The policy is small because a dump of SmolLM2 by vLLM takes 40 s of a core."""

AIM_NAMED = 0.95
"""Aim: minimum share of the dumps of faults with a plug-in, each at the middle of its sizes, that the diagnosis names right."""
AIM_ACCUSED = 0.01
"""Aim: maximum share of the dumps without a fault that the diagnosis does not call consistent.

It holds for the diagnosis of a dump with all columns, and of one with those that verl's default dump has (`plain`)."""

REPLANNED = {"swapped": (0.05, 0.1, 0.2), "prefix": (0.05, 0.1, 0.2), "rope": (1.5, 3, 10)}
"""Faults whose sizes have changed since the first plan of the dumps, with their sizes in that plan.

At the middle size of the first plan these faults could not matter, or no test could see them. If log-probabilities of sampler
and trainer are swapped, n tokens with a K3 of K nats show it by at most √(2·K·n) standard deviations. This limit, which the
best test reaches (Neyman and Pearson), was 2.6 to 3.5. Older prefixes and the rotary base left a K3 below twice that of FP8
without a fault."""


def middle(sizes: tuple[float, ...]) -> float:
    """The middle element of a fault's ordered sizes, or the later of the two middle ones."""
    return sizes[len(sizes) // 2]
