"""A checkpoint of a run by its path, and a run folder of its own that goes on from it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.config import Config, parse
from harness.errors import UserError
from harness.run.folder import RunFolder, writing
from harness.run.manifest import damage_of

if TYPE_CHECKING:
    from harness.train.trainer import Trainer


class Checkpoint(NamedTuple):
    """config: of the run that it belongs to; folder: the checkpoint's own; step: the next one."""

    config: Config
    folder: Path
    step: int


def find(path: Path, at: int | None = None) -> Checkpoint:
    """The checkpoint at `path`, or of the run folder at `path` that of step `at` or the newest. Raises UserError if it is not
    there, or damaged."""
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
    return Checkpoint(parse(RunFolder(run).read("config.json")), kept[step], step)


def transplant(found: Checkpoint, run: RunFolder) -> None:
    """Copy a checkpoint into another run folder, which then resumes from it."""
    target = run.path / "checkpoints" / found.folder.name
    with writing(run.path):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(found.folder, target)


@contextmanager
def trainer_of(found: Checkpoint) -> Iterator[Trainer]:
    """The trainer as it was at a checkpoint, to look at: what it writes is thrown away."""
    from harness.run.loop import Run
    from harness.validate import check

    check(found.config)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(scratch)
        transplant(found, folder)
        run = Run(found.config, folder)
        run.resume()
        yield run.trainer
