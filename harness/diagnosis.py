"""Diagnosis of faults in a run's log-probabilities by `algos.faults`, allowing for what the run's config explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from algos.batch import Batch
from algos.diagnostics import rounding
from algos.diagnostics.evidence import Predicted
from algos.faults.diagnose import Diagnosis, diagnose

CELLS = 2**22
"""Maximum number of token positions, padding included, in a diagnosis. Beyond it only every k-th prompt or batch is used."""


class RunFacts(NamedTuple):
    """Facts from a run's config that explain a difference between the engine's log μ and the trainer's log π_old.

    precision: the coarser of the engine's and the trainer's precision, a key of `rounding.K3`; None if rounding is not the only
    cause or was not measured. behind: least number of steps by which the engine's weights lag. noise: whether the run
    adds noise to its engine on purpose. baseline: K3 of a faultless dump of the same model, which replaces that of `precision`.
    """

    precision: str | None = None
    behind: int = 0
    noise: bool = False
    baseline: float | None = None

    def lag(self, version: Tensor, mask: Tensor) -> Tensor | None:
        """Versions by which a token's weights lag, [B, T]: newest in `mask` − own + `behind`; None if no token there lags."""
        if not mask.any():
            return None
        lag = version[mask].max() - version + self.behind
        return lag if bool(lag[mask].any()) else None

    def diagnose(
        self, batch: Batch, lag: Tensor | None = None, tokens: Tensor | None = None, predicted: Predicted | None = None
    ) -> Diagnosis:
        """Diagnose a batch's log-probabilities, allowing for what the run's config explains, such as noise added on purpose.

        lag: versions that each token's weights lag behind, [B, T]. tokens: ids [B, T]. predicted: of `diagnose`.
        """
        usual = self.precision if self.baseline is None else self.baseline
        found = diagnose(batch, usual=usual, lag=lag, tokens=tokens, predicted=predicted)
        if found.question != "b" or not self.noise:
            return found
        evidence = "this run adds noise to its sampler"
        return found._replace(kind="consistent", fault=None, question=None, evidence=evidence, check={}, severity=None)


def run_facts(config: Mapping[str, Any]) -> RunFacts:
    """Read from a run's config, as JSON, the facts that explain log μ ≠ log π_old. A damaged section counts as missing."""
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
