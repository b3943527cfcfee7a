"""Slurm's view of the jobs of a sweep. Only `squeue` is used, so no Slurm accounting is needed."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from harness.errors import UserError
from sweeps.ledger import Sweep
from sweeps.states import RunState

LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
LIVE |= {"RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}


class Job(NamedTuple):
    """A task of a Slurm array. Entry `number` of .sweep/batches/<batch>.json lists its runs. reason: why the task waits."""

    id: str
    state: str
    reason: str
    batch: str
    number: int

    @property
    def live(self) -> bool:
        """Whether the task is waiting or running."""
        return self.state in LIVE


class NoAnswer(UserError):
    """Raised when Slurm does not answer. The jobs may nevertheless be running."""


def ask(*command: str) -> str:
    """The output of a Slurm command. Raises UserError if Slurm is not installed, NoAnswer if it does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise UserError(
            f"{command[0]}: not found, so there is no Slurm on this machine; run this on a login node, bring one up here with "
            'eval "$(slurm/local/up.sh)", or use hydra/launcher=local'
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]}: no answer in 60 s; jobs go on, try again later") from None
    if done.returncode:
        problem = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()][-1]
        raise NoAnswer(f"{problem}; is SLURM_CONF set, and the cluster up?")
    return done.stdout


def job_name(sweep: Sweep) -> str:
    """The name shared by all Slurm jobs of a sweep, and by no jobs of other sweeps."""
    return f"{sweep.path.name}-{hashlib.sha256(str(sweep.path.resolve()).encode()).hexdigest()[:8]}"


def jobs(sweep: Sweep) -> list[Job]:
    """Every job of the sweep that Slurm still lists, ended jobs included, oldest first."""
    shown = ask("squeue", "-h", "-r", "-t", "all", "-S", "i", "-n", job_name(sweep), "-o", "%i|%T|%r|%k")
    tasks = []
    for line in shown.splitlines():
        identity, state, reason, batch = line.split("|", 3)
        tasks.append(Job(identity, state, reason, batch, int(identity.partition("_")[2] or 0)))
    return tasks


def jobs_by_run(sweep: Sweep, tasks: list[Job]) -> dict[str, Job]:
    """Job of each run that has one, by the run's hash: its latest in `tasks` that waits or runs, else its latest."""
    batches: dict[str, list[list[str]]] = {}
    by_run: dict[str, Job] = {}
    for job in sorted(tasks, key=lambda job: job.live):
        if job.batch not in batches:
            path = sweep.home / "batches" / f"{job.batch}.json"
            batches[job.batch] = json.loads(path.read_text()) if path.exists() else []
        for run in batches[job.batch][job.number] if job.number < len(batches[job.batch]) else ():
            by_run[run] = job
    return by_run


def merge_states(sweep: Sweep, states: dict[str, RunState], tasks: list[Job]) -> dict[str, RunState]:
    """Correct states from a sweep's log by Slurm's jobs `tasks`: waiting runs get the reason why they wait.

    A run whose job is gone without an entry in the log gets the state that its folder has.
    """
    by_run = jobs_by_run(sweep, tasks)
    corrected = {}
    for run, state in states.items():
        job = by_run.get(run)
        if job and job.live:
            waiting = job.state in ("PENDING", "REQUEUED", "CONFIGURING")
            if waiting and state.state == "running":
                state = sweep.state_from_folder(run, state, "")
            if waiting and state.state in ("queued", "submitted", "preempted", "interrupted"):
                state = state._replace(state="pending", job=job.id, error=job.reason)
            elif state.state in ("queued", "preempted"):
                state = state._replace(state="submitted", job=job.id)
        elif state.batch and state.state in ("submitted", "running"):
            why = f"job {job.id} ended as {job.state}" if job else "its job is gone, and Slurm does not know it any more"
            state = sweep.state_from_folder(run, state, why)
        corrected[run] = state
    return corrected


@contextmanager
def leave_jobs_running(sweep: Sweep) -> Iterator[None]:
    """Context manager in which Ctrl-C ends only this process. It then tells the user that the jobs continue."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"\nThe jobs go on. The same command attaches to them again; faultline sweep cancel {sweep.path} stops them.",
            file=sys.stderr,
        )
        raise SystemExit(128 + signal.SIGINT) from None


def cancel_jobs(sweep: Sweep, runs: list[str] | None = None) -> list[str]:
    """Cancel the sweep's waiting and running jobs. runs: only jobs that contain one of these. Returns the cancelled runs."""
    tasks = [job for job in jobs(sweep) if job.live]
    if runs is not None:
        tasks = list({job.id: job for run, job in jobs_by_run(sweep, tasks).items() if run in runs}.values())
    if not tasks:
        return []
    states = merge_states(sweep, sweep.states(), tasks)
    waiting_or_running = ("pending", "submitted", "running")
    cancelled = [run for run in jobs_by_run(sweep, tasks) if run in states and states[run].state in waiting_or_running]
    sweep.log("cancelled", cancelled)
    ask("scancel", *[job.id for job in tasks])
    return cancelled
