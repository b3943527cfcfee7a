"""What can be said of the jobs of a sweep on Slurm. Nothing heavy is imported: Hydra reads this at every start."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError


@dataclass
class SlurmOptions:
    """Keys of `hydra/launcher=slurm`. partition, account, qos, gres, constraint: sbatch's. timeout_min, mem_gb: of a task.

    runs_per_job: runs in a task, runs_at_once of them at a time. ranks: processes of a run, which srun starts, each on
    cpus_per_run cores; a run of several has its task to itself. parallel: tasks at a time.
    signal_delay_s: how long before its time limit a task is told to save. setup: shell lines before it. python: the command, if
    it is not this interpreter. sbatch: any other option. site: a YAML file with values for the keys that are null or empty here.
    code: null, sweep or new, see sweeps/snapshot.py. detach: return once all is submitted.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gres: str | None = None
    constraint: str | None = None
    timeout_min: int = 60
    mem_gb: float = 4
    runs_per_job: int = 1
    runs_at_once: int = 1
    ranks: int = 1
    cpus_per_run: int = 1
    parallel: int = 64
    signal_delay_s: int = 120
    setup: list[str] = field(default_factory=list)
    python: str | None = None
    sbatch: dict[str, Any] = field(default_factory=dict)
    site: str | None = None
    code: str | None = None
    detach: bool = False

    def check(self) -> None:
        """Fill from the site file. Raises UserError on a value that cannot be meant."""
        for key, default in vars(SlurmOptions()).items():
            if isinstance(default, (int, float)) and not isinstance(default, bool) and not getattr(self, key) > 0:
                raise UserError(f"hydra.launcher.{key}={getattr(self, key)}: must be above 0")
        if self.ranks > 1 and self.runs_per_job > 1:
            raise UserError(f"hydra.launcher.ranks={self.ranks}: such a run has its task to itself; set runs_per_job=1")
        if self.code not in (None, "sweep", "new"):
            raise UserError(f"hydra.launcher.code={self.code}: sweep, new or null")
        if self.site:
            self._fill(Path(self.site))

    def _fill(self, site: Path) -> None:
        try:
            values = yaml.safe_load(site.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise UserError(f"hydra.launcher.site={site}: unreadable ({error})") from None
        fillable = [f.name for f in fields(self) if f.name != "site" and not getattr(SlurmOptions, f.name, None)]
        for key, value in (values or {}).items():
            if key not in fillable:
                raise UserError(f"{site}: {key}: unknown; a site file may set {', '.join(fillable)}")
            if not getattr(self, key):
                setattr(self, key, value)
