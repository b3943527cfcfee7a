"""Loading, the arm table and the page, on folders written by hand."""

import subprocess
import sys

import pandas as pd
import pytest

from analysis import tables
from analysis.load import load
from analysis.report import _smallest_p, report
from harness.errors import UserError
from harness.records import RunFolder
from tests.harness.conftest import composed


def write(sweep, name, *overrides, rewards=(0.4, 0.6, 0.9), k3=0.0, state="done", events=()):
    config = composed(*overrides)
    with RunFolder(sweep / name).claim() as folder:
        folder.write("config.json", config)
        for step, reward in enumerate(rewards):
            training = {"rollout_corr/k3_kl": k3, "actor/grad_norm": 0.5, "actor/loss": 0.0}
            folder.log_metrics(step, {"eval/reward": reward, "eval/stderr": 0.1, "eval/samples": 10, **training})
        for event in events:
            folder.log_event("collapse", len(rewards), **event)
        folder.status(state, step=len(rewards), steps=len(rewards))


@pytest.fixture
def sweep(tmp_path):
    fp32, fp8 = "rollout/precision=fp32", "rollout/precision=fp8_tensor"
    write(tmp_path, "a", fp32, "seed=0")
    write(tmp_path, "b", fp32, "seed=1", rewards=(0.4, 0.7, 1.0))
    collapse = {"detector": "drawdown", "onset": 1}
    write(tmp_path, "c", fp8, "seed=0", k3=1e-3, rewards=(0.4, 0.1, 0.0), state="collapsed", events=(collapse, collapse))
    write(tmp_path, "d", fp8, "seed=1", k3=2e-3, state="failed")
    return tmp_path


def test_the_table_shows_every_seed(sweep):
    table = tables.arms(load(sweep)).set_index("arm")
    assert list(table.index) == ["fp32 ppo", "fp8_tensor ppo"]
    assert table.loc["fp32 ppo", "final eval"] == "0.900 / 1.000"
    assert table.loc["fp32 ppo", "K3 (nats)"] == "0.0e+00 / 0.0e+00"
    assert table.loc["fp32 ppo", "collapsed"] == "no / no"
    assert table.loc["fp8_tensor ppo", "best eval"] == "0.400 / 0.900"
    assert table.loc["fp8_tensor ppo", "collapsed"] == "drawdown at 1 / failed"  # recorded twice by a resume, told once
    assert table.loc["fp8_tensor ppo", "lowest sequence ESS"] == "– / –"  # not recorded, so not a number


def test_arms_that_differ_in_another_key_are_told_apart(sweep):
    write(sweep, "e", "rollout/precision=fp32", "seed=0", "actor.lr=0.5")
    assert {"fp32 ppo actor.lr=0.0005", "fp32 ppo actor.lr=0.5"} <= set(tables.arms(load(sweep)).arm)


def test_thresholds_of_one_kind_are_told_apart(sweep):
    for name, upper in (("f", 2), ("g", 5)):
        write(sweep, name, "correction=token_truncate", f"correction.weight.upper={upper}")
    arms = set(tables.arms(load(sweep)).arm)
    assert {f"fp8_tensor ppo token-truncate correction.weight.upper={upper}" for upper in ("2", "5")} <= arms
    assert "fp32 ppo" in arms  # the other arms are not told of a bound that they do not have


def test_a_parameter_of_a_loss_or_a_precision_makes_an_arm(sweep):
    write(sweep, "h", "rollout/precision=fp32", "loss.eps_high=0.28")
    write(sweep, "i", "rollout/precision=nvfp4", "rollout.kv_cache=fp8_e4m3")
    arms = set(tables.arms(load(sweep)).arm)
    assert 'fp32 ppo loss.eps_high=0.28 rollout.kv_cache="compute"' in arms and 'nvfp4 ppo rollout.kv_cache="fp8_e4m3"' in arms


def test_two_runs_that_would_be_one_seed_of_one_arm_are_named(sweep):
    write(sweep, "j", "rollout/precision=fp32", "seed=0")
    with pytest.raises(UserError, match="a and j are both seed 0 of fp32 ppo"):
        load(sweep)


def test_a_missing_cell_stays_missing(sweep):
    frame = load(sweep).steps
    assert isinstance(frame, pd.DataFrame) and len(frame) == 12


def test_the_page_is_self_contained_and_names_what_failed(sweep, capsys):
    page = report(sweep).read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page and "<script" not in page
    assert "fp8_tensor ppo seed 1: failed at step 3" in page
    assert "p = 0.33" in page and page.count("<svg") == 1
    assert "fp32 ppo" in capsys.readouterr().out
    lines = (sweep / "report.md").read_text().splitlines()
    assert lines[0].startswith("| arm") and len({line.count("|") for line in lines}) == 1  # as many cells in each row


def test_smallest_p_by_enumeration():
    """All splits of 2n runs into two groups of n; the fully separated ones are 2 of C(2n, n): 6, 20, 70, 252."""
    assert [round(2 / _smallest_p(n)) for n in (2, 3, 4, 5)] == [6, 20, 70, 252]


def test_the_command_line(sweep):
    command = [sys.executable, "-m", "experiments.cli", "report"]
    done = subprocess.run([*command, str(sweep)], capture_output=True, text=True)
    assert done.returncode == 0 and f"Page: {sweep}/report.html" in done.stdout
    done = subprocess.run([*command, str(sweep / "none")], capture_output=True, text=True)
    assert done.returncode == 2 and "no run folder in it" in done.stderr and "Traceback" not in done.stderr


def test_an_unreadable_folder_is_named(sweep):
    (sweep / "a" / "config.json").write_text("{")
    assert "a/config.json: unreadable" in load(sweep).problems[0]
