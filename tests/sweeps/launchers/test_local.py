"""The local launcher through Hydra's own command line: real processes, a failing arm, a killed one, a second launch."""

import json
import os
import shutil
import signal
import time

import pytest

from harness.run.folder import run_folders
from sweeps.launchers.local import Local
from sweeps.ledger import Sweep
from tests.sweeps.conftest import launch, run_at_point, start, started
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A grid of two precisions and two seeds, launched by the command in a process of its own."""
    root = tmp_path_factory.mktemp("swept")
    grid = ["seed=0,1", "rollout/precision=fp32,fp8_tensor", "run.sweep=grid"]
    process = start(root, *grid)
    told, _ = process.communicate(timeout=PATIENCE)
    return root, grid, (process.returncode, told)


def copied(swept, name: str) -> tuple[Sweep, list[str]]:
    """A copy of that sweep, whose runs have ended, and the grid that launches it again."""
    root, grid, _ = swept
    shutil.copytree(root / "grid", root / name)
    return Sweep(root / name), [*grid[:-1], f"run.sweep={name}"]


def test_a_grid_runs_side_by_side_and_all_end(swept):
    root, _, (code, output) = swept
    folders = run_folders(root / "grid")
    assert code == 0, output
    assert [folder.state for folder in folders] == ["done"] * 4
    assert "16/16 steps" in output
    configs = {(c["seed"], c["rollout"]["precision"]["name"]) for c in (f.read("config.json") for f in folders)}
    assert configs == {(0, "fp32"), (1, "fp32"), (0, "fp8_tensor"), (1, "fp8_tensor")}


def test_the_same_command_again_does_nothing(swept):
    root, grid, _ = swept
    before = {f.path: (f.path / "metrics.jsonl").stat().st_mtime_ns for f in run_folders(root / "grid")}
    assert launch(root, *grid)[0] == 0
    assert {f.path: (f.path / "metrics.jsonl").stat().st_mtime_ns for f in run_folders(root / "grid")} == before


def test_hydras_own_launcher_gives_the_same_run(swept):
    """Forked side by side or alone in one process: the same numbers, bit for bit."""
    root, _, _ = swept
    code, output = launch(root, "seed=0", "rollout/precision=fp8_tensor", "run.sweep=basic", launcher="basic")
    assert code == 0, output
    (alone,) = run_folders(root / "basic")
    forked = next(f for f in run_folders(root / "grid") if f.path.name == alone.path.name)

    def rewards(folder):
        return [(row.get("eval/reward"), row.get("actor/grad_norm"), row.get("rollout_corr/k3_kl")) for row in folder.metrics()]

    assert rewards(alone) == rewards(forked)


def test_one_failing_arm_does_not_disturb_the_others(swept):
    """More evaluation prompts than its warm start holds out, of 7 that there can be: only the run itself can know."""
    root, _, _ = swept
    code, output = launch(root, "seed=5", "evaluation.prompts=4,7", "warmstart.keep_high=0.46", "run.sweep=failing")
    assert code != 0
    assert "evaluation.prompts=7: only" in output and "exit code 2" in output
    states = {f.read("config.json")["evaluation"]["prompts"]: f.state for f in run_folders(root / "failing")}
    assert states == {4: "done", 7: "failed"}


def test_a_value_that_a_loss_refuses_stops_the_grid_before_it_starts(swept):
    root, _, _ = swept
    code, output = launch(root, "loss.eps_low=0.2,2", "run.sweep=refused")
    assert code != 0 and "loss.eps_low=2" in output and "Nothing was started" in output and "Traceback" not in output
    assert not (root / "refused").exists()


def test_a_damaged_status_file_is_its_runs_own_problem(swept):
    """Of four runs that have ended, one has a damaged file: that one is told of, and ends well once the file is gone."""
    root, _, _ = swept
    sweep, grid = copied(swept, "damaged")
    first, *others = run_folders(sweep.path)
    (first.path / "status.json").write_text("[]")
    code, output = launch(root, *grid)
    assert code != 0 and "status.json: not what a run writes there; delete this file" in output
    assert [folder.state for folder in others] == ["done"] * 3
    (first.path / "status.json").unlink()
    assert launch(root, *grid)[0] == 0
    assert [folder.state for folder in run_folders(sweep.path)] == ["done"] * 4


def test_a_killed_run_is_told_of_and_finished_by_the_next_launch(swept):
    root, _, _ = swept
    grid = ["seed=7", "run.sweep=killed", "steps=8", "checkpoint.every=3"]
    process = start(root, *grid, point="row 5")
    os.kill(run_at_point(Sweep(root / "killed")).pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)
    (folder,) = run_folders(root / "killed")
    assert process.returncode != 0 and "killed by SIGKILL" in output and folder.state == "interrupted"
    assert launch(root, *grid)[0] == 0
    assert folder.state == "done" and len(folder.metrics()) == 9


def test_a_run_of_another_process_is_waited_for_and_finished(swept):
    """A launcher dies at once; its run, held meanwhile, saves a checkpoint only when another launcher already waits for it."""
    root, _, _ = swept
    grid = ["seed=9", "run.sweep=orphan", "steps=8", "checkpoint.every=3"]
    sweep = Sweep(root / "orphan")
    first = start(root, *grid, point="row 5")
    orphan = run_at_point(sweep)
    (run,) = sweep.states()
    first.kill()
    first.wait()
    second = start(root, *grid)
    for line in second.stdout:
        if "1 under way, none to start" in line:
            break
    orphan.goes_on()
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, output
    assert sweep.states()[run].state == sweep.folder(run).state == "done" and len(sweep.folder(run).metrics()) == 9
    assert len(started(sweep, run)) == 2


def test_an_end_that_nobody_told_of_is_read_from_the_folder(swept):
    """The launcher was killed between the end of its run and the line in the ledger."""
    root, _, _ = swept
    sweep, grid = copied(swept, "untold")
    ledger = sweep.home / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    assert '"ended"' in lines[-1]
    ledger.write_text("".join(lines[:-1]))
    assert [state.state for state in sweep.states().values()].count("running") == 1
    assert launch(root, *grid)[0] == 0
    assert [state.state for state in sweep.states().values()] == ["done"] * 4
    assert sum(event["event"] == "started" for event in sweep.events()) == 4  # none was started again


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_terminating_the_launcher_stops_its_runs_at_a_checkpoint(swept, number):
    """SIGINT goes to the whole process group, as a terminal sends it."""
    root, _, _ = swept
    sweep = f"stopped-{number}"
    process = start(root, "seed=8", f"run.sweep={sweep}", "steps=200")
    while not list((root / sweep).glob("*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number and "Traceback" not in told
    (folder,) = run_folders(root / sweep)
    assert folder.state == "preempted" and list((folder.path / "checkpoints").glob("step-*"))
    assert json.loads((folder.path / "status.json").read_text())["step"] < 200


class Finalizer:
    """An object during whose deletion the launcher gets SIGTERM."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_within_a_finalizer_stops_the_launcher_at_its_next_wait(sweep):
    """Python prints what a finalizer raises, and goes on."""
    executor = Local(sweep)
    with pytest.raises(SystemExit) as ended, executor.attached():
        Finalizer()
        executor.wait(0)
    assert ended.value.code == 128 + signal.SIGTERM


@pytest.mark.parametrize("launcher", ["local", "basic"])
def test_an_empty_grid_is_refused_in_one_line(tmp_path, launcher):
    code, text = launch(tmp_path, "seed=range(0,0)", "run.sweep=empty", launcher=launcher)
    assert code == 2 and text.strip() == "seed=range(0,0): an empty list of values, so there is no run; give at least one", text
    assert not list(tmp_path.iterdir())
