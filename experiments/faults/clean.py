"""Short RL runs of a small policy on a toy task (chain) without a fault. The diagnosis must call their dumps consistent."""

from __future__ import annotations

from pathlib import Path

from harness.compose import compose
from harness.config import Config, parse

LAST, EVERY = 25, 2
BASE = (
    "tracking=disabled",
    "task.modulus=9",
    "task.length=10",
    "task.choices=1",
    "task.slip=0.15",
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "warmstart.steps=500",
    "warmstart.keep_low=0.02",
    "warmstart.keep_high=0.98",
    "rollout.prompts=32",
    "rollout.group_size=8",
    "evaluation.every=1000",
    "evaluation.prompts=4",
    "evaluation.samples=4",
    "actor.lr=3e-4",
    "entropy_coeff=0.005",
    f"steps={LAST}",
    f"dump.every={EVERY}",
)
STEPS = tuple(range(0, LAST, EVERY))
"""Numbers of the training steps at which a run's batch is dumped."""
MIXTURE = ("model=moe", "rollout/precision=fp8_tensor")
PRECISIONS = ("fp32", "bf16", "fp16", "fp8_tensor", "fp8_channel", "int8", "nvfp4", "nvfp4_w4a4")
IN_BF16 = ("actor.dtype=bf16", "actor.scoring=forward", "actor.micro_tokens=400")
"""Config overrides of a trainer in BF16, whose micro-batches of at most 400 tokens divide the responses to a prompt.

On a CPU, a micro-batch's size does not change what PyTorch computes for a response. These runs round in BF16, no more."""
ARMS: dict[str, tuple[str, ...]] = {
    **{name: (f"rollout/precision={name}",) for name in PRECISIONS},
    "fp8_block": ("rollout/precision=fp8_block", "model.hidden_size=128"),
    "fp8_cache": ("rollout/precision=bf16", "rollout.kv_cache=fp8_e4m3"),
    "moe": MIXTURE,
    "moe_r3": (*MIXTURE, "routing.replay=r3"),
    **{f"staleness_{k}": ("rollout/precision=fp8_tensor", f"rollout.staleness={k}") for k in (1, 2, 4)},
    "partial": ("rollout/precision=fp8_tensor", "rollout.partial_tokens=5"),
    **{
        f"trainer_bf16_{masters}_{name}": (*IN_BF16, f"actor.masters={masters}", f"rollout/precision={name}")
        for masters in ("fp32", "none")
        for name in ("bf16", "fp8_tensor")
    },
}
"""Config overrides of each arm whose runs have no fault, by the arm's name."""


def sampler(arm: str) -> str:
    """The precision of the sampler in runs of `arm`, a key of ARMS: the name of an option of rollout/precision."""
    return next(option.partition("=")[2] for option in ARMS[arm] if option.startswith("rollout/precision="))


def config(folder: Path, arm: str, seed: int, *more: str) -> Config:
    """The config of a run of `arm`, a key of ARMS. more: further overrides. The run's folder is in `folder`/<seed>-<arm>."""
    own = (f"run.root={folder}", f"run.sweep={seed}-{arm}", f"seed={seed}")
    return parse(compose(*BASE, *own, *ARMS[arm], *more))
