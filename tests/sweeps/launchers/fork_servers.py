"""The fork servers of a launcher."""

from contextlib import suppress

import psutil

from tests.waiting import ended, until


def servers(launcher: int) -> list[psutil.Process]:
    """The fork servers of the process `launcher` that are alive."""
    found = []
    for child in psutil.Process(launcher).children():
        with suppress(psutil.NoSuchProcess):  # it ended since it was listed: a zombie has no command line
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                found.append(child)
    return found


def kill_servers(launcher: int) -> None:
    """Kill the fork servers of a launcher. Return once they have ended, so that their runs have been signalled."""
    found = servers(launcher)
    for server in found:
        server.kill()
    until(lambda: all(map(ended, found)))
