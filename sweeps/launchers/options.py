"""Keys of hydra/launcher=slurm. Nothing heavy is imported, since Hydra reads this module at every start."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from harness.config import Count, Positive, explain
from harness.errors import UserError
from harness.yaml_file import read_yaml

OWN = ("job-name", "comment", "array", "signal", "requeue", "no-requeue", "dependency", "output", "error", "open-mode")
"""Options of sbatch that only the launcher sets. By these options it finds its jobs and their output, and requeues jobs."""


@dataclass
class SlurmOptions:
    """Keys of `hydra/launcher=slurm`, see docs/sweeps.md. A Slurm task is one entry of a job array, and has one or more runs."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)

    partition: str | None = None
    """Partition of the jobs, as sbatch takes it. null: the cluster's default."""
    account: str | None = None
    """Account that the jobs are charged to, as sbatch takes it. null: the user's default."""
    qos: str | None = None
    """Quality of service, as sbatch takes it. null: the cluster's default."""
    gres: str | None = None
    """Generic resources of a Slurm task, as sbatch takes them, such as gpu:4. null: none are requested."""
    constraint: str | None = None
    """Features that a node must have, as sbatch takes them. null: any node will do."""
    timeout_min: Count = 60
    """Time limit of a Slurm task, in minutes."""
    mem_gb: Positive = 4
    """Memory of a Slurm task, in GiB."""
    runs_per_job: Count = 1
    """Number of runs in a Slurm task, forked from one process that has imported everything."""
    runs_at_once: Count = 1
    """Number of runs of a Slurm task that are under way at the same time."""
    ranks: Count = 1
    """Number of processes of a run, started by srun. If it is above 1, a Slurm task has only one run."""
    cpus_per_run: Count = 1
    """Number of cores of each process of a run."""
    parallel: Count = 64
    """Maximum number of Slurm tasks under way at a time, over the jobs of one command."""
    signal_delay_s: Count = 120
    """Seconds before its time limit at which a Slurm task is signalled to save a checkpoint. The task is then requeued."""
    setup: list[str] = field(default_factory=list)
    """Shell lines that each Slurm task executes before Python starts."""
    python: str | None = None
    """Command that starts Python, such as one in a container. null: the interpreter that launches."""
    sbatch: dict[str, Any] = field(default_factory=dict)
    """Other options of sbatch by name, except the time limit and those that the launcher sets (`OWN`). Options in the file `site`
    are added, unless given here too."""
    site: str | None = None
    """YAML file with values for launcher keys that are null or empty, such as slurm/sites/example.yaml. null: no such file."""
    code: Literal["sweep", "new"] | None = None
    """Code that jobs run. new: the current files. sweep: the sweep's last snapshot of them. null: the current files, but an error
    if they differ from that snapshot."""
    detach: bool = False
    """true: the command returns once all runs are submitted. false: it waits until they have ended."""

    def check(self) -> None:
        """Fill null or empty keys from the file `site`, then check all keys. Raises UserError on a value that cannot work."""
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
            if _hyphened(key) in OWN:
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
            if key == "sbatch" and isinstance(value, dict):
                given = {_hyphened(name) for name in self.sbatch}
                self.sbatch = {name: option for name, option in value.items() if _hyphened(name) not in given} | self.sbatch
            elif not getattr(self, key):
                setattr(self, key, value)


def _hyphened(name: object) -> str:
    """The name of an sbatch option with hyphens, as sbatch writes it; submitit also takes underscores."""
    return str(name).replace("_", "-")
