"""Batch -> metrics: the correction, one optimizer step per mini-batch, and the metrics of both."""

from __future__ import annotations

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import Corrected, correct
from algos.diagnostics.correction import correct_with_diagnostics
from algos.diagnostics.mismatch import finish_mismatch
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.ratios import ess_share
from algos.reductions import Counts
from harness.build import Plan
from harness.seeding import generator
from harness.train.data.batch import TrainingBatch
from harness.train.forward import TrainingForward
from harness.train.metrics import OLD, correction_metrics, is_optional, norm_metrics, over_minibatches, trained_metrics
from harness.train.model.actor import Actor
from harness.train.ranks import join
from harness.train.schedule import learning_rates


class Learner:
    """Moves the actor along the gradient of the objective.

    Life cycle: for each step `minibatch_order`, then `update`. `updates` counts the optimizer steps: the version of the weights.
    """

    def __init__(self, plan: Plan, actor: Actor):
        self.config, self.actor, self.ranks = plan.config, actor, join()
        self.objective, config = plan.objective, plan.config
        self.forward = TrainingForward(actor, self.ranks, config.actor.micro_tokens)
        self.learning_rate, self.updates = learning_rates(config), 0

    def minibatch_order(self, step: int) -> list[Tensor]:
        """The rows of each mini-batch, every epoch in an order of its own."""
        a, random = self.config.actor, generator(self.config.seed, "minibatches", step)
        rows = self.config.rollout.prompts * self.config.rollout.group_size
        return [part for _ in range(a.epochs) for part in torch.randperm(rows, generator=random).chunk(a.num_minibatches)]

    def update(
        self, collected: TrainingBatch, order: list[Tensor], *, complete: bool = False
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One optimizer step per mini-batch of `order`.

        Returns the metrics, and log π_θ [B, T] of each token just before its own, last optimizer step. Where the loss or the
        correction takes π_θ/μ, the metrics have its mismatch and the applied correction; complete: see `trained_metrics`.
        """
        batch = collected.batch
        # Without a scored π_old each micro-batch is corrected by itself, and this correction gives no more than the counts.
        corrected = correct(batch if batch.logp_old is not None else _against(batch.logp_rollout, batch), self.config.correction)
        logp = torch.zeros_like(batch.logp_rollout)
        norms, sums, trained = [], [], []
        for rows in order:
            mini = collected.rows(rows)
            current = self._current_correction(mini) if self._corrects_current(batch) else corrected.rows(rows)
            own, metrics = self._accumulate_gradient(mini, current)
            logp[rows] = now = self.ranks.sum(own)
            if self.follows_current:
                trained.append(trained_metrics(now, mini.batch, self.config.correction, complete=complete))
            lr = self.learning_rate(self.updates) * self._step_scale(mini.batch)
            norms.append(self.actor.step(lr))
            self.updates += 1
            sums.append(self.ranks.sum(torch.stack(list(metrics.values()))))
        means = dict(zip(metrics, torch.stack(sums).mean(0), strict=True))
        means["actor/lr"] = torch.tensor(lr, dtype=torch.float64)
        return means | over_minibatches(trained) | norm_metrics("actor", norms), logp

    def observe(self, collected: TrainingBatch, order: list[Tensor]) -> Tensor:
        """log π_θ [B, T] as `update` returns it, of a policy that stays as it is."""
        if collected.batch.logp_old is not None:
            return collected.batch.logp_old
        logp = torch.zeros_like(collected.batch.logp_rollout)
        for rows in order[: self.config.actor.num_minibatches]:
            mini = collected.rows(rows)
            logp[rows] = self.forward(mini.prompts, mini.tokens, mini.replay)
        return logp

    def _step_scale(self, batch: Batch) -> float:
        """The factor of actor.ess_scaling on the learning rate of a mini-batch."""
        power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.config.actor.ess_scaling]
        return float(ess_share(batch)) ** power if power else 1.0

    @property
    def follows_current(self) -> bool:
        """Whether the loss or the correction takes π_θ/μ: bypass mode, or a correction of the current ratio."""
        return self.config.proximal == "rollout" or self.config.correction.ratio == "current"

    def _corrects_current(self, batch: Batch) -> bool:
        correction = self.config.correction
        return correction.ratio == "current" and correction.active and batch.logp_old is not None

    def _current_correction(self, mini: TrainingBatch) -> Corrected:
        """The correction of π_θ/μ, normalised, if at all, over the mini-batch: π_θ moves between mini-batches."""
        logp = _from_old(self.forward(mini.prompts, mini.tokens, mini.replay), mini)
        return correct(_against(logp, mini.batch), self.config.correction)

    def _accumulate_gradient(self, mini: TrainingBatch, corrected: Corrected) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of a mini-batch, over this rank's micro-batches.

        Returns log π_θ [b, T], 0 on the rows of other ranks, and this rank's part of the metrics.
        """
        mini = mini._replace(batch=self.objective.select(mini.batch, corrected))
        counts = Counts.of(corrected.counted, mini.batch.prompt)
        tokens = mini.batch.mask.sum().clamp(min=1)
        logp_all = torch.zeros_like(mini.batch.logp_rollout)
        sums: dict[str, Tensor] = {}
        parts = self.forward.micro_batches(mini.prompts, mini.tokens)
        for rows in parts:
            micro, own = mini.rows(rows), corrected.rows(rows)
            logp, entropy = self._current_logp(micro)
            logp_all[rows] = logp.detach()
            if micro.batch.logp_old is None:
                own = correct(_against(logp.detach(), micro.batch), self.config.correction)
            loss, metrics = self.objective(logp, micro.batch, own, counts.rows(rows), entropy)
            self.actor.backward(loss, last=rows is parts[-1])
            metrics["actor/loss"] = loss.detach()
            metrics["actor/entropy"] = torch.where(micro.batch.mask, entropy.detach(), 0.0).sum() / tokens
            for name, value in metrics.items():
                value = value.detach().double()
                sums[name] = sums[name] + value if name in sums else value
        return logp_all, sums

    def _current_logp(self, rows: TrainingBatch) -> tuple[Tensor, Tensor]:
        """(log π_θ, entropy) of some rows, with gradient: at π_old this is `logp_old` to the bit, with the forward's gradient."""
        forward, entropy = self.actor.logp(rows.prompts, rows.tokens, rows.replay)
        return (forward if rows.batch.logp_old is None else _from_old(forward, rows)), entropy

    def diagnose(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The mismatch and what the correction does to it; every diagnostics.every steps all there is to know.

        With ratio=current the correction of π_old/μ is not the applied one, which `update` describes: it is named `old/…`.
        A metric that does not exist is absent, all of them for a batch without a token.
        """
        if not batch.mask.any():
            return {}
        spec = self.config.correction
        rows = correct_with_diagnostics(batch, spec)[1]
        correction = correction_metrics(rows, spec, complete=self.config.diagnostics.due(step))
        if spec.ratio == "current":
            scored = self.config.actor.scoring != "none"
            correction = {f"{OLD}{name}": value for name, value in correction.items()} if scored else {}
        metrics = finish_mismatch(rows) | correction
        if self.config.diagnostics.due(step):
            metrics |= probabilities(batch) | positions(batch)
        return {name: value for name, value in metrics.items() if not (value.isnan() and is_optional(name))}


def _against(logp: Tensor, batch: Batch) -> Batch:
    """The batch with another policy over μ: its correction is then that of exp(logp − logp_rollout)."""
    return batch._replace(logp_old=logp)


def _from_old(forward: Tensor, rows: TrainingBatch) -> Tensor:
    """log π_θ as log π_old plus the change of the training forward since: 0 to the bit until the policy moves."""
    assert rows.batch.logp_old is not None
    start = forward.detach() if rows.forward_old is None else rows.forward_old
    return rows.batch.logp_old + (forward - start)
