"""docs/extend.md is complete: each of its files, put on PYTHONPATH, trains by the command below it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.conftest import TINY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extend.md").read_text()
BLOCKS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```\n.*?```\n(faultline train .*?)\n```", PAGE, re.S)


def test_the_page_has_a_loss_a_correction_and_a_task():
    assert [name for name, *_ in BLOCKS] == ["my_loss", "my_filter", "my_task"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code", "command"), BLOCKS, ids=[name for name, *_ in BLOCKS])
def test_the_file_trains_by_its_command(tmp_path, name, code, command):
    (tmp_path / f"{name}.py").write_text(code)
    overrides = [o for o in TINY if not (name == "my_task" and o.startswith("task."))]
    words = shlex.split(command)[2:]
    overrides += ["steps=2", f"run.root={tmp_path}", "run.sweep=own", "rollout/precision=bf16"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.train", *overrides, *words],
        capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [json.loads(line) for line in next((tmp_path / "own").glob("*/metrics.jsonl")).read_text().splitlines()]
    assert len([row for row in rows if "actor/loss" in row]) == 2
    if name == "my_filter":  # int(0.99 · 64) = 63 of 64 tokens
        assert {row["correction/kept_tokens"] for row in rows if "actor/loss" in row} == {63 / 64}
