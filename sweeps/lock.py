"""Locking of a sweep: only one launcher works on it at a time, and a cancelled sweep stays cancelled."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.errors import Unavailable, UserError
from harness.files import open_own, refuse_links, write_file, writing
from harness.run import jsonl
from sweeps import STARTED


class Launcher(NamedTuple):
    """Identity of a process that holds the lock of a sweep."""

    host: str
    pid: int

    @property
    def here(self) -> bool:
        """Whether the launcher runs on this machine."""
        return self.host == platform.node()

    def __str__(self) -> str:
        return f"another launcher (process {self.pid} on {self.host})"


class LauncherLock:
    """Lock of a sweep. `home`/lock names the launcher that holds it. `home`/cancelled records the user's last cancellation.

    A cancellation on this machine is dated by the time since boot, because clocks may be set back. A cancellation on another
    machine counts if it was recorded after this object was created.
    """

    def __init__(self, home: Path):
        self.home = home
        self.before = self._cancellation()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Context manager that holds the lock. Raises UserError if another launcher holds it, or the sweep was cancelled."""
        refuse_links(self.home.parent, ".sweep/lock")
        with writing(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            file = open_own(self.home / "lock", "a+")  # "w" would erase the holder's name
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{self.home.parent}: {self._named()} is working on this sweep; wait for it or stop it"
                raise UserError(message) from None
            file.truncate(0)
            file.write(f"{platform.node()} {os.getpid()}\n")
            file.flush()
            self.check_cancelled()
            yield
            file.truncate(0)

    def holder(self) -> Launcher | None:
        """The launcher that holds the lock. None also if it has only just started and has not written its name yet."""
        if not (self.home / "lock").is_file():
            return None
        try:
            with open(self.home / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            launcher = self._named()
            return launcher if launcher.pid else None
        return None

    def terminate(self, launcher: Launcher) -> None:
        """Send SIGTERM to the launcher that holds the lock. Raises UserError if its process has not opened the lock file."""
        with suppress(psutil.Error):  # it has ended, or is another user's
            process = psutil.Process(launcher.pid)
            if str((self.home / "lock").resolve()) in [file.path for file in process.open_files()]:
                process.send_signal(signal.SIGTERM)
                return
        raise UserError(f"{self.home.parent}: process {launcher.pid}, which its lock names, does not work on it")

    def mark_cancelled(self) -> None:
        """Mark the sweep as cancelled now. A launcher that has started but does not hold the lock yet will see it and stop."""
        with writing(self.home):
            write_file(self.home.parent, ".sweep/cancelled", f"{_boot()} {time.monotonic()}\n")

    def check_cancelled(self) -> None:
        """Raise UserError if the user has cancelled the sweep since this process began."""
        mark = self._cancellation()
        boot, _, moment = mark.partition(" ")
        with suppress(ValueError):
            cancelled = float(moment) > STARTED if boot == _boot() else mark != self.before
            if cancelled:
                raise UserError(f"{self.home.parent}: cancelled after this was started; give the command again to go on")

    def check_there(self) -> None:
        """Raise Unavailable if the folder of the sweep is gone."""
        if not self.home.exists():
            remedy = "put it back, then give the same command again"
            raise Unavailable(f"{self.home.parent}: was moved or removed while a launcher worked on it; {remedy}")

    def _cancellation(self) -> str:
        with suppress(OSError):
            return jsonl.content(self.home / "cancelled").decode(errors="replace")
        return ""

    def _named(self) -> Launcher:
        host, pid, *_ = *(self.home / "lock").read_text(errors="replace").split(), "?", "0"
        return Launcher(host, int(pid) if pid.isascii() and pid.isdecimal() else 0)


def _boot() -> str:
    """Identifier of the current boot of this machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{platform.node()}-{round(psutil.boot_time())}"
