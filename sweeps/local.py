"""`hydra/launcher=local`: the runs of a multirun side by side on this machine, one process and one thread each.

Every config of the grid is checked before one starts. The processes are forked from a server that has imported torch, transformers
and DeepSpeed once. A run that fails leaves the others alone; a run that is done is skipped; one that was cut short resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from harness.config import Config, parse
from harness.errors import UserError
from harness.records import FINISHED, RunFolder

PRELOADED = ["torch", "transformers.models.qwen3.modeling_qwen3", "deepspeed", "wandb", "harness.trainer"]


class LocalLauncher(Launcher):
    """parallel: runs side by side; None is one per physical core."""

    def __init__(self, parallel: int | None = None):
        self.parallel = parallel or psutil.cpu_count(logical=False) or 1

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run all; one JobReturn each, in order. Raises UserError before anything starts if a config is wrong."""
        configs = [self._parse(list(overrides)) for overrides in job_overrides]
        runs = {config.digest: config for config in configs}
        failures = run_all(list(runs.values()), self.parallel)
        results = []
        for config, overrides in zip(configs, job_overrides, strict=True):
            result = JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED)
            if config.digest in failures:
                result.status = JobStatus.FAILED
            result.return_value = failures.get(config.digest, folder_of(config).state)
            results.append(result)
        return results

    def _parse(self, overrides: list[str]) -> Config:
        composed = OmegaConf.to_container(self.loader.load_sweep_config(self.config, overrides), resolve=False)
        del composed["hydra"]
        try:
            return parse(OmegaConf.to_container(OmegaConf.create(composed), resolve=True))
        except UserError as error:
            raise SystemExit(f"{' '.join(overrides)}: {error}\nNothing was started.") from None


def run_all(configs: list[Config], parallel: int) -> dict[str, UserError]:
    """Run configs in forked processes, `parallel` at a time, with a live display. Returns the error of each that failed."""
    from sweeps.progress import Display

    os.environ["OMP_NUM_THREADS"] = "1"  # read by each run when it starts its first thread
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting, running, failures = list(configs), {}, {}
    with Display(configs) as display, _stopping(running):
        while waiting or running:
            while waiting and len(running) < parallel:
                config = waiting.pop(0)
                folder = folder_of(config)
                if folder.state not in FINISHED:
                    running[config.digest] = _start(context, config, folder.path)
            time.sleep(0.5)
            for digest, process in list(running.items()):
                if not process.is_alive():
                    del running[digest]
                    if process.exitcode:
                        failures[digest] = _failure(display.config(digest), process.exitcode)
            display.update()
    for failure in failures.values():
        print(failure, file=sys.stderr)
    return failures


def folder_of(config: Config) -> RunFolder:
    """The run folder of a config."""
    return RunFolder(Path(config.run.root) / config.run.sweep / config.digest)


def _start(context, config: Config, path: Path) -> BaseProcess:
    path.mkdir(parents=True, exist_ok=True)
    process = context.Process(target=_run_one, args=(config.model_dump_json(), str(path / "log.txt")), name=config.digest)
    process.start()
    return process


def _run_one(config_json: str, log: str) -> None:
    """In the child: the output goes to the run folder."""
    with open(log, "a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from harness.trainer import train

    try:
        train(Config.model_validate_json(config_json))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def _failure(config: Config, exit_code: int) -> UserError:
    folder = folder_of(config)
    cause = f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
    lines = (folder.path / "log.txt").read_text(errors="replace").splitlines()[-5:]
    folder.status("failed", error=cause) if folder.state == "running" else None
    return UserError("\n  ".join([f"{folder.path}: {cause}; the last lines of its log.txt:", *lines]))


class _stopping:
    """Ctrl-C or SIGTERM to the launcher asks each run to save a checkpoint and stop, and waits for it."""

    def __init__(self, running: dict[str, BaseProcess]):
        self.running = running

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def __exit__(self, kind, *_) -> None:
        signal.signal(signal.SIGTERM, self.before)
        if kind is not None:
            for process in self.running.values():
                process.terminate()
            for process in self.running.values():
                process.join()
