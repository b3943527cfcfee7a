"""The installed package: the wheel beside an old torch and without extras, what each extra brings, and the refusal without it."""

import ast
import itertools
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import faultline
from harness.dumps import files
from harness.extras import EXTRAS, absence
from tests.analysis import synthetic
from tests.faultline.tools.replay.cases import random_columns

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv/oldest"
"""Made by `make .venv/oldest/installed` (tests/oldest.py)."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("algos", "harness", "experiments", "sweeps", "analysis", "faultline", "hydra_plugins")
MODULES = {
    "annotated-types": "annotated_types",
    "hydra-core": "hydra",
    "math-verify": "math_verify",
    "pyyaml": "yaml",
    "reasoning-gym": "reasoning_gym",
}
"""Distribution -> its module, where the names differ."""
BROUGHT = {
    "markupsafe": "jinja2",
    "PIL": "matplotlib",
    "google": "wandb",
    "omegaconf": "hydra-core",
    "huggingface_hub": "transformers",
    "nbformat": "nbclient",
    "IPython": "ipykernel",
}
"""Module -> the package here that cannot do without it."""


def names(requirements: list[str]) -> list[str]:
    return [re.match(r"[\w-]+", requirement)[0] for requirement in requirements]


def modules_of(requirements: list[str]) -> set[str]:
    return {MODULES.get(name, name) for name in names(requirements)} - {"faultline"}


BASE = modules_of(PROJECT["project"]["dependencies"])
EXTRAS_OF_PROJECT = PROJECT["project"]["optional-dependencies"]
OPTIONAL = {name: modules_of(needed) for name, needed in EXTRAS_OF_PROJECT.items()}


@pytest.mark.slow
def test_every_import_is_of_the_base_or_of_an_extra_that_is_told():
    """Verl and TRL are those of the frameworks that the integrations belong to."""
    imported = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    imported.add(node.module.partition(".")[0])
    outside = imported - set(sys.stdlib_module_names) - {*PACKAGES, "verl", "trl"} - BASE - BROUGHT.keys()
    assert outside == {module for modules in EXTRAS.values() for module in modules} - BROUGHT.keys()
    named = [*PROJECT["project"]["dependencies"], *itertools.chain(*EXTRAS_OF_PROJECT.values())]
    assert set(BROUGHT.values()) <= set(names(named))


def test_an_extra_brings_what_it_is_told_for():
    for extra, modules in EXTRAS.items():
        assert {MODULES.get(BROUGHT[m], BROUGHT[m]) if m in BROUGHT else m for m in modules} <= OPTIONAL[extra], extra
    error = ModuleNotFoundError("No module named 'optuna.trial'", name="optuna.trial")
    said = "optuna is not installed; in the checkout this installs it: pip install -e '.[search]'"
    assert absence(error) == f"{said} (not in the environment of verl, SkyRL or TRL: it changes transformers)"
    assert absence(ModuleNotFoundError("No module named 'wandb'", name="wandb")).endswith("pip install -e '.[wandb]'")
    assert absence(ModuleNotFoundError("No module named 'my_loss'", name="my_loss")) is None


def test_lower_bounds_are_the_versions_that_are_tested():
    """3.13 has no wheel of numpy 1.26, so that its own version stands beside."""
    lines = [line.partition(";")[0].strip() for line in (ROOT / "constraints-oldest.txt").read_text().splitlines()]
    oldest = dict(line.split("==") for line in lines[::-1] if line and not line.startswith("#"))
    bounds = {}
    for requirement in PROJECT["project"]["dependencies"]:
        name, bound = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        bounds[name] = bound
    assert bounds.keys() == oldest.keys()
    for name, bound in bounds.items():
        parts = oldest[name].split(".")
        assert bound in {".".join(parts[:n]) for n in (1, 2, 3)}, name


@pytest.mark.parametrize("repository", ["", "https://github.com/owner/name"])
def test_the_description_has_no_link_that_an_index_cannot_follow(repository):
    """An index has no file of the repository: a link is absolute or within the page, and every word of README.md stays."""
    build, readme = runpy.run_path(str(ROOT / "setup.py")), (ROOT / "README.md").read_text(encoding="utf-8")
    text = build["description"](readme, repository)
    assert all(re.match(r"https://|#", target) for target in re.findall(r"\]\(([^)]+)\)", text))
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures == ([f"{repository}/raw/HEAD/docs/bug-cost-lines.png"] if repository else [])
    links = build["links"](repository)
    assert links.get("Source", "") == repository and all(target.startswith("https://") for target in links.values())
    assert (ROOT / "docs/index.md").exists() and len(text.split()) == len(readme.split())


def run(*words, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Without PYTHONPATH, which would put the working tree before the wheel."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder of the commands of the old environment, with the wheel of the working tree installed."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", source / "dist", source)
    assert built.returncode == 0, built.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    done = run(OLDEST / "bin/python", "-m", "pip", "install", "--no-deps", "--force-reinstall", wheel)
    assert done.returncode == 0, done.stderr
    return OLDEST / "bin"


THEIRS = "algorithm: {rollout_correction: {rollout_is: token, rollout_is_threshold: 2.0}}"
WITHOUT_EXTRAS = [
    "doctor",
    "replay --example",
    "gradient --enumerable --losses pg --corrections none",
    "import-config theirs.yaml",
    "import-config run.sh",
    "report sweep",
]
NEEDS = {
    "train steps=1": "train",
    "branch runs/a/b": "train",
    "gradient runs/a/b": "train",
    "doctor --parity": "train",
    "memory": "train",
    "search token_upper": "search",
    "report wandb:project": "wandb",
}
"""Command -> the extra that it needs."""
COMMANDS = """
import contextlib, io, json, sys
from faultline.cli import main

for command in json.loads(sys.argv[1]):
    out, error, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(command.split())
        except SystemExit as exit:
            code = exit.code
    print(json.dumps([command, code, out.getvalue(), error.getvalue()]))
"""
"""One process for all commands: importing torch takes longer than they do."""


@pytest.mark.slow
@pytest.mark.oldest
class TestOldest:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory) -> Path:
        """With a dump, a sweep and verl's config."""
        folder = tmp_path_factory.mktemp("work")
        files.write(folder / "step-7.parquet", random_columns())
        (folder / "theirs.yaml").write_text(THEIRS)
        (folder / "run.sh").write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.top_p=0.9\n")
        for seed in (0, 1):
            for precision, collapse in (("fp32", None), ("fp8_tensor", 30 + 10 * seed)):
                synthetic.write(folder / "sweep", f"rollout/precision={precision}", seed=seed, steps=60, collapse=collapse)
        return folder

    @pytest.fixture(scope="class")
    def outcomes(self, installed, folder) -> dict[str, tuple[int, str, str]]:
        """Command -> exit code, output, errors."""
        done = run(installed / "python", "-c", COMMANDS, json.dumps([*WITHOUT_EXTRAS, *NEEDS]), cwd=folder)
        assert done.returncode == 0, done.stderr
        return {command: result for command, *result in map(json.loads, done.stdout.splitlines())}

    def test_nothing_of_the_base_is_missing_and_torch_is_old(self, installed, folder):
        """pip misses the CUDA packages of this torch alone, which tests/oldest.py replaces. min(e¹, 2) and min(e⁰, 2)."""
        missing = run(installed / "python", "-m", "pip", "check").stdout.splitlines()
        assert all(re.match(r"torch 2\.6\.0 requires (nvidia-|triton)|No broken", line) for line in missing)
        code = (
            "import faultline, torch; print(faultline.__file__, torch.__version__);"
            "c = faultline.Correction(weight=faultline.Weight('token', 'truncate', upper=2.0));"
            "print(faultline.correct(correction=c, logp_old=[[-1.0, -1.5]], logp_rollout=[[-2.0, -1.5]]).weights.tolist())"
        )
        imported, weights = run(installed / "python", "-c", code, cwd=folder).stdout.splitlines()
        path, version = imported.split()
        assert Path(path).resolve().is_relative_to(OLDEST.resolve()) and version.startswith("2.6.0")
        assert weights == "[[2.0, 1.0]]"

    def test_replay_gives_the_same_numbers(self, installed, folder):
        done = run(installed / "faultline", "replay", "step-7.parquet", "--out", "replayed", cwd=folder)
        assert done.returncode == 0, done.stderr
        here = faultline.replay(folder / "step-7.parquet")
        for name in ("corrections", "thresholds", "profiles"):
            old = pd.read_csv(folder / f"replayed/{name}.csv")
            new = getattr(here, name)[list(old)].reset_index(drop=True)
            pd.testing.assert_frame_equal(old, new, check_dtype=False, rtol=1e-9)

    def test_report_gives_the_same_numbers(self, outcomes, folder):
        from analysis.report import report

        assert outcomes["report sweep"][0] == 0, outcomes["report sweep"]
        report(str(folder / "sweep"), folder / "here", None, ())
        tables = sorted(path.name for path in (folder / "here").glob("*.csv"))
        assert tables
        for name in tables:
            pd.testing.assert_frame_equal(*(pd.read_csv(folder / where / name) for where in ("sweep", "here")), rtol=1e-9)
        assert "<html" in (folder / "sweep/report.html").read_text()

    @pytest.mark.parametrize("command", WITHOUT_EXTRAS)
    def test_what_needs_no_extra(self, outcomes, command):
        code, out, error = outcomes[command]
        assert code == 0 and out, error

    @pytest.mark.parametrize(("command", "extra"), NEEDS.items())
    def test_what_needs_an_extra_says_which(self, outcomes, command, extra):
        code, _, error = outcomes[command]
        assert code == 2
        assert re.search(rf"\w+ is not installed; in the checkout this installs it: pip install -e '\.\[{extra}\]'", error)
