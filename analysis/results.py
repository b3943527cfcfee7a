"""A sweep as one object: DataFrames of its runs, and the statistics of them, each computed once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import caveats
from analysis.judged import DEPLOYED
from analysis.marks import Marks, Styled, marks
from analysis.statistics import arms, definitions, dose, measures, outcomes, performance, predictors
from harness.arms import Arm, flatten, shared
from harness.arms import arms as named


@dataclass(eq=False)
class Results:
    """The records of a sweep's runs, and the statistics of them. `analysis.load.load` returns one.

    name: name of the sweep. folder: the folder of its runs, None for W&B.

    runs: a row per run (index: id). arm: name shared by runs that differ only in seed, and its parts precision, loss,
    correction, setting (harness.arms); calm: the setting without the keys of synthetic noise; source: the source of mismatch
    (such as precision, 8-bit cache, noise, staleness); control: whether uncorrected, in the trainer's own precision;
    seed, state, error, step (the last one recorded); onsets by detector; outcome: collapsed, never learned, survived or
    unfinished, with onset, detector and cause; updates: optimizer steps of an RL step; time: optimizer steps until the collapse
    or the end of the record; event: whether the run collapsed, else the time is censored.

    steps: a row per run and step, a column per metric; a metric that a run did not record is NaN.
    deployed: the judged policy, see `analysis.judged`; None for the one whose reward is eval/reward. margin: difference of
    held-out reward within which arms count as equivalent; None for no claim of equivalence.
    By run id: configs; provenance; recorded, the names of its metrics; damaged, the unreadable part of its record.
    """

    name: str
    folder: Path | None
    runs: pd.DataFrame
    steps: pd.DataFrame
    configs: dict[str, dict[str, Any]]
    provenance: dict[str, list[dict[str, Any]]]
    recorded: dict[str, set[str]]
    damaged: dict[str, str]
    deployed: str | None = None
    margin: float | None = None

    # --- arms ----------------------------------------------------------------------------------------------------------

    @cached_property
    def arms(self) -> list[str]:
        """The arms of the sweep, each the name of runs that differ only in seed, in their display order."""
        return arms.order(self.runs)

    @cached_property
    def references(self) -> dict[str, str]:
        """By arm (runs alike but for the seed), the arm to compare it with, which has no correction or no mismatch."""
        return arms.references(self.runs)

    @cached_property
    def marks(self) -> Marks:
        """The colour, marker and dash of each arm (runs alike but for the seed), source of mismatch and correction."""
        return marks(Styled(*row) for row in self.runs[list(Styled._fields)].itertuples(index=False))

    @cached_property
    def judged(self) -> str:
        """Name of the policy whose rewards and events are judged: DEPLOYED[deployed]. If `deployed` is None, the rollout
        engine's for runs with evaluation.policy=rollout, the trainer's for others, and both names if runs differ."""
        if self.deployed is not None:
            return DEPLOYED[self.deployed]
        policies = {"rollout" if config["evaluation"]["policy"] == "rollout" else "trainer" for config in self.configs.values()}
        return " in some runs and ".join(DEPLOYED[policy] for policy in sorted(policies, reverse=True))

    @cached_property
    def control_only(self) -> bool:
        """Whether all runs are controls, uncorrected in the trainer's own precision, and belong to more than one arm."""
        return bool(self.runs.control.all()) and len(self.arms) > 1

    @cached_property
    def ended(self) -> pd.DataFrame:
        """The rows of the runs whose outcome is known."""
        return self.runs[self.runs.outcome != "unfinished"]

    def runs_but(self, keys: Collection[str]) -> pd.DataFrame:
        """The ended rows of `runs`, with precision, loss, correction and setting named as if no run differed in `keys`."""
        other = named(self.configs, keys)
        return self.ended.assign(**{part: [getattr(other[run], part) for run in self.ended.index] for part in Arm._fields})

    @cached_property
    def flat(self) -> dict[str, dict[str, Any]]:
        """The config of each run as one flat dict with dotted keys, by run id."""
        return {run: flatten(config) for run, config in self.configs.items()}

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The config values that all runs share, by dotted key."""
        return shared(list(self.flat.values()))

    # --- statistics ----------------------------------------------------------------------------------------------------

    @cached_property
    def rewards(self) -> pd.DataFrame:
        """A row per run with its last held-out reward, `final`, and its best one, `best`."""
        return performance.rewards(self.runs, self.steps)

    @cached_property
    def healthy(self) -> pd.Series:
        """Whether a run's held-out reward reached `performance.HEALTHY`, that of a learned task, in any evaluation, by run."""
        return self.rewards.best >= performance.HEALTHY

    @cached_property
    def measures(self) -> pd.DataFrame:
        """A row per run: last and best held-out reward, and statistics of its mismatch up to the onset of a collapse."""
        return measures.measures(self.runs, self.steps, self.rewards)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row per run and evaluation: the held-out reward, with metrics of the mismatch at the same step."""
        return measures.evaluations(self.runs, self.steps)

    @cached_property
    def evaluated(self) -> pd.Series:
        """How often the held-out reward of each run was measured, by run."""
        return self.evaluations.groupby("run").size().reindex(self.runs.index, fill_value=0)

    @cached_property
    def combinations(self) -> pd.DataFrame:
        """A row per arm (runs alike but for the seed): its outcome, with its row and column in the report's matrix."""
        return arms.combinations(self.runs, self.rewards.final)

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """A row per arm (runs alike but for the seed): collapses, survival time, last reward, gains on its reference arm.

        The reference arm, given by `references`, is the one without a correction or without a mismatch.
        """
        return outcomes.outcomes(self.runs, self.rewards.final, self.references, self.combinations)

    @cached_property
    def pooled(self) -> pd.DataFrame:
        """A row per precision and correction: mean and interquartile mean of last rewards over other config values and seeds."""
        return outcomes.pooled(self.runs, self.rewards.final)

    @cached_property
    def warnings(self) -> pd.DataFrame:
        """A row per diagnostic, such as K3 or ESS: how well it would have predicted the collapses of the ended runs."""
        return predictors.evaluate(self.ended, self.steps)

    @cached_property
    def dosed(self) -> pd.DataFrame:
        """A row per ended run and evaluated policy: the run's mismatch in K3 (the dose), the policy's reward (the response)."""
        policies = {"eval/reward": self.judged}
        if self.deployed != "rollout":
            policies["eval/rollout_reward"] = DEPLOYED["rollout"]
        return dose.points(self.runs_but(dose.KEYS), self.configs, self.steps, self.measures, policies)

    @cached_property
    def curves(self) -> list[dose.Curve]:
        """Curves of reward over the K3 of synthetic noise, each of runs that differ only in seed and in the size of the noise."""
        return dose.curves(self.dosed)

    @cached_property
    def causes(self) -> pd.DataFrame:
        """Number and median onset of collapses by arm (runs alike but for the seed), detector of the collapse, and cause."""
        return measures.causes(self.runs)

    @cached_property
    def costs(self) -> pd.DataFrame:
        """A row per arm (runs alike but for the seed): median seconds of an RL step, shares of tokens rejected and weighted 0."""
        return measures.costs(self.runs, self.steps)

    @cached_property
    def probes(self) -> pd.DataFrame:
        """A row per arm (runs alike but for the seed) and probed precision: the mismatch that rollouts in it would have had."""
        return measures.probes(self.runs, self.steps, self.rewards.best, performance.HEALTHY)

    @cached_property
    def _curves(self) -> definitions.Curves:
        return definitions.curves(self.steps)

    @cached_property
    def robustness(self) -> pd.DataFrame:
        """Number of runs with a drawdown: a row per arm (runs alike but for the seed), a column per definition of drawdowns."""
        return definitions.robustness(self.runs, self.configs, self._curves)

    @cached_property
    def caveats(self) -> list[str]:
        """Warnings to read before averaging over the sweep's runs, such as missing seeds, one sentence each."""
        return [*caveats.caveats(self.runs, self.recorded, self.provenance, self.damaged), *self.disagreements]

    @cached_property
    def disagreements(self) -> list[str]:
        """A sentence per run and detector whose onset computed from the recorded rows differs from the recorded event's."""
        return definitions.disagreements(self.runs, self.configs, self._curves)

    def of(self, name: str) -> pd.Series:
        """For each row of `steps`, the value that its run has in the column `name` of `runs`."""
        return measures.per_row(self.steps, self.runs[name])
