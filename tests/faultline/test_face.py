"""`import faultline`: what it costs, what it offers, and what its functions accept."""

import doctest
import math
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import faultline
import faultline.api
from harness.dumps import files
from harness.errors import UserError
from tests.faultline.tools.replay.cases import random_columns

ROOT = Path(faultline.__file__).parents[1]
HEAVY = ("torch", "numpy", "pandas", "transformers", "deepspeed", "hydra", "pydantic", "matplotlib", "wandb", "optuna")


def imported_by(code: str) -> str:
    """The heavy modules that a fresh process has imported after `code`."""
    shown = f"import sys\n{code}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import faultline",
        "import faultline; faultline.Correction(reject={'far': faultline.Reject('sequence', upper=2.0)})",
        "from faultline import Correction, Weight; Correction(weight=Weight('token', 'truncate', upper=2.0))",
        "import faultline; faultline.losses.names(), faultline.__version__, dir(faultline)",
        "import faultline.cli; faultline.cli.build_parser().format_help()",
    ],
)
def test_importing_costs_nothing_heavy(code):
    assert imported_by(code) == ""


@pytest.mark.slow
def test_torch_comes_with_the_first_function_that_needs_it():
    assert "torch" in imported_by("import faultline; faultline.correct").split()


def test_every_public_name_is_there_and_none_is_hidden_by_a_module():
    """A submodule of the same name would replace a function once something imports it."""
    assert all(getattr(faultline, name) is not None for name in faultline.__all__)
    assert set(faultline.__all__) <= set(dir(faultline))
    assert not {module.name for module in pkgutil.iter_modules(faultline.__path__)} & set(faultline.__all__)
    assert set(faultline._SOURCES) == set(faultline.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'corect'; it has Batch, Correction, .*correct"):
        _ = faultline.corect


def test_every_example_in_a_docstring_gives_what_it_says():
    results = doctest.testmod(faultline.api)
    assert results.failed == 0
    documented = {test.name for test in doctest.DocTestFinder().find(faultline.api) if test.examples}
    assert documented == {f"faultline.api.{name}" for name in ("correct", "mismatch", "diagnostics", "load", "replay")}


# l = (log 4, log 0.8) and (0,): ratios 4, 0.8 and 1.
OLD = np.array([[-1.0, -2.0 + math.log(0.8)], [-1.5, -9.0]])
ROLLOUT = np.array([[-1.0 - math.log(4), -2.0], [-1.5, -3.0]])
MASK = np.array([[True, True], [True, False]])
ARRAYS = {"logp_old": OLD, "logp_rollout": ROLLOUT, "mask": MASK}
CAPPED = faultline.Correction(weight=faultline.Weight("token", "truncate", upper=2.0))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist], ids=["numpy", "torch", "lists"])
def test_a_batch_of_any_kind_of_array_is_corrected(kind):
    """min(4, 2), min(0.8, 2), min(1, 2); 0 off the mask."""
    corrected = faultline.correct(correction=CAPPED, **{name: kind(array) for name, array in ARRAYS.items()})
    torch.testing.assert_close(corrected.weights.double(), torch.tensor([[2.0, 0.8], [1.0, 0.0]]).double(), atol=1e-6, rtol=0)
    assert corrected.kept.tolist() == corrected.counted.tolist() == MASK.tolist()


def test_a_batch_gives_what_its_arrays_give():
    batch = faultline.Batch(*(torch.as_tensor(array) for array in (ROLLOUT, MASK, OLD)))
    of_batch, of_arrays = faultline.correct(batch, correction=CAPPED), faultline.correct(correction=CAPPED, **ARRAYS)
    assert torch.equal(of_batch.weights, of_arrays.weights)
    assert faultline.mismatch(batch) == pytest.approx(faultline.mismatch(**ARRAYS), rel=0, nan_ok=True)  # Pareto k: too few


def test_statistics_are_floats():
    """ESS of the weights (2, 0.8, 1): 3.8²/(3·5.64) = .8534; the largest ratio is 4; K1 = −(log 4 + log 0.8 + 0)/3."""
    stats = faultline.diagnostics(correction=CAPPED, **ARRAYS)
    assert all(type(value) is float for value in stats.values())
    assert stats["correction/weight_mean"] == pytest.approx(3.8 / 3)
    assert stats["correction/weight_ess"] == pytest.approx(3.8**2 / (3 * 5.64))
    assert stats["mismatch/ratio_max"] == pytest.approx(4.0)
    assert stats["rollout_corr/kl"] == pytest.approx(-math.log(3.2) / 3)
    mismatch = faultline.mismatch(**ARRAYS)
    assert {name: stats[name] for name in mismatch} == pytest.approx(mismatch, nan_ok=True)


def test_a_correction_may_be_named():
    """icepop masks tokens outside [0.5, 5]: all three ratios lie inside."""
    assert faultline.correct(correction="icepop", **ARRAYS).weights[0].tolist() == pytest.approx([4.0, 0.8])
    with pytest.raises(UserError, match=r"correction icepopp: unknown; known are .*icepop"):
        faultline.correct(correction="icepopp", **ARRAYS)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logp_old": None}, r"logp_old missing: give logp_old and logp_rollout, \[B, T\], or batch"),
        ({"logp_old": OLD[0]}, r"logp_old has shape \[2\], logp_rollout \[2, 2\]"),
        ({"mask": MASK[:1]}, r"mask has shape \[1, 2\], logp_rollout \[2, 2\]"),
        ({"mask": np.array([[1, 2], [1, 0]])}, "mask holds other numbers than 0 and 1"),
        ({"mask": np.ones((2, 2))[:, :0]}, r"mask has shape \[2, 0\]"),
        ({"logp_rollout": np.array([[-1.0, np.nan], [-1.0, np.nan]])}, r"logp_rollout\[0, 1\] is nan: log-probabilities are"),
        ({"logp_old": -OLD}, r"logp_old\[0, 0\] is 1: log-probabilities are finite and at most 0; set mask to False"),
        ({"logp_old": OLD.astype(int)}, "logp_old holds torch.int64: give floats"),
        ({"logp_old": [[-1.0], [-1.0, -2.0]]}, "logp_old: cannot be a tensor .*padded to one length"),
        ({"segments": OLD}, "segments holds torch.float64: give integers"),
    ],
)
def test_an_array_that_cannot_be_used_is_named(arrays, message):
    with pytest.raises(ValueError, match=message):
        faultline.correct(correction=CAPPED, **(ARRAYS | arrays))


def test_a_batch_and_arrays_together_are_refused():
    batch = faultline.Batch(*(torch.as_tensor(array) for array in (ROLLOUT, MASK, OLD)))
    with pytest.raises(ValueError, match="batch and single arrays: give one or the other"):
        faultline.mismatch(batch, logp_old=OLD)
    with pytest.raises(ValueError, match=r"batch is a ndarray: give a faultline.Batch, or the arrays by name"):
        faultline.mismatch(OLD)
    with pytest.raises(ValueError, match="segments"):
        faultline.correct(correction=faultline.Correction(weight=faultline.Weight("segment", "truncate", upper=2.0)), **ARRAYS)


def test_a_dump_is_loaded_and_replayed(tmp_path):
    """Two steps are two batches. Corrections of one's own go by their names; a threshold's row has its bound."""
    for step in (7, 8):
        files.write(tmp_path / f"step-{step}.parquet", random_columns(seed=step) | {"step": np.full(24, step)})
    batches = faultline.load(tmp_path)
    assert [len(batch.mask) for batch in batches] == [24, 24] and isinstance(batches[0], faultline.Batch)
    frames = faultline.replay(str(tmp_path), {"capped": CAPPED})
    assert list(frames.corrections.correction) == ["capped"] and not frames.skipped
    weights = [faultline.correct(batch, correction=CAPPED).weights[batch.mask] for batch in batches]
    assert frames.corrections["effect/weight_mean"].item() == pytest.approx(torch.cat(weights).mean().item(), rel=1e-12)
    assert len(frames.thresholds) == 1000 * frames.thresholds.family.nunique()
    assert set(frames.profiles.by) == {"position", "length"}
    assert frames.mismatch["rollout_corr/k3_kl"] > 0


def in_a_folder_with(tmp_path, *modules):
    """The exit code and the last line of a process that uses faultline beside these modules of the working folder."""
    for module in modules:
        file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
        for folder in file.relative_to(tmp_path).parents:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "__init__.py").touch()
        file.write_text("MINE = 1")
    code = f"""
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
sys.path[:0] = ["", {str(ROOT)!r}]
import faultline.integrations.verl, faultline.integrations.trl
faultline.correct(correction="icepop", logp_old=[[-1.0]], logp_rollout=[[-1.0]])
{"".join(f"import {module}; {module}.MINE; " for module in modules)}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


@pytest.mark.slow
def test_a_working_folder_has_packages_of_the_same_names(tmp_path):
    """Both programs import their own modules; a package without an installed finder, as of a wheel."""
    assert in_a_folder_with(tmp_path, "harness.mine", "analysis.plots", "experiments.first") == (0, "")


def test_a_module_that_both_have_is_refused_by_name(tmp_path):
    code, line = in_a_folder_with(tmp_path, "harness.errors")
    assert code == 1 and line.startswith(f"ImportError: {tmp_path}/harness hides faultline's own harness, and both have errors: ")


def test_in_another_clone_a_command_says_so_in_a_line(tmp_path):
    for file in ("faultline/rooms.py", "algos/__init__.py", "algos/batch.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    command = "import sys; sys.path.pop(0); from faultline.cli import main; main(sys.argv[1:])"
    installed = {**os.environ, "PYTHONPATH": str(ROOT)}
    called = [sys.executable, "-c", command, "train", "steps=1"]
    done = subprocess.run(called, capture_output=True, text=True, cwd=tmp_path, env=installed)
    told = f"{tmp_path} is another clone of Faultline than the installed {ROOT}: run elsewhere, or install it"
    assert (done.returncode, done.stderr.strip()) == (2, told)
