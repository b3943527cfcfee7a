"""Search for a checkpoint of a run by its path, to branch from it or to examine its policy."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.config import Config, parse_recorded
from harness.config.trust import plugin_names, refuse_code
from harness.errors import UserError
from harness.files import refuse_links, writing
from harness.run.folder import RunFolder
from harness.run.manifest import damage_of, read_state

if TYPE_CHECKING:
    from harness.train.parts import Parts


class Checkpoint(NamedTuple):
    """Location of a run's checkpoint. config: the run's config. folder: the checkpoint's folder. step: the next step to train."""

    config: Config
    folder: Path
    step: int


def find(path: Path, at: int | None = None, *, trust: bool = False) -> Checkpoint:
    """Find the checkpoint at `path`. If `path` is a run folder, take its checkpoint of step `at`, by default the newest.

    trust: whether code that the run's config names may be imported. Raises UserError if the config names code and `trust` is
    False, or if the checkpoint is missing or damaged.
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
    config = parse_recorded(RunFolder(run).read("config.json"))
    if not trust:
        refuse_code(plugin_names(config), run / "config.json")
    # What is made from it lies beside it: the root that the config names may be another machine's.
    here = config.run.model_copy(update={"root": str(run.resolve().parents[1])})
    return Checkpoint(config.model_copy(update={"run": here}), kept[step], step)


def transplant(checkpoint: Checkpoint, run: RunFolder) -> None:
    """Copy the checkpoint of another run into the folder of a new run, which resumes from the copy. An event records the step."""
    target = run.path / "checkpoints" / checkpoint.folder.name
    temporary = target.with_name(f".writing-{checkpoint.step}")
    refuse_links(run.path, "checkpoints/state.json")
    with writing(run.path):
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(checkpoint.folder, temporary)
        run.log_event("branched", checkpoint.step, origin=str(checkpoint.folder))
        temporary.rename(target)  # last: a branch whose copy was cut short gets another


@contextmanager
def parts_at(checkpoint: Checkpoint) -> Iterator[Parts]:
    """Context manager that builds a run's trainer, sampler and other parts with the policy of a checkpoint. It writes nothing.

    The parts serve measurements, which take no optimizer step. So the number of ranks may differ from the run's, even with
    actor.masters=kahan.
    """
    from safetensors.torch import load_file

    from harness.train.data.rewards import COEF
    from harness.train.parts import build_parts
    from harness.validate import check

    config = checkpoint.config
    if config.actor.masters == "kahan":  # needs its own number of ranks, for the sake of later optimizer steps
        config = config.model_copy(update={"actor": config.actor.model_copy(update={"masters": "none"})})
    parts = build_parts(check(config))
    ranks = read_state(checkpoint.folder).ranks
    for name, model in {"actor": parts.actor, "critic": parts.critic}.items():
        if model is not None:
            with tempfile.TemporaryDirectory() as place:  # on another number of ranks a load writes beside what it reads
                shutil.copytree(checkpoint.folder / name, Path(place) / name)
                model.load(Path(place) / name, ranks)
    parts.assemble.penalty.restore(load_file(checkpoint.folder / "rollouts.safetensors").get(COEF))
    yield parts
