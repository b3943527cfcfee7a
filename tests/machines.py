"""Machines to stand for others, and whole test runs as on another CPU: `pytest -p tests.machines --cpu amx`.

The option hides flags of this CPU from torch.cpu; for `amx` it also caps oneDNN's instructions. vLLM then loads the library and
picks the kernels of that CPU. Torch's C++ code and the processes that a test starts still see the real CPU.
"""

import os

import pytest

from harness.machine import Machine

HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes of vLLM 0.32 on a CPU."""
CPU_KERNELS = frozenset({"fp8_scaled_mm_cpu"})
MACHINES = {
    "avx2": Machine(head_sizes=HEADS),
    "avx512": Machine(avx512=True, vnni=True, head_sizes=HEADS),
    "amx": Machine(avx512=True, vnni=True, amx=True, kernels=CPU_KERNELS, head_sizes=HEADS),
    "amx_fp16": Machine(avx512=True, vnni=True, amx=True, amx_fp16=True, kernels=CPU_KERNELS, head_sizes=HEADS),
    "amx_fp8": Machine(avx512=True, vnni=True, amx=True, amx_fp16=True, amx_fp8=True, kernels=CPU_KERNELS, head_sizes=HEADS),
    "gpu": Machine(gpu="A100", gpu_sleep=True),
    "gpu_fp8": Machine(gpu="H100", gpu_fp8=True, gpu_sleep=True),
}
HIDDEN = {
    "avx2": ("amx", "avx512", "avx10", "avx_vnni"),
    "avx512": ("amx",),
    "amx": ("amx_fp16",),
}
"""A CPU of MACHINES -> beginnings of the flags that torch.cpu does not report on it."""


def pytest_addoption(parser):
    parser.addoption("--cpu", choices=HIDDEN, help="test as on a CPU of this kind, which must have no more than the real one")


def pytest_configure(config):
    if cpu := config.getoption("--cpu"):
        if cpu == "amx":  # the one whose FP8 product differs: oneDNN's reference code
            os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX10_1_512_AMX"
        import torch

        flags = {name: has and not name.startswith(HIDDEN[cpu]) for name, has in torch.cpu.get_capabilities().items()}
        pytest.MonkeyPatch().setattr(torch.cpu, "get_capabilities", lambda: flags)
