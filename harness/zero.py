"""Buffer sizes of ZeRO, in elements. `harness.train.model.engine` sets GATHERED; the others are DeepSpeed's defaults."""

GATHERED = 2**28
"""Maximum number of weights that ZeRO-3 gathers at a time while the actor's weights are read. A single matrix may exceed it."""
REDUCED = 5 * 10**8
"""Number of gradient elements that are reduced together, in one bucket (reduce_bucket_size)."""
LIVE = 10**9
"""Maximum number of gathered weights that ZeRO-3 keeps (stage3_max_live_parameters)."""
UPDATED = 10**9
"""Number of weights that an optimizer step processes at a time under ZeRO-3 (sub_group_size)."""
