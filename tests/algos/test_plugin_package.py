"""The worked plug-in package is installed into a fresh environment, found by name, and used in a training step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent / "plugin_example"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A new environment without packages of its own, which sees torch and setuptools of this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    paths = {"base": str(folder), "platbase": str(folder)}
    (Path(sysconfig.get_path("purelib", "venv", paths)) / "torch.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=PATIENCE)


def test_install_find_and_train(fresh, tmp_path):
    source = shutil.copytree(EXAMPLE, tmp_path / "source")  # a build writes into its source folder
    here = {"PYTHONPATH": str(ROOT)}
    before = run(fresh, "-c", "from algos.registry import LOSSES; print(LOSSES.names())", **here)
    assert before.returncode == 0 and "tempered_pg" not in before.stdout, before.stderr
    pip = (sys.executable, "-m", "pip", "--python", str(fresh), "install", "-q", "--no-deps", "--no-build-isolation")
    installed = run(*pip, "--no-index", str(source))
    assert installed.returncode == 0, installed.stderr
    result = run(fresh, str(EXAMPLE / "check.py"), **here)
    assert result.returncode == 0 and result.stdout.startswith("trained"), result.stderr


def test_a_plug_in_that_takes_a_built_in_name_is_an_error(fresh, tmp_path):
    source = shutil.copytree(EXAMPLE, tmp_path / "clash")
    project = source / "pyproject.toml"
    text = project.read_text().replace("faultline-tempered", "faultline-clash").replace("tempered_pg =", "ppo =")
    project.write_text(text.replace('"tempered"', '"clash"').replace('"tempered:', '"clash:'))
    (source / "tempered").rename(source / "clash")
    target = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "--python", str(fresh), "install", "-q", "--no-deps", "--no-build-isolation")
    assert run(*pip, "--no-index", "--target", str(target), str(source)).returncode == 0
    result = run(fresh, "-c", "from algos.registry import LOSSES; LOSSES['ppo']", PYTHONPATH=f"{ROOT}:{target}")
    assert "losses=ppo: the name is taken; a plug-in must use another" in result.stderr
