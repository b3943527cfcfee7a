"""The plan of the confusion matrix, written down before the diagnosis was built."""

from __future__ import annotations

HELD_OUT = {"rope": "b", "penalty": "a", "draft": "a"}
"""Held-out faults, without a plug-in and without a tuned threshold → the question to which each belongs.

rope: the trainer's rotary base differs. penalty: the sampler penalises repetition and logs the probabilities before the penalty.
draft: a share of the tokens comes from another policy, and all are logged as the sampler's own.
"""

BUILD_SEEDS = range(0, 100)
"""Seeds on which the diagnosis's signatures and thresholds were tuned."""

JUDGE_SEEDS = range(1001, 2000)
"""Seeds of the recorded confusion matrix, on which no threshold was tuned.

Seed 1000 was a trial. In it a response with known changes of version was diagnosed as a prompt fault, which led to one change.
"""
