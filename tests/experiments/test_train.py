"""Refusals of the command line: one line that names the key and the remedy, exit code 2, nothing started."""

import os
import subprocess
import sys

import pytest

from tests.sweeps.conftest import in_process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("los=1", "los: unknown key; the nearest is loss; faultline train --help lists them all"),
        pytest.param(
            "actor.lrr=1",
            "actor.lrr: unknown key; the nearest is actor.lr; faultline train --help lists them all",
            marks=pytest.mark.slow,
        ),
        pytest.param("reduce=mean", "reduce/mean: there is no such option; take one of prompt_mean, ", marks=pytest.mark.slow),
        pytest.param("+experiment=nosuch", "experiment/nosuch", marks=pytest.mark.slow),
        ("seed=1,2", "--multirun"),
        ("seed=abc", "seed='abc': must be a whole number"),
        ("-m hydra/launcher=local seed=0,abc", "seed='abc': must be a whole number"),
        pytest.param("run.root=/proc/nosuch", "/proc/nosuch: No such file or directory; ", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_key_is_one_line(arguments, said, tmp_path):
    at = [] if "run.root" in arguments else [f"run.root={tmp_path}"]
    code, told = in_process(*arguments.split(), *at)
    begun = "2 runs: composing and checking their configs ...\n"  # what a multirun says first
    line = told.removeprefix(begun).removesuffix("Nothing was started.\n").strip()
    assert code == 2 and said in line and "\n" not in line, told
    assert not list(tmp_path.glob("**/config.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "form"),
    [
        ("loss=mine", "use loss=pg loss.name=mine and +loss.KEY=VALUE"),
        pytest.param(
            "advantage=mine", "use advantage=reinforce advantage.name=mine and +advantage.KEY=VALUE", marks=pytest.mark.slow
        ),
        ("kl=mine", "use kl=k2 kl.name=mine, or write it as DIR/kl/mine.yaml and put --config-dir DIR before the overrides"),
        pytest.param(
            "correction=mine", "use '+correction.reject.mine={function: mine, params: {KEY: VALUE}}'", marks=pytest.mark.slow
        ),
        pytest.param("reduce=mine", "take one of prompt_mean", marks=pytest.mark.slow),
    ],
)
def test_a_plug_in_without_a_config_file_is_told_how_it_is_chosen(option, form, tmp_path):
    """The plug-in is not loaded for that: its module does not exist."""
    about = tmp_path / "mine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    kinds = ("losses", "advantages", "kl", "corrections")
    (about / "entry_points.txt").write_text("".join(f"[faultline.{kind}]\nmine = nosuch:mine\n" for kind in kinds))
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-m", "experiments.train", option, f"run.root={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and form in done.stderr and done.stderr.count("\n") == 1, done.stderr
