"""Hydra launchers `hydra/launcher=local` and `hydra/launcher=slurm`, which pass the runs of a grid to `sweeps.launch`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track

from algos.parameters import Count, check_values
from harness.boundary import refusing
from harness.composer import Composer
from harness.config import Config, parse
from harness.errors import UserError
from harness.run.folder import FINISHED
from sweeps.launchers.options import SlurmOptions

if TYPE_CHECKING:
    from sweeps.launchers.executor import Executor
    from sweeps.ledger import Sweep

COMMON = {"retry_failed": False, "extend": False}
"""Config keys of both launchers. retry_failed: rerun runs that ended by their own error. extend: add runs to an old sweep."""

store = partial(ConfigStore.instance().store, provider="faultline")
store(group="hydra/sweeper", name="grid", node=BasicSweeperConf(_target_="hydra_plugins.faultline_launcher.Grid"))
for name, keys in {"local": {"parallel": None, **COMMON, "extend": True}, "slurm": {**vars(SlurmOptions()), **COMMON}}.items():
    target = f"hydra_plugins.faultline_launcher.{name.title()}Launcher"
    store(group="hydra/launcher", name=name, node={"_target_": target, **keys})


class Grid(BasicSweeper):
    """Hydra's basic sweeper, except that it refuses an empty grid and lets Faultline's launchers compose the runs' configs."""

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        for override in overrides:
            if override.is_discrete_sweep() and next(override.sweep_string_iterator(), None) is None:
                raise UserError(f"{override.input_line}: an empty list of values, so there is no run; give at least one")
        return BasicSweeper.split_arguments(overrides, max_batch_size)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        if not isinstance(self.launcher, _Launcher):
            super().validate_batch_is_legal(batch)


class _Launcher(Launcher):
    ranks = 1
    detach = False

    def __init__(self, *, retry_failed: bool, extend: bool):
        self.retry_failed, self.extend = retry_failed, extend

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.composer = Composer(hydra_context.config_loader, config)

    def executor(self, sweep: Sweep) -> Executor:
        """Return an executor, set up by this launcher's options, which runs `sweep` on this machine or on Slurm."""
        raise NotImplementedError

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all jobs, or none if a config is wrong, and return a JobReturn per job. Raises SystemExit if a run has failed."""
        print(f"{len(job_overrides)} runs: composing and checking their configs ...", file=sys.stderr, flush=True)
        grid = track(job_overrides, "composing", console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        configs = [self._parse(overrides) for overrides in grid]
        extend = self.extend or initial_job_idx > 0  # a later batch of one command
        self.train(configs, [" ".join(overrides) for overrides in job_overrides], extend)
        return [JobReturn(overrides=list(o), status=JobStatus.COMPLETED, _return_value="done") for o in job_overrides]

    def train(self, configs: Sequence[Config], names: Sequence[str], extend: bool) -> None:
        """Check configs, then run them as one sweep. names: the configs' names in errors. extend: allow runs new to the sweep.

        Raises UserError before any run starts if a config is wrong, and SystemExit if a run has failed.
        """
        from harness.train.ranks import check_ranks
        from harness.validate import Tasks, check  # imports torch, so only once every config is known to be sound without it
        from sweeps.launch import launch

        tasks: Tasks = {}
        for config, name in zip(configs, names, strict=True):
            with _refused([name]):
                check(config, tasks)
                check_ranks(config, self.ranks)
        states = launch(list(configs), self.executor, retry_failed=self.retry_failed, extend=extend)
        good = (*FINISHED, "submitted", "running") if self.detach else FINISHED
        if any(states[config.digest].state not in good for config in configs):
            raise SystemExit(1)  # a JobReturn that failed would have Hydra print a last line of its own, which hides ours

    def _parse(self, overrides: Sequence[str]) -> Config:
        with _refused(overrides):
            return parse(self.composer(overrides))


class LocalLauncher(_Launcher):
    """Launcher of a multirun on this machine, with `parallel` runs at a time; null means one per physical core."""

    def __init__(self, *, parallel: Count | None, retry_failed: bool, extend: bool):
        keys = {"parallel": parallel, "retry_failed": retry_failed, "extend": extend}
        with _refused(["hydra/launcher=local"]):
            check_values("hydra.launcher", LocalLauncher, keys)
        self.parallel = parallel
        super().__init__(retry_failed=retry_failed, extend=extend)

    def executor(self, sweep: Sweep) -> Executor:
        from sweeps.launchers.local import Local

        return Local(sweep, self.parallel)


class SlurmLauncher(_Launcher):
    """Launcher that submits a multirun as tasks of Slurm arrays. Its keys are those of sweeps.launchers.options.SlurmOptions."""

    def __init__(self, *, retry_failed: bool, extend: bool, **options: Any):
        with _refused(["hydra/launcher=slurm"]):
            check_values("hydra.launcher", SlurmLauncher, {"retry_failed": retry_failed, "extend": extend})
            plain = OmegaConf.to_container(OmegaConf.create(options))
            assert isinstance(plain, dict)
            self.options = SlurmOptions(**{str(key): value for key, value in plain.items()})
            self.options.check()
        self.ranks, self.detach = self.options.ranks, self.options.detach
        super().__init__(retry_failed=retry_failed, extend=extend)

    def executor(self, sweep: Sweep) -> Executor:
        from sweeps.launchers.slurm import Slurm

        return Slurm(sweep, self.options)


@contextmanager
def _refused(overrides: Sequence[str]) -> Iterator[None]:
    try:
        with refusing():
            yield
    except (UserError, ValueError) as error:  # a ValueError of algos names the key
        raise UserError(f"{' '.join(overrides)}: {error}\nNothing was started.") from None
