"""Description of a machine by its arithmetic units and kernels, which decide the precisions that it can compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FP8_KERNELS = frozenset({"static_scaled_fp8_quant", "fp8_scaled_mm_cpu"})
"""Operators of vLLM's CPU build that FP8 precisions need: per-tensor FP8 quantisation, products of blockwise FP8 weights."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Features of a machine. `vllm_support.this_machine()` reads them once per process; tests construct other machines.

    gpu: name of the GPU; None if vLLM computes on the CPU. gpu_fp8: whether the GPU has FP8 units. gpu_sleep: whether vLLM can
    release its GPU memory. avx512, vnni, amx, amx_fp16, amx_fp8: whether the CPU has these units. VNNI sums int8 products
    in 32 bits. AMX multiplies tiles, either of int8 or of bf16.
    kernels: operators of FP8_KERNELS that vLLM's CPU build implements.
    head_sizes: attention head sizes that vLLM's CPU build has kernels for; empty on a GPU, which takes any.
    """

    gpu: str | None = None
    gpu_fp8: bool = False
    gpu_sleep: bool = False
    avx512: bool = False
    vnni: bool = False
    amx: bool = False
    amx_fp16: bool = False
    amx_fp8: bool = False
    kernels: frozenset[str] = frozenset()
    head_sizes: tuple[int, ...] = ()

    @property
    def fp8_product(self) -> Literal["native", "fp32", "reference"]:
        """How torch or vLLM multiplies FP8 inputs, with a scale per token, by FP8 weights, with a scale per channel.

        native: computed by FP8 units of a GPU, by vLLM on AMX-FP8, or by oneDNN 3.12 on AMX-FP16.
        fp32: torch 2.13 widens both matrices on a CPU without AMX. The product is exact and about as fast as one in fp32.
        reference: with AMX torch calls oneDNN, and oneDNN has only its reference code where AMX-FP16 is missing.
        Sources: `_scaled_mm_out_cpu` in torch's aten/src/ATen/native/Blas.cpp; the implementation that ONEDNN_VERBOSE=1 names.
        """
        if self.gpu is not None or self.amx_fp8 or (self.amx and self.amx_fp16):
            return "native"
        return "reference" if self.amx else "fp32"
