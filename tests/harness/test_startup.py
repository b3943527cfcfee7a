"""A start leaves out much: garbage collection within `uncollected`, and libraries that a command does not need."""

import gc
import os
import subprocess
import sys

import pytest

from algos.registry import installed
from harness.startup import environment, uncollected
from tests.harness.paused_runs import CONTEXT

COMPUTING = ("torch", "numpy", "scipy", "pandas", "pyarrow", "transformers", "deepspeed", "matplotlib", "wandb", "optuna")


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()


def test_nothing_is_collected_within_and_what_stays_is_never_walked_again(thawed):
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled() and gc.get_freeze_count() >= before + len(kept)


def test_garbage_is_collected_again_after_an_error(thawed):
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_who_collects_by_hand_goes_on_to(thawed):
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "without"),
    [
        ("from experiments.train import main; main(['--help'])", COMPUTING),
        ("from experiments.train import main; main(['--cfg', 'job'])", COMPUTING),
        ("from faultline.cli import main; main(['--help'])", (*COMPUTING, "hydra", "omegaconf", "pydantic", "yaml")),
        ("from faultline.cli import main; main(['report', '--help'])", (*COMPUTING, "hydra", "omegaconf", "pydantic", "yaml")),
    ],
    ids=["train --help", "train --cfg job", "faultline --help", "report --help"],
)
def test_a_command_that_computes_nothing_imports_nothing_to_compute_with(command, without):
    """The memory of a process of its own, once it has printed."""
    shown = f"print(*sorted(set({without}) & set(sys.modules)), file=sys.stderr)"
    code = f"import sys\ntry: {command}\nexcept SystemExit: pass\n{shown}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout and done.stderr.strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch.jsonl"],
        ["bad.jsonl"],
        ["--example", "--precision", "nosuch"],
        ["--example", "--corrections", "nosuch"],
        ["--example", "--gate", "nosuch<1"],
    ],
    ids=" ".join,
)
def test_a_refused_replay_imports_nothing_to_compute_with(arguments, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"logp_rollout": [-1.0], "logp_old": [-1.0]}\n{\n')
    shown = "print(*sorted({'torch', 'scipy', 'matplotlib'} & set(sys.modules)))"
    code = f"import sys\nfrom faultline.cli import main\ntry: main(['replay', *{arguments}])\nfinally: {shown}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout.strip() == "", done.stderr


def test_a_variable_is_set_within_and_comes_back_as_it_was(monkeypatch):
    monkeypatch.setenv("SET_BEFORE", "before")
    monkeypatch.delenv("NOT_SET_BEFORE", raising=False)
    with pytest.raises(ImportError), environment("SET_BEFORE", "1"), environment("NOT_SET_BEFORE", "2"):
        assert (os.environ["SET_BEFORE"], os.environ["NOT_SET_BEFORE"]) == ("1", "2")
        raise ImportError
    assert os.environ["SET_BEFORE"] == "before" and "NOT_SET_BEFORE" not in os.environ


COMPILERS = ("torch._inductor.compile_fx", "networkx", "setuptools", "distutils")
"""Modules that torch.compile imports, and those that look for a C compiler."""


def _train_a_step(said) -> None:
    from tests.harness.train.model.test_actor import SHAPE, build, data, settings

    there, read = set(sys.modules), installed.cache_info().currsize
    from harness.train.model.actor import DeepSpeedActor

    actor = DeepSpeedActor(build(SHAPE, 0), settings(zero_stage=1))
    prompts, tokens, weights = data(0)
    actor.backward((actor.logp(prompts, tokens)[0] * weights).mean(), last=True)
    actor.step()
    imported = {name.partition(".")[0] for name in sys.modules.keys() - there}
    said.send((read, sorted(imported), sorted(set(COMPILERS) & set(sys.modules)), "pandas" in there))


@pytest.mark.slow  # the server's own start is five seconds of CPU
def test_a_forked_run_finds_all_imported_and_no_compiler():
    """DeepSpeed's own modules may come with a model; a library that does is one that every run of a sweep pays for."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_train_a_step, args=(there,))
    process.start()
    process.join()
    read, imported, compilers, pandas = here.recv()
    assert pandas and read == 1, "the server has read the entry points once"
    assert set(imported) <= {"deepspeed", "harness", "torch"}
    assert compilers == []
