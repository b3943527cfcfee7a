"""Observers of finished steps, for the keys of `diagnostics` and dump.every. They change nothing of the training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from algos.faults.diagnose import Diagnosis
from harness.build import Plan
from harness.diagnosis import CELLS, run_facts
from harness.files import EventLog
from harness.train.data.batch import TrainingBatch
from harness.train.data.responses import Responses
from harness.train.options.changed_weights import ChangedWeights
from harness.train.ranks import join


class Finished(NamedTuple):
    """A finished training step. made: its training batch. order: rows of each mini-batch. logp: log π_θ [B, T] in nats."""

    step: int
    responses: Responses
    made: TrainingBatch
    order: list[Tensor]
    logp: Tensor


Observer = Callable[[Finished], dict[str, float]]
"""Function that records something about a finished training step, and returns metrics."""


def observers(plan: Plan, folder: EventLog, optimizer: Optimizer) -> list[Observer]:
    """The observers of finished steps that the config of `plan` asks for. folder: the run folder. optimizer: the actor's."""
    config, seen = plan.config, list[Observer]()
    if config.diagnostics.every is not None:
        seen.append(Diagnoses(plan, folder))
    if config.dump.every is not None and join().rank == 0:
        seen.append(Dumps(config.dump.every, folder))
    if config.diagnostics.changed_weights:
        seen.append(ChangedWeights(optimizer))
    return seen


class Dumps:
    """Writes the training batch of every `every`-th step into the run folder as a Parquet file, called a dump."""

    def __init__(self, every: int, folder: EventLog):
        from harness.train.data.dump import dump  # imports pyarrow, which no other run needs

        self.every, self.folder, self.dump = every, folder, dump

    def __call__(self, done: Finished) -> dict[str, float]:
        if done.step % self.every == 0:
            self.dump(self.folder.path, done.step, done.responses, done.made.batch, done.order, done.logp)
        return {}


class Diagnoses:
    """Diagnoses the log-probabilities of every `diagnostics.every`-th step, as `faultline replay` does with a dump.

    If the diagnosis of a step is not "consistent", an event `diagnosis` records the fault, the numbers that decide, and what to
    check.
    """

    def __init__(self, plan: Plan, folder: EventLog):
        self.due, self.folder = plan.config.diagnostics.due, folder
        self.facts = run_facts(plan.config.model_dump(mode="json"))

    def __call__(self, done: Finished) -> dict[str, float]:
        if not self.due(done.step) or not done.made.batch.mask.any():
            return {}
        found = self._diagnosis(done)
        if found.kind != "consistent":
            self.folder.log_event(
                "diagnosis", done.step, found=found.kind, fault=found.fault, evidence=found.evidence, check=found.check
            )
        return diagnosis_metrics(found)

    def _diagnosis(self, done: Finished) -> Diagnosis:
        """Diagnose a step's batch; if B·T > CELLS, only every ⌈B·T/CELLS⌉-th prompt. log π_θ replaces a missing log π_old."""
        batch, rollout = done.made.batch, done.responses.rollout
        if batch.logp_old is None:
            batch = batch._replace(logp_old=done.logp)
        prompts = done.responses.prompt_numbers
        rows = torch.where(prompts % -(-batch.mask.numel() // CELLS) == 0)[0]
        batch, version, tokens = batch._replace(prompt=prompts).rows(rows), rollout.version[rows], rollout.tokens[rows]
        return self.facts.diagnose(batch, self.facts.lag(version, batch.mask), tokens)


def diagnosis_metrics(found: Diagnosis) -> dict[str, float]:
    """Metrics of a diagnosis: whether it finds a fault, the mean π_old/μ, its z-score; diagnosis/fault_<name> = 1 if so."""
    statistics = found.statistics
    metrics = {
        "diagnosis/faulty": float(found.kind != "consistent"),
        "diagnosis/mean_ratio": statistics["identity/mean"],
        "diagnosis/mean_ratio_z": statistics["identity/z"],
    }
    if found.kind != "consistent":
        metrics[f"diagnosis/fault_{found.fault or 'unknown'}"] = 1.0
    return {name: value for name, value in metrics.items() if not math.isnan(value)}
