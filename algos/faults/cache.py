"""Fault `cache`: sampler and trainer compute differently from some token of the response on, as with a wrong KV cache."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import PRIME, SKYRL, VERL, VLLM, Fault, beyond, ratio

TIMES = 4.0
"""Quotient of mean (logit π − logit μ)² from the onset on and before it, from which on it shows the fault. Without a fault, 3.8
was the maximum of dense models, and 10 that of a mixture of experts, with a z of 3.7."""
SURE = 5.0
PLACE = 4
"""Minimum number of tokens before the onset of the fault, because the first tokens of a response may be easy to predict."""


def _signature(s: Statistics) -> float | None:
    if s["size/lag_spread"] > 0:
        return None  # weights known to be older at some places explain such a profile
    return beyond(ratio(s["places/after"], s["places/before"]) / TIMES, s["places/onset_z"] / SURE, s["places/onset"] / PLACE)


def _evidence(s: Statistics) -> str:
    return (
        f"logits move by {s['places/before']:.2g} square logits before token {s['places/onset']:.0f} and by "
        f"{s['places/after']:.2g} from there on (z {s['places/onset_z']:.1f})"
    )


FAULT = Fault(
    "cache",
    "b",
    40,
    _signature,
    _evidence,
    {
        "vLLM": "kv_cache_dtype and the scales of the cache; chunked prefill against decode",
        "verl": "async_training.partial_rollout: a response that goes on after a sync keeps keys and values of the old weights",
        "SkyRL": "reset_prefix_cache(reset_running_requests=True) where requests run over a sync",
        "prime-rl": "requests that go on after a sync: pause_generation(clear_cache=False)",
    },
    "high",
    (
        f"{VERL} fully_async_ppo_trainer.yaml:23",
        f"{SKYRL} base.py:146",
        f"{PRIME} vllm/server.py:73",
        f"{VLLM}; vllm-project/vllm issue 54035",
    ),
)
