"""Routing replay: which forward pass chooses the experts for training, and which settings make that useless or impossible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from harness.errors import UserError

if TYPE_CHECKING:
    from harness.config import Config
    from harness.rollouts import ReportedRoutes


class RoutingReplay(NamedTuple):
    """Effect of a value of `routing.replay`: whose choice of experts, the trainer's or the rollout engine's, training repeats."""

    meaning: str
    """Meaning of this value of routing.replay, in one line."""
    source: Literal["trainer", "engine"] | None
    """Whose choice of experts is replayed, the trainer's or the engine's; None for no replay."""
    by_old: bool
    """Whether π_old, and not only π_θ, is computed with the replayed experts."""
    weights: bool
    """Whether the weights of the engine's experts are replayed too, not only the choice of experts."""


REPLAYS = {
    "none": RoutingReplay("every forward chooses its own experts", None, False, False),
    "r2": RoutingReplay("π_θ takes the experts that the trainer chose for π_old", "trainer", False, False),
    "r3": RoutingReplay("π_old and π_θ take the experts that the engine chose", "engine", True, False),
    "r3_weights": RoutingReplay(
        "π_old and π_θ take the engine's experts and weights, so no gradient reaches the router", "engine", True, True
    ),
}
"""Value of routing.replay -> its effect. r2 repeats the trainer's choice of experts and so removes its drift over mini-batches.
r3 repeats the engine's choice. It removes that drift too, and also the mismatch of the engine's choice with the trainer's
(arXiv 2510.11370 and 2512.01374). Under r2 and r3 the experts' weights come from the present softmax over all experts, so the
router learns."""


def check_routing(config: Config, experts: int, reported: ReportedRoutes) -> None:
    """Raise UserError if routing replay is useless or impossible. experts: number per layer. reported: see ReportedRoutes."""
    name, actor = config.routing.replay, config.actor
    replay, key = REPLAYS[name], f"routing.replay={name}"
    if replay.source is None:
        return
    if not experts:
        raise UserError(f"{key} has no effect: model={config.model.name} has no experts; set routing.replay=none, or model=moe")
    if replay.source == "engine" and reported == "nothing":
        raise UserError(
            f"{key}: rollout.engine={config.rollout.engine.name} does not tell the experts that it chose here; "
            "use rollout/engine=local, or routing.replay=r2 or none"
        )
    if replay.weights and reported != "experts and weights":
        raise UserError(
            f"{key}: rollout.engine={config.rollout.engine.name} reports the experts it chose without their weights; "
            "use routing.replay=r3"
        )
    if replay.weights and actor.weight_decay:
        raise UserError(
            f"{key} with actor.weight_decay={actor.weight_decay:g}: the router gets no gradient, so decay alone would move it; "
            "set actor.weight_decay=0, or use routing.replay=r3"
        )
    if replay.source == "trainer":
        if actor.scoring == "none":
            raise UserError(f"{key}: actor.scoring=none makes no pass of π_old, whose experts r2 replays; use exact")
        if actor.num_minibatches * actor.epochs == 1:
            raise UserError(
                f"{key} has no effect with one optimizer step per batch: π_θ is still π_old and chooses its experts; "
                "raise actor.num_minibatches or actor.epochs, or use r3 or none"
            )
