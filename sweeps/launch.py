"""Launch of a grid of runs: check it against the existing sweep, print a plan, execute the runs, list the failed ones."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

from harness.arms import flatten
from harness.config import OPERATION, Config
from harness.errors import UserError
from harness.files import refuse_links, writing
from harness.run import jsonl
from harness.run.folder import FINISHED
from sweeps.launchers.executor import Executor
from sweeps.launchers.local import Local
from sweeps.launchers.options import SlurmOptions
from sweeps.launchers.pool import last_lines
from sweeps.launchers.squeue import NoAnswer
from sweeps.ledger import Sweep
from sweeps.pace import cost, estimate
from sweeps.progress import Display
from sweeps.states import ENDS, RunState

POLL, SLOWEST = 2.0, 30.0
"""Seconds between two checks of the runs: at first, and at most."""
Look = tuple[dict[str, RunState], set[str]]
"""Result of `Executor.look`: the state of every run, and the runs that wait or are under way."""


def launch(
    configs: list[Config], executor_for: Callable[[Sweep], Executor], *, retry_failed: bool = False, extend: bool = False
) -> dict[str, RunState]:
    """Bring every run of the grid to its end: finished runs are skipped, active ones awaited, stopped ones resumed.

    executor_for: makes the executor of the sweep. retry_failed: also retry runs that failed by their own error. extend: allow
    new runs in an existing sweep. Prints what failed and returns the state of each run, by its digest. Raises UserError if the
    configs belong to several sweeps, or if the sweep lacks some of them and `extend` is false.
    """
    grid = {config.digest: config for config in configs}
    paths = {config.path.parent for config in configs}
    if len(paths) > 1:
        raise UserError(f"run.sweep, run.root: one command launches one sweep, not {', '.join(map(str, sorted(paths)))}")
    sweep = Sweep(paths.pop())
    executor = executor_for(sweep)
    with sweep.lock.hold():
        settings = executor.prepare()
        states = sweep.states()
        print(*sweep.damaged, sep="\n", end="\n" if sweep.damaged else "", file=sys.stderr)
        if not extend:
            _check_unchanged(sweep, grid, states)
        plan(sweep, grid, states)
        active = enter_missing_ends(sweep, executor.look())
        sweep.write("launcher.json", settings)
        states = sweep.states()
        todo = [run for run in grid if run not in active and not sweep.finished(run)]
        todo = [run for run in todo if retry_failed or states[run].state != "failed"]
        return _run(sweep, grid, todo, active, executor)


def relaunch(sweep: Sweep, runs: list[str], code: str | None) -> dict[str, RunState]:
    """Launch `runs` again with the last launch's settings, and return their states. Raises UserError if there was no launch.

    code: a value of hydra.launcher.code to use instead, on Slurm.
    """
    with sweep.lock.hold():
        try:
            settings = jsonl.load(sweep.home / "launcher.json")
        except (OSError, ValueError):
            raise UserError(f"{sweep.path}: how it was launched is not known; give the command that launched it again") from None
        executor = _executor(sweep, settings, code)
        executor.prepare()
        active = executor.look()[1]
        grid = {run: sweep.config(run) for run in runs}
        return _run(sweep, grid, [run for run in runs if run not in active], active, executor)


def _executor(sweep: Sweep, settings: dict[str, Any], code: str | None) -> Executor:
    if settings.pop("launcher") == "local":
        return Local(sweep, **settings)
    from sweeps.launchers.slurm import Slurm

    return Slurm(sweep, SlurmOptions(**settings | {"code": code}))


def _run(sweep: Sweep, grid: dict[str, Config], todo: list[str], active: set[str], executor: Executor) -> dict[str, RunState]:
    print_plan(sweep, grid, todo, active, executor)
    names = {run: state.name for run, state in sweep.states().items()}
    waits = not (executor.detach and (todo or active))
    with Display(list(grid.values()), names) as display, executor.attached():
        if todo:
            executor.submit(todo)
        if waits:
            enter_missing_ends(sweep, wait_for_all(executor, active, display.update))
    states = {run: state for run, state in sweep.states().items() if run in grid}
    if waits:
        report(sweep, states)
    else:
        print(f"{'submitted' if todo else 'under way'}; its state: faultline sweep status {sweep.path}", file=sys.stderr)
    return states


def wait_for_all(executor: Executor, active: Collection[str], tick: Callable[[], None] = lambda: None) -> Look:
    """Wait until no run is queued or under way. Returns (final state of every run, empty set of runs that are under way).

    active: runs that an earlier launcher started. If they end unfinished, they are submitted once more. tick: called meanwhile.
    """
    began, others = time.monotonic(), set(active)
    while True:
        executor.sweep.lock.check_there()
        try:
            states, live = executor.look()
            left = [run for run in sorted(others - live) if states[run].state in ("interrupted", "preempted")]
            others &= live
            if left and not executor.stopped:
                executor.submit(left)
            elif not live:
                return states, live
        except NoAnswer as error:
            print(error, file=sys.stderr)
        looked = time.monotonic()
        pause = min(SLOWEST, POLL + (looked - began) / 20)
        while time.monotonic() - looked < pause and not executor.wait(0.5):
            tick()


def enter_missing_ends(sweep: Sweep, look: Look) -> set[str]:
    """Enter into the sweep's log the ends of runs that no launcher recorded. look: what `Executor.look` returned.

    Returns the runs that wait or are under way.
    """
    states, live = look
    for run, before in sweep.states().items():
        end = states[run]
        if run not in live and end.state not in FINISHED and sweep.finished(run):
            end = sweep.state_from_folder(run, end, "")
        if end.state in ENDS and end.state != before.state:
            sweep.log("ended", [run], state=end.state, job=end.job, error=end.error)
    return live


def report(sweep: Sweep, states: dict[str, RunState]) -> None:
    """Print the runs that have not finished, each with the last lines of its log."""
    for run, state in states.items():
        if state.state in FINISHED:
            continue
        cause = f": {state.error.splitlines()[-1]}" if state.error else ""
        print(f"{sweep.path / run} ({state.name}): {state.state}{cause}", file=sys.stderr)
        if log := last_lines(sweep.folder(run), 5):
            print("    the last lines of its log.txt:\n    " + log.replace("\n", "\n    "), file=sys.stderr)
    for kind in ("failed", "interrupted", "preempted"):
        if count := sum(state.state == kind for state in states.values()):
            remedy = "; hydra.launcher.retry_failed=true runs it again" if kind == "failed" else ""
            print(f"{count} {kind} ({ENDS[kind]}{remedy})", file=sys.stderr)


def _check_unchanged(sweep: Sweep, grid: dict[str, Config], states: dict[str, RunState]) -> None:
    """Raise UserError if the grid has runs that the existing sweep lacks, as after an edit of a config file."""
    new = [config for run, config in grid.items() if run not in states]
    if not states or not new:
        return
    flat, others = _flat(new[0]), []
    for run in states:
        try:
            others.append(_flat(sweep.config(run)))
        except UserError:  # of another version of the code
            continue
    differing = [{key: other.get(key) for key in flat if flat[key] != other.get(key)} for other in others]
    nearest = list(min(differing, key=len, default={}).items())[:3]
    difference = ", ".join(f"{key}={json.dumps(flat[key])} (there {json.dumps(value)})" for key, value in nearest)
    raise UserError(
        f"{sweep.path}: {len(new)} of the {len(grid)} runs are not among the {len(states)} that it has; {difference}. "
        "Give run.sweep another name, or add them with hydra.launcher.extend=true"
    )


def plan(sweep: Sweep, grid: dict[str, Config], states: dict[str, RunState]) -> None:
    """Create folder, config and log entry of each run of `grid` without a state. Log earlier runs too if these rename them."""
    new = {run: config for run, config in grid.items() if run not in states}
    for run, config in new.items():
        folder = sweep.folder(run)
        refuse_links(sweep.path, f"{run}/config.json")
        with writing(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        folder.write("config.json", config.model_dump(mode="json"))
    arms = sweep.arms() if new else {}
    for run, config in new.items():
        sweep.log("planned", [run], arm=arms[run], seed=config.seed, steps=config.steps, cost=cost(config))
    for run, state in states.items():
        if arms.get(run, state.arm) != state.arm:
            sweep.log("renamed", [run], arm=arms[run])


def print_plan(sweep: Sweep, grid: dict[str, Config], todo: list[str], active: set[str], executor: Executor) -> None:
    """Print what a launch will do: names and seeds of the runs, numbers of done, failed, active and new ones, and duration."""
    states = sweep.states()
    arms: dict[str, list[int]] = {}
    for run, config in grid.items():
        arms.setdefault(states[run].arm, []).append(config.seed)
    print(f"{sweep.path}: {len(arms)} arms, {len(grid)} runs", file=sys.stderr)
    for arm, seeds in arms.items():
        print(f"  {arm}, seeds {', '.join(map(str, sorted(seeds)))}", file=sys.stderr)
    failed = sum(states[run].state == "failed" and run not in todo for run in grid)
    under_way = len(active & grid.keys())
    done = len(grid) - len(todo) - failed - under_way
    print(
        f"{done} done, {failed} failed by themselves and are left, {under_way} under way, "
        f"{executor.describe(len(todo)) if todo else 'none to start'}{estimate(grid, todo)}",
        file=sys.stderr,
    )


def _flat(config: Config) -> dict:
    return flatten(config.model_dump(mode="json", exclude={*OPERATION}))
