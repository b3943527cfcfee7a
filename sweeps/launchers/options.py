"""The keys of hydra/launcher=slurm. Nothing heavy is imported, since Hydra reads this at every start."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from harness.config import Count, Positive, explain
from harness.errors import UserError
from harness.yaml_file import read_yaml

OWN = ("job-name", "comment", "array", "signal", "requeue", "no-requeue", "dependency", "output", "error", "open-mode")
"""Options of sbatch that the launcher sets: by them it finds its jobs and their output, and requeues them."""


@dataclass
class SlurmOptions:
    """Keys of `hydra/launcher=slurm`; docs/sweeps.md explains each.

    partition, account, qos, gres, constraint: sbatch's. timeout_min, mem_gb: minutes and GiB of a task. runs_per_job: runs of a
    task. runs_at_once: of them at a time. ranks: processes of a run, started by srun, each on cpus_per_run cores; such a run has
    its task to itself. parallel: tasks at a time. signal_delay_s: seconds before the time limit at which a task is signalled to
    save. setup: shell lines before a task. python: the command, by default this interpreter. sbatch: any other option.
    site: a YAML file with values for keys that are null or empty here. code: see `snapshot.snapshot`. detach: return once all
    is submitted.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = None
    constraint: str | None = None
    timeout_min: Count = 60
    mem_gb: Positive = 4
    runs_per_job: Count = 1
    runs_at_once: Count = 1
    ranks: Count = 1
    cpus_per_run: Count = 1
    parallel: Count = 64
    signal_delay_s: Count = 120
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    sbatch: dict[str, Any] = field(default_factory=dict)
    site: str | None = None
    code: Literal["sweep", "new"] | None = None
    detach: bool = False

    def check(self) -> None:
        """Fill empty keys from the site file, then check all. Raises UserError on a value that cannot work."""
        if self.site:
            self._fill(Path(self.site))
        try:
            checked = TypeAdapter(SlurmOptions).validate_python(vars(self))
        except ValidationError as error:
            raise UserError("\n".join(f"hydra.launcher.{explain(dict(problem))}" for problem in error.errors())) from None
        vars(self).update(vars(checked))
        for key in self.sbatch:
            if key == "time":
                raise UserError("hydra.launcher.sbatch.time: set hydra.launcher.timeout_min instead, in minutes")
            if key.replace("_", "-") in OWN:
                raise UserError(f"hydra.launcher.sbatch.{key}: the launcher sets it and finds its jobs by it; leave it out")
        if self.ranks > 1 and self.runs_per_job > 1:
            raise UserError(f"hydra.launcher.ranks={self.ranks}: such a run has its task to itself; set runs_per_job=1")
        if self.signal_delay_s >= 60 * self.timeout_min:
            raise UserError(
                f"hydra.launcher.signal_delay_s={self.signal_delay_s}: must be below the time limit, 60 * timeout_min = "
                f"{60 * self.timeout_min} s, or each task is requeued as soon as it starts"
            )

    def _fill(self, site: Path) -> None:
        try:
            values = read_yaml(site)
        except UserError as error:
            raise UserError(f"hydra.launcher.site={error}") from None
        fillable = [f.name for f in fields(self) if f.name != "site" and not getattr(SlurmOptions, f.name, None)]
        if not isinstance(values, dict):
            raise UserError(f"hydra.launcher.site={site}: not a file of keys and values; see slurm/sites/example.yaml")
        for key, value in values.items():
            if key not in fillable:
                raise UserError(f"{site}: {key}: unknown; a site file may set {', '.join(fillable)}")
            if not getattr(self, key):
                setattr(self, key, value)
