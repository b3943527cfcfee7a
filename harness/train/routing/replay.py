"""Selects the rollout engine's choices of experts that the trainer replays, according to routing.replay."""

from __future__ import annotations

from harness.errors import UserError
from harness.rollouts import Rollout
from harness.rollouts.routes import Routes
from harness.routing import REPLAYS


def replayed_routes(rollout: Rollout, name: str) -> Routes | None:
    """Return the engine's experts that π_old takes if routing.replay=`name`, or None. Raises UserError if unrecorded."""
    replay = REPLAYS[name]
    if not replay.by_old:
        return None
    routes = engine_routes(rollout, weights=replay.weights)
    if routes is None:
        raise UserError(f"routing.replay={name}: the rollout does not tell the engine's experts")
    return routes


def engine_routes(rollout: Rollout, *, weights: bool) -> Routes | None:
    """Return the experts that the engine's router chose for each token, with their routing weights if `weights`.

    None if the experts were not recorded. Raises UserError if only their weights are missing.
    """
    if rollout.expert_ids is None:
        return None
    if weights and rollout.expert_weights is None:
        raise UserError("routing.replay=r3_weights: the rollout has experts without their weights; use routing.replay=r3")
    return Routes(rollout.expert_ids, rollout.expert_weights if weights else None)
