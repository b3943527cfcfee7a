"""Fault `fill`: log μ or log π of a batch holds numbers that are no log-probabilities."""

from algos.diagnostics.evidence import Statistics
from algos.faults import shift
from algos.faults.base import SKYRL, VERL, VLLM, Fault

SHARE = 1e-4
"""Minimum share of tokens that hold one value that is no log-probability, such as −9999, for the fault to be reported."""
SURE = 0.05
"""Share of zeros below which they are taken for those of sure tokens, beside which a shifted column puts other tokens."""


def _side(s: Statistics) -> str | None:
    sides = [side for side in ("rollout", "trainer") if s[f"values/{side}_fill_share"] >= SHARE]
    return max(sides, key=lambda side: s[f"values/{side}_fill_share"]) if sides else None


def _positive(s: Statistics) -> str | None:
    side = max(("rollout", "trainer"), key=lambda side: s[f"values/{side}_positive"])
    return side if s[f"values/{side}_positive"] > 0 else None


def _signature(s: Statistics) -> float | None:
    if s["values/missing"] > 0:
        return 1 + s["values/missing"]
    if positive := _positive(s):
        return 1 + s[f"values/{positive}_positive"]
    side = _side(s)
    if side is None and s["values/impossible"] > 0:
        return 1 + s["values/impossible"]
    if side is None or (s[f"values/{side}_fill"] == 0 and s[f"values/{side}_fill_share"] < SURE and shift.FAULT.signature(s)):
        return None
    return s[f"values/{side}_fill_share"] / SHARE


def _evidence(s: Statistics) -> str:
    if s["values/missing"] > 0:
        return f"{s['values/missing']:.2%} of the tokens have no finite log-probability"
    if positive := _positive(s):
        return f"{s[f'values/{positive}_positive']:.2%} of the {positive}'s log-probabilities are above 0"
    side = _side(s)
    if side is None:
        return (
            f"{s['values/impossible']:.2%} of the rollout's log-probabilities are below -100 nats: no sampler draws such tokens"
        )
    share, value = s[f"values/{side}_fill_share"], s[f"values/{side}_fill"]
    gap = s[f"values/{side}_fill_gap"]
    return f"{share:.2%} of the {side}'s log-probabilities are exactly {value:g}, {gap:.2f} nats from the other side's"


FAULT = Fault(
    "fill",
    "a",
    20,
    _signature,
    _evidence,
    {
        "verl": "actor_rollout_ref.rollout.calculate_log_probs=True: without it there are no rollout log-probabilities",
        "SkyRL": "generator.sampling_params.logprobs must not be null; build_logprobs_content floors what vLLM left out",
        "vLLM": "SamplingParams.logprobs; a server floors at -9999.0",
        "prime-rl": "the log-probabilities of the response that the orchestrator received",
        "yours": "the sign of the column, and whether it holds logits",
    },
    "critical",
    (f"{VERL} rollout.yaml:233", f"{SKYRL} generate_wire.py:28", VLLM),
)
