"""The life cycle of one run: start or resume, record every step, stop on a signal, end."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

from harness.build import Plan
from harness.collapse import Detectors
from harness.config import Config
from harness.errors import Unavailable, UserError
from harness.run import checkpoint
from harness.run.folder import FINISHED, ReadOnlyRunFolder, RunFolder
from harness.run.provenance import provenance
from harness.run.signals import Preempted, RunProgress, StopRequest, stop_signals
from harness.run.wandb import Tracker
from harness.train.ranks import Ranks, check_ranks, join
from harness.train.trainer import Trainer
from harness.validate import check


class Run:
    """One run: its trainer, its folder, its collapse detectors, and the loop over its steps. Call `train` once."""

    def __init__(self, plan: Plan, folder: RunFolder):
        self.config, self.folder, self.ranks = plan.config, folder, join()
        self.trainer = Trainer(plan, folder)
        self.detectors = Detectors({name: make() for name, make in plan.detectors.items()})

    def train(self, request: StopRequest) -> str:
        """Train the run to its end, from its last checkpoint if there is one, and return its final state.

        If a signal asks the run to stop, the run completes its step, saves a checkpoint and raises Preempted.
        """
        c, folder = self.config, self.folder
        step = self.resume()
        request.at_once = False
        folder.status("running", step=step, steps=c.steps)
        track, progress = Tracker(c, folder.path), RunProgress(step, c.steps)
        exit_code, ending = 1, {"state": "interrupted"}
        try:
            self._record_missing_events(step, track)
            while step < c.steps and not (c.collapse.stop and self.detectors.collapsed):
                metrics = self.trainer.step(step)
                self.record(step, metrics, track)
                step += 1
                progress.show(step, metrics)
                folder.status("running", step=step, steps=c.steps)
                stop = self.ranks.any(request.number)  # a signal to one rank is a signal to all
                if step % c.checkpoint.every == 0 or step == c.steps or stop:
                    self.save(step)
                if stop and step < c.steps:
                    ending = {"state": "preempted"}
                    raise Preempted(stop)
            if not (c.collapse.stop and self.detectors.collapsed):
                metrics = self.trainer.load_weights() | self.trainer.evaluate(step)
                self.record(step, metrics, track)
                progress.end(metrics)
            state = "collapsed" if self.detectors.collapsed else "done"
            folder.status(state, step=step, steps=c.steps)
            outcome = self.detectors.outcome().present()
            exit_code, ending = 0, {"state": state, **{f"collapse/{key}": value for key, value in outcome.items()}}
            self.trainer.sampler.engine.close()  # else a process of several runs would hold the memory of all of them
            return state
        except Exception as error:
            ending = _end_by(error)
            raise
        finally:
            track.finish(exit_code, **ending)

    def record(self, step: int, metrics: dict[str, float], track: Tracker) -> None:
        """Record a step's metrics in the run folder and in W&B, with the events that collapse detectors find in these metrics."""
        self.folder.log_metrics(step, metrics)
        track.log(step, metrics)
        if metrics.get("correction/kept_tokens") == 0:
            self.folder.log_event("all_rejected", step)
        for name in self.detectors.observe(step, metrics):
            self._record_event(step, name, track)

    def _record_missing_events(self, step: int, track: Tracker) -> None:
        """Record events of collapse detectors that the checkpoint has but the run folder lacks, as after `faultline branch`."""
        recorded = {event.get("detector") for event in self.folder.events()}
        for name in self.detectors.events.keys() - recorded:
            self._record_event(step, name, track)

    def _record_event(self, step: int, name: str, track: Tracker) -> None:
        """Record the event of the collapse detector `name` in the run folder and in W&B."""
        role, event = self.detectors.role(name), self.detectors.events[name]
        self.folder.log_event(role, step, detector=name, **event)
        track.event(step, role, name, event)

    def resume(self) -> int:
        """Load the run's newest undamaged checkpoint, if there is one. Returns the RL step to continue with."""
        loaded = checkpoint.load(self.folder, self.ranks, self.trainer.models)
        if loaded is None:
            return 0
        state = loaded.state
        self.detectors.restore(state.events, state.detectors)
        self.trainer.restore(state.updates, loaded.rollouts)
        self.folder.log_event("resumed", state.step)
        return state.step

    def save(self, step: int) -> None:
        """Save a checkpoint of the run. step: the number of RL steps done, which is the next step to train."""
        updates, tensors = self.trainer.state()
        state = {"step": step, "updates": updates, **self.detectors.state()}
        checkpoint.save(self.folder, self.ranks, self.trainer.models, state, tensors, self.config.checkpoint.keep)


def train(config: Config) -> str:
    """Train the run of a config in its folder and return its final state. A finished run is skipped, an interrupted one resumed.

    On several ranks only rank 0 records and prints. When a rank dies or fails, all ranks stop, and the error names that rank.
    """
    plan, ranks = check(config), join()
    check_ranks(config, ranks.size)
    if ranks.rank == 0:
        state = _train_in(RunFolder(config.path), plan, ranks)
        print(f"{state}: {config.path}", flush=True)
        return state
    config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"mode": "disabled"})})
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        return _train_in(ReadOnlyRunFolder(config.path), plan._replace(config=config), ranks)


def _train_in(folder: RunFolder, plan: Plan, ranks: Ranks) -> str:
    config = plan.config
    # A signal may end a single process at once. Of several ranks, the one that ends would count as dead.
    lost = partial(_record_end_by_another, config.path)
    with stop_signals(at_once=ranks.size == 1) as request, ranks.together(lost), folder.claim():
        if ranks.first(folder.state in FINISHED):
            return folder.state
        folder.status("running", step=folder.checkpointed, steps=config.steps, phase="warm start")
        try:
            folder.write("config.json", config.model_dump(mode="json"))
            _add_provenance(folder)
            return Run(plan, folder).train(request)
        except Preempted as stop:
            at, name = folder.progress(), signal.Signals(stop.number).name
            where = f"{'at' if request.at_once else 'saved at'} step {at['step']}/{at['steps']}"
            folder.log_event("preempted", at["step"], signal=name)
            folder.status("preempted", **at)
            print(f"preempted: {config.path}: {name}, {where}; goes on from there", flush=True)
            raise
        except Exception as error:
            with suppress(UserError):  # a full disk refuses this too, and the first error says so
                folder.status(**(_end_by(error) | folder.progress()))
            raise


def _end_by(error: Exception) -> dict[str, Any]:
    """Fields of status.json for a run that an error ends: `state`, failed or interrupted, and `error`, the error's message."""
    state = "interrupted" if isinstance(error, Unavailable) else "failed"
    return {"state": state, "error": str(error) or type(error).__name__}


def _record_end_by_another(path: Path, rank: int, state: str, reason: str) -> None:
    """Record in status.json the `state` and `reason` of a run that another rank's failure ended. rank: that of this process;
    rank 0 already holds the folder's lock, the other ranks claim it."""
    folder = RunFolder(path)
    with suppress(UserError), folder.claim() if rank else nullcontext():
        folder.status(state, **folder.progress(), error=reason)


def _add_provenance(folder: RunFolder) -> None:
    """Add this process to the provenance of the run. Prints a line if the code has changed since the previous process."""
    now = provenance()
    earlier = folder.read("provenance.json")["processes"] if (folder.path / "provenance.json").exists() else []
    if earlier and (earlier[-1]["commit"], earlier[-1]["diff"]) != (now["commit"], now["diff"]):
        print(f"{folder.path}: the code has changed since the run began; provenance.json lists both versions", flush=True)
    folder.write("provenance.json", {"processes": [*earlier, now]})
