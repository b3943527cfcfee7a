"""Fault `layer`: the mismatch exceeds rounding at all positions of responses, as when some weights were not loaded.

Its bound is of the same model: a larger one may exceed what a precision gives in SmolLM2-135M, and has no fault.
"""

from algos.diagnostics.evidence import Statistics
from algos.faults.base import SKYRL, VERL, VLLM, Fault, beyond, excess, ratio

FLAT = 3.0
"""For the fault, the mean (logit π − logit μ)² of the first four tokens and of later ones differ at most by this factor."""
KURTOSIS = 20.0
"""Maximum kurtosis of logit π − logit μ for the fault to be reported; above it a few tokens carry the mismatch."""
BROKEN, FAR = 4.0, 0.05
"""E[π/μ] at least BROKEN normal deviates, and at least FAR, from 1: μ did not sample the tokens, and `layer` is not reported."""


def _signature(s: Statistics) -> float | None:
    times = ratio(s["places/head"], s["places/rest"])
    broken = not abs(s["identity/z"]) < BROKEN and abs(s["identity/mean"] - 1) >= FAR  # too few prompts give no z
    if broken:
        return None
    flat = FLAT * times, FLAT / times if times > 0 else 0.0
    return beyond(excess(s, "size/k3_most_of_model"), *flat, KURTOSIS / max(s["tails/kurtosis"], 1e-9))


def _evidence(s: Statistics) -> str:
    error, most = s["identity/error"], s["size/k3_most_of_model"]
    return (
        f"K3 is {s['size/k3']:.3g}, above the bound of rounding, {most:.3g}; it is as large at the first tokens as later, and "
        f"the mean ratio is {s['identity/mean']:.3f}" + (f" ± {error:.3f}" if error == error else "")
    )


FAULT = Fault(
    "layer",
    "b",
    50,
    _signature,
    _evidence,
    {
        "vLLM": "disable_cascade_attn on A100 GPUs, in 0.8.2 to 0.31 (off by default from 0.18 on, removed in 0.32); the names "
        "that load_weights took, scales of quantised layers, an adapter that was not merged",
        "verl": "the sync of weights to the engine, and actor_rollout_ref.rollout.quantization against the checkpoint",
        "SkyRL": "the sync of weights to the inference engines",
        "TRL": "the sync of weights to vLLM, with PEFT the merged adapter",
        "Faultline": "faultline doctor --parity compares the engines on one model",
        "prompts": "their token ids on both sides: in responses of a dozen tokens another chat template looks alike",
    },
    "critical",
    (VERL, SKYRL, VLLM),
)
