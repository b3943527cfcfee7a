"""Number formats and precisions in one table: names, sizes, vLLM's names, and which machine computes them. Torch-free.

The casts themselves are in `harness/rollouts/casts.py`. The options of experiments/conf/rollout/precision are the rows of
PRECISIONS, which a test compares; a config may combine the formats in other ways.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from harness.machine import Machine

WeightFormat = Literal["fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "int8_channel", "nvfp4", "mxfp4"]
ActivationFormat = Literal["fp8_token", "fp8_group", "mxfp8", "int8_token", "nvfp4_token", "mxfp4"]

MULTIPLES = {"nvfp4": 16, "mxfp8": 32, "mxfp4": 32}
"""Format -> block size, for formats whose block size must divide the width of a matrix."""


class Dtype(NamedTuple):
    """Number format of activations, norms, embeddings and head."""

    torch: str
    """Name of the dtype in torch."""
    bytes: int
    """Size of one number of the dtype, in bytes."""
    tolerance: float
    """Largest accepted mean |log μ − log π| after a load of weights, in nats: over 20 times the usual one (docs/vllm.md)."""


COMPUTE = {"fp32": Dtype("float32", 4, 1e-3), "bf16": Dtype("bfloat16", 2, 0.3), "fp16": Dtype("float16", 2, 0.1)}


class Precision(NamedTuple):
    """Number formats in which an engine samples: one option of the config group rollout/precision."""

    compute: str
    """Name of the dtype of activations, norms, embeddings and head, such as bf16."""
    weights: WeightFormat | None = None
    """Format of the linear layers' weights; None for the compute dtype."""
    activations: ActivationFormat | None = None
    """Format of the linear layers' inputs; None for the compute dtype."""
    vllm: str | None = None
    """vLLM's name of the combined formats; None if vLLM does not support them, or if nothing is quantised."""
    normal: float | None = None
    """Largest mean difference of log-probabilities, in nats, of engines that agree (`harness.parity`); None if not compared."""
    probed: bool = True
    """Whether the precision may be used in `evaluation.probe`."""


PRECISIONS = {
    "fp32": Precision("fp32", normal=1e-5, probed=False),
    "bf16": Precision("bf16", normal=1.2e-2),
    "fp16": Precision("fp16", normal=1.5e-3),
    "fp8_tensor": Precision("bf16", "fp8_tensor", "fp8_token", "fp8_per_tensor", 0.12),
    "fp8_channel": Precision("bf16", "fp8_channel", "fp8_token", "fp8_per_channel", 0.12),
    "fp8_block": Precision("bf16", "fp8_block", "fp8_group", "fp8_per_block", 0.12),
    "fp8_block_w8a16": Precision("bf16", "fp8_block", None, "fp8_per_block", 0.12, probed=False),
    "mxfp8": Precision("bf16", "mxfp8", "mxfp8"),
    "int8": Precision("bf16", "int8_channel", "int8_token", "int8", 3.5e-2),
    "nvfp4": Precision("bf16", "nvfp4"),
    "nvfp4_w4a4": Precision("bf16", "nvfp4", "nvfp4_token"),
}
"""Name -> precision. vLLM quantises to FP8 while it loads. It has no such mode for int8 (`int8_per_channel_weight_only`
silently leaves dense layers unquantised), so int8 weights reach vLLM as a quantised checkpoint."""

PROBED = tuple(name for name, precision in PRECISIONS.items() if precision.probed)
"""Names of the precisions that may be used in `evaluation.probe`."""
UNQUANTISED = ", ".join(name for name, precision in PRECISIONS.items() if precision.weights is None)
"""Names of the precisions without quantisation, joined by commas."""


def vllm_option(weights: str | None, activations: str | None) -> str | None:
    """Name of vLLM's precision with these formats, else None. For (None, None): all unquantised names, joined by commas."""
    if weights is None and activations is None:
        return UNQUANTISED
    rows = ((name, row) for name, row in PRECISIONS.items() if row.vllm is not None)
    return next((name for name, row in rows if (row.weights, row.activations) == (weights, activations)), None)


def vllm_refusals(machine: Machine) -> dict[str, str | None]:
    """Map each of vLLM's precisions to why vLLM cannot compute in it on `machine`; None if it can.

    The names of all unquantised precisions, joined by commas, are one key.
    """
    refusals: dict[str, str | None] = {UNQUANTISED: None}
    refusals |= {name: _refusal(name, machine) for name, precision in PRECISIONS.items() if precision.vllm is not None}
    return refusals


def _refusal(name: str, machine: Machine) -> str | None:
    if machine.gpu is not None:
        if "fp8" in name and not machine.gpu_fp8:
            return f"{machine.gpu} has no FP8 units"
        return "a GPU quantises activations too: use fp8_block" if name == "fp8_block_w8a16" else None
    match name:
        case "fp8_tensor" if "static_scaled_fp8_quant" not in machine.kernels:
            return "its CPU build has no per-tensor FP8 quantisation"
        case "fp8_block" if not machine.amx_fp8:
            return "this CPU has no AMX-FP8"
        case "int8" if not machine.vnni:  # oneDNN, "Nuances of int8 computations": pairs of products are summed in 16 bits
            return "this CPU has no VNNI, without which sums of INT8 products saturate"
        case "fp8_block_w8a16" if machine.amx_fp8:
            return "this CPU multiplies in W8A8: use fp8_block"
        case "fp8_block_w8a16" if not machine.amx:
            return "this CPU has no AMX"
        case "fp8_block_w8a16" if "fp8_scaled_mm_cpu" not in machine.kernels:
            return "its CPU build has no product of FP8 weights in blocks"
        case _:
            return None
