"""The pool with its real fork server and processes, and runs that only wait: python -m tests.sweeps.pool_signals FOLDER.

Prints the state that each blow leaves in the ledger, and in the folder of the run, as JSON. test_blows.py asserts them.
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
from tests.sweeps.servers import kill_servers, servers
from tests.waiting import until


def stop(failed: threading.ExceptHookArgs) -> None:
    """A thread that has failed would leave the main one waiting for it."""
    threading.__excepthook__(failed)
    os._exit(1)


def train(config: str, log: str) -> None:
    """Stands for a run that looks for a signal all the time, and ends once the blow has fallen without reaching it."""
    folder = RunFolder(Path(log).parent)
    with stop_signals(at_once=False) as request, folder.claim():
        folder.status("running", step=0, steps=100)
        until(lambda: request.number or (folder.path / "struck").exists())
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
    pool.PRELOADED = ["tests.sweeps.pool_signals_server"]
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

    def fall(moment: Callable[[], object], strike: Callable[[], None]) -> None:
        until(moment)
        strike()
        for file in ("struck", "begin"):
            (folder.path / file).touch()

    def starting() -> bool:
        return bool(servers(os.getpid()))

    def strike_servers() -> None:
        kill_servers(os.getpid())

    blows: dict[str, tuple[Callable[[], object], Callable[[], None]]] = {
        "ctrl-c, the server starts": (starting, ctrl_c),
        "ctrl-c, the run starts": (born, ctrl_c),
        "ctrl-c, the run is under way": (under_way, ctrl_c),
        "the run is killed": (under_way, lambda: os.kill(int(born()), signal.SIGKILL)),
        "the server is killed": (under_way, strike_servers),
        "the server is killed as it starts": (starting, strike_servers),
        "nothing": (lambda: True, lambda: None),
    }
    ends = {}
    for name, (moment, strike) in blows.items():
        for file in ("born", "begin", "struck", "status.json"):
            (folder.path / file).unlink(missing_ok=True)
        if moment is under_way:
            (folder.path / "begin").touch()
        sweep.log("submitted", [run], batch="")
        storm = threading.Thread(target=fall, args=(moment, strike), daemon=True)
        storm.start()
        pool.Pool(sweep, 1, "local").run([run])
        storm.join()
        ends[name] = [sweep.states()[run].state, sweep.states()[run].error, folder.state]
    print(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
