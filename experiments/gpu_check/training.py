"""A check of a few RL steps: seconds by phase, least seconds that the device allows, tokens per second, peak memory."""

from __future__ import annotations

import resource
import tempfile
import time
from statistics import median
from typing import NamedTuple

import torch

from experiments.gpu_check.model import Size
from experiments.gpu_check.section import Table, number
from harness.config import Config
from harness.memory import MOMENTS, memory
from harness.models import device, hub_model, synchronize
from harness.rollouts.vllm_support import installed
from harness.run.folder import RunFolder
from harness.run.loop import train

PHASES = ("sync", "generate", "score", "train", "step")
GIB = 2**30


class Ceiling(NamedTuple):
    """Best rates of the device. bandwidth: bytes read and written per second by a copy. rate: FLOP/s of a BF16 matmul."""

    bandwidth: float
    rate: float


def ceiling() -> Ceiling:
    """Measure the best rates of the device: a copy of 2 GiB (CPU: 256 MiB), and a BF16 product of 8192³ (CPU: 1024³)."""
    large = device().type == "cuda"
    source = torch.ones(2**31 if large else 2**28, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / _seconds(lambda: target.copy_(source))
    n = 8192 if large else 1024
    a, b = (torch.randn(n, n, device=device(), dtype=torch.bfloat16) for _ in range(2))
    return Ceiling(bandwidth, 2 * n**3 / _seconds(lambda: a @ b))


def check_training(size: Size) -> list[Table]:
    """Time size.steps RL steps with BF16 and FP8 rollouts in each engine, vLLM in eager mode.

    The first step, which loads kernels, is left out.
    """
    top = ceiling()
    engines: dict[str, tuple[str, ...]] = {"local": ()}
    if installed():
        # vLLM lets no second engine of a process sleep.
        engines["vllm"] = ("rollout/engine=vllm", "rollout.engine.eager=true", "rollout.engine.sleep=false")
    rows = []
    for kind, overrides in engines.items():
        for precision in ("bf16", "fp8_channel"):
            measured = _measured(size, (f"rollout/precision={precision}", *overrides), top)
            rows.append({"engine": kind, "rollout": precision} | measured)
            print(rows[-1], flush=True)  # a lost machine leaves what was measured
    best = [{"copy (GB/s)": number(top.bandwidth / 1e9), "BF16 product (TFLOP/s)": number(top.rate / 1e12)}]
    note = (
        "Medians over the steps after the first, in seconds. Floors: generation reads all weights once per token of the longest "
        "response; training does 6 operations per weight and token. `faultline memory` computes the last memory."
    )
    return [Table("Ceilings of the device", "Measured, not from a data sheet.", best), Table("RL steps", note, rows)]


def _measured(size: Size, overrides: tuple[str, ...], top: Ceiling) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as root:
        config = size.config(*overrides, f"steps={size.steps + 1}", f"run.root={root}", "evaluation.every=1000000")
        _forget_peak()
        train(config)
        rows = RunFolder(config.path).metrics()[1:-1]
    weights = sum(parameter.numel() for parameter in hub_model(config.model).parameters())
    responses = config.rollout.prompts * config.rollout.group_size
    longest = config.task.answer_length
    tokens = responses * (config.task.max_prompt + longest)
    times = {phase: median(row.get(f"time/{phase}", 0.0) for row in rows) for phase in PHASES}
    return {phase: number(value) for phase, value in times.items()} | {
        "generate, floor": number(longest * 4 * weights / top.bandwidth),
        "train, floor": number(6 * weights * tokens / top.rate),
        "rollout tokens/s": number(median(row["throughput/rollout_tokens"] for row in rows)),
        "peak memory (GiB)": number(_peak() / GIB),
        "computed (GiB)": number(_computed(config) / GIB),
        "K3": number(median(row["rollout_corr/k3_kl"] for row in rows)),
    }


def _computed(config: Config) -> float:
    """Peak memory of a run on this device in bytes, as `faultline memory` computes it."""
    computed = memory(config, 1, device().type)
    return max(computed.total(moment) for moment in MOMENTS)


def _forget_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int:
    """Peak memory in bytes: on a GPU since the last call of `_forget_peak`, on a CPU since the process began."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _seconds(call, repeats: int = 5) -> float:
    call()
    times = []
    for _ in range(repeats):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - began)
    return median(times)
