"""A config small enough for a test, composed by Hydra as a user's run is."""

import functools
import gc
import re
from pathlib import Path

import pytest

from harness.compose import compose
from harness.config import Config, parse

TINY = [
    "tracking=disabled",
    "task.length=4",
    "task.slip=0.15",
    "task.modulus=5",
    "model.hidden_size=32",
    "model.num_hidden_layers=2",
    "model.intermediate_size=64",
    "warmstart.steps=150",
    "warmstart.keep_low=0.05",
    "warmstart.keep_high=0.95",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "evaluation.every=2",
    "evaluation.prompts=4",
    "evaluation.samples=4",
    "actor.lr=3e-4",
    "steps=4",
]


@pytest.fixture(scope="session")
def root(tmp_path_factory) -> Path:
    """One root for all runs of the session, so that the warm start is made once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def tiny(root, request):
    """tiny("key=value", ...) -> a Config in a sweep of the test's own."""

    def make(*overrides: str) -> Config:
        sweep = "run.sweep=" + re.sub(r"[^\w.-]+", "-", request.node.name)
        return parse(compose(*TINY, f"run.root={root}", sweep, *overrides))

    return make


@pytest.fixture(autouse=True, scope="module")
def engines_end(request):
    """vLLM's engines of a file end with it. Each is frozen out of garbage collection, and has a KV cache of its own.

    One collection serves them all, and what is left is exempt from later ones, as after the imports (tests/conftest.py).
    """
    mine = [item for item in request.session.items if item.path == request.path]
    if not any(item.get_closest_marker("vllm") for item in mine):
        yield
        return
    from harness.rollouts.vllm import VllmEngine

    made, init = [], VllmEngine.__init__

    @functools.wraps(init)
    def counted(self, *given, **settings):
        init(self, *given, **settings)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VllmEngine, "__init__", counted)
        yield
        collect = gc.collect
        patch.setattr(gc, "collect", lambda: 0)
        for engine in made:
            engine.close()
    collect()
    gc.freeze()
