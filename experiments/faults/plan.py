"""What the confusion matrix is held to, written down before the diagnosis was built."""

from __future__ import annotations

HELD_OUT = {"rope": "b", "penalty": "a", "draft": "a"}
"""Faults that no threshold was tuned on and that have no plug-in → the question they belong to.

rope: the trainer's rotary base is another one. penalty: the sampler punishes repetition and logs the probabilities from before.
draft: a share of the tokens comes from another policy, and all are logged as the sampler's.
"""

BUILD_SEEDS = range(0, 100)
"""Seeds on which signatures and thresholds were tuned."""

JUDGE_SEEDS = range(1001, 2000)
"""Seeds of the recorded confusion matrix. No threshold has seen them. 1000 was a trial: it showed that a response whose versions
are known to change was accused of a prompt, which led to one change."""
