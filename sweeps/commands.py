"""The commands of `faultline sweep`: status shows runs, logs their output, cancel stops them, retry launches them again."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.errors import UserError, printable
from harness.run.folder import FINISHED
from sweeps.launchers.pool import last_lines, last_of
from sweeps.launchers.squeue import NoAnswer, cancel_jobs, jobs, merge_states
from sweeps.ledger import Sweep
from sweeps.lock import Launcher
from sweeps.states import RunState

TROUBLE = ("failed", "interrupted", "cancelled", "preempted")
ORDER = ("queued", "pending", "submitted", "running", "done", "collapsed", *TROUBLE)


def status(path: Path) -> None:
    """Print the number of runs by arm (runs alike but for the seed) and state, those under way, and why others wait or failed."""
    sweep = open_sweep(path)
    states = current_states(sweep)
    counts: dict[str, Counter] = {}
    for state in states.values():
        counts.setdefault(state.arm, Counter())[state.state] += 1
    total = sum(counts.values(), Counter())
    columns = [name for name in ORDER if total[name]]
    table = Table()
    for column in ("arm", *columns):
        table.add_column(column)
    for arm, count in counts.items():
        table.add_row(printable(arm), *(str(count[name] or "") for name in columns))
    width = None if sys.stdout.isatty() else 150
    console = Console(highlight=False, markup=False, soft_wrap=True, width=width)  # names and errors may hold [brackets]
    console.print(printable(f"{path}: {len(states)} runs, {', '.join(f'{total[name]} {name}' for name in columns)}"))
    console.print(table)
    for run, state in states.items():
        if state.state == "running":
            console.print(printable(f"{run} {state.name}: step {_step(sweep, run)}/{state.steps} in {state.job}"))
    reasons = Counter(state.error for state in states.values() if state.state == "pending")
    for reason, pending in reasons.items():
        console.print(printable(f"{pending} pending: {reason}"))
    for run, state in states.items():
        if state.state in TROUBLE and state.error:
            console.print(printable(f"{run} {state.name}: {state.state}: {state.error.splitlines()[-1]}"))


def logs(path: Path, runs: list[str], n: int) -> None:
    """Print the last `n` lines of each run's log, else of its job's output. runs: beginnings of hashes, see `select_runs`."""
    sweep = open_sweep(path)
    shown = select_runs(sweep, runs, current_states(sweep))
    if not shown:
        print(f"{path}: no run of it is {', '.join(TROUBLE[:-1])} or {TROUBLE[-1]}; name a run by its hash to see its log")
    for run, state in shown.items():
        output = last_lines(sweep.folder(run), n) or last_of(sweep.home / "jobs" / f"{state.job}_0_log.out", n)
        print(printable(f"== {sweep.path / run} ({state.name}): {state.state}"))
        print(*map(printable, (output or "(no output)").splitlines()), sep="\n")


def cancel(path: Path) -> None:
    """Cancel a sweep's Slurm jobs, or stop its local launcher; the runs save checkpoints. A search's controller stops first."""
    sweep = open_sweep(path)
    search = (sweep.home / "search-spec.json").exists()
    _launcher_here(sweep, search)
    sweep.lock.mark_cancelled()
    launcher = _launcher_here(sweep, search)  # a later one sees the mark
    if launcher and search:
        sweep.lock.terminate(launcher)
        while sweep.lock.holder() == launcher:
            time.sleep(0.1)
        print(f"search stopped (process {launcher.pid}); the same command continues it")
    if _on_slurm(sweep):
        print(f"{len(cancel_jobs(sweep))} runs cancelled in Slurm")
    elif launcher is None:
        raise UserError(f"{path}: nothing is running; a launcher that is just starting stops by itself")
    elif not search:
        sweep.log("cancelled", [run for run, state in sweep.states().items() if state.state in ("submitted", "running")])
        sweep.lock.terminate(launcher)
        print(f"launcher {launcher.pid} stops at a checkpoint")


def retry(path: Path, runs: list[str], code: str | None) -> None:
    """Relaunch, as last launched, runs whose hashes begin with one of `runs`, or the failed and stopped ones if it is empty.

    code: a value for hydra.launcher.code, which only Slurm uses. Raises SystemExit if a run has not finished.
    """
    from sweeps.launch import relaunch

    sweep = open_sweep(path)
    again = list(select_runs(sweep, runs, current_states(sweep)))
    if not again:
        print(f"{path}: nothing to run again, no run of it is {', '.join(TROUBLE[:-1])} or {TROUBLE[-1]}")
    elif any(state.state not in FINISHED for state in relaunch(sweep, again, code).values()):
        raise SystemExit(1)


def open_sweep(path: Path) -> Sweep:
    """Open the sweep in the folder `path`. Raises UserError if no launcher has created one there."""
    sweep = Sweep(path)
    if not (sweep.home / "ledger.jsonl").exists():
        raise UserError(f"{path}: no sweep of hydra/launcher=local or slurm in it; give its folder, as runs/demo")
    return sweep


def current_states(sweep: Sweep) -> dict[str, RunState]:
    """Each run's state by its hash, from the sweep's log and Slurm. Prints damaged lines, and the reason if Slurm is silent."""
    states = sweep.states()
    print("".join(f"{printable(damage)}\n" for damage in sweep.damaged), end="", file=sys.stderr)
    if _on_slurm(sweep):
        try:
            return merge_states(sweep, states, jobs(sweep))
        except NoAnswer as error:
            print(f"{error}; these are the states by the ledger alone", file=sys.stderr)
    elif sweep.lock.holder() is None:  # no local launcher: nothing runs
        gone = [run for run, state in states.items() if state.state in ("submitted", "running")]
        states |= {run: sweep.state_from_folder(run, states[run], "its launcher is gone") for run in gone}
    return states


def select_runs(sweep: Sweep, beginnings: list[str], states: dict[str, RunState]) -> dict[str, RunState]:
    """Select from `states` by beginnings of hashes, each of which must fit one run; without any, failed and stopped runs."""
    if not beginnings:
        return {run: state for run, state in states.items() if state.state in TROUBLE}
    selected = {}
    for beginning in beginnings:
        fitting = [run for run in states if run.startswith(beginning)]
        if len(fitting) != 1:
            raise UserError(f"{beginning}: {len(fitting)} runs of {sweep.path} begin so; faultline sweep status shows them")
        selected[fitting[0]] = states[fitting[0]]
    return selected


def _launcher_here(sweep: Sweep, search: bool) -> Launcher | None:
    """The launcher at work on the sweep, or None. Raises UserError if it must be signalled but runs on a different machine.

    search: whether the sweep is a search. A launcher must be signalled to cancel a search, or a grid without Slurm.
    """
    launcher = sweep.lock.holder()
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
