"""Fault `mask`: the mask counts prompt tokens or padding as response."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import SKYRL, TRL, VERL, Fault, beyond

SHARE = 0.005
"""Minimum share of tokens in runs of one pair (log μ, log π) at an end of responses that shows the fault; sound batches had 0."""
INSIDE = 0.05
"""If this share of the tokens outside constant runs, or more, have a run's pair (log μ, log π), runs are no sign of the fault."""

ODDS = 0.1
"""Leading tokens that all samples of a prompt share are prompt tokens if two samples would agree on them less often than this."""


def _signature(s: Statistics) -> float | None:
    if s["collisions/shared"] > 0 and s["collisions/shared_odds"] < ODDS:
        return ODDS / s["collisions/shared_odds"]
    return beyond(max(_share(s, "head"), _share(s, "tail")) / SHARE)


def _share(s: Statistics, end: str) -> float:
    """Share of tokens in constant runs at one end of the responses, "head" or "tail"; 0 if such tokens are common elsewhere."""
    return s[f"values/{end}"] if s[f"values/{end}_inside"] < INSIDE else 0.0


def _evidence(s: Statistics) -> str:
    if s["collisions/shared"] > 0 and s["collisions/shared_odds"] < ODDS:
        return (
            f"all samples of a prompt agree at their first {s['collisions/shared']:.0f} tokens, which the logged odds give to "
            f"{s['collisions/shared_odds']:.2g} of the pairs: these tokens were not sampled"
        )
    where, share = max(("start", _share(s, "head")), ("end", _share(s, "tail")), key=lambda pair: pair[1])
    return f"{share:.1%} of the tokens stand in a run of one constant at the {where} of a response, the same in both columns"


FAULT = Fault(
    "mask",
    "a",
    30,
    _signature,
    _evidence,
    {
        "verl": "response_mask: in turns it is 0 on what tools and the environment wrote",
        "SkyRL": "loss_mask of the generator's output",
        "TRL": "completion_mask, with tools times tool_mask",
        "prime-rl": "loss_mask of the training samples",
    },
    "high",
    (VERL, f"{SKYRL} pull 758", f"{TRL} issue 4772 quotes the mask with tools"),
)
