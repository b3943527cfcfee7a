"""What a search is: a YAML file, checked before anything is started."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import optuna
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from pydantic import Field, ValidationError, model_validator

from harness.compose import compose
from harness.config import Config, Strict, parse
from harness.errors import UserError
from sweeps.options import SlurmOptions

Count = Annotated[int, Field(gt=0)]


class Range(Strict):
    """A threshold between low and high. scale `distance_from_1`: log-scaled in |value − 1|, as a bound on a ratio wants it;
    `log`, `linear`: of the value itself."""

    low: float
    high: float
    scale: Literal["distance_from_1", "log", "linear"]

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        if self.scale == "distance_from_1" and self.low <= 1 <= self.high:
            raise ValueError(f"low={self.low}, high={self.high}: both must lie on one side of 1")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low={self.low}: must be above 0 on a log scale")
        return self

    @property
    def distribution(self) -> FloatDistribution:
        """Of the number that Optuna sees: the distance from 1, or the value."""
        ends = (abs(self.low - 1), abs(self.high - 1)) if self.scale == "distance_from_1" else (self.low, self.high)
        return FloatDistribution(min(ends), max(ends), log=self.scale != "linear")

    def value(self, number: float) -> float:
        """The threshold for the number that Optuna gave, to four digits: more would only make it unreadable."""
        number = float(f"{number:.4g}")
        if self.scale != "distance_from_1":
            return number
        return round(1 + number if self.low > 1 else 1 - number, 12)


class Prune(Strict):
    """See Spec."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    patience: Count


class Sections(Strict):
    """k points at a time between the healthy and the collapsing side, until they are within `tolerance`, a ratio of Optuna's
    numbers; then `boundary_seeds` more seeds on both sides of the boundary. healthy: which end of the range is."""

    points: Count
    tolerance: Annotated[float, Field(gt=1)]
    boundary_seeds: Count
    healthy: Literal["low", "high"]


class Spec(Strict):
    """A search. overrides: of every run, as on the command line. space: config keys, each a range or a list of values.

    trials: how many must end complete or pruned; with `sections`, at most. parallel: trials under way. seeds: runs of a trial.
    last: evaluations at the end of a run whose mean counts. confidence: of the one-sided lower bound over the seeds.
    prune: a trial is given up when `patience` evaluations in a row, of its worst seed, lie under `fraction` of its own best.
    winner_seeds: fresh seeds on which the winner is run again. launcher: keys of hydra/launcher=slurm.
    """

    name: Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")]
    root: str = "runs"
    overrides: list[str]
    space: dict[str, Range | list[str | float | int | bool | None]]
    trials: Count
    parallel: Count
    seeds: Annotated[int, Field(ge=2)]
    last: Count
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    prune: Prune
    sections: Sections | None = None
    winner_seeds: Annotated[int, Field(ge=2)]
    sampler_seed: int
    launcher: dict[str, Any]

    @model_validator(mode="after")
    def _sectioned(self) -> Spec:
        if self.sections and (len(self.space) != 1 or not isinstance(next(iter(self.space.values())), Range)):
            raise ValueError("sections: cuts one range; space must hold one, and no list")
        if self.sections and next(iter(self.space.values())).scale == "linear":
            raise ValueError("sections: cuts by ratios; scale must be distance_from_1 or log")
        known = [field.name for field in fields(SlurmOptions)]
        for key in self.launcher:
            if key not in known:
                raise ValueError(f"launcher.{key}: unknown key; hydra/launcher=slurm has {', '.join(known)}")
        return self

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna samples, by the name of its parameter."""
        return {
            self.parameter(key): axis.distribution if isinstance(axis, Range) else CategoricalDistribution(axis)
            for key, axis in self.space.items()
        }

    def parameter(self, key: str) -> str:
        """The name of Optuna's parameter for a config key."""
        axis = self.space[key]
        return f"|{key} - 1|" if isinstance(axis, Range) and axis.scale == "distance_from_1" else key

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """Config keys and their values for Optuna's parameters."""
        given = {key: params[self.parameter(key)] for key in self.space}
        return {key: axis.value(given[key]) if isinstance(axis, Range) else given[key] for key, axis in self.space.items()}

    def configs(self, params: dict[str, Any], seeds: range) -> list[Config]:
        """The runs of a trial. Raises UserError where a combination is refused."""
        chosen = [f"{key}={'null' if value is None else value}" for key, value in self.values(params).items()]
        place = [f"run.root={self.root}", f"run.sweep={self.name}"]
        try:
            return [parse(compose(*self.overrides, *chosen, *place, f"seed={seed}")) for seed in seeds]
        except UserError as error:
            raise UserError(f"{' '.join(chosen)}: {error}") from None


class CollapsePruner(optuna.pruners.BasePruner):
    """Prunes a trial by its own history alone: reports, each the worst seed's evaluation, that stay under a fraction of its best.

    A pruner that compares trials prunes healthy thresholds whose runs are noisy: between two thresholds that both work the reward
    differs by chance.
    """

    def __init__(self, fraction: float, patience: int):
        self.fraction, self.patience = fraction, patience

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        reports = [value for _, value in sorted(trial.intermediate_values.items())]
        recent, best = reports[-self.patience :], max(reports, default=0.0)
        return len(reports) > self.patience and all(not value >= self.fraction * best for value in recent)


def load(path: Path, changes: list[str]) -> Spec:
    """The spec in a file, or of that name among those that come with the package, with `key=value` changes.

    Raises UserError naming the key that is wrong.
    """
    shipped = Path(__file__).parents[1] / "conf" / "search"
    file = path if path.exists() else shipped / f"{path.name}.yaml"
    try:
        return Spec.model_validate(OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(file), OmegaConf.from_dotlist(changes))))
    except FileNotFoundError:
        names = ", ".join(sorted(found.stem for found in shipped.glob("*.yaml")))
        raise UserError(f"{path}: no such file, and no search of that name; there are {names}") from None
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: unreadable ({error})") from None
    except ValidationError as error:
        raise UserError("\n".join(f"{file}: {problem}" for problem in _explained(error))) from None


def _explained(error: ValidationError) -> list[str]:
    """A line a problem. What was meant as a range is not told that it is no list."""
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"] if "[" not in str(part))
        if not (problem["type"] == "list_type" and isinstance(problem["input"], dict)):
            problems.append(f"{key}: {problem['msg'].removeprefix('Value error, ')}")
    return problems
