"""Specification of a search: a YAML file, fully checked before any run starts."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from pydantic import Field, ValidationError, model_validator

from harness.boundary import refusing
from harness.compose import compose
from harness.config import Config, Count, Strict, parse
from harness.config.base import Name, Seed
from harness.errors import UserError
from harness.yaml_file import read_yaml
from sweeps.launchers.options import SlurmOptions

Bound = Annotated[float, Field(ge=-1e9, le=1e9)]
Choices = Annotated[list[str | float | int | bool | None], Field(min_length=1)]
Seeds = Annotated[int, Field(ge=2, le=1000)]


class Range(Strict):
    """Search range of a threshold, on a linear scale, a log scale, or the log of |value − 1|, which suits a bound on a ratio."""

    low: Bound
    high: Bound
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
        """Optuna's distribution of the searched number: |threshold − 1| on the scale distance_from_1, else the threshold."""
        ends = (abs(self.low - 1), abs(self.high - 1)) if self.scale == "distance_from_1" else (self.low, self.high)
        return FloatDistribution(min(ends), max(ends), log=self.scale != "linear")

    def value(self, number: float) -> float:
        """Convert the number that Optuna suggests to a threshold, rounded to four digits for readability."""
        number = float(f"{number:.4g}")
        if self.scale != "distance_from_1":
            return number
        return round(1 + number if self.low > 1 else 1 - number, 12)


class Prune(Strict):
    """Rule to end a trial: its worst seed scored below `fraction` of its best in each of the last `patience` evaluations."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    patience: Count


class Sections(Strict):
    """k-section of one range: tries `points` numbers at a time, until the threshold is known within the ratio `tolerance`.

    A number is the threshold, or |threshold − 1| on the scale distance_from_1. It is healthy if at most half of its runs
    collapse. The ratio is that of the last healthy and the first other number. Both then get at least `boundary_seeds` seeds.
    healthy: the end of the range where runs should not collapse.
    """

    points: Count
    tolerance: Annotated[float, Field(gt=1, le=1e9)]
    boundary_seeds: Count
    healthy: Literal["low", "high"]


class Spec(Strict):
    """Specification of a search.

    name: name of the search's sweep, under `root`. overrides: applied to every run, as on the command line. space: config keys,
    each with a range or a list of values. trials: number of trials to complete or prune; with `sections` the maximum. parallel:
    number of trials at a time. seeds: number of runs per trial. last: number of final evaluations whose mean scores a run.
    confidence: level of the one-sided lower bound over the seeds. winner_seeds: number of fresh seeds for rerunning the winner.
    sampler_seed: seed of Optuna's sampler. launcher: `local` for this machine, or keys of hydra/launcher=slurm.
    """

    name: Name
    root: Annotated[str, Field(min_length=1)] = "runs"
    overrides: list[str]
    space: Annotated[dict[str, Range | Choices], Field(min_length=1)]
    trials: Count
    parallel: Count
    seeds: Seeds
    last: Count
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    prune: Prune
    sections: Sections | None = None
    winner_seeds: Seeds
    sampler_seed: Annotated[Seed, Field(lt=2**31)]
    launcher: Literal["local"] | dict[str, Any]

    @model_validator(mode="after")
    def _sectioned(self) -> Spec:
        if self.sections:
            axis = next(iter(self.space.values()), None)
            if len(self.space) != 1 or not isinstance(axis, Range):
                raise ValueError("sections: cuts one range; space must hold one, and no list")
            if axis.scale == "linear":
                raise ValueError("sections: cuts by ratios; scale must be distance_from_1 or log")
        accepted = [field.name for field in fields(SlurmOptions)]
        for key in self.launcher if isinstance(self.launcher, dict) else ():
            if key not in accepted:
                raise ValueError(f"launcher.{key}: unknown key; hydra/launcher=slurm has {', '.join(accepted)}")
        return self

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Distribution of each parameter of the search, by the parameter's name in Optuna."""
        return {
            self.parameter(key): axis.distribution if isinstance(axis, Range) else CategoricalDistribution(axis)
            for key, axis in self.space.items()
        }

    def parameter(self, key: str) -> str:
        """Name of Optuna's parameter for a config key in the search space."""
        axis = self.space[key]
        return f"|{key} - 1|" if isinstance(axis, Range) and axis.scale == "distance_from_1" else key

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """Convert Optuna's parameters (name -> value) to values of config keys (key -> value)."""
        numbers = {key: params[self.parameter(key)] for key in self.space}
        return {key: axis.value(numbers[key]) if isinstance(axis, Range) else numbers[key] for key, axis in self.space.items()}

    def section_ends(self) -> tuple[float, float]:
        """Return (healthy end, other end) of the range of a search with `sections`, as numbers on Optuna's scale."""
        axis = next(iter(self.space.values()))
        assert self.sections is not None and isinstance(axis, Range)
        low, high = axis.distribution.low, axis.distribution.high
        falling = axis.scale == "distance_from_1" and axis.high < 1  # a larger distance is a lower threshold
        return (low, high) if (self.sections.healthy == "low") != falling else (high, low)

    def configs(self, params: dict[str, Any], seeds: range) -> list[Config]:
        """Configs of the runs of a trial, one per seed. params: Optuna's. Raises UserError if their combination is invalid."""
        chosen = [f"{key}={'null' if value is None else value}" for key, value in self.values(params).items()]
        place = [f"run.root={self.root}", f"run.sweep={self.name}"]
        try:
            return [parse(compose(*self.overrides, *chosen, *place, f"seed={seed}")) for seed in seeds]
        except UserError as error:
            raise UserError(f"{' '.join(chosen)}: {error}") from None


def load(path: Path, changes: list[str]) -> Spec:
    """Load a search's spec by file or shipped name, and apply `key=value` changes. Raises UserError that names the wrong key."""
    shipped = Path(__file__).parents[1] / "conf" / "search"
    file = path if path.exists() else shipped / f"{path.name}.yaml"
    if not file.exists():
        names = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
        raise UserError(f"{path}: no such file, and no search of that name; there are {names}")
    try:
        with refusing():
            given = OmegaConf.merge(OmegaConf.create(read_yaml(file)), OmegaConf.from_dotlist(changes))
            return Spec.model_validate(OmegaConf.to_container(given))
    except ValidationError as error:
        raise UserError("\n".join(f"{file}: {problem}" for problem in _explained(error))) from None


def _explained(error: ValidationError) -> list[str]:
    """One line per validation error. For a wrong range, the error that it is not a list is left out."""
    problems = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"] if "[" not in str(part))
        if not (problem["type"] == "list_type" and isinstance(problem["input"], dict)):
            problems.append(f"{key}: {problem['msg'].removeprefix('Value error, ')}")
    return problems
