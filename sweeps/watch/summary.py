"""Summary of a running sweep: counts, pace, time left, a row per arm (runs alike but for the seed), alarms, failures."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from analysis.marks import Mark
from harness.run.folder import FINISHED
from sweeps.watch.follow import Alarm, Followed, Follower, regular

LISTED = 20
"""Maximum number of alarms and of failed runs that are shown, worst and latest first."""
WORST = ("collapse", "all_rejected", "warning")
"""Kinds of alarms of a run, worst first: the order in which the summary lists them."""
LINES, TAIL = 8, 4096
"""Number of lines at the end of a run's log that are shown, and number of bytes at its end that are searched for them."""
SILENT = 600.0
"""Seconds without a new step after which a run counts as silent. If five of its steps take longer, their time is the limit."""
ORDER = ("queued", "running", "preempted", "done", "collapsed", "failed", "interrupted", "cancelled", "unreadable")


class ArmState(NamedTuple):
    """State of runs alike but for the seed: numbers by state, steps done, steps in all, mean last reward, and median last K3."""

    name: str
    mark: Mark
    counts: Counter[str]
    step: int
    steps: int
    reward: float | None
    k3: float | None
    runs: list[Followed]


class Failure(NamedTuple):
    """A failed, interrupted or unreadable run. log: last lines of its log."""

    run: Followed
    log: str


class Summary(NamedTuple):
    """Summary of a sweep under way.

    gone: whether the sweep's folder is missing. step, steps: steps done and in all, summed over runs. rate: steps per minute of
    all runs together. left: seconds left, None while the pace is unknown. silent: runs that have written nothing for long.
    behind: number of runs whose metrics are not fully read.
    """

    name: str
    gone: bool
    counts: dict[str, int]
    step: int
    steps: int
    rate: float
    left: float | None
    arms: list[ArmState]
    alarms: list[tuple[Alarm, Followed]]
    alarms_in_all: int
    failures: list[Failure]
    failures_in_all: int
    silent: list[Followed]
    behind: int

    @property
    def outlook(self) -> str:
        """One sentence on pace and time left, or why they are unknown. The rate is printed without an exponent."""
        if self.gone:
            return "The folder is gone."
        if self.over:
            return "All have ended."
        if "running" not in self.counts:
            return "No run is under way."
        if self.left is None:
            return "The time left is known once a run has made two steps."
        pace = f"{self.rate:,.0f}" if self.rate >= 100 else f"{self.rate:.3g}"
        return f"{pace} steps a minute, about {duration(self.left)} left."

    @property
    def over(self) -> bool:
        """Whether all runs have ended for good. A preempted run will resume, and a folder without runs may still get some."""
        return bool(self.counts) and not self.behind and not {"queued", "running", "preempted"} & self.counts.keys()


def summarise(follower: Follower, now: float | None = None) -> Summary:
    """Summarise what `follower` has read of a sweep. now: time in seconds since the epoch; None: the present."""
    runs = list(follower.runs.values())
    counts = Counter(run.state for run in runs)
    rate, left = _pace(runs)
    alarms = sorted(((alarm, run) for run in runs for alarm in run.alarms.values()), key=_gravity)
    lost = sorted((run for run in runs if run.state in ("failed", "interrupted")), key=lambda run: run.time, reverse=True)
    failures = [Failure(run, last_lines(f"{follower.path}/{run.name}/log.txt")) for run in lost[:LISTED]]
    unreadable = [Failure(run, "") for run in runs if run.state == "unreadable"]
    return Summary(
        name=follower.path.resolve().name,
        gone=not follower.path.is_dir(),
        counts={state: counts[state] for state in ORDER if counts[state]},
        step=sum(min(run.step, run.steps) for run in runs),
        steps=sum(run.step if run.state in FINISHED else run.steps for run in runs),
        rate=60 * rate,
        left=left,
        arms=_arms(follower),
        alarms=alarms[:LISTED],
        alarms_in_all=len(alarms),
        failures=[*failures, *unreadable][:LISTED],
        failures_in_all=len(lost) + len(unreadable),
        silent=[run for run in runs if run.state == "running" and _silent(run, time.time() if now is None else now)],
        behind=follower.behind,
    )


def _arms(follower: Follower) -> list[ArmState]:
    members: dict[str, list[Followed]] = {name: [] for name in follower.arms}
    for run in follower.runs.values():
        if run.arm in members:
            members[run.arm].append(run)
    rows = []
    for name, runs in members.items():
        last = [run.points[-1].reward for run in runs if run.points]
        k3 = [next((p.k3 for p in reversed(run.points) if p.k3 is not None), None) for run in runs]
        known = [value for value in k3 if value is not None]
        rows.append(
            ArmState(
                name=name,
                mark=follower.marks.arms[name],
                counts=Counter(run.state for run in runs),
                step=sum(min(run.step, run.steps) for run in runs),
                steps=sum(run.step if run.state in FINISHED else run.steps for run in runs),
                reward=statistics.fmean(last) if last else None,
                k3=statistics.median(known) if known else None,
                runs=runs,
            )
        )
    return rows


def _pace(runs: list[Followed]) -> tuple[float, float | None]:
    """Steps per second of all runs under way, and the seconds left if as many runs continue in parallel.

    A run's pace is the mean over its steps, without the first one and without warm starts. A run without a pace takes the median
    pace of runs alike but for the seed, else that of all runs, also finished ones. The time left is at least that of the running
    run with the most time left. Without a run under way or a known pace the result is (0, None).
    """
    known = [run for run in runs if run.seconds]
    if not known:
        return 0.0, None
    typical = statistics.median(run.seconds for run in known if run.seconds)
    by_arm: dict[str, list[float]] = {}
    for run in known:
        by_arm.setdefault(run.arm, []).append(run.seconds or typical)
    seconds = {run.name: run.seconds or statistics.median(by_arm.get(run.arm, [typical])) for run in runs}
    under_way = [run for run in runs if run.state == "running"]
    if not under_way:
        return 0.0, None
    work = sum(run.left * seconds[run.name] for run in runs)
    longest = max(run.left * seconds[run.name] for run in under_way)
    return sum(1 / seconds[run.name] for run in under_way), max(work / len(under_way), longest)


def _gravity(pair: tuple[Alarm, Followed]) -> tuple:
    """Sort key of (alarm, run): collapses first, then steps with all tokens rejected, then warnings; the latest first."""
    alarm, run = pair
    return WORST.index(alarm.kind), -alarm.time, -alarm.step, alarm.detector, run.name


def _silent(run: Followed, now: float) -> bool:
    return run.time > 0 and now - run.time > max(SILENT, 5 * (run.seconds or 0.0))


def last_lines(path: str) -> str:
    """The last `LINES` lines of the log at `path`; "" if there is no such file."""
    found = regular(path)
    if found is None:
        return ""
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, found.st_size - TAIL), os.SEEK_SET)
        return "\n".join(file.read(TAIL).decode(errors="replace").splitlines()[-LINES:])
    return ""


def duration(seconds: float) -> str:
    """A duration in seconds, written as hours and minutes, or as minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600} h {whole // 60 % 60:02d} min" if whole >= 3600 else f"{whole // 60} min {whole % 60:02d} s"
