"""Many runs side by side on one machine, one process and one thread each.

The processes are forked from a server that has imported torch, transformers and DeepSpeed, so that start-up is paid once. A run
that fails leaves the others alone; a run that is done is skipped; one that was cut short resumes from its folder.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess

from harness.config import Config
from harness.errors import UserError
from harness.records import FINISHED, RunFolder, writing
from sweeps.progress import Display

PRELOADED = ["harness.trainer", "transformers.models.qwen3.modeling_qwen3", "wandb"]


def run_all(configs: list[Config], parallel: int) -> dict[str, str]:
    """Run configs, `parallel` at a time, with a live display. Returns and prints, by digest, what made a run fail."""
    os.environ["OMP_NUM_THREADS"] = "1"  # the forked runs inherit it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    waiting = {config.digest: config for config in configs if not _finished(config)}  # one that stands twice runs once
    running: dict[str, tuple[Config, BaseProcess]] = {}
    failures: dict[str, str] = {}
    with Display(configs) as display, _stopped_together(running):
        while waiting or running:
            while waiting and len(running) < parallel:
                digest = next(iter(waiting))
                config = waiting.pop(digest)
                running[digest] = (config, _start(context, config))
            time.sleep(0.5)
            for digest, (config, process) in list(running.items()):
                if not process.is_alive():
                    del running[digest]
                    if process.exitcode:
                        failures[digest] = _failure(config, process.exitcode)
            display.update()
    for failure in failures.values():
        print(failure, file=sys.stderr)
    return failures


def _finished(config: Config) -> bool:
    with suppress(UserError):  # an unreadable folder: its run will say so
        return RunFolder(config.path).state in FINISHED
    return False


def _start(context, config: Config) -> BaseProcess:
    folder = config.path
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    process = context.Process(target=_run_one, args=(config.model_dump_json(), str(folder / "log.txt")), name=config.digest)
    process.start()
    return process


def _run_one(config_json: str, log: str) -> None:
    """In the child: output goes to the run folder."""
    with open(log, "a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from harness.trainer import train

    try:
        train(Config.model_validate_json(config_json))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def _failure(config: Config, exit_code: int) -> str:
    folder = RunFolder(config.path)
    cause = f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
    with suppress(UserError), folder.claim():  # not if another launcher's process holds the folder
        if folder.state == "running":  # it died without a word
            folder.status("failed", **folder.progress(), error=cause)
    lines = (folder.path / "log.txt").read_text(errors="replace").splitlines()[-5:]
    return "\n    ".join([f"{folder.path}: {cause}; the last lines of its log.txt:", *lines])


@contextmanager
def _stopped_together(running: dict[str, tuple[Config, BaseProcess]]) -> Iterator[None]:
    """Ctrl-C or SIGTERM to the launcher asks each run to save a checkpoint and stop, and waits for that."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except BaseException:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
