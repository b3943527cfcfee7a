"""The command `faultline watch`: shows a sweep as a local page, or in the terminal."""

from __future__ import annotations

from pathlib import Path

from sweeps.watch.follow import Follower


def watch(sweep: Path, port: int = 0, tui: bool = False) -> None:
    """Show the sweep as a page until Ctrl-C, or with `tui` in the terminal until all its runs have ended.

    port: port of the page on 127.0.0.1, 0 for a free one. Raises UserError if the folder is missing, or the port is taken.
    """
    follower = Follower(sweep)
    if tui:
        from sweeps.watch.terminal import watch_in_terminal

        watch_in_terminal(follower)
        return
    from sweeps.watch.server import WatchServer

    with WatchServer(follower, port) as server:
        print(f"Page: {server.address}  (Ctrl-C ends it; the runs go on)", flush=True)
        server.serve_forever()
