"""One way to launch a grid, wherever it runs: check it against the sweep, say what will happen, run it, list what failed."""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any, Protocol

from harness.arms import OPERATION, flatten
from harness.config import Config
from harness.errors import UserError
from harness.run.folder import FINISHED, RunFolder, writing
from sweeps.ledger import ENDS, RunState, Sweep, claimed
from sweeps.local import Local, last_lines
from sweeps.options import SlurmOptions
from sweeps.progress import Display, clock


class Executor(Protocol):
    """Where runs run: sweeps.local.Local or sweeps.cluster.Slurm."""

    def prepare(self, sweep: Sweep) -> dict[str, Any]:
        """What `relaunch` needs to make the like of it. Raise UserError if it cannot run this sweep; nothing was started yet."""

    def active(self, sweep: Sweep, states: dict[str, RunState]) -> dict[str, str]:
        """Runs that are in some process's hands already, and whose."""

    def describe(self, count: int) -> str:
        """How `count` runs will be run."""

    def run(self, sweep: Sweep, runs: list[str], tick: Callable[[], None]) -> bool:
        """Start `runs`, and wait for them and for those that are active. False if it did not wait."""


def launch(configs: list[Config], executor: Executor, *, retry_failed: bool = False, extend: bool = False) -> dict[str, RunState]:
    """Bring every run of the grid to its end, once: what is done is skipped, what runs is attached to, what stopped goes on.

    retry_failed: also run again what failed by itself. extend: the sweep may get runs that it did not have. Returns the state of
    each run of the grid, and prints what failed.
    """
    grid = {config.digest: config for config in configs}
    paths = {config.path.parent for config in configs}
    if len(paths) > 1:
        raise UserError(f"run.sweep, run.root: one command launches one sweep, not {', '.join(map(str, sorted(paths)))}")
    sweep = Sweep(paths.pop())
    with sweep.lock():
        kind = executor.prepare(sweep)
        states = sweep.states()
        print(*sweep.damaged, sep="\n", end="\n" if sweep.damaged else "", file=sys.stderr)
        _belongs(sweep, grid, states, extend)
        active = executor.active(sweep, states)
        plan(sweep, grid, states)
        remember(sweep, kind)
        todo = [run for run in grid if run not in active and _wanted(sweep, run, states.get(run), retry_failed)]
        _announce(sweep, grid, todo, active, executor)
        return _run(sweep, grid, todo, executor)


def remember(sweep: Sweep, kind: dict[str, Any]) -> None:
    """Keep for `relaunch` what an executor's `prepare` returned."""
    with writing(sweep.home):
        (sweep.home / "launcher.json").write_text(json.dumps(kind))


def relaunch(sweep: Sweep, runs: list[str], code: str | None) -> dict[str, RunState]:
    """Run these runs of the sweep again, in whatever state they are, the way the sweep was launched last; their states."""
    with sweep.lock():
        try:
            kind = json.loads((sweep.home / "launcher.json").read_text())
        except (OSError, ValueError):
            raise UserError(f"{sweep.path}: how it was launched is not known; give the command that launched it again") from None
        executor = _executor(kind, code)
        executor.prepare(sweep)
        active = executor.active(sweep, sweep.states())
        grid = {run: sweep.config(run) for run in runs}
        todo = [run for run in runs if run not in active]
        _announce(sweep, grid, todo, active, executor)
        return _run(sweep, grid, todo, executor)


def _executor(kind: dict[str, Any], code: str | None) -> Executor:
    if kind.pop("launcher") == "local":
        return Local(**kind)
    from sweeps.cluster import Slurm

    return Slurm(SlurmOptions(**kind | {"code": code}))


def _run(sweep: Sweep, grid: dict[str, Config], todo: list[str], executor: Executor) -> dict[str, RunState]:
    names = {run: state.name for run, state in sweep.states().items()}
    with Display(list(grid.values()), names) as display:
        ended = executor.run(sweep, todo, display.update)
    if ended:
        _settle(sweep)
    states = {run: state for run, state in sweep.states().items() if run in grid}
    if ended:
        report(sweep, states)
    else:
        print(f"{'submitted' if todo else 'under way'}; what becomes of it: faultline sweep status {sweep.path}", file=sys.stderr)
    return states


def _settle(sweep: Sweep) -> None:
    """Tell the ledger of the ends that no process told of: a launcher may have been killed, with its runs or after them."""
    for run, state in sweep.states().items():
        if state.state in ("submitted", "running") and not claimed(sweep.folder(run)):
            settled = sweep.settle(run, state, "its launcher is gone")
            sweep.log("ended", [run], state=settled.state, job=state.job, error=settled.error)


def report(sweep: Sweep, states: dict[str, RunState]) -> None:
    """The runs that did not finish, each with the last lines of its log."""
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


def _wanted(sweep: Sweep, run: str, state: RunState | None, retry_failed: bool) -> bool:
    return not sweep.finished(run) and (retry_failed or state is None or state.state != "failed")


def _belongs(sweep: Sweep, grid: dict[str, Config], states: dict[str, RunState], extend: bool) -> None:
    """Raise UserError if the sweep has other runs than those of the grid, which an edited config file gives."""
    new = [config for run, config in grid.items() if run not in states]
    if not states or not new or extend:
        return
    flat, known = _flat(new[0]), []
    for run in states:
        try:
            known.append(_flat(sweep.config(run)))
        except UserError:  # of another version of the code
            continue
    differing = [{key: other.get(key) for key in flat if flat[key] != other.get(key)} for other in known]
    nearest = list(min(differing, key=len, default={}).items())[:3]
    difference = ", ".join(f"{key}={json.dumps(flat[key])} (there {json.dumps(value)})" for key, value in nearest)
    raise UserError(
        f"{sweep.path}: {len(new)} of the {len(grid)} runs are not among the {len(states)} that it has; {difference}. "
        "Give run.sweep another name, or add them with hydra.launcher.extend=true"
    )


def plan(sweep: Sweep, grid: dict[str, Config], states: dict[str, RunState]) -> None:
    """Every run of the grid gets its folder with its config, and its place in the ledger under the name of its arm.

    New runs may differ from those of the sweep in a key in which these agreed: they are named anew too.
    """
    new = {run: config for run, config in grid.items() if run not in states}
    for run, config in new.items():
        folder = sweep.folder(run)
        with writing(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        folder.write("config.json", config.model_dump(mode="json"))
    arms = sweep.arms() if new else {}
    for run, config in new.items():
        sweep.log("planned", [run], arm=arms[run], seed=config.seed, steps=config.steps, cost=cost(config))
    for run, state in states.items():
        if arms.get(run, state.arm) != state.arm:
            sweep.log("renamed", [run], arm=arms[run])


def _announce(sweep: Sweep, grid: dict[str, Config], todo: list[str], active: dict[str, str], executor: Executor) -> None:
    """The grid in words: arms, seeds, what is done, what will be done and how long it may take."""
    states = sweep.states()
    arms: dict[str, list[int]] = {}
    for run, config in grid.items():
        arms.setdefault(states[run].arm, []).append(config.seed)
    print(f"{sweep.path}: {len(arms)} arms, {len(grid)} runs", file=sys.stderr)
    for arm, seeds in arms.items():
        print(f"  {arm}, seeds {', '.join(map(str, sorted(seeds)))}", file=sys.stderr)
    failed = sum(states[run].state == "failed" and run not in todo for run in grid)
    over = len(grid) - len(todo) - failed - len(active.keys() & grid.keys())
    print(
        f"{over} done, {failed} failed by themselves and are left, {len(active.keys() & grid.keys())} under way, "
        f"{executor.describe(len(todo)) if todo else 'none to start'}{_estimate(grid, todo)}",
        file=sys.stderr,
    )


def _estimate(grid: dict[str, Config], todo: list[str]) -> str:
    """Processor time of what is left of `todo`, from finished runs of the same shape under the same root."""
    if not todo:
        return ""
    paces: dict[str, list[float]] = {}
    root = next(iter(grid.values())).path.parent.parent
    for ledger in root.glob("*/.sweep/ledger.jsonl"):
        costs: dict[str, str] = {}
        for event in Sweep(ledger.parent.parent).events():
            if event["event"] == "planned":
                costs[event["run"]] = event.get("cost", "")
            elif event["event"] == "ended" and event.get("steps") and event.get("seconds"):
                paces.setdefault(costs.get(event["run"], ""), []).append(event["seconds"] / event["steps"])
    shapes = {run: cost(grid[run]) for run in todo}
    if not set(shapes.values()) <= paces.keys():
        return "; time unknown: no finished run of this shape yet"
    left = {run: max(0, grid[run].steps - RunFolder(grid[run].path).checkpointed) for run in todo}
    seconds = sum(statistics.median(paces[shape]) * left[run] for run, shape in shapes.items())
    seen = sum(len(paces[shape]) for shape in set(shapes.values()))
    return f"; {sum(left.values())} steps, {clock(seconds)} (minutes:seconds) of runs, by the pace of {seen} earlier ones"


def cost(config: Config) -> str:
    """Runs that have this in common take the same time a step."""
    parts = config.model_dump(mode="json", include={"model", "task", "rollout", "evaluation", "reduce"})
    return hashlib.sha256(json.dumps([parts, config.actor.num_minibatches], sort_keys=True).encode()).hexdigest()[:8]


def _flat(config: Config) -> dict:
    return flatten(config.model_dump(mode="json", exclude={*OPERATION}))
