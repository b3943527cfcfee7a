"""Checkpoints of a run: written completely or not at all, and verified by checksums before they are loaded.

    checkpoints/step-00000050/actor/...      model and optimizer, as the actor writes them, each rank its share
                              critic/...     model and optimizer of the critic, where the run has one
                              state.json     next step, optimizer steps, states of collapse detectors, number of ranks
                              rollouts.safetensors  all other tensors: rollouts sampled ahead of their step, engine state ...
                              manifest.json  SHA-256 of every file above

A checkpoint is written under a temporary name and renamed. Rank 0 writes all files but the models', and all ranks share the
folder. Random generators are not saved, because they are functions of the seed and the step (`seeding.py`). The position in
the data is a function of the step. The manifest detects damage, not forgery: a forged file can hold other numbers. But it
cannot run code, because DeepSpeed's files are read without the code that a pickle may run, see `harness.train.model.engine`.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.errors import first_line
from harness.files import refuse_links, to_disk, writing
from harness.run.folder import RunFolder
from harness.run.manifest import State, damage_of, digests, read_state
from harness.train.model.actor import Saved
from harness.train.ranks import Ranks, lost_a_rank


class Loaded(NamedTuple):
    """Content of a run's checkpoint besides the models: the state of the run, and tensors such as rollouts sampled ahead."""

    state: State
    rollouts: dict[str, Tensor]


def save(
    run: RunFolder, ranks: Ranks, models: Mapping[str, Saved], state: dict[str, Any], rollouts: dict[str, Tensor], keep: int
) -> None:
    """Write a checkpoint of step state["step"], then delete all but the newest `keep`. Raises UserError if the disk refuses.

    models: by the name of their folder in the checkpoint. rollouts: all other tensors, by name.
    """
    step = state["step"]
    refuse_links(run.path, "checkpoints/state.json")
    folder = run.path / "checkpoints"
    temporary = folder / f".writing-{step}"
    try:
        with writing(folder):
            if ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                folder.mkdir(exist_ok=True)  # without parents: a run that was moved away is not begun again in its old place
                temporary.mkdir()
            ranks.barrier()
            for name, model in models.items():
                _save(model, temporary / name)
            ranks.barrier()
            if ranks.rank == 0:
                save_file(rollouts, temporary / "rollouts.safetensors")
                run.sync()
                _complete(temporary, folder / f"step-{step:08d}", {**state, "ranks": ranks.size})
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint would keep a full disk full
        raise
    if ranks.rank == 0:
        for old in list(run.checkpoints.values())[:-keep]:
            shutil.rmtree(old)
    run.log_event("checkpoint", step)


def _save(model: Saved, folder: Path) -> None:
    try:
        model.save(folder)
    except RuntimeError as error:  # how torch.save reports a full disk
        if lost_a_rank(error):
            raise
        raise OSError(errno.EIO, f"torch.save: {first_line(error)}") from error


def _complete(temporary: Path, final: Path, state: dict[str, Any]) -> None:
    (temporary / "state.json").write_text(json.dumps(state))
    (temporary / "manifest.json").write_text(json.dumps(digests(temporary)))
    for path in (*temporary.rglob("*"), temporary):  # on disk before it has its name
        to_disk(path)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    to_disk(final.parent)


def load(run: RunFolder, ranks: Ranks, models: Mapping[str, Saved]) -> Loaded | None:
    """Load the newest undamaged checkpoint into `models`; None if there is none. Damaged checkpoints are renamed and reported."""
    step = ranks.first(_newest_sound(run) if ranks.rank == 0 else 0)
    if step < 0:
        return None
    folder = run.path / "checkpoints" / f"step-{step:08d}"
    state = read_state(folder)
    for name, model in models.items():
        model.load(folder / name, state.ranks)
    return Loaded(state, load_file(folder / "rollouts.safetensors"))


def _newest_sound(run: RunFolder) -> int:
    """Step of the newest undamaged checkpoint; −1 if there is none. Newer, damaged checkpoints are renamed and reported. A
    checkpoint also counts as damaged if metrics.jsonl lacks rows of the steps before it."""
    for step, folder in reversed(run.checkpoints.items()):
        damage = damage_of(folder)
        if damage is None and (missing := run.missing_rows(step)):  # going on would leave a hole in the record for good
            damage = f"metrics.jsonl lacks {missing} of the rows before it"
        if damage is None:
            return step
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        run.log_event("checkpoint_damaged", step, reason=damage)
        print(f"{aside}: damaged ({damage}); using the checkpoint before it, if there is one", flush=True)
    return -1
