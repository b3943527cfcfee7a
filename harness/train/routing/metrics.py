"""What the choice of experts does to the mismatch, measured every diagnostics.every steps of a run with a mixture of experts."""

from __future__ import annotations

from torch import Tensor

from algos.diagnostics.routing import routing, split_k3
from harness.rollouts.architecture import expert_count
from harness.rollouts.routes import Routes
from harness.train.collector import Collector
from harness.train.data.batch import Scores
from harness.train.data.responses import Sampled
from harness.train.routing.replay import engine_routes, replayed_masks, with_masks


def routing_metrics(collector: Collector, sampled: Sampled, scores: Scores, order: list[Tensor]) -> dict[str, Tensor]:
    """Metrics of the routes of π_old and of the engine; nothing of a dense model or without a scored π_old.

    They cost π_old two more scorings, by its own choice and by the engine's; one where routing.replay makes the second anyway.
    """
    number = expert_count(collector.shape)
    if not number or scores.old is None or not sampled.rollout.mask.any():
        return {}
    live_logp, live = _score_live(collector, sampled, order)
    assert live.margin is not None  # the trainer's own choice has one
    first = sampled.prompts.shape[1] - 1  # the place that predicts the first token
    theirs = engine_routes(sampled.rollout, weights=False)
    metrics = routing(live.ids[:, first:], None if theirs is None else theirs.ids[:, first:], live.margin[:, first:],
                      sampled.rollout.mask, number)  # fmt: skip
    if theirs is not None:
        by_ids = collector.replay.by_old and not collector.replay.weights
        replayed = scores.old if by_ids else _score_replayed(collector, sampled, order, theirs)
        metrics |= split_k3(live_logp, replayed, sampled.rollout.logp, sampled.rollout.mask)
    return metrics


def _score_live(collector: Collector, sampled: Sampled, order: list[Tensor]) -> tuple[Tensor, Routes]:
    """(log π_old by its own choice of experts, its routes), by the pass that actor.scoring names."""
    if collector.config.actor.scoring == "exact":
        logp, routes = collector.route_by(
            collector.own_policy, sampled.prompts, sampled.rollout.tokens, replayed_masks(sampled.rollout, collector.config)
        )
        assert routes is not None  # the model is a mixture
        return logp, routes
    return collector.route_forward(sampled, order)


def _score_replayed(collector: Collector, sampled: Sampled, order: list[Tensor], routes: Routes) -> Tensor:
    replay = with_masks(Routes(routes.ids), replayed_masks(sampled.rollout, collector.config))
    if collector.config.actor.scoring == "exact":
        return collector.score_by(collector.own_policy, sampled.prompts, sampled.rollout.tokens, replay)
    return collector.score_forward(sampled, order, replay)
