"""The largest K3 = E[ρ − 1 − log ρ], ρ = π/μ, that rounding in each precision of the sampler causes, measured on a real model."""

from __future__ import annotations

K3 = {
    "fp32": 1e-8,
    "fp16": 2.3e-5,
    "bf16": 1.3e-3,
    "int8": 0.044,
    "fp8_tensor": 0.043,
    "fp8_channel": 0.043,
    "fp8_block": 0.043,
    "fp8_block_w8a16": 0.043,
    "mxfp8": 0.043,
    "fp8_cache": 0.048,
    "nvfp4": 0.27,
}
"""Precision of the sampler -> the largest K3 of SmolLM2-135M between that sampler and an fp32 trainer, in nats per token. Source:
the batches logged in experiments/study/smollm2, by the local engine and vLLM. mxfp8 and the block formats take the value of the
other 8-bit formats. Two orders of summation gave the value of fp32. fp8_cache is BF16 with keys and values in e4m3. Rounding
causes less K3 in larger models."""

EXCESS = 4.0
"""Largest K3 attributed to rounding, as a multiple of the K3 that was measured for the sampler's precision."""

EXCESS_OF_BASELINE = 3.0
"""Largest K3 attributed to rounding, as a multiple of the K3 of a batch that the same model logged without a fault. In 25 steps
of training, K3 rose to at most 2.1 times that of the first step, in dense models of known precision."""

COARSEST = 1.0
"""Largest K3 attributed to rounding when the sampler's precision is not known: about 4 times that of 4-bit weights."""


def most(usual: str | float | None) -> float:
    """The largest K3 that rounding explains, in nats per token.

    usual: the name of the sampler's precision, whose K3 was measured on SmolLM2; or the K3 of a batch that the same model
    logged in that precision without a fault. The result is never below that for fp32. None or an unmeasured name gives
    `COARSEST`.
    """
    if isinstance(usual, int | float):
        return max(EXCESS_OF_BASELINE * usual, EXCESS * K3["fp32"])
    return K3[usual] * EXCESS if usual in K3 else COARSEST
