"""Diagnosis of the log-probabilities of a run by `algos.faults`, given what the run's config explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from algos.batch import Batch
from algos.diagnostics import rounding
from algos.faults.diagnose import Diagnosis, diagnose

CELLS = 2**22
"""Maximum number of values, padding included, in a diagnosis. Of more, prompts or whole batches are left out."""


class RunFacts(NamedTuple):
    """Facts of a run's config that explain a difference between log μ and log π_old.

    precision: the coarser precision of sampler and trainer, a name of `rounding.K3`; None if it was not measured. behind: minimum
    number of steps that the sampler's weights are behind. noise: whether the run adds noise to its sampler on purpose. baseline:
    K3 of a dump without a fault of the same model, which counts instead of the precision's; None if there is no such dump.
    """

    precision: str | None = None
    behind: int = 0
    noise: bool = False
    baseline: float | None = None

    def lag(self, version: Tensor, mask: Tensor) -> Tensor | None:
        """How many versions each token's weights are known to be behind, [B, T] as `version` and `mask`; None if unknown."""
        if not mask.any():
            return None
        lag = version[mask].max() - version + self.behind
        return lag if bool(lag[mask].any()) else None

    def diagnose(
        self, batch: Batch, lag: Tensor | None = None, tokens: Tensor | None = None, entropy: Tensor | None = None
    ) -> Diagnosis:
        """Diagnose a batch, given the facts. lag: versions that each token's weights are behind. tokens: ids [B, T]. entropy:
        H(π_old) [B, T] in nats. Noise that the run adds on purpose is no fault.
        """
        precision, baseline = (self.precision, self.baseline) if lag is None else (None, None)
        found = diagnose(batch, precision=precision, baseline=baseline, lag=lag, tokens=tokens, entropy=entropy)
        if found.question != "b" or not self.noise:
            return found
        evidence = "this run adds noise to its sampler"
        return found._replace(kind="consistent", fault=None, question=None, evidence=evidence, check={}, severity=None)


def run_facts(config: Mapping[str, Any]) -> RunFacts:
    """Read the facts from the config of a run, given as plain JSON. A damaged part is ignored."""
    rollout, actor = _part(config, "rollout"), _part(config, "actor")
    engine = _part(rollout, "engine")
    noise = any(engine.get(name) for name in ("noise", "router_noise"))
    behind = rollout.get("staleness")
    behind = behind if isinstance(behind, int) else 0
    if noise or behind or rollout.get("partial_tokens") or "num_experts" in _part(config, "model"):
        return RunFacts(None, behind, noise)  # K3 is then not that of rounding alone, or rounding flips experts
    sampler = _part(rollout, "precision").get("name") if rollout.get("kv_cache") == "compute" else "fp8_cache"
    trainer = _part(actor, "precision").get("name") or actor.get("dtype")
    if not {str(sampler), str(trainer)} <= rounding.K3.keys():
        return RunFacts()
    return RunFacts(max(str(sampler), str(trainer), key=lambda name: rounding.K3[name]))


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}
