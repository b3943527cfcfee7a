"""What a start leaves out: garbage collection within `uncollected`, and libraries that a command does not need."""

import gc
import subprocess
import sys

import pytest

from harness.startup import uncollected

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
    """Of a process of its own, once it has printed."""
    shown = f"print(*sorted(set({without}) & set(sys.modules)), file=sys.stderr)"
    code = f"import sys\ntry: {command}\nexcept SystemExit: pass\n{shown}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout and done.stderr.strip() == ""
