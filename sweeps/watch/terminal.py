"""Terminal view of a running sweep, for use over SSH: progress, reward curves over seeds, alarms, failures, time left."""

from __future__ import annotations

import statistics
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.frames import terminal
from harness.errors import printable
from sweeps.watch.follow import Followed, Follower
from sweeps.watch.server import EVERY
from sweeps.watch.summary import Summary, summarise

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
"""Width of a reward curve in the terminal, in characters."""
ROWS, EACH = 30, 6
"""Maximum number of arms (runs alike but for the seed) that are shown, and maximum number of alarms and of failures."""


def watch_in_terminal(follower: Follower, console: Console | None = None) -> None:
    """Show the sweep until all its runs have ended, or until Ctrl-C. If the output is no terminal, show it once."""
    console = console or terminal()
    if not console.is_terminal:
        console.print(view(_read(follower)))
        return
    with Live(console=console, auto_refresh=False) as live:
        summary = _read(follower)
        live.update(view(summary), refresh=True)
        while not summary.over:
            time.sleep(EVERY)
            summary = _read(follower)
            live.update(view(summary), refresh=True)


def _read(follower: Follower) -> Summary:
    follower.look()
    while follower.behind:
        follower.look()
    return summarise(follower)


def view(summary: Summary) -> RenderableType:
    """The whole terminal view. Text from runs is printed without control characters and never as rich's markup."""
    counts = ", ".join(f"{number} {state}" for state, number in summary.counts.items())
    parts: list[RenderableType] = [
        Text(printable(f"{summary.name}: {sum(summary.counts.values())} runs, {counts}"), style="bold"),
        Text(f"Step {summary.step} of {summary.steps}. {summary.outlook}"),
        _arms(summary),
    ]
    for run in summary.silent[:EACH]:
        parts.append(_line(f"{run.name} ({run.arm}, seed {run.seed}) has written nothing for a long time", "yellow"))
    for alarm, run in summary.alarms[:EACH]:
        style = "red" if alarm.kind == "collapse" else "yellow"
        parts.append(_line(f"{alarm}: {run.arm}, seed {run.seed} ({run.name})", style))
    for failure in summary.failures[:EACH]:
        run = failure.run
        parts.append(_line(f"{run.name} ({run.arm}, seed {run.seed}): {run.state} at step {run.step}. {run.error}", "red"))
        parts += [_line(f"    {line}", "dim") for line in failure.log.splitlines()[-3:]]
    more = [("alarms", summary.alarms_in_all, EACH), ("failed runs", summary.failures_in_all, EACH)]
    parts += [Text(f"and {number - most} more {what}") for what, number, most in more if number > most]
    return Group(*parts)


def _arms(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("arm", "steps", "state", "held-out reward", "last", "last K3 (nats)"):
        table.add_column(name, overflow="fold")
    rows = sorted(summary.arms, key=lambda arm: not arm.counts["running"])[:ROWS]
    for arm in rows:
        state = ", ".join(f"{number} {state}" for state, number in arm.counts.items())
        reward = "–" if arm.reward is None else f"{arm.reward:.3f}"
        k3 = "–" if arm.k3 is None else f"{arm.k3:.2g}"
        table.add_row(Text(printable(arm.name)), f"{arm.step}/{arm.steps}", state, curve(arm.runs), reward, k3)
    if len(summary.arms) > ROWS:
        table.add_row(f"and {len(summary.arms) - ROWS} more")
    return table


def curve(runs: list[Followed]) -> str:
    """The runs' mean held-out reward over their steps, a bar per interval of steps. A bar of full height is a reward of 1."""
    last = max((run.steps for run in runs), default=0) + 1
    parts: list[list[float]] = [[] for _ in range(WIDTH)]
    for run in runs:
        for point in run.points:
            parts[min(WIDTH - 1, point.step * WIDTH // last)].append(point.reward)
    top, text = len(BARS) - 1, ""
    while parts and not parts[-1]:
        parts.pop()
    for part in parts:  # a part without an evaluation repeats the one before
        text += BARS[max(0, min(top, round(top * statistics.fmean(part))))] if part else text[-1:] or " "
    return text


def _line(text: str, style: str) -> Text:
    return Text(printable(text), style=style)
