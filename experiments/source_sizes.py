"""Sizes of the sources of mismatch on SmolLM2-135M, by the local engine and by vLLM's own settings (docs/sources.md).

    python -m experiments.source_sizes

Each row is an engine that samples 128 responses of at most 48 tokens to 32 prompts. The fp32 policy of its weights scores them.
A source that needs an update, such as stale KV or masters, has no size here.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from algos.diagnostics.identity import identity
from algos.diagnostics.pairs import LogpPairs
from algos.faults.diagnose import diagnose
from experiments.gpu_check.model import Policy, Scored, Size
from experiments.plan import publish
from experiments.sources import LENGTH
from harness.boundary import command
from harness.build import build_engine
from harness.compose import compose
from harness.config import parse
from harness.rollouts import RolloutEngine, Sampling
from harness.rollouts.local import LocalEngine
from harness.rollouts.vllm import VllmEngine

FOLDER = Path("experiments/study/sources/smollm2")
SIZE = Size(responses=128, answer=48)
LOCAL = ("exact", "fp8_tensor", "fp8_cache", "fp8_cache_p99", "nvfp4", "w4a4", "mxfp4")
"""Sources of mismatch, options +regime/source=NAME, that the local engine has without an update of the weights."""


class Setting(NamedTuple):
    """A setting of vLLM: its arguments as vLLM names them, and the precision with which it goes."""

    arguments: dict[str, Any]
    precision: str = "bf16"

    def __str__(self) -> str:
        return ", ".join((self.precision, *(f"{name}={value}" for name, value in self.arguments.items())))


OFF = {"block_size": 32, "enable_prefix_caching": False}
SETTINGS = (
    Setting(OFF, "fp32"),
    Setting(OFF),
    Setting({"block_size": 32, "enable_prefix_caching": True}),
    Setting(OFF | {"max_num_seqs": 8}),
    Setting(OFF | {"kv_cache_dtype": "fp8_e4m3"}),
    Setting(OFF | {"kv_cache_dtype": "fp8_e5m2"}),
    Setting(OFF, "fp8_channel"),
)
"""Settings that differ from the second, BF16 without prefix caching, in one thing. A prefix is cached in blocks of 32 tokens, the
least on a CPU. Chunked prefill is not among them: with a seed for each request it fails on a CPU ("CPU Generator does not use
offset", vLLM 0.32)."""


def in_local(policy: Policy, source: str) -> RolloutEngine:
    """The embedded engine with the mismatch of `source`, and the policy's weights."""
    config = parse(compose("warmstart=none", "model=smollm2", "task=arithmetic", f"+regime/source={source}"))
    return _loaded(build_engine(config, policy.net.config, policy.task)(), policy)


def in_vllm(policy: Policy, setting: Setting) -> RolloutEngine:
    """vLLM with the arguments and precision of `setting`, and the policy's weights."""

    class Engine(VllmEngine):
        def _options(self, kv_cache_gib: float) -> dict[str, Any]:
            return super()._options(kv_cache_gib) | setting.arguments

    precision = policy.size.config(f"rollout/precision={setting.precision}").rollout.precision
    return _loaded(Engine(policy.net.config, precision, Sampling(stop=policy.task.stop), kv_cache_gib=0.5), policy)


def _loaded(engine: RolloutEngine, policy: Policy) -> RolloutEngine:
    engine.load_weights(policy.net.named_parameters(), 0)
    return engine


def row(scored: Scored) -> dict[str, Any]:
    """K3 and sequence ESS (at LENGTH tokens, as for independent ones), mean ratio with its error over prompts, and diagnosis."""
    found, tokens = scored.statistics, scored.mask.sum(-1).float().mean()
    groups = torch.arange(len(scored.mask)) // 4
    batch = scored.batch._replace(prompt=groups)
    mean = identity(LogpPairs(batch))
    named = diagnose(batch, tokens=scored.rollout.tokens)
    ess = found["ess_sequence"] ** (LENGTH / float(tokens))
    numbers = {"K3": found["k3_kl"], "ESS at 64": ess, "mean ratio": mean["identity/mean"], "error": mean["identity/error"]}
    return {"engine": scored.engine, "setting": scored.arm, **numbers, "diagnosis": named.fault or named.kind}


def main() -> None:
    """Measure what sizes.csv below FOLDER does not have, and write file and table after each."""
    policy, file = Policy(SIZE), FOLDER / "sizes.csv"
    rows = pd.read_csv(file).to_dict("records") if file.is_file() else []
    done = {one["setting"] for one in rows}
    FOLDER.mkdir(parents=True, exist_ok=True)
    local = {name: (LocalEngine, partial(in_local, policy, name)) for name in LOCAL}
    served = {str(setting): (VllmEngine, partial(in_vllm, policy, setting)) for setting in SETTINGS}
    for name, (kind, make) in (local | served).items():
        if name not in done:
            rows.append(row(policy.responses(make(), kind.__name__, name)))
            pd.DataFrame(rows).to_csv(file, index=False)
    publish(FOLDER, pd.DataFrame(rows))


if __name__ == "__main__":
    with command(), torch.no_grad():
        main()
