"""A report in W&B: what the offline run holds, read from its file."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from wandb.proto.wandb_internal_pb2 import Record

from analysis.load import load
from analysis.wandb_runs import _records
from harness.errors import UserError
from tests.analysis.synthetic import FP8, FP32, write


def push(sweep, out, project):
    """In a process of its own, as W&B keeps state in the process that called it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    command = [sys.executable, "-m", "faultline", "report", str(sweep), "--out", str(out), "--wandb", project]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_an_offline_run_holds_the_page_the_figures_and_the_arms(tmp_path):
    sweep, out = tmp_path / "a sweep", tmp_path / "out"
    for precision in (FP32, FP8):
        write(sweep, precision)
    done = push(sweep, out, "mine")
    (file,) = out.glob("wandb/offline-run-*/run-report-*.wandb")
    assert f"W&B, offline: {file.parent}; this sends it: wandb sync {file.parent}" in done.stdout, done.stderr
    messages = [Record.FromString(content) for _, content in _records(file.read_bytes())]
    (run,) = [message.run for message in messages if message.WhichOneof("record_type") == "run"][:1]
    assert (run.project, run.job_type, run.display_name) == ("mine", "report", "report of a sweep")
    artifacts = {message.artifact.name: message.artifact for message in messages if message.HasField("artifact")}
    artifact = artifacts["report-a-sweep"]
    held = {entry.path for entry in artifact.manifest.contents}
    figures = {f"figures/{path.name}" for path in (out / "figures").iterdir()}
    assert {"figures/reward.png", "figures/ends.png"} <= figures
    assert held == figures | {"report.html", "report.md", "report.png", "arms.csv", "runs.csv", "evaluations.csv"}
    (history,) = [message.history for message in messages if message.WhichOneof("record_type") == "history"]
    logged = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}
    assert {name.split(".")[0] for name in logged if not name.startswith("_")} == {"arms", "report", *(f[:-4] for f in figures)}
    (table,) = file.parent.glob("files/media/table/arms_*.json")
    shown, arms = json.loads(table.read_text()), pd.read_csv(out / "arms.csv")
    assert shown["columns"] == list(arms) and [row[0] for row in shown["data"]] == list(arms.arm)
    with pytest.raises(UserError, match="no offline W&B run below it"):  # a report is no run of a sweep
        load(f"wandb-offline:{out}")


@pytest.mark.slow
def test_a_project_that_wandb_refuses_is_one_line(tmp_path):
    write(tmp_path / "s", FP32)
    done = push(tmp_path / "s", tmp_path / "out", "no/such:project")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("--wandb no/such:project: ") and "check the project's name" in done.stderr
