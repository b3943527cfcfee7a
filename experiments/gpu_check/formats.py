"""Checks of the local engine's number formats against the device's own: casts, and FP8 products by `torch._scaled_mm`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.gpu_check.section import Table, number
from harness.models import device
from harness.rollouts import casts
from harness.seeding import generator

SIZES = ((16, 576, 960), (256, 576, 3072), (256, 1536, 576), (1024, 4096, 4096))
"""(tokens, inputs, outputs) of the tested matrix products: matrices of SmolLM2, and one of a 7B model.

On a CPU the first alone: where torch has no FP8 product for it, `torch._scaled_mm` takes an hour for all.
"""
CASTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None]] = {
    "e4m3": (casts.e4m3, lambda x: x.clamp(-casts.E4M3_MAX, casts.E4M3_MAX).to(torch.float8_e4m3fn).float()),
    "e5m2": (casts.e5m2, None),
    "e2m1": (casts.e2m1, None),
    "bf16": (lambda x: casts.round_to(x, torch.bfloat16), None),
    "fp16": (lambda x: casts.round_to(x, torch.float16), None),
}
"""Casts of each number format: the local engine's, and the device's own or None if the local engine calls the device's."""
QUANTIZERS = {
    "fp8 per tensor": lambda x: casts.quantize_fp8(x, None),
    "fp8 per row": lambda x: casts.quantize_fp8(x, -1),
    "int8 per row": lambda x: casts.quantize_int8(x, -1),
    "nvfp4": casts.quantize_nvfp4,
}


def check_casts() -> Table:
    """Count the numbers that the local engine's cast rounds differently on CPU and device, or unlike the device's own cast."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    values = torch.cat([bits[bits.isfinite()], _spread(2**20)])
    rows = []
    for name, (cast, native) in CASTS.items():
        here, there = cast(values), cast(values.to(device())).cpu()
        own = "the same code" if native is None else int((native(values.to(device())).cpu() != here).sum())
        off = int((here != there).sum())
        rows.append({"format": name, "values": len(values), "off the CPU": off, "off the device's own": own})
    for name, quantize in QUANTIZERS.items():
        matrix = _spread(2**18).view(256, -1)
        pairs = list(zip(quantize(matrix), quantize(matrix.to(device())), strict=True))
        off = sum(int((here != there.cpu()).sum()) for here, there in pairs)
        rows.append({"format": name, "values": matrix.numel(), "off the CPU": off, "off the device's own": "none"})
    note = "Values that differ. Quantisers count codes and scales."
    return Table("Casts", note, rows)


def check_products(sizes: tuple[tuple[int, int, int], ...] | None = None) -> Table:
    """Measure the errors of FP8 matrix products against fp64: by `torch._scaled_mm`, and by the local engine's emulation.

    sizes: of the products; None for those of SIZES that suit the device.
    """
    rows = []
    for tokens, inputs, outputs in sizes or (SIZES if device().type == "cuda" else SIZES[:1]):
        x = torch.randn(tokens, inputs, generator=generator(0, "products")).to(device())
        w = 0.05 * torch.randn(outputs, inputs, generator=generator(1, "products")).to(device())
        for kind, dims in {"per tensor": (None, None), "per token and channel": (-1, -1)}.items():
            (xc, xs), (wc, ws) = casts.quantize_fp8(x, dims[0]), casts.quantize_fp8(w, dims[1])
            exact = xc.double() @ wc.double().t() * (xs.double() * ws.double().t())
            ours = (xc @ wc.t() * (xs * ws.t())).bfloat16()
            for fast in (False, True) if device().type == "cuda" else (False,):
                size = {"tokens x inputs x outputs": f"{tokens} x {inputs} x {outputs}", "scales": kind}
                rows.append(size | {"accumulation": "fast" if fast else "exact"} | _against(xc, xs, wc, ws, ours, exact, fast))
    note = (
        "The same codes and scales into both. Differing: share of BF16 results that are not the same bits. Errors: relative to "
        "the fp64 product, in the Frobenius norm; BF16's own rounding is 1.7e-3."
    )
    return Table("FP8 products", note, rows)


def _against(xc: Tensor, xs: Tensor, wc: Tensor, ws: Tensor, ours: Tensor, exact: Tensor, fast: bool) -> dict[str, str]:
    scales = {"scale_a": xs, "scale_b": ws.t().contiguous() if ws.ndim else ws}
    emulated = {"emulation's error": number(_off(ours, exact))}
    try:
        theirs = torch._scaled_mm(
            xc.to(torch.float8_e4m3fn), wc.to(torch.float8_e4m3fn).t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=fast
        )
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return {"differing": f"refused: {str(error).splitlines()[0][:80]}", "error": ""} | emulated
    return {"differing": number((theirs != ours).float().mean().item()), "error": number(_off(theirs, exact))} | emulated


def _off(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


def _spread(count: int) -> Tensor:
    """Return `count` random numbers x·exp(4·y), x and y standard normal. A million of them span 1e-10 to 2e8 in size."""
    drawn = generator(0, "spread")
    return torch.randn(count, generator=drawn) * torch.exp(4 * torch.randn(count, generator=drawn))
