"""What Slurm knows of the jobs of a sweep. Only `squeue` is asked, so clusters without accounting do as well."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from harness.errors import UserError
from sweeps.ledger import RunState, Sweep

LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
LIVE |= {"RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
POLL, SLOWEST = 2.0, 30.0
"""Seconds between two questions to Slurm, at first and at last."""


class Job(NamedTuple):
    """A task of an array as Slurm sees it."""

    id: str
    state: str
    reason: str
    batch: str
    index: int

    @property
    def live(self) -> bool:
        return self.state in LIVE


class NoAnswer(UserError):
    """Slurm does not answer, which says nothing about the jobs."""


def ask(*command: str) -> str:
    """What a Slurm command prints. Raises UserError if there is no Slurm here, NoAnswer if it does not answer."""
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
        told = [f"exit code {done.returncode}", *done.stderr.strip().splitlines()][-1]
        raise NoAnswer(f"{told}; is SLURM_CONF set, and the cluster up?")
    return done.stdout


def job_name(sweep: Sweep) -> str:
    """The name of every job of a sweep; no other sweep has it."""
    return f"{sweep.path.name}-{hashlib.sha256(str(sweep.path.resolve()).encode()).hexdigest()[:8]}"


def jobs(sweep: Sweep) -> list[Job]:
    """Every job of the sweep that Slurm still knows, ended ones too, oldest first."""
    shown = ask("squeue", "-h", "-r", "-t", "all", "-S", "i", "-n", job_name(sweep), "-o", "%i|%T|%r|%k")
    found = []
    for line in shown.splitlines():
        identity, state, reason, batch = line.split("|", 3)
        found.append(Job(identity, state, reason, batch, int(identity.partition("_")[2] or 0)))
    return found


def holders(sweep: Sweep, known: list[Job]) -> dict[str, Job]:
    """The latest job of each run that has one, a live one before any other."""
    batches: dict[str, list[list[str]]] = {}
    held: dict[str, Job] = {}
    for job in sorted(known, key=lambda job: job.live):
        if job.batch not in batches:
            path = sweep.home / "batches" / f"{job.batch}.json"
            batches[job.batch] = json.loads(path.read_text()) if path.exists() else []
        for run in batches[job.batch][job.index] if job.index < len(batches[job.batch]) else ():
            held[run] = job
    return held


def merged(sweep: Sweep, states: dict[str, RunState], known: list[Job]) -> dict[str, RunState]:
    """The ledger's states, corrected by what Slurm knows: which run waits for what, and whose process is gone without a word."""
    held = holders(sweep, known)
    told = {}
    for run, state in states.items():
        job = held.get(run)
        if job and job.live:
            waiting = job.state in ("PENDING", "REQUEUED", "CONFIGURING")
            if waiting and state.state == "running":
                state = sweep.settle(run, state, "")
            if waiting and state.state in ("queued", "submitted", "preempted", "interrupted"):
                state = state._replace(state="pending", job=job.id, error=job.reason)
            elif state.state in ("queued", "preempted"):
                state = state._replace(state="submitted", job=job.id)
        elif state.batch and state.state in ("submitted", "running"):
            why = f"job {job.id} ended as {job.state}" if job else "its job is gone, and Slurm does not know it any more"
            state = sweep.settle(run, state, why)
        told[run] = state
    return told


@contextmanager
def jobs_go_on(sweep: Sweep) -> Iterator[None]:
    """Ctrl-C ends this process and none of its jobs, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        print(
            f"\nThe jobs go on. The same command attaches to them again; faultline sweep cancel {sweep.path} stops them.",
            file=sys.stderr,
        )
        raise SystemExit(128 + signal.SIGINT) from None


def wait(sweep: Sweep, tick: Callable[[], None]) -> None:
    """Until Slurm has no run of the sweep in its hands; then the ledger is told of the ends that no process told of."""
    began = last = time.time()
    while True:
        try:
            known = jobs(sweep)
            if not any(job.live for job in known):
                break
        except NoAnswer as error:
            print(f"{error}", file=sys.stderr)
        while time.time() - last < min(SLOWEST, POLL + (last - began) / 20):
            tick()
            time.sleep(0.5)
        last = time.time()
    states = sweep.states()
    for run, state in merged(sweep, states, known).items():
        if state != states[run]:
            sweep.log("ended", [run], state=state.state, job=state.job, error=state.error)


def cancel_jobs(sweep: Sweep, runs: list[str] | None = None) -> list[str]:
    """Cancel every live job of the sweep, or those that hold any of `runs`; the runs that were in them."""
    known = [job for job in jobs(sweep) if job.live]
    if runs is not None:
        known = list({job.id: job for run, job in holders(sweep, known).items() if run in runs}.values())
    if not known:
        return []
    states = merged(sweep, sweep.states(), known)
    held = [run for run in holders(sweep, known) if run in states and states[run].state in ("pending", "submitted", "running")]
    sweep.log("cancelled", held)
    ask("scancel", *[job.id for job in known])
    return held
