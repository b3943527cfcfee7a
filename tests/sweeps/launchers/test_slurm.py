"""The Slurm launcher on a real Slurm: whatever happens to its jobs, every healthy run ends as if nothing had."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import submitit

from harness.errors import UserError
from harness.run.folder import FINISHED, RunFolder
from sweeps.commands import cancel
from sweeps.launchers.options import SlurmOptions
from sweeps.launchers.slurm import Slurm
from sweeps.launchers.squeue import NoAnswer, ask, jobs
from sweeps.ledger import Sweep
from tests.harness.conftest import TINY
from tests.harness.train.test_ranks import assert_same
from tests.harness.train.test_trainer import untimed
from tests.sweeps.conftest import LOCAL, by_seed, held, launch, launch_on_slurm, output, rows, started, task_log
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.timeout(900), pytest.mark.slurm]
FEW = "warmstart.keep_high=0.46"
"""About 19 of 25 prompts are kept, and 5 held out. There can be 7, so only the warm start finds that 7 are too many."""
LONG = ["steps=40", "checkpoint.every=4", FEW]


def sh(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def faultline(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "faultline", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def preempted_by(folder: RunFolder) -> list[str]:
    return [event["signal"] for event in folder.events() if event["kind"] == "preempted"]


@pytest.fixture(scope="module")
def undisturbed(shared_root):
    """Metrics by seed of runs that were left alone, on this machine without Slurm."""
    assert "5/5 runs" in launch(shared_root, "seed=range(5)", *LONG, "run.sweep=undisturbed")[1]
    sweep = Sweep(shared_root / "undisturbed")
    return {seed: untimed(sweep.folder(run).metrics()) for seed, run in by_seed(sweep).items()}


def test_a_disturbed_grid_ends_as_an_undisturbed_one(slurm, multirun, shared_root, undisturbed):
    """Two nodes. One arm raises. Of the other: seed 0 exceeds its time limit, 1 is killed with SIGKILL, 2 is preempted by a
    partition of higher priority, 3 is requeued with SIGTERM alone; the launcher is killed and started again."""
    grid = ["seed=range(4)", "evaluation.prompts=4,7", *LONG, "run.sweep=grid", "hydra.launcher.signal_delay_s=60"]
    sweep = Sweep(shared_root / "grid")
    launcher = multirun(*grid)
    until(lambda: len(sweep.states()) == 8)
    healthy = by_seed(sweep, prompts=4)
    folders = {seed: sweep.folder(run) for seed, run in healthy.items()}
    late, killed, yielding, requeued = held(sweep, [healthy[seed] for seed in range(4)])
    assert {late.host, killed.host, yielding.host, requeued.host} == {"n1", "n2"}

    os.kill(killed.pid, signal.SIGKILL)
    sh("scontrol", "requeue", requeued.job)
    until(lambda: "SIGTERM" in task_log(sweep, requeued.job))
    requeued.goes_on()
    until(lambda: preempted_by(folders[3]))
    # Slurm looks at limits twice a minute: leave it a look before the end. The job is older than its first run.
    minutes = int((time.time() - started(sweep, healthy[0])[0]["time"] + 45) // 60) + 1
    sh("scontrol", "update", f"JobId={late.job}", f"TimeLimit={minutes}")
    until(lambda: "Caught signal SIGUSR2" in task_log(sweep, late.job))
    late.goes_on()
    until(lambda: preempted_by(folders[0]))
    sh("sbatch", "-p", "high", "-w", yielding.host, "-c", "3", "-o", "/dev/null", "--wrap", "sleep 1")
    until(lambda: "Caught signal SIGUSR2" in task_log(sweep, yielding.job))
    yielding.goes_on()
    until(lambda: preempted_by(folders[2]))
    assert preempted_by(folders[3])[0] == "SIGTERM"
    assert sweep.states()[healthy[1]].state == "interrupted" and "killed by SIGKILL" in sweep.states()[healthy[1]].error
    launcher.kill()
    launcher.wait()
    failing = by_seed(sweep, prompts=7)

    code, shown = launch_on_slurm(shared_root, *grid)
    assert code == 1
    assert "evaluation.prompts=7: only" in shown
    states = sweep.states()
    for seed, run in healthy.items():
        assert states[run].state in ("done", "collapsed"), (seed, states[run])
        assert untimed(folders[seed].metrics()) == undisturbed[seed], f"seed {seed}"
        assert len(started(sweep, run)) >= 2
        assert any(event["kind"] == "resumed" for event in folders[seed].events())
    assert all(len(started(sweep, run)) == 1 for run in failing.values())
    assert all(states[run].state == "failed" for run in failing.values())
    code, shown = faultline("sweep", "logs", sweep.path, failing[0], "-n", 3)
    assert code == 0 and "evaluation.prompts=7: only" in shown
    code, shown = faultline("sweep", "retry", sweep.path, failing[0][:8])
    assert code == 1 and "1 failed" in shown and len(started(sweep, failing[0])) == 2


def test_a_lost_node(slurm, multirun, shared_root, undisturbed):
    """Everything on one node dies at once, without a word, and stays dead; Slurm notices, and the run goes on at the other."""
    sweep = Sweep(shared_root / "lost")
    launcher = multirun("seed=4", *LONG, "run.sweep=lost")
    until(lambda: len(sweep.states()) == 1)
    (run,) = sweep.states()
    (lost,) = held(sweep, [run])
    daemon = int((slurm / f"slurmd-{lost.host}.pid").read_text())
    steps = [int(pid) for pid in sh("pgrep", "-f", f"slurmstepd: .{lost.job.split('_')[0]}").split()]
    for pid in [daemon, *steps, *descendants(steps)]:
        os.kill(pid, signal.SIGKILL)
    try:
        assert "1/1 runs" in output(launcher)
    finally:
        sh("slurmd", "-N", lost.host)
    first, second = started(sweep, run)
    assert {first["host"], second["host"]} == {"n1", "n2"}
    (ended,) = [event["state"] for event in sweep.events() if event["event"] == "ended"]
    assert ended in FINISHED  # whether so small a run collapses is the processor's last bits' choice
    assert untimed(sweep.folder(run).metrics()) == undisturbed[4]


def descendants(parents: list[int]) -> list[int]:
    children = [int(pid) for parent in parents for pid in subprocess.getoutput(f"pgrep -P {parent}").split()]
    return children + (descendants(children) if children else [])


def test_many_trivial_runs_in_few_jobs(slurm, shared_root):
    """24 runs of one step, six at a time on two nodes: none lost, none run twice."""
    sweep = Sweep(shared_root / "many")
    grid = ["seed=range(24)", "steps=1", "run.sweep=many", "hydra.launcher.runs_per_job=6"]
    code, shown = launch_on_slurm(shared_root, *grid)
    assert code == 0, shown
    assert "24 to submit: 4 tasks of up to 6 runs" in shown
    assert {state.state for state in sweep.states().values()} == {"done"} and len(sweep.states()) == 24
    assert len([event for event in sweep.events() if event["event"] == "started"]) == 24
    code, shown = faultline("sweep", "status", sweep.path)
    assert code == 0 and "24 done" in shown


def test_arrays_are_split_at_the_clusters_limit(slurm, multirun, shared_root):
    """45 tasks at a limit of 20 give three arrays, and a second launcher is kept out meanwhile; cancel ends them all."""
    sweep = Sweep(shared_root / "split")
    grid = ["seed=range(45)", "steps=200", "run.sweep=split", "hydra.launcher.parallel=2"]
    process = multirun(*grid)
    until(lambda: (sweep.home / "batches").exists() and len(list((sweep.home / "batches").iterdir())) == 3)
    until(lambda: len(jobs(sweep)) == 45)
    assert sum(job.state == "PENDING" for job in jobs(sweep)) >= 43
    code, shown = launch_on_slurm(shared_root, *grid)
    assert "is working on this sweep" in shown and code == 2
    code, shown = faultline("sweep", "cancel", sweep.path)
    assert code == 0 and "runs cancelled in Slurm" in shown
    assert process.wait(PATIENCE) == 1
    ends = [state.state for state in sweep.states().values()]
    assert set(ends) <= {"cancelled", "done", "collapsed"} and ends.count("cancelled") > 35


def test_what_is_submitted_while_the_sweep_is_cancelled_is_cancelled_too(slurm, tmp_path, monkeypatch):
    """cancel cannot see the jobs of an sbatch that has not answered yet: whoever submitted them cancels them."""
    sweep, submit = Sweep(tmp_path / "raced"), submitit.SlurmExecutor.submit_array
    sweep.log("planned", ["a"], arm="bf16 ppo", seed=0, steps=10)
    launcher = Slurm(sweep, SlurmOptions(mem_gb=1, sbatch={"hold": True}))
    launcher.prepare()
    monkeypatch.setattr(submitit.SlurmExecutor, "submit_array", lambda *given: (cancel(sweep.path), submit(*given))[1])
    with pytest.raises(UserError, match="cancelled after this was started; give the command again"):
        launcher.submit(["a"])
    assert [job.state for job in jobs(sweep)] == ["CANCELLED"] and sweep.states()["a"].state == "cancelled"


def test_detached_then_attached_and_the_code_of_the_sweep(slurm, multirun, shared_root):
    sweep = Sweep(shared_root / "detached")
    grid = ["seed=0,1", "steps=60", "run.sweep=detached"]
    code, told = launch_on_slurm(shared_root, *grid, "hydra.launcher.detach=true", "+hydra.launcher.sbatch.hold=true")
    assert "faultline sweep status" in told and code == 0
    assert {state.state for state in sweep.states().values()} == {"submitted"}
    left = multirun(*grid)
    assert any("; running: none" in line for line in left.stdout)  # up to that line
    left.send_signal(signal.SIGINT)
    told = output(left)
    assert left.returncode == 130 and "The jobs go on" in told and "Traceback" not in told, told
    attached = multirun(*grid)
    assert any("2 under way, none to start" in line for line in attached.stdout)
    sh("scontrol", "release", *sorted({job.id for job in jobs(sweep)}))
    output(attached)
    assert attached.returncode == 0
    code, told = launch_on_slurm(shared_root, *grid, "hydra.launcher.detach=true")
    assert code == 0 and "2 done" in told and "submitted" not in told
    assert len([event for event in sweep.events() if event["event"] == "started"]) == 2
    (copy,) = (sweep.home / "code").iterdir()
    for run in sweep.states():
        (made,) = RunFolder(sweep.path / run).read("provenance.json")["processes"]
        assert made["snapshot"] == copy.name
    copy.rename(copy.with_name("0" * 12))  # as if the files had been edited since
    code, told = launch_on_slurm(shared_root, *grid)
    assert code == 2 and "its runs have code 000000000000" in told and "hydra.launcher.code=sweep" in told


def test_what_is_wrong_is_told_before_anything_is_submitted(slurm, shared_root):
    known = len(sh("squeue", "-h", "-t", "all").splitlines())
    for overrides, expected in [
        (["hydra.launcher.partition=nosuch"], "hydra.launcher.partition=nosuch: this Slurm has high, main"),
        (["hydra.launcher.ranks=3"], "cannot be shared evenly by 3 ranks"),
        (["nosuch=1"], "nosuch: unknown key"),
    ]:
        code, told = launch_on_slurm(shared_root, "seed=0", "run.sweep=bad", *overrides)
        assert code != 0 and expected in told and "Traceback" not in told, told
    assert not (shared_root / "bad").exists()
    assert len(sh("squeue", "-h", "-t", "all").splitlines()) == known


def test_what_slurm_itself_refuses_is_told(slurm, shared_root):
    code, told = launch_on_slurm(shared_root, "seed=0", "run.sweep=refused", "+hydra.launcher.sbatch.begin=nonsense")
    assert code == 2 and "Slurm refused the jobs" in told and "Traceback" not in told
    (state,) = Sweep(shared_root / "refused").states().values()
    assert state.state == "interrupted"


def test_no_slurm_here_and_a_slurm_that_does_not_answer(slurm, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(NoAnswer, match="is SLURM_CONF set, and the cluster up"):
        patch.delenv("SLURM_CONF")
        ask("sinfo", "-h")
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"no Slurm on this machine.*slurm/local/up.sh"):
        patch.setenv("PATH", "")
        ask("sinfo", "-h")


def test_up_twice_is_the_same_slurm(slurm):
    before = sh("sinfo", "-h", "-o", "%N")
    done = subprocess.run([LOCAL / "up.sh"], env={**os.environ, "SLURM_HOME": str(slurm)}, capture_output=True, text=True)
    assert done.returncode == 0 and "already up" in done.stderr and sh("sinfo", "-h", "-o", "%N") == before


def test_a_run_by_hand_starts_its_ranks_and_requeues_itself(slurm, shared_root, tmp_path):
    """Two ranks under srun; SIGUSR2 as before the time limit."""
    overrides = [*TINY, f"run.root={shared_root}", "run.sweep=hand", *LONG]
    log = tmp_path / "out"
    options = ["--parsable", "--ntasks=2", "--mem=2G", f"--output={log}", f"--export=ALL,PYTHON={sys.executable}"]
    job = sh("sbatch", *options, "slurm/train.sbatch", *overrides).strip()
    until(lambda: list((shared_root / "hand").glob("*/metrics.jsonl")))
    (path,) = (shared_root / "hand").glob("*/metrics.jsonl")
    folder = RunFolder(path.parent)
    until(lambda: rows(folder) > 4)
    sh("scancel", "--signal=USR2", job)
    until(lambda: folder.state in ("done", "collapsed"))
    kinds = [event["kind"] for event in folder.events()]
    assert "preempted" in kinds and "resumed" in kinds and len(folder.metrics()) == 41
    assert len(folder.read("provenance.json")["processes"]) == 2


def test_ranks_of_a_run_stop_and_resume_together(slurm, multirun, shared_root, undisturbed):
    """Two ranks under srun, put back into the queue with SIGTERM alone, then rank 1 is killed."""
    sweep = Sweep(shared_root / "ranks")
    grid = ["seed=0", *LONG, "run.sweep=ranks", "hydra.launcher.ranks=2"]
    launcher = multirun(*grid)
    until(lambda: sweep.states() and rows(sweep.folder(by_seed(sweep)[0])) > 8)
    run = by_seed(sweep)[0]
    folder = sweep.folder(run)
    sh("scontrol", "requeue", started(sweep, run)[0]["job"])
    until(lambda: len(started(sweep, run)) == 2 and len(folder.read("provenance.json")["processes"]) == 2)
    begun = rows(folder)
    until(lambda: rows(folder) > begun)
    (step,) = sh("pgrep", "-f", f"slurmstepd: .{started(sweep, run)[0]['job'].split('_')[0]}.*[.]0").split()
    ranks = {psutil.Process(pid).environ()["SLURM_PROCID"]: pid for pid in map(int, sh("pgrep", "-P", step).split())}
    os.kill(ranks["1"], signal.SIGKILL)
    told = output(launcher)
    assert launcher.returncode == 1 and "interrupted: rank 1 died" in told, told
    assert launch_on_slurm(shared_root, *grid)[0] == 0
    kinds = [event["kind"] for event in folder.events()]
    assert (kinds.count("preempted"), kinds.count("resumed")) == (1, 2)
    assert_same(folder.metrics()[:2], undisturbed[0][:2])  # until the rounding of sums moves a number to another FP8 code
    assert len(folder.metrics()) == len(undisturbed[0])
