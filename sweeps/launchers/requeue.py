"""Resubmission of stopped runs: who does it in each case.

    run, by how it was started                   who starts it again
    in a job of a Slurm array                    the job, in `ArrayTask.checkpoint`; Slurm itself, if it sent only SIGTERM
    in a job submitted by hand                   slurm/train.sbatch, with `scontrol requeue`
    by a search, and its job is gone             the search, in `TrialRuns.resubmit` of sweeps/search/trial_runs.py
    on this machine                              the user, with the same command: whoever stopped it wants the machine
    by a launcher that was killed                the next launcher, in `wait_for_all` of sweeps/launch.py

The resubmitted run resumes from its checkpoint by itself.
"""

from __future__ import annotations

import json
import os

import submitit

from sweeps.launchers.pool import Pool, follow
from sweeps.ledger import Sweep
from sweeps.states import STUCK


class ArrayTask:
    """One task of a Slurm array. submitit calls it on each rank, a process of the task.

    sweep: the sweep's folder. batch, index: entry `index` of .sweep/batches/<batch>.json lists the task's runs. at_once: number
    of runs at a time. Rank 0 decides which runs to start, writes the sweep's log, and requeues the job.
    """

    def __init__(self, sweep: str, batch: str, index: int, at_once: int):
        self.arguments = (sweep, batch, index, at_once)
        self.pool: Pool | None = None

    def __call__(self) -> None:
        home, batch, index, at_once = self.arguments
        sweep, environment = Sweep(home), submitit.JobEnvironment()
        runs = json.loads((sweep.home / "batches" / f"{batch}.json").read_text())[index]
        if environment.global_rank > 0:
            follow(sweep, *runs)
            return
        states = sweep.states()
        failed = [run for run in runs if run in states and states[run].state == "failed"]
        self.pool = Pool(sweep, at_once, environment.job_id)
        self.pool.run([run for run in runs if run not in failed and not sweep.finished(run)])

    def checkpoint(self) -> submitit.helpers.DelayedSubmission | None:
        """Handle SIGUSR2, sent before a preemption or the time limit: the runs save a checkpoint, and the job is requeued.

        Returns None, which ends the job, if it was restarted three times and still began no run.
        """
        if self.pool:
            self.pool.stop()
        never_began = not (self.pool and self.pool.began) and int(os.environ.get("SLURM_RESTART_COUNT", 0)) >= STUCK
        if never_began:  # its time limit is too short even for the imports
            return None
        return submitit.helpers.DelayedSubmission(ArrayTask(*self.arguments))
