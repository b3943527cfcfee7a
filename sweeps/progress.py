"""Display of the progress of a launcher's runs: the step of each run, and the time left. It only reads run folders."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Table

from harness.config import Config
from harness.errors import UserError
from harness.run.folder import FINISHED, STATES, RunFolder

PLAIN_EVERY = 20.0
"""Seconds between progress lines when the output is not a terminal."""
ROWS = 40
"""Number of runs above which the table of progress shows only the runs under way."""


class Display:
    """Display of the progress of runs, labelled by `names`: a live table on a terminal, else a line every PLAIN_EVERY seconds."""

    def __init__(self, configs: list[Config], names: Mapping[str, str]):
        self.configs = {config.digest: config for config in configs}
        self.names = names
        self.folders = {d: RunFolder(c.path) for d, c in self.configs.items()}
        self.rows: dict[str, tuple[str, int]] = {}
        self.console = Console(stderr=True, highlight=False, markup=False)  # names may hold [brackets]
        self.began, self.last = time.monotonic(), -math.inf
        self.least: int | None = None  # steps done before the first new one; lower once a run falls back to a checkpoint
        self.stepping: tuple[float, int] | None = None  # time of the first new step, and the steps done by then
        self.took = 0.0  # seconds of the last reading: thousands of folders on a network take a while

    def __enter__(self) -> Display:
        self.live = Live(console=self.console, refresh_per_second=2, transient=False) if self.console.is_terminal else None
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_) -> None:
        self.update(force=True)
        if self.live:
            self.live.stop()

    def update(self, force: bool = False) -> None:
        """Read the run folders, and display the runs' states. force: do it even if the last update is recent."""
        now = time.monotonic()
        if not force and now - self.last < (max(0.5, 10 * self.took) if self.live else PLAIN_EVERY):
            return
        over = {digest: row for digest, row in self.rows.items() if row[0] in FINISHED}
        rows = self.rows = {d: over.get(d) or _progress(f, self.configs[d].steps) for d, f in self.folders.items()}
        self.last = time.monotonic()
        self.took = self.last - now
        done, total = sum(step for _, step in rows.values()), sum(c.steps for c in self.configs.values())
        if self.least is None or done < self.least:
            self.least, self.stepping = done, None
        elif self.stepping is None and done > self.least:
            self.stepping = (now, done)  # the pace counts from a step, not from the warm start
        fresh = done - self.stepping[1] if self.stepping else 0
        coming = sum(self.configs[d].steps - step for d, (state, step) in rows.items() if state != "failed")
        left = (now - self.stepping[0]) / fresh * coming if self.stepping and fresh else None
        ended = sum(state in FINISHED for state, _ in rows.values())
        headline = f"{ended}/{len(rows)} runs, {done}/{total} steps, {clock(now - self.began)} elapsed, " + (
            "done" if done == total else f"about {clock(left)} left" if left is not None else "starting"
        )
        if self.live:
            self.live.update(self._table(rows, headline))
        else:
            active = [
                f"{self.names[digest]} {f'{step}/{self.configs[digest].steps}' if state == 'running' else state}"
                for digest, (state, step) in rows.items()
                if _under_way(state)
            ]
            self.console.print(f"{headline}; running: {', '.join(active) or 'none'}", soft_wrap=True)

    def _table(self, rows: dict[str, tuple[str, int]], headline: str) -> Table:
        table = Table(title=headline, title_justify="left")
        for column in ("run", "state", "step"):
            table.add_column(column)
        shown = {digest: row for digest, row in rows.items() if len(rows) <= ROWS or _under_way(row[0])}
        for digest, (state, step) in shown.items():
            total = self.configs[digest].steps
            bar = "━" * round(20 * step / total)
            table.add_row(self.names[digest], state, f"{step:>4}/{total} {bar}")
        return table


def _under_way(state: str) -> bool:
    return state == "running" or state not in STATES  # a phase of a running one


def _progress(folder: RunFolder, steps: int) -> tuple[str, int]:
    if not (folder.path / "status.json").exists():
        return "queued", 0
    try:
        status = folder.read("status.json")
    except UserError:
        return "unreadable", 0  # its own process will report it
    return status.get("phase", status["state"]), steps if status["state"] in FINISHED else status.get("step", 0)


def clock(seconds: float) -> str:
    """A duration in seconds, written as minutes:seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
