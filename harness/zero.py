"""Buffer sizes of ZeRO, as counts of numbers. `harness.train.model.engine` sets GATHERED; the others are DeepSpeed's defaults."""

GATHERED = 2**28
"""Maximum count of numbers that ZeRO-3 gathers at a time while the actor's weights are read; one matrix may exceed it."""
REDUCED = 5 * 10**8
"""Count of gradient numbers that are reduced together, in one bucket (reduce_bucket_size)."""
LIVE = 10**9
"""Maximum count of gathered weights that ZeRO-3 keeps (stage3_max_live_parameters)."""
UPDATED = 10**9
"""Count of weights that an optimizer step processes at a time under ZeRO-3 (sub_group_size)."""
