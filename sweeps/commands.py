"""`faultline sweep status|logs|cancel|retry`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.errors import UserError
from harness.run.folder import FINISHED
from sweeps.launchers.local import last_lines
from sweeps.launchers.squeue import NoAnswer, cancel_jobs, jobs, merged
from sweeps.ledger import Launcher, RunState, Sweep

TROUBLE = ("failed", "interrupted", "cancelled", "preempted")
ORDER = ("queued", "pending", "submitted", "running", "done", "collapsed", *TROUBLE)


def status(path: Path) -> None:
    """A row per arm, how many of its runs are in which state; then what runs now, and why what failed did."""
    sweep = sweep_at(path)
    states = current(sweep)
    counts: dict[str, Counter] = {}
    for state in states.values():
        counts.setdefault(state.arm, Counter())[state.state] += 1
    total = sum(counts.values(), Counter())
    columns = [name for name in ORDER if total[name]]
    table = Table()
    for column in ("arm", *columns):
        table.add_column(column)
    for arm, count in counts.items():
        table.add_row(arm, *(str(count[name] or "") for name in columns))
    width = {} if sys.stdout.isatty() else {"width": 150}
    console = Console(highlight=False, markup=False, soft_wrap=True, **width)  # names and errors may hold [brackets]
    console.print(f"{path}: {len(states)} runs, {', '.join(f'{total[name]} {name}' for name in columns)}")
    console.print(table)
    for run, state in states.items():
        if state.state == "running":
            console.print(f"{run} {state.name}: step {_step(sweep, run)}/{state.steps} in {state.job}")
    reasons = Counter(state.error for state in states.values() if state.state == "pending")
    for reason, count in reasons.items():
        console.print(f"{count} pending: {reason}")
    for run, state in states.items():
        if state.state in TROUBLE and state.error:
            console.print(f"{run} {state.name}: {state.state}: {state.error.splitlines()[-1]}")


def logs(path: Path, runs: list[str], n: int) -> None:
    """The last `n` lines of the logs of `runs`, or of all that are in trouble; of the job, if a run did not come to write one."""
    sweep = sweep_at(path)
    found = chosen(sweep, runs, current(sweep))
    if not found:
        print(f"{path}: no run of it is {', '.join(TROUBLE[:-1])} or {TROUBLE[-1]}; name a run by its hash to see its log")
    for run, state in found.items():
        output = last_lines(sweep.folder(run), n)
        job = sweep.home / "jobs" / f"{state.job}_0_log.out"
        if not output and job.exists():
            output = "\n".join(job.read_text(errors="replace").splitlines()[-n:])
        print(f"== {sweep.path / run} ({state.name}): {state.state}\n{output or '(no output)'}")


def cancel(path: Path) -> None:
    """Cancel the jobs of the sweep, or ask its local launcher to stop; each run saves a checkpoint.

    The controller of a search is stopped first: it submits again what was cancelled.
    """
    sweep = sweep_at(path)
    search = (sweep.home / "search-spec.json").exists()
    _launcher_here(sweep, search)
    sweep.mark_cancelled()
    launcher = _launcher_here(sweep, search)  # one that comes later sees that it was cancelled
    if launcher and search:
        os.kill(launcher.pid, signal.SIGTERM)
        while sweep.launcher() == launcher:
            time.sleep(0.1)
        print(f"search stopped (process {launcher.pid}); the same command goes on with it")
    if _on_slurm(sweep):
        print(f"{len(cancel_jobs(sweep))} runs cancelled in Slurm")
    elif launcher is None:
        raise UserError(f"{path}: nothing is running; a launcher that is just starting stops by itself")
    elif not search:
        os.kill(launcher.pid, signal.SIGTERM)
        print(f"launcher {launcher.pid} told to stop")


def retry(path: Path, runs: list[str], code: str | None) -> None:
    """Launch again what failed, by itself or not; in Slurm or on this machine, as the sweep was launched last."""
    from sweeps.launch import relaunch

    sweep = sweep_at(path)
    again = list(chosen(sweep, runs, current(sweep)))
    if not again:
        print(f"{path}: nothing to run again, no run of it is {', '.join(TROUBLE[:-1])} or {TROUBLE[-1]}")
    elif any(state.state not in FINISHED for state in relaunch(sweep, again, code).values()):
        raise SystemExit(1)


def sweep_at(path: Path) -> Sweep:
    """The sweep in a folder. Raises UserError if no launcher made one there."""
    sweep = Sweep(path)
    if not (sweep.home / "ledger.jsonl").exists():
        raise UserError(f"{path}: no sweep of hydra/launcher=local or slurm in it; give its folder, as runs/demo")
    return sweep


def current(sweep: Sweep) -> dict[str, RunState]:
    """The state of each run, from the ledger and Slurm together. Damaged lines, and a Slurm that does not answer, are told of."""
    states = sweep.states()
    print("".join(f"{damage}\n" for damage in sweep.damaged), end="", file=sys.stderr)
    if _on_slurm(sweep):
        try:
            return merged(sweep, states, jobs(sweep))
        except NoAnswer as error:
            print(f"{error}; this is what the ledger alone tells", file=sys.stderr)
    elif sweep.launcher() is None:  # no local launcher: nothing runs
        gone = [run for run, state in states.items() if state.state in ("submitted", "running")]
        states |= {run: sweep.settle(run, states[run], "its launcher is gone") for run in gone}
    return states


def chosen(sweep: Sweep, beginnings: list[str], states: dict[str, RunState]) -> dict[str, RunState]:
    """The runs whose hash begins so; without any, those in trouble. Raises UserError on one that fits no run or several."""
    if not beginnings:
        return {run: state for run, state in states.items() if state.state in TROUBLE}
    found = {}
    for beginning in beginnings:
        fitting = [run for run in states if run.startswith(beginning)]
        if len(fitting) != 1:
            raise UserError(f"{beginning}: {len(fitting)} runs of {sweep.path} begin so; faultline sweep status shows them")
        found[fitting[0]] = states[fitting[0]]
    return found


def _launcher_here(sweep: Sweep, search: bool) -> Launcher | None:
    """The launcher that is at work. Raises UserError if a signal must reach it, and it is on another machine."""
    launcher = sweep.launcher()
    if launcher and not launcher.here and (search or not _on_slurm(sweep)):
        raise UserError(f"{sweep.path}: {launcher} works on it; cancel it there")
    return launcher


def _on_slurm(sweep: Sweep) -> bool:
    return (sweep.home / "batches").exists()


def _step(sweep: Sweep, run: str) -> int:
    folder = sweep.folder(run)
    try:
        return folder.progress().get("step", 0)
    except UserError:
        return folder.checkpointed
