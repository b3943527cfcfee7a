"""Probes: other precisions sample with a run's weights to measure their mismatch. Nothing is trained on their responses."""

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
    """Measures, at evaluations, the mismatch of an embedded engine in each precision of `evaluation.probe`."""

    def __init__(self, plan: Plan, sampler: Sampler, scorer: Scorer):
        self.sampler, self.scorer = sampler, scorer
        self.engines = {name: local_engine(plan, precision) for name, precision in plan.config.evaluation.probe.items()}

    def measure(self, version: int, prompts: Tensor, uniforms: Tensor) -> dict[str, float]:
        """Return mismatch statistics of responses to prompts [B, P], sampled in each probed precision by `uniforms` [B, T].

        version: number of the actor's weights, which the engines load. Metrics are named probe/<precision>/<statistic>.
        """
        metrics: dict[str, float] = {}
        for name, engine in self.engines.items():
            engine.load_weights(self.sampler.actor.weights(), version)
            values = mismatch(self.scorer.scored_batch(prompts, self.sampler.generate(engine, prompts, uniforms)))
            metrics |= {f"probe/{name}/{short}": float(values[metric]) for metric, short in MEASURED.items()}
        return metrics
