"""Fault `cache`: sampler and trainer compute differently from some token of the response on, as with a wrong KV cache."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import PRIME, SKYRL, VERL, VLLM, Fault, beyond, excess, ratio

TIMES = 4.0
"""Minimum quotient of the mean (logit π − logit μ)² after and before the position of its largest change that shows the fault.
Without a fault, dense models had at most 3.8. A mixture of experts had 10, but a normal deviate of only 3.7."""
ONSET = 5.0
"""Minimum normal deviate of that change for the fault."""
PLACE = 4
"""Minimum number of a response's tokens before the fault begins, because the first tokens may be easy to predict."""


def _signature(s: Statistics) -> float | None:
    if s["size/lag_spread"] > 0:
        return None  # weights known to be older at some places explain such a profile
    times = ratio(s["places/after"], s["places/before"])
    # rounding moves a logit by a share of it, so where logits grow along responses it looks alike
    return beyond(times / TIMES, s["places/onset_z"] / ONSET, s["places/onset"] / PLACE, excess(s))


def _evidence(s: Statistics) -> str:
    return (
        f"logits move by {s['places/before']:.2g} square logits before token {s['places/onset']:.0f} and by "
        f"{s['places/after']:.2g} from there on (z {s['places/onset_z']:.1f}); K3 is {s['size/k3']:.2g}, and rounding gives at "
        f"most {s['size/k3_most']:.2g}"
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
