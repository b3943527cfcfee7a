"""The mismatch that other precisions would have: they sample for a run's weights, and nothing is trained on it."""

from __future__ import annotations

from torch import Tensor

from algos.diagnostics.mismatch import mismatch
from harness.build import Plan, local_engine
from harness.train.sampler import Sampler
from harness.train.scorer import Scorer

MEASURED = {
    "rollout_corr/k3_kl": "k3_kl",
    "mismatch/ess_sequence": "ess_sequence",
    "mismatch/log_ratio_max_abs": "log_ratio_max_abs",
}


class Probes:
    """One engine per precision of `evaluation.probe`; `measure` is called at an evaluation, with its random numbers."""

    def __init__(self, plan: Plan, sampler: Sampler, scorer: Scorer):
        self.sampler, self.scorer = sampler, scorer
        self.engines = {name: local_engine(plan, precision) for name, precision in plan.config.evaluation.probe.items()}

    def measure(self, version: int, prompts: Tensor, uniforms: Tensor) -> dict[str, float]:
        """probe/<precision>/<statistic> of responses that the precision samples and the trainer's own policy scores."""
        metrics: dict[str, float] = {}
        for name, engine in self.engines.items():
            engine.load_weights(self.sampler.actor.weights(), version)
            values = mismatch(self.scorer.scored_batch(prompts, self.sampler.generate(engine, prompts, uniforms)))
            metrics |= {f"probe/{name}/{short}": float(values[metric]) for metric, short in MEASURED.items()}
        return metrics
