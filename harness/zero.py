"""Sizes by which DeepSpeed's ZeRO works, in numbers: `harness.train.model.engine` sets the first, the rest are its defaults."""

GATHERED = 2**28
"""Numbers that ZeRO-3 gathers at a time while the actor's weights are read; a single matrix may have more."""
REDUCED = 5 * 10**8
"""A bucket of gradients, reduce_bucket_size."""
LIVE = 10**9
"""Gathered weights that are kept, stage3_max_live_parameters."""
UPDATED = 10**9
"""Weights that an optimizer step takes at a time under ZeRO-3, sub_group_size."""
