"""Files of runs are written whole and through no link."""

import ast
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.dumps.files import write
from harness.errors import Unavailable, UserError
from harness.files import output_folder, refuse_links, replacing, write_file
from harness.run import checkpoint
from harness.run.folder import RunFolder

OPENS = ("open", "write_text", "write_bytes", "save_file", "write_table", "to_parquet", "savefig", "copytree")
WRITERS = {
    "analysis/figures/style.py": 2,  # into memory
    "analysis/page/annotated.py": 1,  # a temporary folder of the process
    "analysis/store.py": 1,  # within `replacing`
    "faultline/tools/import_config/__init__.py": 1,  # a temporary folder of the process
    "harness/dumps/files.py": 1,  # within `replacing`
    "harness/files.py": 2,  # `write_file`, within `replacing`, and `open_own`
    "harness/rollouts/vllm.py": 1,  # a temporary folder of the process
    "harness/run/checkpoint.py": 3,  # into a folder that this process makes, beside `refuse_links`
    "harness/run/restore.py": 2,  # into a folder that this process makes, and a temporary one
    "sweeps/snapshot.py": 1,  # into a folder that this process makes
}
"""File -> the calls in it that write a file."""


def writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "to_csv":
        return bool(call.args) or "path_or_buf" in [keyword.arg for keyword in call.keywords]  # else it returns a text
    if name != "open":
        return name in OPENS
    mode = next((a.value for a in call.args[1:] if isinstance(a, ast.Constant)), "r" if isinstance(call.func, ast.Name) else "")
    anything = len(call.args) > 1 and not isinstance(call.args[1], ast.Constant)  # a mode that another names
    devnull = "devnull" in ast.unparse(call.args[0]) if call.args else False
    return not devnull and (anything or bool(re.search("[wax+]", str(mode)))) and isinstance(call.func, ast.Name)


def test_all_files_of_runs_are_written_in_one_place():
    found = {}
    for file in (file for room in ("harness", "analysis", "faultline", "sweeps") for file in Path(room).rglob("*.py")):
        calls = sum(isinstance(node, ast.Call) and writes(node) for node in ast.walk(ast.parse(file.read_text())))
        found |= {str(file): calls} if calls else {}
    assert found == WRITERS


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path, "a.txt") as path:
        path.write_text("half")
        raise ZeroDivisionError
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "old"
    with replacing(tmp_path, "sub/b.txt") as path:
        path.write_text("new")
    assert (tmp_path / "sub" / "b.txt").read_text() == "new" and len(list((tmp_path / "sub").iterdir())) == 1


def test_nothing_is_written_through_a_link(tmp_path):
    """A run folder of a stranger whose names are links to a file of the user: the file stays as it is."""
    mine, run = tmp_path / "mine", RunFolder(tmp_path / "sweep" / "run")
    mine.write_text("mine")
    run.path.mkdir(parents=True)
    for name in ("status.json", f".status.json.{os.getpid()}", "events.jsonl", ".lock", "runs.parquet"):
        (run.path / name).symlink_to(mine)
    run.write("status.json", {"state": "failed"})
    assert run.read("status.json") == {"state": "failed"}
    with pytest.raises(Unavailable, match=r"cannot write \(Too many levels of symbolic links\)"):
        run.log_event("branched", 3)
    os.mkfifo(run.path / "questions.jsonl")
    with pytest.raises(Unavailable, match=r"cannot write \(not a regular file\)"):
        run.log_questions(3, {})
    with pytest.raises(Unavailable, match="cannot write"), run.claim():
        pass
    (tmp_path / "sweep" / "linked").symlink_to(tmp_path)
    with pytest.raises(UserError, match="linked: a link"), RunFolder(tmp_path / "sweep" / "linked").claim():
        pass
    floats = np.zeros((1, 2))
    write(run.path / "runs.parquet", {"mask": floats == 0, "logp_rollout": floats, "logp_old": floats})
    assert mine.read_text() == "mine" and not (run.path / "runs.parquet").is_symlink()


def test_results_go_into_no_linked_folder_and_through_no_linked_file(tmp_path):
    (mine := tmp_path / "mine").mkdir()
    (mine / "a.csv").write_text("mine")
    (tmp_path / "linked").symlink_to(mine)
    with pytest.raises(UserError, match="linked: is a link; write into a folder of your own with --out"):
        output_folder(tmp_path / "linked")
    folder = output_folder(tmp_path / "new" / "folder")
    (folder / "a.csv").symlink_to(mine / "a.csv")
    write_file(folder, "a.csv", "√")
    assert (folder / "a.csv").read_text(encoding="utf-8") == "√" and (mine / "a.csv").read_text() == "mine"


def test_a_linked_folder_within_the_named_one_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dumps").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(UserError, match="run/dumps: a link, and nothing is written through it"),
        replacing(tmp_path / "run", "dumps/a.parquet"),
    ):
        pass
    (tmp_path / "named").symlink_to(tmp_path / "elsewhere")  # the user's own
    refuse_links(tmp_path / "named", "a.parquet")
    with replacing(tmp_path / "named", "a.txt") as path:
        path.write_text("here")
    assert (tmp_path / "elsewhere" / "a.txt").read_text() == "here"


def test_a_checkpoint_of_a_run_that_was_moved_away_begins_no_new_folder(tmp_path):
    """The folder of the sweep was renamed after the run's last row and before the checkpoint that is due."""
    run = RunFolder(tmp_path / "sweep" / "run")
    with pytest.raises(Unavailable, match="its folder was moved or removed; put it back, then start again"):
        checkpoint.save(run, SimpleNamespace(rank=0, size=1, barrier=lambda: None), {}, {"step": 3}, {}, keep=1)
    assert not list(tmp_path.iterdir())
