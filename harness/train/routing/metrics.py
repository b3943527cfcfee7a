"""Metrics of how the choice of experts affects the mismatch, taken every diagnostics.every steps of a mixture of experts."""

from __future__ import annotations

from torch import Tensor

from algos.diagnostics.routing import routing, split_k3
from harness.rollouts.architecture import expert_count
from harness.rollouts.routes import Routes
from harness.train.data.batch import Scores
from harness.train.data.responses import Responses
from harness.train.routing.replay import engine_routes
from harness.train.scorer import Scorer


def routing_metrics(scorer: Scorer, responses: Responses, scores: Scores, order: list[Tensor]) -> dict[str, Tensor]:
    """Metrics of the experts of the old policy π_old and of the engine; {} for a dense model or without a scored π_old.

    π_old is scored twice more for these metrics: with its own experts, and with the engine's unless routing.replay did so.
    """
    rollout, number = responses.rollout, expert_count(scorer.plan.shape)
    if not number or scores.old is None or not rollout.mask.any():
        return {}
    live_logp, live = _score_live(scorer, responses, order)
    assert live.margin is not None  # the trainer's own choice has one
    first = responses.prompts.shape[1] - 1  # the place that predicts the first token
    engine = engine_routes(rollout, weights=False)
    engine_ids = None if engine is None else engine.ids[:, first:]
    metrics = routing(live.ids[:, first:], engine_ids, live.margin[:, first:], rollout.mask, number)
    if engine is not None:
        by_ids = scorer.mode.by_old and not scorer.mode.weights
        by_engine = scores.old if by_ids else _score_by_engine(scorer, responses, order, engine)
        metrics |= split_k3(live_logp, by_engine, rollout.logp, rollout.mask)
    return metrics


def _score_live(scorer: Scorer, responses: Responses, order: list[Tensor]) -> tuple[Tensor, Routes]:
    """Score π_old with its own choice of experts, by the pass that actor.scoring names. Returns (log π_old [B, T], experts)."""
    if scorer.config.actor.scoring != "exact":
        return scorer.route_forward(responses, order)
    rollout = responses.rollout
    logp, routes = scorer.route_by(scorer.own_policy, responses.prompts, rollout.tokens, scorer.recorded(rollout))
    assert routes is not None  # the model is a mixture
    return logp, routes


def _score_by_engine(scorer: Scorer, responses: Responses, order: list[Tensor], routes: Routes) -> Tensor:
    """Score π_old with the engine's experts `routes`, by the pass that actor.scoring names. Returns log π_old [B, T]."""
    replay = scorer.recorded(responses.rollout, Routes(routes.ids))
    if scorer.config.actor.scoring != "exact":
        return scorer.score_forward(responses, order, replay)
    return scorer.score_by(scorer.own_policy, responses.prompts, responses.rollout.tokens, replay)
