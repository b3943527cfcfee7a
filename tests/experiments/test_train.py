"""What the command line refuses: one line that names the key and the remedy, exit code 2, nothing started."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("los=1", "los: unknown key; python -m experiments.train --help lists them all"),
        ("actor.lrr=1", "actor.lrr: unknown key; python -m experiments.train --help lists them all"),
        ("reduce=mean", "reduce/mean: there is no such option; take one of prompt_mean, "),
        ("+experiment=nosuch", "experiment/nosuch"),
        ("seed=1,2", "--multirun"),
        ("seed=abc", "seed='abc': input should be a valid integer"),
        ("-m hydra/launcher=local seed=0,abc", "seed='abc': input should be a valid integer"),
        ("run.root=/proc/nosuch", "/proc/nosuch: No such file or directory; run.root must name a folder that can be written"),
    ],
)
def test_a_wrong_key_is_one_line(arguments, said, tmp_path):
    at = [] if "run.root" in arguments else [f"run.root={tmp_path}"]
    command = [sys.executable, "-m", "experiments.train", *arguments.split(), *at]
    done = subprocess.run(command, capture_output=True, text=True)
    line = done.stderr.removesuffix("Nothing was started.\n").strip()
    assert done.returncode in (1, 2) and said in line and "\n" not in line, done.stderr
    assert not list(tmp_path.glob("**/config.json"))
