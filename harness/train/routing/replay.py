"""What of a rollout the trainer replays: experts by routing.replay, sampling masks by rollout.replay_sampling_mask."""

from __future__ import annotations

from harness.config import Config
from harness.errors import UserError
from harness.rollouts import Rollout
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes
from harness.routing import REPLAYS


def replayed(rollout: Rollout, config: Config) -> Recorded | None:
    """What the engine recorded and π_old is scored with; None for nothing.

    Raises UserError when the rollout lacks experts that are to be replayed, as one that another setting has sampled ahead.
    """
    replay, masks = REPLAYS[config.routing.replay], replayed_masks(rollout, config)
    if not replay.by_old:
        return masks
    routes = engine_routes(rollout, weights=replay.weights)
    if routes is None:
        raise UserError(f"routing.replay={config.routing.replay}: the rollout does not tell the engine's experts")
    return with_masks(routes, masks)


def replayed_masks(rollout: Rollout, config: Config) -> Recorded | None:
    """The sampling masks alone. An engine that did not truncate has none, as that of a probe."""
    replays = config.rollout.replay_sampling_mask and rollout.support is not None
    return Recorded(support=rollout.support) if replays else None


def with_masks(routes: Routes, masks: Recorded | None) -> Recorded:
    """Routes, and masks if there are any."""
    return Recorded(routes, None if masks is None else masks.support)


def engine_routes(rollout: Rollout, *, weights: bool) -> Routes | None:
    """The experts that the engine chose, with their weights if asked for; None where it told no experts.

    Raises UserError when it told no weights that are asked for.
    """
    if rollout.expert_ids is None:
        return None
    if weights and rollout.expert_weights is None:
        raise UserError("routing.replay=r3_weights: the rollout has experts without their weights; use routing.replay=r3")
    return Routes(rollout.expert_ids, rollout.expert_weights if weights else None)
