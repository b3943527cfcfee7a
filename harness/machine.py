"""A machine as it decides which precisions it computes in: by its units and the kernels built for them, never by its speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FP8_KERNELS = frozenset({"static_scaled_fp8_quant", "fp8_scaled_mm_cpu"})
"""Operators of vLLM's CPU build that a precision depends on: per-tensor FP8 quantisation, products of FP8 weights in blocks."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`vllm_support.this_machine()` reads it once in a process; a test makes one to stand for another machine.

    gpu: its name, None where vLLM computes on the CPU. gpu_fp8, gpu_sleep: it has FP8 units; vLLM can lend its memory.
    avx512, amx, amx_fp16, amx_fp8: units of the CPU; `amx` stands for the tiles with their products of int8 and bf16.
    kernels: those of FP8_KERNELS that vLLM's CPU build registers with a body.
    head_sizes: sizes of an attention head that vLLM's CPU build has kernels for; a GPU takes any.
    """

    gpu: str | None = None
    gpu_fp8: bool = False
    gpu_sleep: bool = False
    avx512: bool = False
    amx: bool = False
    amx_fp16: bool = False
    amx_fp8: bool = False
    kernels: frozenset[str] = frozenset()
    head_sizes: tuple[int, ...] = ()

    @property
    def fp8_product(self) -> Literal["native", "fp32", "reference"]:
        """How the product of two FP8 matrices is computed with one scale per channel and token.

        native: by FP8 units of a GPU, by vLLM on AMX-FP8, or by oneDNN 3.12 on AMX-FP16.
        fp32: torch 2.13 widens both matrices on a CPU without AMX. The product is exact and about as fast as one in fp32.
        reference: with AMX torch calls oneDNN, and oneDNN has only its reference code where AMX-FP16 is missing.
        Sources: `_scaled_mm_out_cpu` in torch's aten/src/ATen/native/Blas.cpp; the implementation that ONEDNN_VERBOSE=1 names.
        """
        if self.gpu is not None or self.amx_fp8 or (self.amx and self.amx_fp16):
            return "native"
        return "reference" if self.amx else "fp32"
