"""`python -m experiments.replay_example`: make the dumps of `faultline replay --example`. It needs `make llm vllm`.

Each dump holds 512 responses of at most 64 tokens to 128 sums. vLLM samples them from SmolLM2, with the same random numbers in
BF16 and in FP8 (W8A8, a scale per channel). The trainer's fp32 policy scores them. It takes about 15 minutes of CPU time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from algos.advantages import grpo
from experiments.gpu_check.anatomy import columns
from experiments.gpu_check.model import Policy, Size
from harness.dumps.files import write

FOLDER = Path(__file__).parents[1] / "faultline" / "example"
ARMS = {"bf16": "bf16", "fp8": "fp8_channel"}
"""Name of a dump's file -> precision, one of ARMS in `experiments.gpu_check.model`, that samples its responses."""


def main() -> None:
    """Write the example's dumps, a parquet file for BF16 and one for FP8 rollouts, into FOLDER."""
    policy = Policy(Size(responses=512, answer=64))
    for name, arm in ARMS.items():
        dumped = columns(policy.scored("vllm", arm), policy)
        rewards = torch.from_numpy(np.asarray(dumped["reward"], dtype=np.float64)).view(-1, 4)
        per_response = grpo(rewards).flatten().float().numpy()
        dumped["advantages"] = np.repeat(per_response[:, None], dumped["mask"].shape[1], axis=1)
        write(FOLDER / f"{name}.parquet", dumped)
        print(f"{name}: {int(dumped['mask'].sum())} tokens, mean reward {float(rewards.mean()):.3f}", flush=True)


if __name__ == "__main__":
    main()
