"""Fault `prompt`: sampler and trainer do not read the same prompt."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import PRIME, SKYRL, SURE, TRL, VERL, VLLM, Fault, beyond, excess, ratio

TIMES, TIMES_IN_EXCESS = 12.0, 1.3
"""Minimum quotient of the mean (logit π − logit μ)² of the first four tokens and of later ones that shows the fault. Sound
batches had up to 6.9, with a normal deviate of 5.1: eight bits or fewer may change first tokens more than likelier later ones.
TIMES_IN_EXCESS replaces TIMES where the mismatch K3 exceeds rounding."""
SURE_IN_EXCESS = 1.5
WRONG = 1.0
"""TIMES_IN_EXCESS replaces TIMES only if the mean (logit π − logit μ)² of all tokens after the fourth is below this. The effect
of a wrong prompt fades as the response becomes the context, so later tokens that move as much were computed wrongly."""


def _signature(s: Statistics) -> float | None:
    if s["size/lag_spread"] > 0:
        return None  # weights known to be older at some places explain such a profile
    times, z = ratio(s["places/head"], s["places/rest"]), s["places/head_z"]
    if excess(s) >= 1 and s["places/rest"] < WRONG:
        return beyond(times / TIMES_IN_EXCESS, z / SURE_IN_EXCESS)
    return beyond(times / TIMES, z / SURE)


def _evidence(s: Statistics) -> str:
    return (
        f"the first four tokens move by {s['places/head']:.2g} square logits and later ones by {s['places/rest']:.2g} "
        f"(z {s['places/head_z']:.1f}); K3 is {s['tails/k3']:.2g}. The context before the response differs"
    )


FAULT = Fault(
    "prompt",
    "b",
    30,
    _signature,
    _evidence,
    {
        "vLLM": "add_special_tokens (a BOS twice or never), the chat template, reset_prefix_cache() after each load of weights",
        "verl": "data.apply_chat_template_kwargs; actor_rollout_ref.rollout.enable_prefix_caching and its cache after a sync",
        "SkyRL": "generator.chat_template_kwargs; generator.inference_engine.enable_prefix_caching and reset_prefix_cache",
        "TRL": "chat_template_kwargs",
        "prime-rl": "inference.vllm.chat_template and the tokenizer of trainer and orchestrator; the cache is kept over a sync",
    },
    "critical",
    (
        f"{VLLM} LLM.reset_prefix_cache",
        f"{VERL} legacy_data.yaml:119, rollout.yaml:90",
        f"{SKYRL} config.py:1134 and 1238",
        f"{TRL} grpo_config.py:556",
        f"{PRIME} inference.py:72 and vllm/server.py:73 (clear_cache=False)",
        "NVIDIA-NeMo/RL issue 4018",
    ),
)
