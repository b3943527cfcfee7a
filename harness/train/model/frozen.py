"""Turns a transformers model into one that scores tokens as the actor's config says, and π_ref, which is never trained."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from harness.config import ActorConfig
from harness.models import DTYPES, device
from harness.rollouts.recorded import Recorded
from harness.train.model.by_token import ByToken
from harness.train.model.head import ScoringModel
from harness.train.model.layout import can_share
from harness.train.model.straight_through import cast_linear_layers
from harness.train.ranks import join


def placed(net: PreTrainedModel, config: ActorConfig) -> PreTrainedModel:
    """Cast a model, in place, to actor.dtype, and move it to the device of this rank."""
    join()  # chooses this rank's device
    # Cast before a GPU holds the model, which may not fit in fp32. DeepSpeed's own cast then finds nothing to do.
    return net.to(device=device(), dtype=DTYPES[config.dtype])  # type: ignore[call-arg]


def scoring_model(net: PreTrainedModel, config: ActorConfig, temperature: float) -> ScoringModel:
    """Make the model that the actor trains: with the linear layers of actor.precision, compiled if the config says so."""
    if config.precision is not None:
        cast_linear_layers(net, config.precision)
    scoring = ScoringModel(net, temperature)
    if config.compile:
        scoring.model.compile(dynamic=True)  # the number of distinct rows differs by step
    return scoring


class FrozenPolicy(ByToken):
    """The policy π_ref of a KL term: weights in actor.dtype, whole on every rank, and the actor's forward pass.

    While π_θ has the same weights, a pass without gradient gives log π_ref and log π_θ the same bits. net: a model that
    nothing else uses. temperature: divisor of the logits.
    """

    def __init__(self, net: PreTrainedModel, config: ActorConfig, temperature: float):
        net = placed(net.eval(), config)
        scoring = scoring_model(net, config, temperature).requires_grad_(False)
        super().__init__(scoring, device(), shares=can_share(net.config))

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        """Return (log π_ref of the tokens in nats, entropy of π_ref at each), both [B, T]; 0 on padding. As `Actor.logp`."""
        logp, entropy = self.distinct_by_token(prompts, tokens, replay)
        return logp, entropy
