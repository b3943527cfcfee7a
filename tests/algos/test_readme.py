"""algos/README.md names everything that is registered or reported, and the functions that it names by module exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from algos.corrections.spec import REDUCTIONS, Correction, Reject, Weight
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import ADVANTAGES, CORRECTIONS, KL, LOSSES
from tests.algos.algo_cases import of_ratio

TEXT = Path("algos/README.md").read_text()


@pytest.mark.parametrize("name", [name for registry in (LOSSES, ADVANTAGES, CORRECTIONS, KL) for name in registry.names()])
def test_what_is_registered(name):
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    assert re.search(rf"\b{name} Σ", TEXT)


def test_every_metric():
    batch = of_ratio(torch.tensor([[0.5, -0.5]]), torch.ones(1, 2, dtype=torch.bool))
    weight, reject = Weight("token", "mask", 0.5, 2.0), {"NAME": Reject("geometric", upper=2.0)}
    spec = Correction(weight=weight, reject=reject, normalize="batch")
    reported = [*finish_diagnostics(correct_with_diagnostics(batch, spec)[1], spec), *probabilities(batch)]
    names = {name.split("/")[1].replace("rollout_rs_NAME", "NAME") for name in reported}
    for name in positions(batch):
        names.add(re.sub(r"(position|length)_\d+$", lambda found: f"{found[1]}_{found[1][0].upper()}", name.split("/")[1]))
    assert names - set(re.findall(r"[\w.]+", TEXT)) == set()


def test_functions_by_module():
    for module, name in re.findall(r"`(\w+)\.(\w+)`", TEXT):
        if module in ("Counts", "Objective") or Path(f"algos/{module}.py").exists():
            owner = {"Counts": Counts, "Objective": Objective}.get(module) or importlib.import_module(f"algos.{module}")
            assert hasattr(owner, name), (module, name)


def test_the_conformance_table_names_tests_that_exist():
    named = set(re.findall(r"`(test_\w+)`", Path("docs/conformance.md").read_text()))
    texts = [path.read_text() for path in Path("tests").rglob("test_*.py")]
    written = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M)}
    assert len(named) > 25 and named <= written, named - written
