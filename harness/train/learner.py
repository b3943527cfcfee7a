"""Trains the actor on a step's batch, one optimizer step per mini-batch, and diagnoses the mismatch and its correction."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import Corrected, correct
from algos.diagnostics.correction import correct_with_diagnostics
from algos.diagnostics.mismatch import finish_mismatch
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.diagnostics.rows import Rows
from algos.ratios import ess_share
from algos.reductions import Counts
from harness.build import Plan
from harness.config import Config
from harness.seeding import generator
from harness.train.data.batch import TrainingBatch
from harness.train.forward import TrainingForward
from harness.train.metrics import (
    OLD,
    correction_metrics,
    is_optional,
    norm_metrics,
    over_minibatches,
    trained_metrics,
    trained_rows,
)
from harness.train.model.actor import Actor
from harness.train.ranks import join
from harness.train.schedule import learning_rates

CorrectedPart = Literal["batch", "mini_batch", "micro_batch"]


def corrected_part(config: Config) -> CorrectedPart:
    """The part of a step whose correction is computed in one call: batch, mini-batch or micro-batch.

    batch: by π_old/μ (old policy to engine), before the first optimizer step. mini_batch: by π_θ/μ (trained policy to engine),
    with an extra forward pass before each optimizer step. micro_batch: by π_θ/μ of the pass that is differentiated, if no π_old
    is scored.
    """
    if config.actor.scoring == "none":
        return "micro_batch"
    return "mini_batch" if config.correction.ratio == "current" and config.correction.active else "batch"


class Learner:
    """Trains the actor. Life cycle: for each step `minibatch_order`, `update`, `diagnose`. updates: optimizer steps so far."""

    def __init__(self, plan: Plan, actor: Actor):
        config = plan.config
        self.config, self.actor, self.ranks = config, actor, join()
        self.objective, self.corrected_part = plan.objective, corrected_part(config)
        self.forward = TrainingForward(actor, self.ranks, config.actor.micro_tokens)
        self.learning_rate, self.updates = learning_rates(config), 0

    def minibatch_order(self, step: int) -> list[Tensor]:
        """Row numbers of each mini-batch of a step. Every epoch has its own random order."""
        a, random = self.config.actor, generator(self.config.seed, "minibatches", step)
        rows = self.config.rollout.prompts * self.config.rollout.group_size
        return [part for _ in range(a.epochs) for part in torch.randperm(rows, generator=random).chunk(a.num_minibatches)]

    def update(self, made: TrainingBatch, order: list[Tensor], *, complete: bool = False) -> tuple[dict[str, Tensor], Tensor]:
        """Take one optimizer step per mini-batch of `order`. Returns (metrics, log π_θ [B, T] in nats).

        log π_θ of a token is computed just before the last optimizer step on it. If the loss or the correction uses π_θ/μ, the
        metrics describe this ratio too, and the correction by it. complete: include statistics of the correction's filters.
        """
        logp = torch.zeros_like(made.batch.logp_rollout)
        norms, sums, trained = [], [], []
        for rows in order:
            mini = made.rows(rows)
            corrected, diagnostics = self._correct(mini)
            own, metrics = self._accumulate_gradient(mini, corrected)
            logp[rows] = now = self.ranks.sum(own)
            if self.follows_current:
                if diagnostics is None:
                    diagnostics = trained_rows(mini.batch, self.config.correction, now)
                trained.append(trained_metrics(diagnostics, self.config.correction, complete=complete))
            lr = self.learning_rate(self.updates) * self._step_scale(mini.batch)
            norms.append(self.actor.step(lr))
            self.updates += 1
            sums.append(self.ranks.sum(torch.stack(list(metrics.values()))))
        means = dict(zip(metrics, torch.stack(sums).mean(0), strict=True))
        means["actor/lr"] = torch.tensor(lr, dtype=torch.float64)
        return means | over_minibatches(trained) | norm_metrics("actor", norms), logp

    def logp(self, made: TrainingBatch, order: list[Tensor]) -> Tensor:
        """Return the policy's log-probabilities [B, T] in nats for a step that does not train it, as in a critic's warm-up."""
        if made.batch.logp_old is not None:
            return made.batch.logp_old
        logp = torch.zeros_like(made.batch.logp_rollout)
        for rows in order[: self.config.actor.num_minibatches]:
            mini = made.rows(rows)
            logp[rows] = self.forward(mini.prompts, mini.tokens, mini.replay)
        return logp

    def _step_scale(self, batch: Batch) -> float:
        """Factor of actor.ess_scaling on a mini-batch's learning rate: share of effective samples to the power 0, ½ or 1."""
        power = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[self.config.actor.ess_scaling]
        return float(ess_share(batch)) ** power if power else 1.0

    @property
    def follows_current(self) -> bool:
        """Whether the loss or the correction uses the current policy's π_θ/μ: proximal=rollout or correction.ratio=current."""
        return self.config.proximal == "rollout" or self.config.correction.ratio == "current"

    def _correct(self, mini: TrainingBatch) -> tuple[Corrected | None, Rows | None]:
        """Return (correction of a mini-batch, its diagnostics per response).

        The correction is None if each micro-batch makes its own. The diagnostics are None unless the correction is computed now.
        """
        match self.corrected_part:
            case "batch":
                return mini.corrected, None
            case "mini_batch":
                policy = _from_old(self.forward(mini.prompts, mini.tokens, mini.replay), mini)
                return correct_with_diagnostics(mini.batch, self.config.correction, policy)
            case "micro_batch":
                return None, None

    def _accumulate_gradient(self, mini: TrainingBatch, corrected: Corrected | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Add up the gradient of a mini-batch over this rank's micro-batches.

        corrected: correction of the mini-batch; None if each micro-batch makes its own. Returns (log π_θ [b, T], 0 on the rows
        of other ranks; this rank's summand of the metrics).
        """
        counted = mini.batch.mask if corrected is None else corrected.counted
        mini = mini._replace(batch=self.objective.select(mini.batch, counted))
        counts = Counts.of(counted, mini.batch.prompt)
        tokens = mini.batch.mask.sum().clamp(min=1)
        logp_all = torch.zeros_like(mini.batch.logp_rollout)
        sums: dict[str, Tensor] = {}
        parts = self.forward.micro_batches(mini.prompts, mini.tokens)
        for rows in parts:
            micro = mini.rows(rows)
            logp, entropy = self._current_logp(micro)
            logp_all[rows] = now = logp.detach()
            own = correct(micro.batch, self.config.correction, now) if corrected is None else corrected.rows(rows)
            loss, metrics = self.objective(logp, micro.batch, own, counts.rows(rows), entropy)
            self.actor.backward(loss, last=rows is parts[-1])
            metrics["actor/loss"] = loss.detach()
            metrics["actor/entropy"] = torch.where(micro.batch.mask, entropy.detach(), 0.0).sum() / tokens
            for name, value in metrics.items():
                value = value.detach().double()
                sums[name] = sums[name] + value if name in sums else value
        return logp_all, sums

    def _current_logp(self, rows: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return (log π_θ, entropy) of the batch `rows`, with gradient. While π_θ = π_old, log π_θ is exactly `logp_old`."""
        forward, entropy = self.actor.logp(rows.prompts, rows.tokens, rows.replay)
        return (forward if rows.batch.logp_old is None else _from_old(forward, rows)), entropy

    def diagnose(self, made: TrainingBatch, logp: Tensor, step: int) -> dict[str, Tensor]:
        """Metrics of a step's mismatch between trainer and engine, and of the correction applied to it.

        Statistics of filters, probabilities and positions are added every diagnostics.every steps. logp: log π_θ from
        `update`; it replaces a π_old that was not scored. With correction.ratio=current the correction of π_old/μ is not the
        applied one, and its metrics are named `old/…`. Undefined metrics are absent. A batch without tokens has no metrics.
        """
        batch, spec, due = made.batch, self.config.correction, self.config.diagnostics.due(step)
        if not batch.mask.any():
            return {}
        policy, rows = (logp, None) if batch.logp_old is None else (batch.logp_old, made.diagnostics)
        if rows is None:
            rows = correct_with_diagnostics(batch, spec, policy)[1]
        metrics = finish_mismatch(rows)
        if spec.ratio == "old":
            metrics |= correction_metrics(rows, spec, complete=due)
        elif batch.logp_old is not None:
            metrics |= {f"{OLD}{name}": value for name, value in correction_metrics(rows, spec, complete=due).items()}
        if due:
            metrics |= probabilities(batch, policy) | positions(batch, policy)
        return {name: value for name, value in metrics.items() if not (value.isnan() and is_optional(name))}


def _from_old(forward: Tensor, rows: TrainingBatch) -> Tensor:
    """Return log π_θ [B, T]: log π_old + (`forward` − its value at π_old), exactly log π_old until π_θ moves."""
    assert rows.batch.logp_old is not None
    start = forward.detach() if rows.forward_old is None else rows.forward_old
    return rows.batch.logp_old + (forward - start)
