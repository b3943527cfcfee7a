"""`hydra/launcher=local`. Hydra finds launchers only in packages under `hydra_plugins`, so the class stands here;
sweeps/local.py does the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from harness.config import Config, parse
from harness.errors import UserError

ConfigStore.instance().store(
    group="hydra/launcher",
    name="local",
    node={"_target_": "hydra_plugins.faultline_launcher.LocalLauncher", "parallel": None},
    provider="faultline",
)


class LocalLauncher(Launcher):
    """The runs of a multirun side by side on this machine, one process and one thread each.

    parallel: how many at a time; null is one per physical core.
    """

    def __init__(self, parallel: int | None):
        if parallel is not None and parallel < 1:
            raise SystemExit(f"hydra.launcher.parallel={parallel}: at least 1, or null for one per physical core")
        self.parallel = parallel or psutil.cpu_count(logical=False) or 1

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all; one JobReturn each, in order. If any config is wrong, say so and start none."""
        from sweeps.local import run_all

        configs = [self._parse(list(overrides)) for overrides in job_overrides]
        from harness.plugins import check  # imports torch, so only once every config is known to be sound without it

        for config, overrides in zip(configs, job_overrides, strict=True):
            with _refused(overrides):
                check(config)
        failures = run_all(configs, self.parallel)
        return [self._result(config, overrides, failures) for config, overrides in zip(configs, job_overrides, strict=True)]

    def _parse(self, overrides: list[str]) -> Config:
        composed = OmegaConf.to_container(self.loader.load_sweep_config(self.config, overrides))
        del composed["hydra"]
        with _refused(overrides):
            return parse(OmegaConf.to_container(OmegaConf.create(composed), resolve=True))

    def _result(self, config: Config, overrides: Sequence[str], failures: dict[str, str]) -> JobReturn:
        if config.digest in failures:
            # Hydra raises the return value of the first failed job, which gives the exit code.
            return JobReturn(overrides=list(overrides), status=JobStatus.FAILED, _return_value=SystemExit(1))
        return JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value="done")


@contextmanager
def _refused(overrides: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise SystemExit(f"{' '.join(overrides)}: {error}\nNothing was started.") from None
