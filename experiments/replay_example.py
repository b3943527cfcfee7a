"""`python -m experiments.replay_example`: make the dumps of `faultline replay --example`. It needs `make llm vllm`.

Each dump holds responses of at most 64 tokens to sums, which vLLM samples from SmolLM2 with the same random numbers. The
trainer's fp32 policy scores them. Two dumps are sound: 512 responses in BF16 and in FP8 (W8A8, a scale per channel). The third
has a fault: 256 responses in BF16 at a temperature of 0.6, logged in vLLM's default mode, which is before the temperature. It
takes about 14 minutes of CPU time.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from algos.advantages import grpo
from experiments.faults.vllm import RawVllm, formats
from experiments.gpu_check.anatomy import columns
from experiments.gpu_check.model import KV_CACHE_GIB, Policy, Scored, Size
from harness.dumps.files import write
from harness.rollouts import Sampling
from harness.tasks import PAD

FOLDER = Path(__file__).parents[1] / "faultline" / "example"
ARMS = {"bf16": "bf16", "fp8": "fp8_channel"}
"""Precision that samples the responses of each sound dump, a key of `gpu_check.model.ARMS`, by the name of the dump's file."""
RAW, TEMPERATURE = "raw", 0.6
"""Name of the faulty dump's file, and the temperature of its sampler and trainer."""


def logged_raw(policy: Policy) -> Scored:
    """Responses of vLLM in BF16 at TEMPERATURE. Its log-probabilities are from before the temperature, the trainer's after."""
    sampling = Sampling(temperature=TEMPERATURE, stop=policy.task.stop)
    context = policy.prompts.shape[1] + policy.size.answer
    engine = RawVllm(policy.net.config, formats("bf16"), sampling, context=context, kv_cache_gib=KV_CACHE_GIB)
    engine.parameters = {}
    engine.load_weights(policy.net.named_parameters(), 0)
    rollout = engine.generate(policy.prompts, policy.uniforms)
    engine.close()
    policy.own.sampling = sampling
    mask = (rollout.tokens != PAD) & rollout.logp.isfinite()
    return Scored("vllm", RAW, rollout, policy.own.score(policy.prompts, rollout.tokens), mask, 0.0)


def main(names: list[str]) -> None:
    """Write the example's dumps into FOLDER, a parquet file each. names: of the files, without suffix; if empty, all."""
    for name in names or [*ARMS, RAW]:
        policy = Policy(Size(responses=256 if name == RAW else 512, answer=64))
        scored = logged_raw(policy) if name == RAW else policy.scored("vllm", ARMS[name])
        dumped = columns(scored, policy)
        rewards = torch.from_numpy(np.asarray(dumped["reward"], dtype=np.float64)).view(-1, 4)
        per_response = grpo(rewards).flatten().float().numpy()
        dumped["advantages"] = np.repeat(per_response[:, None], dumped["mask"].shape[1], axis=1)
        write(FOLDER / f"{name}.parquet", dumped)
        print(f"{name}: {int(dumped['mask'].sum())} tokens, mean reward {float(rewards.mean()):.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
