"""Each notebook runs on folders, by its kernel and with outputs, and on W&B's offline files."""

import os
import runpy
import subprocess
import sys

import jupytext
import nbformat
import pytest

from analysis.notebook import FOLDER, execute
from tests.analysis.synthetic import write

pytestmark = pytest.mark.slow

NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    for seed in (0, 1):
        for precision in ("fp32", "bf16"):
            write(root, f"rollout/precision={precision}", seed=seed, steps=60)
        fp8 = "rollout/precision=fp8_tensor"
        write(root, fp8, seed=seed, steps=60, collapse=35)
        write(root, fp8, "correction=token_truncate", seed=seed, steps=60)
    done = subprocess.run(
        [sys.executable, "-m", "tests.analysis.mirror", "offline", *map(str, sorted(root.iterdir()))],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return root


def test_two_are_there_and_say_first_where_they_read():
    assert NAMES == ["frames", "overview"]
    for name in NAMES:
        first = jupytext.read(FOLDER / f"{name}.py").cells[0].source
        assert all(source in first for source in ("`runs/demo`", "`wandb-offline:", "`wandb:[entity/]project[:group]`"))


@pytest.mark.parametrize("name", NAMES)
def test_on_folders_with_outputs(name, sweep, tmp_path):
    notebook = nbformat.read(execute(FOLDER / f"{name}.py", str(sweep), tmp_path), as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert not [output for output in outputs if output.output_type == "error"]
    assert "image/png" in kinds
    *_, question, answer = notebook.cells
    assert question.source.startswith("## Ask your own question") and "text/html" in answer.outputs[0].data


def test_the_committed_one_is_the_present_notebook_with_its_outputs():
    """docs/notebooks/overview.ipynb, made by `python -m analysis.notebook SWEEP docs/notebooks overview`."""
    path = FOLDER.parents[1] / "docs/notebooks/overview.ipynb"
    committed, present = nbformat.read(path, as_version=4), jupytext.read(FOLDER / "overview.py")
    assert [cell.source for cell in committed.cells] == [cell.source for cell in present.cells]
    assert all(cell.outputs for cell in committed.cells[3:] if cell.cell_type == "code")
    assert path.stat().st_size < 500_000


@pytest.mark.parametrize("name", NAMES)
def test_on_offline_wandb_runs(name, sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("FAULTLINE_SWEEP", f"wandb-offline:{sweep}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = runpy.run_path(str(FOLDER / f"{name}.py"))["results"]
    assert found.folder is None and len(found.runs) == 8 and found.runs.event.sum() == 2
    assert os.listdir(tmp_path / "faultline")
