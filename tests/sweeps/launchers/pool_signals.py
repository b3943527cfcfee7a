"""The pool with its real fork server and processes: python -m tests.sweeps.launchers.pool_signals FOLDER. Its runs only wait.

Prints the state that each signal leaves in the ledger, and in the folder of the run, as JSON. test_pool_signals.py asserts
them.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from harness.run.folder import RunFolder
from harness.run.signals import Preempted, stop_signals
from sweeps.launchers import pool
from sweeps.ledger import Sweep
from tests.sweeps.launchers.fork_servers import kill_servers, servers
from tests.waiting import until


def stop(failed: threading.ExceptHookArgs) -> None:
    """A thread that has failed would leave the main one waiting for it."""
    threading.__excepthook__(failed)
    os._exit(1)


def train(config: str, log: str) -> None:
    """Stands for a run that looks for a signal all the time, and ends once one was sent that has not reached it."""
    folder = RunFolder(Path(log).parent)
    with stop_signals(at_once=False) as request, folder.claim():
        folder.status("running", step=0, steps=100)
        until(lambda: request.number or (folder.path / "sent").exists())
        if request.number:
            folder.status("preempted", step=1, steps=100)
            raise Preempted(request.number)
        folder.status("done", step=100, steps=100)


def slow_to_begin(config: str, log: str) -> None:
    """Waits between its fork and its first instruction, the moment in which a signal must not be lost."""
    Path(log).with_name("born").write_text(str(os.getpid()))
    until(Path(log).with_name("begin").exists)
    pool._train = train
    pool.run_in_child(config, log)


def ctrl_c() -> None:
    """To the server and its runs; the launcher would stop by it."""
    for process in psutil.Process().children(recursive=True):
        if "resource_tracker" not in " ".join(process.cmdline()):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGINT)


def main(root: Path) -> None:
    from harness.compose import compose
    from harness.config import parse
    from sweeps.launch import plan

    threading.excepthook = stop
    pool.PRELOADED = ["tests.sweeps.launchers.pool_signals_server"]
    pool.run_in_child = slow_to_begin  # in this process alone: the run itself calls the real one
    config = parse(compose(f"run.root={root}"))
    sweep, run = Sweep(config.path.parent), config.digest
    plan(sweep, {run: config}, {})
    folder = sweep.folder(run)

    def born() -> str:
        path = folder.path / "born"
        return path.read_text() if path.exists() else ""

    def under_way() -> bool:
        return born() != "" and folder.state == "running"

    def send_at(moment: Callable[[], object], send: Callable[[], None]) -> None:
        until(moment)
        send()
        for file in ("sent", "begin"):
            (folder.path / file).touch()

    def starting() -> bool:
        return bool(servers(os.getpid()))

    signals: dict[str, tuple[Callable[[], object], Callable[[], None]]] = {
        "ctrl-c, the server starts": (starting, ctrl_c),
        "ctrl-c, the run starts": (born, ctrl_c),
        "ctrl-c, the run is under way": (under_way, ctrl_c),
        "the run is killed": (under_way, lambda: os.kill(int(born()), signal.SIGKILL)),
        "the server is killed": (under_way, lambda: kill_servers(os.getpid())),
        "the server is killed as it starts": (starting, lambda: kill_servers(os.getpid())),
        "nothing": (lambda: True, lambda: None),
    }
    ends = {}
    for name, (moment, send) in signals.items():
        for file in ("born", "begin", "sent", "status.json"):
            (folder.path / file).unlink(missing_ok=True)
        if moment is under_way:
            (folder.path / "begin").touch()
        sweep.log("submitted", [run], batch="")
        sender = threading.Thread(target=send_at, args=(moment, send), daemon=True)
        sender.start()
        pool.Pool(sweep, 1, "local").run([run])
        sender.join()
        ends[name] = [sweep.states()[run].state, sweep.states()[run].error, folder.state]
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
