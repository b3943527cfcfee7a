"""Runs in processes of their own, which pause at a point that a test names, so that a signal meets them there on any machine.

They are forked from a server that has imported what they need, as a launcher forks them. `python -m tests.harness.paused_runs
POINT OVERRIDES...` is `experiments.train` paused at that point, for the ranks that torchrun starts.
"""

import multiprocessing
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import psutil

import harness.run.checkpoint
import harness.train.ranks
from harness.run.folder import RunFolder
from sweeps.launchers import pool
from tests.waiting import PATIENCE, until

os.environ["OMP_NUM_THREADS"] = "1"  # as a launcher sets it: the server and what it forks inherit it
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(pool.PRELOADED)

POINTS = {
    "row": (RunFolder, "log_metrics", lambda self, step, metrics: step + 1),
    "writing": (harness.run.checkpoint, "_save", lambda actor, folder: _number(folder.parent)),
    "written": (harness.run.checkpoint, "_complete", lambda temporary, final, state: _number(final)),
}
"""Kind of point -> what a run calls there, and the number of the step or row by the arguments. A run stops after that call.

row: it has recorded so many. writing: of that step's checkpoint the actor's files are there. written: the checkpoint is whole.
"""


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def pause_at(point: str) -> None:
    """This process stops itself, as by SIGSTOP, at a point as "row 7"; at none if it is empty."""
    if not point:
        return
    kind, number = point.split()
    place, name, reached = POINTS[kind]
    function = getattr(place, name)

    def stopping(*given):
        function(*given)
        if reached(*given) == int(number):
            os.kill(os.getpid(), signal.SIGSTOP)

    setattr(place, name, stopping)


def start(config, point="", largest=resource.RLIM_INFINITY, **environment: str):
    """A process that runs `config` with this process's environment and more, and its output in log.txt.

    largest: bytes of the largest file that it may write.
    """
    config.path.mkdir(parents=True, exist_ok=True)
    log = "log.txt" if environment.get("RANK", "0") == "0" else f"log-{environment['RANK']}.txt"
    arguments = (config.model_dump_json(), str(config.path / log), point, largest, {**os.environ, **environment})
    process = CONTEXT.Process(target=_run, args=arguments)
    process.start()
    return process


def start_ranks(config, points=("", "")) -> list:
    """A process for each rank, which meet as under srun: rank 0 holds their store."""
    meeting = {"WORLD_SIZE": str(len(points)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    return [start(config, point, RANK=str(rank), LOCAL_RANK=str(rank), **meeting) for rank, point in enumerate(points)]


def port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _run(config: str, log: str, point: str, largest: int, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    pause_at(point)
    if "RANK" not in environment:
        pool.run_in_child(config, log)
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, pool.STOPPING)  # as there, but without waiting for the other ranks to go
    try:
        pool._train(config, log)
    finally:
        if (joined := harness.train.ranks._joined) and joined.watch:
            joined.watch._leave()  # at its exit, which multiprocessing's processes do not come to


def wait_for_end(*processes, code=0) -> None:
    """Wait until the processes have ended, each with `code`."""
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == code


def is_paused(process) -> bool:
    """Whether the process, psutil's or one of `start`, has paused at its point."""
    return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED


def signal_when_paused(process, number: signal.Signals) -> None:
    """Wait until the process has paused at its point, send it the signal and let it go on."""
    until(lambda: is_paused(process), process.is_alive)
    os.kill(process.pid, number)
    if number != signal.SIGKILL:
        os.kill(process.pid, signal.SIGCONT)


def signal_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal waits for a paused process."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


if __name__ == "__main__":
    from experiments.train import main

    pause_at(sys.argv[1] if os.environ["RANK"] == "0" else "")
    main(sys.argv[2:])
