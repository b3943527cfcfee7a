"""A checkpoint of a run by its path: to branch from, or to look at its policy."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.config import Config, parse_recorded
from harness.errors import UserError
from harness.run.folder import RunFolder, writing
from harness.run.manifest import damage_of

if TYPE_CHECKING:
    from harness.train.collector import Collector


class Checkpoint(NamedTuple):
    """config: of the run. folder: of the checkpoint. step: the next one to train."""

    config: Config
    folder: Path
    step: int


def find(path: Path, at: int | None = None) -> Checkpoint:
    """The checkpoint at `path`. If `path` is a run folder, its checkpoint of step `at`, or its newest.

    Raises UserError if it is missing or damaged.
    """
    run = path
    if re.fullmatch(r"step-\d+", path.name) and path.parent.name == "checkpoints":
        run, at = path.parent.parent, int(path.name.removeprefix("step-"))
    kept = RunFolder(run).checkpoints
    if not kept:
        raise UserError(f"{path}: no checkpoint there; give a run folder, or <run folder>/checkpoints/step-<n>")
    step = max(kept) if at is None else at
    if step not in kept:
        steps = ", ".join(map(str, sorted(kept)))
        raise UserError(f"{run}: no checkpoint of step {step}; it has {steps} (checkpoint.every and checkpoint.keep decide)")
    if damage := damage_of(kept[step]):
        raise UserError(f"{kept[step]}: damaged ({damage}); use another")
    return Checkpoint(parse_recorded(RunFolder(run).read("config.json")), kept[step], step)


def transplant(checkpoint: Checkpoint, run: RunFolder) -> None:
    """Copy a checkpoint into another run folder, which then resumes from it."""
    target = run.path / "checkpoints" / checkpoint.folder.name
    with writing(run.path):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(checkpoint.folder, target)


@contextmanager
def collector_at(checkpoint: Checkpoint) -> Iterator[Collector]:
    """The collector of a run with the policy of a checkpoint, to sample, score and reward. The run's folder stays as it is."""
    from harness.build import build_task
    from harness.train.actor import DeepSpeedActor
    from harness.train.collector import Collector
    from harness.train.warmstart import start
    from harness.validate import check

    config = checkpoint.config
    check(config)
    task = build_task(config)
    net, prompts, _ = start(config, task)
    actor = DeepSpeedActor(net, config.actor, temperature=config.rollout.temperature)
    collector = Collector(config, actor, task, prompts)
    with tempfile.TemporaryDirectory() as copy:  # on another number of ranks a load writes beside what it reads
        shutil.copytree(checkpoint.folder / "actor", Path(copy) / "actor")
        actor.load(Path(copy) / "actor", json.loads((checkpoint.folder / "state.json").read_text())["ranks"])
    yield collector
