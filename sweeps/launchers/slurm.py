"""The Slurm launcher: runs as tasks of Slurm arrays, submitted through submitit.

A task is a group of runs, in one job on one node. A job reads its input from the sweep's folder and writes its results there,
so jobs and launchers never wait for each other. `requeue.py` explains who resubmits preempted runs.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any

import submitit

from harness.errors import UserError
from harness.files import refuse_links, writing
from sweeps.launchers.options import SlurmOptions
from sweeps.launchers.requeue import ArrayTask
from sweeps.launchers.squeue import NoAnswer, ask, cancel_jobs, job_name, jobs, jobs_by_run, leave_jobs_running, merge_states
from sweeps.ledger import Sweep
from sweeps.snapshot import snapshot
from sweeps.states import RunState

STRAGGLERS = 60
"""Seconds that srun lets the other processes (ranks) of a run continue after the first one has ended."""


class Slurm:
    """Executor of a sweep's runs on Slurm. Raises UserError if there is no Slurm, or no partition of the given name."""

    stopped = False

    def __init__(self, sweep: Sweep, options: SlurmOptions):
        self.sweep, self.options, self.ranks, self.detach = sweep, options, options.ranks, options.detach
        partitions = ask("sinfo", "-h", "-o", "%R").split()
        if options.partition and (unknown := set(options.partition.split(",")) - set(partitions)):
            raise UserError(f"hydra.launcher.partition={', '.join(unknown)}: this Slurm has {', '.join(sorted(set(partitions)))}")
        limit = re.search(r"MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"))
        if limit is None:
            raise NoAnswer("scontrol show config: it names no MaxArraySize; is this a Slurm of version 20 or later?")
        self.limit = int(limit[1])

    def prepare(self) -> dict[str, Any]:
        """Take the code snapshot, and return the launch's settings. Raises UserError if hydra.launcher.code must be chosen."""
        self.code = snapshot(self.sweep, self.options.code)
        return {"launcher": "slurm", **asdict(self.options), "code": None, "detach": False}

    def attached(self) -> AbstractContextManager[None]:
        """Context manager around submitting and waiting. The jobs continue if this process ends."""
        return leave_jobs_running(self.sweep)

    def describe(self, count: int) -> str:
        """Describe, for the user, how `count` runs will be submitted."""
        tasks = -(-count // self.options.runs_per_job)
        arrays = -(-tasks // self.limit)
        return (
            f"{count} to submit: {tasks} tasks of up to {self.options.runs_per_job} runs in {arrays} "
            f"array{'s' if arrays > 1 else ''}, {min(self.options.parallel, tasks)} tasks at a time"
        )

    def look(self) -> tuple[dict[str, RunState], set[str]]:
        """Return (state of every run, runs that wait or are under way), from the sweep's log and squeue."""
        tasks = jobs(self.sweep)
        live = {run for run, job in jobs_by_run(self.sweep, tasks).items() if job.live}
        return merge_states(self.sweep, self.sweep.states(), tasks), live

    def cancel(self, runs: list[str]) -> None:
        """Cancel the Slurm jobs that contain any of `runs`."""
        cancel_jobs(self.sweep, runs)

    def wait(self, seconds: float) -> bool:
        """Wait for `seconds`. Always returns False, since only `look` asks Slurm whether a run has ended."""
        time.sleep(seconds)
        return False

    def submit(self, runs: list[str]) -> None:
        """Submit the runs as arrays of at most MaxArraySize tasks. Over all arrays at most `parallel` tasks run at a time."""
        size = self.options.runs_per_job
        tasks = [runs[i : i + size] for i in range(0, len(runs), size)]
        arrays = -(-len(tasks) // self.limit)
        lanes = min(arrays, self.options.parallel)
        last: dict[int, str] = {}
        for i in range(arrays):
            lane = i % lanes
            share = self.options.parallel // lanes + (lane < self.options.parallel % lanes)
            last[lane] = self._submit_array(tasks[i::arrays], share, last.get(lane))

    def _submit_array(self, tasks: list[list[str]], parallel: int, after: str | None) -> str:
        sweep = self.sweep
        sweep.lock.check_cancelled()
        o = self.options
        batch = f"{time.time_ns():x}"
        refuse_links(sweep.path, ".sweep/jobs/task")
        sweep.write(f"batches/{batch}.json", tasks)
        sweep.log("submitted", [run for runs in tasks for run in runs], batch=batch)
        executor = submitit.SlurmExecutor(sweep.home / "jobs", max_num_timeout=10**6, python=o.python)
        requested = {key: value for key in ("partition", "account", "qos", "gres", "constraint") if (value := getattr(o, key))}
        executor.update_parameters(
            job_name=job_name(sweep),
            comment=batch,
            time=o.timeout_min,
            mem=f"{round(o.mem_gb * 1024)}M",
            cpus_per_task=o.runs_at_once * o.cpus_per_run,
            array_parallelism=parallel,
            signal_delay_s=o.signal_delay_s,
            stderr_to_stdout=True,
            setup=[*o.setup, f"export PYTHONPATH={shlex.quote(str(self.code))}:$PYTHONPATH PYTHONSAFEPATH=1"],
            additional_parameters={"requeue": True, "ntasks": o.ranks, **o.sbatch},
            srun_args=["--kill-on-bad-exit=0", f"--wait={STRAGGLERS}"],
            **requested,
            **({"dependency": f"afterany:{after}"} if after else {}),
        )
        home = str(sweep.path.resolve())
        calls = [ArrayTask(home, batch, index, o.runs_at_once) for index in range(len(tasks))]
        try:
            with _outside_a_job(), writing(sweep.home):
                submitted = executor.submit_array(calls)
        except submitit.core.utils.FailedJobError as error:
            reasons = [line for line in str(error).splitlines() if "sbatch:" in line] or [str(error)]
            message = f"Slurm refused the jobs: {'; '.join(reasons)}"
            sweep.log("ended", [run for runs in tasks for run in runs], state="interrupted", error=message)
            raise UserError(f"{message}; jobs submitted before go on") from None
        try:
            sweep.lock.check_cancelled()
        except UserError:  # cancelled while sbatch was at work: `cancel` could not see these jobs
            cancel_jobs(sweep)
            raise
        return submitted[0].job_id.partition("_")[0]


@contextmanager
def _outside_a_job() -> Iterator[None]:
    """Context manager that hides Slurm's job variables of this process. A job submitted with them would be refused."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLURM_") and name != "SLURM_CONF"}
    try:
        yield
    finally:
        os.environ.update(hidden)
