"""PPO's critic: a value model under DeepSpeed ZeRO, and its training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from algos.critic import explained_variance, value_loss
from harness.config import Config
from harness.models import device
from harness.train.data.batch import TrainingBatch
from harness.train.forward import micro_batches
from harness.train.metrics import norm_metrics
from harness.train.model.engine import DeepSpeedModel
from harness.train.model.head import ValueModel
from harness.train.model.layout import can_share
from harness.train.ranks import join


class DeepSpeedCritic(DeepSpeedModel):
    """A value model under DeepSpeed ZeRO, with its own optimizer. All settings but the learning rate are those of the actor."""

    def __init__(self, net: PreTrainedModel, config: Config):
        join()  # chooses this rank's device
        net = net.to(device()).train()  # type: ignore[arg-type]  # transformers hides the signature
        if config.actor.gradient_checkpointing:
            net.gradient_checkpointing_enable({"use_reentrant": False})
        settings = config.actor.model_copy(update={"lr": config.critic.lr})
        super().__init__(ValueModel(net), settings, shares=can_share(net.config))

    def values(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Return the value V before each token of responses, [B, T] with gradient; 0 on padding. Equal rows are computed once."""
        (values,) = self.distinct_by_token(prompts, tokens)
        return values


class Critic:
    """Learns the value V of each state of a response. Its targets are the returns A + V of the sampled responses.

    Life cycle: for each step `values`, then `update`; every rank makes the same calls. net: the model to train, which shares
    no weights with the policy.
    """

    def __init__(self, net: PreTrainedModel, config: Config):
        self.config, self.ranks = config, join()
        self.model = DeepSpeedCritic(net, config)

    @torch.no_grad()
    def values(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Return the value V before each token, [B, T] without gradient, one mini-batch at a time. Every rank must call it."""
        values = torch.zeros(tokens.shape, device=tokens.device)
        for rows in torch.arange(len(tokens)).chunk(self.config.actor.num_minibatches):
            for part in self._parts(prompts[rows], tokens[rows]):
                own = rows[part]
                values[own] = self.model.values(prompts[own], tokens[own])
        return self.ranks.sum(values)  # a rank has 0 in the rows of the others

    def update(self, batch: TrainingBatch, order: list[Tensor]) -> dict[str, Tensor]:
        """Take one optimizer step per mini-batch of `order`, on the mean value loss of its tokens. Returns the metrics."""
        assert batch.values is not None and batch.returns is not None  # a run with a critic has both
        norms, sums = [], []
        for rows in order:
            sums.append(self._accumulate_gradient(batch.rows(rows)))
            norms.append(self.model.step())
        loss, clipped = self.ranks.sum(torch.stack(sums)).mean(0)
        metrics = {"critic/loss": loss, "critic/clipfrac": clipped} | norm_metrics("critic", norms)
        mask = batch.batch.mask
        if mask.sum() > 1:
            metrics |= {
                "critic/explained_variance": explained_variance(batch.values, batch.returns, mask),
                "critic/value_mean": batch.values[mask].mean(),
                "critic/return_mean": batch.returns[mask].mean(),
            }
        return metrics

    def _accumulate_gradient(self, mini: TrainingBatch) -> Tensor:
        """Add a mini-batch's gradient to the model. Returns this rank's summand of (value loss, share of clipped tokens), [2]."""
        assert mini.values is not None and mini.returns is not None
        tokens = mini.batch.mask.sum().clamp(min=1)
        sums = torch.zeros(2, dtype=torch.float64, device=mini.tokens.device)
        parts = self._parts(mini.prompts, mini.tokens)
        for rows in parts:
            values, mask = self.model.values(mini.prompts[rows], mini.tokens[rows]), mini.batch.mask[rows]
            losses, clipped = value_loss(values, mini.values[rows], mini.returns[rows], self.config.critic.cliprange_value)
            loss = torch.where(mask, losses, 0.0).sum() / tokens
            self.model.backward(loss, last=rows is parts[-1])
            sums += torch.stack([loss.detach().double(), (clipped & mask).sum().double() / tokens])
        return sums

    def _parts(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        return micro_batches(self.ranks, self.config.actor.micro_tokens, prompts, tokens)

    def save(self, folder: Path) -> None:
        """Write the critic's weights and optimizer state under `folder`."""
        self.model.save(folder)

    def load(self, folder: Path, ranks: int) -> None:
        """Read the weights and optimizer state that `save` wrote on `ranks` ranks."""
        self.model.load(folder, ranks)
