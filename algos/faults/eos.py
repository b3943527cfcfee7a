"""Fault `eos`: only one of sampler and trainer counts the end token of a response."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import SKYRL, SURE, TRL, VERL, Fault, beyond, ratio, sampled

TIMES = 3.0
"""Minimum quotient of the mean |log π − log μ| of last tokens and of others that shows the fault; sound batches had up to 2.2."""
NATS = 0.4
"""Minimum mean |log π − log μ| of the last tokens of responses, in nats, for the fault to be reported. Without the fault it was
at most 0.29 where the sampler computed with eight bits or more."""


def _signature(s: Statistics) -> float | None:
    for side in ("rollout", "trainer"):
        if s[f"values/{side}_fill_last"] >= 0.9:
            return max(1.0, s[f"values/{side}_fill_gap"])
    if sampled(s):
        return None
    return beyond(s["places/last_z"] / SURE, ratio(s["places/last"], s["places/others"]) / TIMES, s["places/last"] / NATS)


def _evidence(s: Statistics) -> str:
    for side in ("rollout", "trainer"):
        if s[f"values/{side}_fill_last"] >= 0.9:
            share = s[f"values/{side}_fill_share"] * s["size/tokens"]
            return f"{share:.0f} last tokens hold {s[f'values/{side}_fill']:g} in the {side}'s column, and other tokens do not"
    return f"last tokens of responses differ by {s['places/last']:.2f} nats on average, all others by {s['places/others']:.3f}"


FAULT = Fault(
    "eos",
    "a",
    10,
    _signature,
    _evidence,
    {
        "verl": "actor_rollout_ref.rollout.ignore_eos and whether response_mask holds the end-of-sequence token",
        "SkyRL": "generator.append_eos_token_after_stop_str_in_multi_turn: an appended token was not sampled",
        "TRL": "whether eos_token_id of the tokenizer is that of generation, and completion_mask ends with it",
        "vLLM": "stop and include_stop_str_in_output of SamplingParams",
    },
    "high",
    (f"{VERL} rollout.yaml", f"{SKYRL} config.py:1248 and pull 758 (appended tokens had loss_mask 1)", f"{TRL}"),
)
