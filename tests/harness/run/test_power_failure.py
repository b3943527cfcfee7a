"""A power failure loses what was not flushed: whenever it comes, a run resumes from a whole checkpoint or stays ended.

`Disk` models it. Written content counts once its file was flushed, and a name once its folder was. What was not flushed may be
there all the same, so each moment is tried twice: everything unflushed is lost, and every name is there but its content is not.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.run import checkpoint
from harness.run.folder import FINISHED, RunFolder
from harness.train.ranks import join


class Disk:
    """The content of a folder after a power failure, at every call that flushes or renames.

    moments: pairs (names and content on the disk, names alone in the page cache).
    """

    def __init__(self, root: Path, monkeypatch):
        self.root, self.moments = root, []
        self.content: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.held: list[int] = []  # open, so that no later file gets the number of one that was removed
        fsync, rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", lambda descriptor: (self.moment(), fsync(descriptor), self.flush(descriptor)))
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, lambda *paths, **more: (self.moment(), rename(*paths, **more), self.moment())[1])
            monkeypatch.setattr(Path, name, lambda path, target: (self.moment(), rename(path, target), self.moment())[1])

    def flush(self, descriptor: int) -> None:
        path, node = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor).st_ino
        self.held.append(os.dup(descriptor))
        if path.is_dir():
            self.held += [os.open(entry, os.O_PATH) for entry in path.iterdir()]
            self.names[node] = {entry.name: entry.stat(follow_symlinks=False).st_ino for entry in path.iterdir()}
        else:
            self.content[node] = path.read_bytes()
        self.moment()

    def moment(self) -> None:
        self.moments.append((self.flushed(self.root.stat().st_ino), self.cached()))

    def flushed(self, node: int) -> dict:
        """The tree below a folder by what was flushed: name -> content, or the tree of a folder."""
        names = self.names.get(node, {})
        return {name: self.flushed(at) if at in self.names else self.content.get(at, b"") for name, at in names.items()}

    def cached(self) -> dict:
        """The tree that programs see, with the content that was flushed."""

        def tree(folder: Path) -> dict:
            nodes = {path: path.stat().st_ino for path in folder.iterdir()}
            return {path.name: tree(path) if path.is_dir() else self.content.get(at, b"") for path, at in nodes.items()}

        return tree(self.root)


def written(tree: dict, root: Path) -> None:
    root.mkdir(parents=True)
    for name, content in tree.items():
        written(content, root / name) if isinstance(content, dict) else (root / name).write_bytes(content)


class Weights:
    """A model of one tensor, saved as the actor saves its own."""

    def __init__(self):
        self.net = nn.Linear(1, 1, bias=False)

    def save(self, folder: Path) -> None:
        folder.mkdir()
        torch.save(self.net.state_dict(), folder / "model.pt")

    def load(self, folder: Path, ranks: int) -> None:
        self.net.load_state_dict(torch.load(folder / "model.pt"))


@pytest.fixture
def moments(tmp_path, monkeypatch):
    """A run of four steps with a checkpoint after each and one kept, until it is done."""
    folder, model = RunFolder(tmp_path / "sweep" / "run"), Weights()
    folder.path.mkdir(parents=True)
    with monkeypatch.context() as patched:
        disk = Disk(tmp_path / "sweep", patched)
        folder.write("config.json", {"steps": 4})
        for step in range(4):
            folder.log_metrics(step, {"actor/loss": float(step)})
            folder.status("running", step=step + 1)
            model.net.weight.data.fill_(step + 1)
            state = {"step": step + 1, "updates": step + 1, "events": {}, "detectors": {}}
            checkpoint.save(folder, join(), {"actor": model}, state, {}, keep=1)
        folder.status("done", step=4)
        disk.moment()
    for descriptor in disk.held:
        os.close(descriptor)
    return disk.moments


@pytest.mark.slow
def test_after_a_power_failure_a_run_resumes_from_a_whole_checkpoint_or_has_ended(moments, tmp_path, capsys):
    found, last = [], 0
    for number, trees in enumerate(moments):
        for way, tree in enumerate(trees):
            place = tmp_path / f"after-{number}-{way}"
            written(tree, place)
            folder, model = RunFolder(place / "run"), Weights()
            if not folder.path.exists():
                assert last == 0, "a run that had a checkpoint is gone"
                continue
            state, loaded = folder.state, checkpoint.load(folder, join(), {"actor": model})
            step = loaded.state.step if loaded else 0
            assert step == 0 or model.net.weight.item() == step
            assert folder.missing_rows(step) == 0, "no checkpoint is newer than the rows before it"
            assert state not in FINISHED or (step == 4 and folder.missing_rows(4) == 0)
            if way == 0:
                assert step >= last, "an earlier moment had a later checkpoint"
                last = step
            found.append((way, state, step))
            shutil.rmtree(place)
    assert "damaged" not in capsys.readouterr().out
    assert {step for way, _, step in found if way == 0} == {0, 1, 2, 3, 4} and found[-1] == (1, "done", 4)


def test_a_status_that_a_power_failure_emptied_asks_for_nothing(tmp_path):
    folder = RunFolder(tmp_path)
    folder.status("running", step=1)
    os.truncate(folder.path / "status.json", 0)
    assert folder.state == "queued"
