"""`python -m experiments.replay_example`: make dumps of `faultline replay --example`. It needs `make llm vllm`.

Each dump holds 512 responses of at most 64 tokens to sums, which vLLM samples from SmolLM2 with the same random numbers, in BF16
and in FP8 (W8A8, a scale per channel). The trainer's fp32 policy scores them. `python -m tests.oracles.ship_example` makes the
two of SkyRL's trainer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from algos.advantages import grpo
from experiments.gpu_check.anatomy import columns
from experiments.gpu_check.model import Policy, Size
from harness.boundary import command
from harness.dumps.files import write
from harness.errors import UserError

FOLDER = Path(__file__).parents[1] / "faultline" / "example"
ARMS = {"bf16": "bf16", "fp8": "fp8_channel"}
"""Precision that samples the responses of each dump, a key of `gpu_check.model.ARMS`, by the name of the dump's file."""


def main(names: list[str]) -> None:
    """Write the example's dumps into FOLDER, a parquet file each. Raises UserError on an unknown name.

    names: of the files, without suffix; if empty, all.
    """
    if unknown := set(names) - ARMS.keys():
        raise UserError(f"{', '.join(unknown)}: give {' or '.join(ARMS)}; tests.oracles.ship_example makes the others")
    for name in names or ARMS:
        policy = Policy(Size(responses=512, answer=64))
        dumped = columns(policy.scored("vllm", ARMS[name]), policy)
        rewards = torch.from_numpy(np.asarray(dumped["reward"], dtype=np.float64)).view(-1, 4)
        per_response = grpo(rewards).flatten().float().numpy()
        dumped["advantages"] = np.repeat(per_response[:, None], dumped["mask"].shape[1], axis=1)
        write(FOLDER / f"{name}.parquet", dumped)
        print(f"{name}: {int(dumped['mask'].sum())} tokens, mean reward {float(rewards.mean()):.3f}", flush=True)


if __name__ == "__main__":
    with command("interrupted; the same command starts again"):
        main(sys.argv[1:])
