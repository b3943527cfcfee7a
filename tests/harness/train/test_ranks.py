"""Two real ranks, also under real launchers: the numbers of one rank, and an end together when one is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from harness.build import build_task
from harness.errors import UserError
from harness.models import build, policy_config
from harness.run.folder import RunFolder, run_folders
from harness.run.loop import train
from harness.train.model.actor import DeepSpeedActor
from harness.train.ranks import Watch, check_ranks
from tests.harness.conftest import TINY
from tests.harness.paused_runs import is_paused, port, signal_pending, signal_when_paused, start_ranks, wait_for_end
from tests.harness.train.test_trainer import folder_of, untimed
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

RECIPE = ["entropy_coeff=0.01", "kl=k3", "kl.place=reward", "kl.coef=0.1", "kl.target=1e-3", "kl.horizon=100",
          "rollout.filter.max_rounds=2", "actor.schedule.warmup_steps=1"]  # fmt: skip
SHARED = ["rollout/precision=fp32", "actor.num_minibatches=2", "correction=token_truncate", "correction.normalize=batch"]
BINARIES = Path(sys.executable).parent


def torchrun(*arguments: str, module: str = "experiments.train") -> list[str]:
    command = [str(BINARIES / "torchrun"), "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port()}"]
    return [*command, "-m", module, *arguments]


def run(command: list[str], **environment: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BINARIES}:{os.environ['PATH']}", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def assert_same(rows: list[dict], expected: list[dict]) -> None:
    """To 1e-5, as rounding allows: ranks add in another order. A gradient norm is of size 1 to 10."""
    assert len(rows) == len(expected) > 0
    for row, other in zip(untimed(rows), untimed(expected), strict=True):
        assert row == pytest.approx(other, rel=1e-5, abs=1e-5)


def test_two_ranks_train_as_one_at_every_zero_stage(tiny, root):
    """Rewards, losses, gradient norms and mismatch of every step; then the checkpoint of two ranks goes on in one."""
    shared = [*SHARED, *RECIPE, "steps=3", "advantage=remax", "reduce=prompt_mean"]
    config = tiny(*shared, "run.sweep=one-rank")
    train(config)
    stages = "actor.zero_stage=1,2,3"
    run(torchrun("-m", *TINY, f"run.root={root}", "run.sweep=two-ranks", *shared, stages))
    folders = run_folders(root / "two-ranks")
    assert {folder.read("config.json")["actor"]["zero_stage"] for folder in folders} == {1, 2, 3}
    for folder in folders:
        assert_same(folder.metrics(), folder_of(config).metrics())
        assert folder.state == "done" and len(folder.read("provenance.json")["processes"]) == 1
        assert_resumes_alike(config, folder)


CRITIC = ["actor.scoring=forward", "kl=k3", "kl.place=reward", "kl.coef=0.1", "advantage=gae", "critic.lr=1e-3"]


@pytest.mark.parametrize(
    ("settings", "metric"), [(CRITIC, "critic/loss"), (["rollout.partial_tokens=2"], "rollout/mixed_versions")]
)
def test_two_ranks_with_a_critic_or_with_parts_of_responses_train_as_one(tiny, root, settings, metric):
    """Values, whitening and the penalty by token are of all rows, and parts go on with their rank."""
    shared, sweep = [*SHARED, *settings, "steps=3"], metric.replace("/", "-")
    config = tiny(*shared, "run.sweep=one-rank")
    train(config)
    run(torchrun("-m", *TINY, f"run.root={root}", f"run.sweep={sweep}", *shared, "actor.zero_stage=1,3"))
    rows = folder_of(config).metrics()
    assert rows[1][metric] > 0
    for folder in run_folders(root / sweep):
        assert_same(folder.metrics(), rows)


def assert_resumes_alike(config, folder: RunFolder) -> None:
    """Weights, and the next step, which optimizer states that were lost would change by its whole size."""
    after = []
    for source, ranks in ((folder, 2), (folder_of(config), 1)):
        settings = config.actor.model_copy(update={"zero_stage": source.read("config.json")["actor"]["zero_stage"]})
        actor = DeepSpeedActor(build(policy_config(config.model, build_task(config)), 5), settings)
        actor.load(source.path / "checkpoints/step-00000003/actor", ranks=ranks)
        before = {name: w.detach().clone() for name, w in actor.weights()}
        tokens = torch.arange(12).view(2, 6) % 5
        actor.backward(-actor.logp(tokens[:, :3], tokens[:, 3:])[0].mean(), last=True)
        actor.step()
        after.append((before, {name: w.detach().clone() for name, w in actor.weights()}))
    (two, stepped), (one, expected) = after
    for name in one:
        assert torch.allclose(two[name], one[name], atol=1e-6), name
        assert torch.allclose(stepped[name] - two[name], expected[name] - one[name], atol=1e-6), name


def test_the_watch_has_ended_before_python_does():
    """A thread within the store is unwound through C++ at the end of Python: "terminate called without an active exception"."""
    watch = Watch(torch.distributed.HashStore(), 0, 1)
    assert watch.is_alive()
    watch._leave()
    assert not watch.is_alive()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_is_named_and_the_other_stops(tiny, victim):
    """Killed without a word after step 7, two steps after a checkpoint; one rank goes on where the two were."""
    length = ["steps=12", "checkpoint.every=5"]
    config = tiny(*SHARED, *length)
    folder = folder_of(config)
    ranks = start_ranks(config, tuple("row 7" if rank == victim else "" for rank in (0, 1)))
    signal_when_paused(ranks[victim], signal.SIGKILL)
    wait_for_end(ranks[victim], code=-signal.SIGKILL)
    wait_for_end(ranks[1 - victim], code=os.EX_TEMPFAIL)
    output = (folder.path / ("log.txt" if victim else "log-1.txt")).read_text()
    assert f"rank {victim} died" in output and f"rank {1 - victim} stops too" in output
    assert folder.state == "interrupted" and f"rank {victim} died" in folder.read("status.json")["error"]

    with contextlib.suppress(SystemExit):
        train_until(config, 8)
    reference = tiny(*SHARED, *length, "run.sweep=one-rank-to-step-8")
    with contextlib.suppress(SystemExit):  # by the second victim's turn it has got there
        train_until(reference, 8)
    rows, expected = (folder_of(c).metrics()[:8] for c in (config, reference))
    assert [event["step"] for event in folder.events() if event["kind"] == "resumed"] == [5]
    assert_same(rows, expected)


@pytest.mark.parametrize(("error", "code"), [("Unavailable", os.EX_TEMPFAIL), ("UserError", 1)])
def test_the_other_ranks_end_with_the_code_of_the_reason(error, code):
    """A full disk of rank 1 may have space the next time, so 75; what it cannot do at all it cannot do then either, so 1."""
    program = f"""if True:
        from harness.errors import Unavailable, UserError
        from harness.train.ranks import join
        ranks = join()
        with ranks.together(lambda rank, reason: None):
            if ranks.rank == 1:
                raise {error}("refused")
            ranks.barrier()"""
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    pair = [
        subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **meeting, "RANK": rank}, stderr=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    told = pair[0].communicate(timeout=PATIENCE)[1].decode()
    pair[1].communicate(timeout=PATIENCE)
    assert pair[0].returncode == code and "rank 1 stopped: refused; rank 0 stops too" in told, told


def train_until(config, step: int) -> None:
    """Train in this process and stop as SIGTERM does once the row of `step` is recorded."""
    log = RunFolder.log_metrics

    def stopping(self, number, metrics):
        log(self, number, metrics)
        if number >= step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "log_metrics", stopping)
        train(config)


def test_two_ranks_stopped_and_started_again_give_the_same_bits(tiny, root):
    """SIGTERM to torchrun reaches both ranks, which save together; two ranks then go on as if nothing had been."""
    shared = [*SHARED, "actor.zero_stage=2", "actor.dtype=bf16", "steps=8"]
    undisturbed, stopped = (tiny(*shared, f"run.sweep={name}-pair") for name in ("undisturbed", "stopped"))
    wait_for_end(*start_ranks(undisturbed))
    command = torchrun("row 5", *TINY, f"run.root={root}", *shared, "run.sweep=stopped-pair", module="tests.harness.paused_runs")
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: any(map(is_paused, psutil.Process(launcher.pid).children())), lambda: launcher.poll() is None)
    (held,) = filter(is_paused, psutil.Process(launcher.pid).children())
    launcher.terminate()
    until(lambda: signal_pending(held.pid, signal.SIGTERM), lambda: launcher.poll() is None)
    held.resume()
    launcher.communicate(timeout=PATIENCE)
    folder = folder_of(stopped)
    assert folder.state == "preempted" and folder.read("status.json")["step"] == 5
    wait_for_end(*start_ranks(stopped))
    assert [event["step"] for event in folder.events() if event["kind"] == "resumed"] == [5]
    assert untimed(folder.metrics()) == untimed(folder_of(undisturbed).metrics())


def test_the_deepspeed_launcher_starts_ranks(tiny, root):
    config = tiny(*SHARED, "steps=1", "run.sweep=deepspeed-launcher")
    launcher = [str(BINARIES / "deepspeed"), "--num_gpus=2", "--master_addr=127.0.0.1", f"--master_port={port()}"]
    overrides = [*TINY, *SHARED, "steps=1", "run.sweep=deepspeed-launcher", f"run.root={root}"]
    output = run([*launcher, "--module", "experiments.train", *overrides])
    assert folder_of(config).state == "done" and output.count("step 1/1") == 1  # rank 0 alone speaks


def test_srun_starts_ranks(tiny, root):
    """The variables that srun gives each task of a step; rank 0 listens on loopback alone."""
    config = tiny(*SHARED, "steps=5", "run.sweep=srun")
    overrides = [*TINY, *SHARED, "steps=5", "run.sweep=srun", f"run.root={root}"]
    tasks = []
    for rank in ("0", "1"):
        step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
        env = {**os.environ, **step, "SLURM_JOB_ID": "4711", "SLURM_PROCID": rank, "SLURM_LOCALID": rank}
        tasks.append(subprocess.Popen([sys.executable, "-m", "experiments.train", *overrides], env=env))
    listening = set()
    while any(task.poll() is None for task in tasks):
        for task in tasks:
            with contextlib.suppress(psutil.Error):
                connections = psutil.Process(task.pid).net_connections()
                listening |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
        time.sleep(0.1)
    assert [task.returncode for task in tasks] == [0, 0] and folder_of(config).state == "done"
    assert listening == {"127.0.0.1"}


VLLM = ["rollout/engine=vllm", "rollout.engine.kv_cache_gib=0.25", "actor.num_minibatches=2", "steps=2",
        "correction=token_truncate"]  # fmt: skip


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("group", "k3", "engine"),
    [
        pytest.param(
            1,
            (1e-4, 1),
            ["rollout/precision=bf16", "rollout.kv_cache=fp8_e4m3"],
            id="an FP8 engine each",
            marks=pytest.mark.cpu_fp8_cache,
        ),
        # Cut in two it adds in another order, which must not be multiplied by a coarse format.
        pytest.param(2, (0, 1e-9), ["rollout/precision=fp32"], id="one engine together"),
    ],
)
def test_two_ranks_with_vllm_train_as_one(tiny, group, k3, engine):
    """The same tokens, so the same rewards, losses and gradients, to 1e-5."""
    config = tiny(*VLLM, *engine, f"run.sweep=vllm-one-{group}")
    train(config)
    pair = tiny(*VLLM, *engine, f"rollout.engine.tensor_parallel={group}", f"run.sweep=vllm-two-{group}")
    wait_for_end(*start_ranks(pair))
    rows, expected = folder_of(pair).metrics(), folder_of(config).metrics()
    assert k3[0] < expected[0]["rollout_corr/k3_kl"] < k3[1]  # the format is really there
    assert_same(rows, expected)


def test_rows_that_cannot_be_shared_are_refused(tiny):
    with pytest.raises(UserError, match="16 responses in 2 mini-batches: 8 rows cannot be shared evenly by 3 ranks"):
        check_ranks(tiny(*SHARED), 3)
    with pytest.raises(UserError, match=r"evaluation.prompts x evaluation.samples responses: 15 rows"):
        check_ranks(tiny(*SHARED, "evaluation.prompts=3", "evaluation.samples=5"), 2)


@pytest.mark.parametrize("rule", ["salt", "keep"])
def test_an_engine_that_keeps_state_over_a_sync_is_refused_on_several_ranks(tiny, rule):
    """A checkpoint holds the engine's state of rank 0 alone."""
    given = f"rollout.engine.kv_at_sync={rule}"
    config = tiny("rollout/precision=bf16", "rollout.partial_tokens=2", given)
    check_ranks(config, 1)
    with pytest.raises(UserError, match=rf"{given} on 2 ranks: .* use one rank, or recompute"):
        check_ranks(config, 2)
    check_ranks(tiny("rollout/precision=bf16", "rollout.kv_cache=fp8_e4m3", "rollout.engine.kv_scale=sync"), 2)
