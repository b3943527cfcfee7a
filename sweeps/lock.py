"""One launcher at a time works on a sweep, and a cancelled sweep stays cancelled."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from harness.errors import UserError
from harness.run.folder import writing
from sweeps import STARTED


class Launcher(NamedTuple):
    """A process that holds the lock of a sweep."""

    host: str
    pid: int

    @property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return self.host == platform.node()

    def __str__(self) -> str:
        return f"another launcher (process {self.pid} on {self.host})"


class LauncherLock:
    """`home`/lock names the launcher that holds it; the modification time of `home`/cancelled is the last cancellation."""

    def __init__(self, home: Path):
        self.home = home

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other launchers away. Raises UserError if one is at work, or if the user has cancelled the sweep meanwhile."""
        with writing(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            file = open(self.home / "lock", "a+")  # noqa: SIM115 (closed below; "w" would erase the holder's name)
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
        """The launcher at work. None also for one that has not written its name yet: it is still starting."""
        try:
            with open(self.home / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            launcher = self._named()
            return launcher if launcher.pid else None
        return None

    def mark_cancelled(self) -> None:
        """Cancel the sweep now. A launcher that has started but does not hold the lock yet will see it and stop."""
        now = time.time()
        with writing(self.home):
            (self.home / "cancelled").touch()
            os.utime(self.home / "cancelled", (now, now))  # by the clock of `STARTED`, not by the file server's

    def check_cancelled(self) -> None:
        """Raises UserError if the user has cancelled the sweep since this process began."""
        with suppress(FileNotFoundError):
            if (self.home / "cancelled").stat().st_mtime > STARTED:
                raise UserError(f"{self.home.parent}: cancelled after this was started; give the command again to go on")

    def _named(self) -> Launcher:
        host, pid, *_ = *(self.home / "lock").read_text().split(), "?", "0"
        return Launcher(host, int(pid))
