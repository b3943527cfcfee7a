"""The note `routing`, no fault: few tokens carry most of the mismatch, since sampler and trainer choose different experts."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import PRIME, SKYRL, VERL, VLLM, Fault, beyond

KURTOSIS = 30.0
"""Minimum kurtosis of logit π − logit μ for `routing` to be reported. Most dense models had at most 30, and
mixtures of experts had 36 or more."""
SHARE = 0.5
"""Minimum share of the batch's K3 that is due to the 1 % of its tokens with the largest K3, for `routing` to be reported."""


def _signature(s: Statistics) -> float | None:
    return beyond(s["tails/kurtosis"] / KURTOSIS, s["tails/top_share"] / SHARE)


def _evidence(s: Statistics) -> str:
    return f"1 % of the tokens hold {s['tails/top_share']:.0%} of K3, as experts that flip leave it"


FAULT = Fault(
    "routing",
    "c",
    10,
    _signature,
    _evidence,
    {
        "vLLM": "enable_return_routed_experts",
        "verl": "router_replay.mode=R3 of the actor or its engine (actor.megatron), with rollout.enable_rollout_routing_replay",
        "SkyRL": "trainer.policy.megatron_config.moe_enable_routing_replay",
        "prime-rl": "trainer.enable_router_replay",
        "Faultline": "routing.replay=r3",
    },
    "note",
    (VLLM, VERL, f"{SKYRL} config.py:472", f"{PRIME} configs/rl.py:590"),
)
