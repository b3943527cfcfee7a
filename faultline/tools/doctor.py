"""`faultline doctor`: rollout formats that this machine can compute; with --parity, how far their log-probabilities differ."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from harness.config import PrecisionConfig, parse
from harness.errors import UserError
from harness.rollouts.vllm_support import INSTALL, installed, kv_cache_refusal, slow_formats, weight_formats

DRIVER = Path("/proc/driver/nvidia/version")
"""File in which Linux gives the version of the loaded NVIDIA driver."""


def doctor(parity: bool) -> None:
    """Print versions, device and rollout formats. parity: compare log-probabilities too; UserError if engines differ too much."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {platform.machine()}"
    print(", ".join([device, *map(_versioned, ("torch", "transformers", "deepspeed"))]))
    print(f"CUDA {torch.version.cuda or 'none, by the build of torch'}; driver {driver() or 'none loaded'}")
    print("local engine: every rollout/precision, on any machine; it rounds as the format does and computes in fp32 or BF16")
    print(f"vLLM: {installed() or f'not installed; {INSTALL}'}")
    if installed():
        caches = {f"kv_cache={name}": kv_cache_refusal(name, head_dim=128) for name in ("fp8_e4m3", "fp8_e5m2")}
        slow = slow_formats()
        for option, refusal in (weight_formats() | caches).items():
            print(f"  {option}: {f'no, {refusal}' if refusal else f'slow, {slow[option]}' if option in slow else 'yes'}")
    if parity:
        print("comparing actor and engines in every precision, a minute or so ...", file=sys.stderr, flush=True)
        _parity()


def driver(path: Path = DRIVER) -> str | None:
    """Version of the loaded NVIDIA driver; None if there is none."""
    if not path.is_file():
        return None
    match = re.search(r"\b\d{3,}(\.\d+)+", path.read_text())
    return match and match[0]


def _versioned(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} not installed"


def _parity() -> None:
    from harness.compose import compose
    from harness.parity import NORMAL, parity

    names = {name for name, _ in NORMAL}
    composed = {name: compose(f"rollout/precision={name}") for name in names}
    precisions = {name: PrecisionConfig.model_validate(c["rollout"]["precision"]) for name, c in composed.items()}
    table = Table("precision", "KV cache", "pair", "mean |Δ|", "largest |Δ|", "K3", "normal mean", "")
    abnormal: list[str] = []
    refusals: dict[str, None] = {}
    for row in parity(precisions, parse(composed["fp32"]).actor):
        bound = NORMAL[row.precision, row.kv_cache]
        numbers = (f"{value:.1e}" for value in (row.mean, row.largest, row.k3, bound))
        table.add_row(row.precision, row.kv_cache, row.pair, *numbers, "normal" if row.normal else "OFF")
        abnormal += [] if row.normal else [f"{row.precision} {row.pair}"]
        refusals |= {row.refused: None} if row.refused else {}
    print("\nDifferences of log-probabilities on the same tokens, nats; the actor is the fp32 trainer:")
    Console(width=120).print(table)
    print(*refusals, sep="\n")
    if abnormal:
        raise UserError(f"further apart than is normal: {', '.join(abnormal)}; see the table above")
