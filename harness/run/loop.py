"""The life of one run: begun or resumed, recorded step by step, stopped by a signal, ended."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path

from harness.build import build_detectors, check
from harness.collapse import outcome
from harness.config import Config
from harness.errors import UserError
from harness.run import checkpoint
from harness.run.folder import FINISHED, Onlooker, RunFolder
from harness.run.provenance import provenance
from harness.run.signals import Preempted, Progress, StopRequest, stop_signals
from harness.run.wandb import Tracker
from harness.train.ranks import Ranks, check_ranks, join
from harness.train.trainer import Trainer


class Run:
    """A trainer, its folder, and what its detectors have seen."""

    def __init__(self, config: Config, folder: RunFolder):
        self.config, self.folder, self.ranks = config, folder, join()
        self.trainer = Trainer(config, folder)
        self.detectors = {name: make() for name, make in build_detectors(config).items()}
        self.events: dict[str, dict] = {}  # the first of each detector

    def train(self, request: StopRequest) -> str:
        """Train to the end, from the last checkpoint if there is one; returns the final state.

        When a signal asks to stop, the run saves a checkpoint after its step and raises Preempted.
        """
        c, folder = self.config, self.folder
        step = self.resume()
        request.at_once = False
        folder.status("running", step=step, steps=c.steps)
        track, progress = Tracker(c, folder.path), Progress(step, c.steps)
        exit_code, ending = 1, {"state": "interrupted"}
        try:
            self._inherit(step, track)
            while step < c.steps and not (c.collapse.stop and self.collapsed):
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
                    raise Preempted(128 + stop)
            if not (c.collapse.stop and self.collapsed):
                self.record(step, self.trainer.sync() | self.trainer.evaluate(), track)
            state = "collapsed" if self.collapsed else "done"
            folder.status(state, step=step, steps=c.steps)
            ended = outcome({name: event["onset"] for name, event in self.events.items()}, self.detectors)
            exit_code, ending = 0, {"state": state, **{f"collapse/{key}": value for key, value in ended.present().items()}}
            return state
        except Exception as error:
            ending = {"state": "failed", "error": str(error) or type(error).__name__}
            raise
        finally:
            track.finish(exit_code, **ending)

    def record(self, step: int, metrics: dict[str, float], track) -> None:
        """The row of a step, in the folder first, then in the mirror; and the events that it completes."""
        self.folder.log_metrics(step, metrics)
        track.log(step, metrics)
        if metrics.get("correction/kept_tokens") == 0:
            self.folder.log_event("all_rejected", step)
        for name, detector in self.detectors.items():
            event = detector.observe(step, metrics)
            if event:
                self.events[name] = event
                self._tell(step, name, track)

    def _inherit(self, step: int, track) -> None:
        """Record what the detectors reported before the checkpoint and this folder lacks: a branch's lacks all of it."""
        told = {event.get("detector") for event in self.folder.events()}
        for name in self.events.keys() - told:
            self._tell(step, name, track)

    def _tell(self, step: int, name: str, track) -> None:
        """What a detector found, to the folder and its mirror."""
        role, event = self.detectors[name].role, self.events[name]
        self.folder.log_event(role, step, detector=name, **event)
        track.event(step, role, name, event)

    @property
    def collapsed(self) -> bool:
        return any(self.detectors[name].role == "collapse" for name in self.events)

    def resume(self) -> int:
        """Restore the last sound checkpoint; the step to go on with."""
        state = checkpoint.load(self.folder, self.ranks, self.trainer.actor)
        if state is None:
            return 0
        self.events = state["events"]
        self.trainer.restore(state["updates"], state["rollouts"])
        for name, detector in self.detectors.items():
            detector.state = state["detectors"][name]
        self.folder.log_event("resumed", state["step"])
        return state["step"]

    def save(self, step: int) -> None:
        updates, rollouts = self.trainer.state()
        state = {
            "step": step,
            "updates": updates,
            "events": self.events,
            "detectors": {name: detector.state for name, detector in self.detectors.items()},
        }
        checkpoint.save(self.folder, self.ranks, self.trainer.actor, state, rollouts, self.config.checkpoint.keep)


def train(config: Config) -> str:
    """Run one config in its folder: skip it if it has finished, resume it if it was cut short. Returns the state.

    On several ranks rank 0 keeps the record and speaks; when one dies or fails, all stop and say which.
    """
    check(config)
    ranks = join()
    check_ranks(config, ranks.size)
    if ranks.rank == 0:
        state = _train(config, RunFolder(config.path), ranks)
        print(f"{state}: {config.path}", flush=True)
        return state
    config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"mode": "disabled"})})
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        return _train(config, Onlooker(config.path), ranks)


def _train(config: Config, folder: RunFolder, ranks: Ranks) -> str:
    # Of several ranks one that ends at once would count as dead.
    with stop_signals(at_once=ranks.size == 1) as request, ranks.together(partial(_last_words, config.path)), folder.claim():
        if ranks.first(folder.state in FINISHED):
            return folder.state
        folder.status("running", step=folder.checkpointed, steps=config.steps, phase="warm start")
        try:
            folder.write("config.json", config.model_dump(mode="json"))
            _add_provenance(folder)
            return Run(config, folder).train(request)
        except Preempted as stop:
            at, name = folder.progress(), signal.Signals(stop.code - 128).name
            where = f"{'at' if request.at_once else 'saved at'} step {at['step']}/{at['steps']}"
            folder.log_event("preempted", at["step"], signal=name)
            folder.status("preempted", **at)
            print(f"preempted: {config.path}: {name}, {where}; goes on from there", flush=True)
            raise
        except Exception as error:
            with suppress(UserError):  # a full disk refuses this too; the first error tells
                folder.status("failed", **folder.progress(), error=str(error) or type(error).__name__)
            raise


def _last_words(path: Path, rank: int, reason: str) -> None:
    """Record that another rank has died: rank 0, which holds the folder, or whoever can claim it when it was rank 0."""
    folder = RunFolder(path)
    with suppress(UserError), folder.claim() if rank else nullcontext():
        folder.status("failed", **folder.progress(), error=reason)


def _add_provenance(folder: RunFolder) -> None:
    """One entry per process that worked on the run, told of when the code has changed in between."""
    now = provenance()
    earlier = folder.read("provenance.json")["processes"] if (folder.path / "provenance.json").exists() else []
    if earlier and (earlier[-1]["commit"], earlier[-1]["diff"]) != (now["commit"], now["diff"]):
        print(f"{folder.path}: goes on with other code than it began with; provenance.json lists both", flush=True)
    folder.write("provenance.json", {"processes": [*earlier, now]})
