"""The fork servers of a launcher."""

import os
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


def waits_for_server(launcher: int) -> bool:
    """Whether a launcher has asked its fork server for a run, or is about to. A server killed earlier would be replaced.

    Its pipes are its output and errors, one to the server and one to the resource tracker, and a pair for the new run.
    """
    pipes = 0
    for number in os.listdir(f"/proc/{launcher}/fd"):
        with suppress(FileNotFoundError):
            pipes += os.readlink(f"/proc/{launcher}/fd/{number}").startswith("pipe:")
    return bool(servers(launcher)) and pipes >= 6


def kill_servers(launcher: int) -> None:
    """Kill the fork servers of a launcher. Return once they have ended, so that their runs have been signalled."""
    found = servers(launcher)
    for server in found:
        server.kill()
    until(lambda: all(map(ended, found)))
