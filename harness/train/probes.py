"""What the mismatch of other precisions would be: they sample for a run's weights, and nothing is trained on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from algos.diagnostics.mismatch import mismatch
from harness.config import PrecisionConfig
from harness.rollouts.local import LocalEngine
from harness.train.collector import Collector

MEASURED = {
    "rollout_corr/k3_kl": "k3_kl",
    "mismatch/ess_sequence": "ess_sequence",
    "mismatch/log_ratio_max_abs": "log_ratio_max_abs",
}


class Probes:
    """One engine per precision; `measure` is called at an evaluation, with its prompts and random numbers."""

    def __init__(self, precisions: Mapping[str, PrecisionConfig], make: Callable[[PrecisionConfig], LocalEngine]):
        self.engines = {name: make(precision) for name, precision in precisions.items()}

    def measure(self, collector: Collector, version: int, prompts: Tensor, uniforms: Tensor) -> dict[str, float]:
        """probe/<precision>/<statistic> of responses that the precision samples and the trainer's own policy scores."""
        metrics: dict[str, float] = {}
        for name, engine in self.engines.items():
            engine.load_weights(collector.actor.weights(), version)
            values = mismatch(collector.scored_batch(engine, prompts, uniforms))
            metrics |= {f"probe/{name}/{short}": float(values[metric]) for metric, short in MEASURED.items()}
        return metrics
