"""Fault `raw_logprobs`: the sampler logs its probabilities as they are before it applies the temperature."""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import FILTERED, OFF, PRIME, SIZE, SURE, TRL, UNCUT, VERL, VLLM, VLLM_MODE, Fault, beyond

EXPLAINED = 0.2
"""Minimum share of the variance of logit π − logit μ that the regression of logit π on logit μ must explain for the fault."""

HOTTEST = 10.0
"""Maximum temperature of the fault. Beyond it the columns are hardly related: other rows or other tokens."""


def _signature(s: Statistics) -> float | None:
    return beyond(
        s["identity/z"] / SURE,
        (s["identity/mean"] - 1) / SIZE,
        abs(s["slope/temperature"] - 1) / OFF,
        s["slope/temperature_explained"] / EXPLAINED,
        s["slope/temperature"] * HOTTEST,
    )


def _evidence(s: Statistics) -> str:
    """The estimated temperature errs upward: noise of the sampler and a vocabulary of more than two tokens lower b (`slope`)."""
    return (
        f"as if logged before a temperature of about {1 / s['slope/temperature']:.2f} or less was applied: "
        f"the mean ratio is {s['identity/mean']:.3f}, {s['identity/z']:.0f} standard errors from 1"
    )


FAULT = Fault(
    "raw_logprobs",
    "a",
    75,
    _signature,
    _evidence,
    {
        "vLLM": VLLM_MODE + "; set processed_logprobs",
        "verl": "actor_rollout_ref.rollout.logprobs_mode=processed_logprobs, its default, and rollout.temperature on both sides",
        "SkyRL": "generator.inference_engine.engine_init_kwargs.logprobs_mode=processed_logprobs; 0.3.0 leaves vLLM's default",
        "TRL": "temperature, and --logprobs-mode processed_logprobs of a vLLM server that TRL did not start",
        "prime-rl": "logprobs_mode of the inference server: processed_logprobs is set unless another is",
        "cuts": UNCUT,
        "columns": "whether logp_rollout and logp_old were exchanged, as in 7 of 41 tested batches with this answer",
        "filters": FILTERED,
    },
    "critical",
    (
        f"{VLLM} config/model.py",
        f"{VERL} rollout.yaml:93",
        "SkyRL 0.3.0: each key of engine_init_kwargs is set on vLLM's arguments",
        "vllm-project/vime issue 64",
        f"{TRL} issues 4159 and 6945",
        f"{PRIME} configs/inference.py:611 and pull 697",
        "vllm-project/vllm issue 42259",
    ),
)
