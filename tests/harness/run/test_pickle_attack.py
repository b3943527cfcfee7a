"""A run folder from a stranger: nothing in it is unpickled or imported, whatever its manifest says."""

import json
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from harness.build import build_task
from harness.compose import compose
from harness.config.trust import plugin_names
from harness.errors import UserError
from harness.models import build, policy_config
from harness.run.folder import RunFolder
from harness.run.manifest import damage_of, digests
from harness.run.restore import find
from harness.train.model.actor import DeepSpeedActor

STATE = {"step": 2, "updates": 2, "ranks": 1, "events": {}, "detectors": {}}


class Payload:
    """A pickle of it runs a command as soon as it is loaded."""

    def __init__(self, witness: Path):
        self.witness = witness

    def __reduce__(self):
        return os.system, (f"touch {self.witness}",)


def test_the_payload_would_run(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "witness")))
    assert (tmp_path / "witness").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "files", "ranks"), [(0, 1, 1), (1, 2, 1), (3, 2, 1), (2, 2, 2)])
def test_no_file_of_a_checkpoint_is_unpickled(tiny, tmp_path, stage, files, ranks):
    """Each file of a checkpoint is forged in turn: model and optimizer, of ZeRO stages, and as read on other ranks."""
    config = tiny(f"actor.zero_stage={stage}")
    actor = DeepSpeedActor(build(policy_config(config.model, build_task(config)), 0), config.actor)
    actor.save(tmp_path / "sound")
    before = {name: weight.detach().clone() for name, weight in actor.weights()}
    actor.load(tmp_path / "sound", ranks)
    assert all(torch.equal(weight, before[name]) for name, weight in actor.weights())
    names = sorted(path.name for path in (tmp_path / "sound" / "actor").glob("*.pt"))
    assert len(names) == files
    for name in names:
        witness, path = tmp_path / f"witness-{name}", tmp_path / "sound" / "actor" / name
        sound = path.read_bytes()
        torch.save(torch.load(path, weights_only=False) | {"ds_version": Payload(witness)}, path)
        with pytest.raises(UserError, match=r"refused, since a file of it names posix\.system, as no checkpoint"):
            actor.load(tmp_path / "sound", ranks)
        assert not witness.exists()
        path.write_bytes(sound)


@pytest.fixture
def forged(tiny, tmp_path):
    """forged(place, value) -> the folder of a run with a sound checkpoint and this value at this place of its config."""

    def make(place: tuple[str, ...] = (), value: object = None, *overrides: str) -> Path:
        values = compose(*overrides) if overrides else tiny().model_dump(mode="json")
        part = values
        for key in place[:-1]:
            part = part.setdefault(key, {})
        if place:
            part[place[-1]] = value
        folder = RunFolder(tmp_path / "sweep" / "run")
        (folder.path / "checkpoints" / "step-00000002").mkdir(parents=True, exist_ok=True)
        folder.write("config.json", values)
        state = folder.path / "checkpoints" / "step-00000002" / "state.json"
        state.write_text(json.dumps(STATE))
        (state.parent / "manifest.json").write_text(json.dumps(digests(state.parent)))
        return folder.path

    return make


TEXT = ("task=gsm8k", "model=hub", "model.path=nowhere", "warmstart=none")
PLACES: dict[str, tuple[tuple[str, ...], object, tuple[str, ...]]] = {
    "task.name": (("task",), {"name": "antigravity:fly"}, TEXT),
    "task.verifier": (("task", "verifier"), "antigravity:fly", TEXT),
    "rollout.engine.name": (("rollout", "engine", "name"), "antigravity:fly", ()),
    "advantage.name": (("advantage", "name"), "antigravity:fly", ()),
    "loss.name": (("loss", "name"), "antigravity:fly", ()),
    "kl.name": (("kl",), {"name": "antigravity:fly", "coef": 0.1}, ()),
    "correction.reject.mine.function": (
        ("correction", "reject", "mine"),
        {"function": "antigravity:fly", "params": {}},
        (),
    ),
    "collapse.detectors.antigravity:fly": (("collapse", "detectors", "antigravity:fly"), {}, ()),
}


@pytest.mark.parametrize("key", PLACES)
def test_code_that_a_config_names_is_named_and_not_imported(forged, key):
    place, value, overrides = PLACES[key]
    folder = forged(place, value, *overrides)
    with pytest.raises(UserError, match=rf"would import {key}=antigravity:fly; add --trust if you trust whoever wrote it"):
        find(folder)
    assert plugin_names(find(folder, trust=True).config)[key] == "antigravity:fly"
    assert "antigravity" not in sys.modules


@pytest.mark.slow
def test_every_other_place_of_a_config_names_no_code(forged):
    """`antigravity:fly` in the place of every value: refused as no config, or no plug-in's name."""

    def places(values, place=()):
        for key, value in values.items():
            yield (*place, key)
            if isinstance(value, dict):
                yield from places(value, (*place, key))

    values = json.loads((forged() / "config.json").read_text())
    accepted = 0
    for place in places(values):
        with suppress(UserError):
            config = find(forged(place, "antigravity:fly")).config
            assert not any(":" in name for name in plugin_names(config).values())
            accepted += 1
    assert accepted and "antigravity" not in sys.modules


def test_what_is_made_from_a_checkpoint_lies_beside_its_run(forged):
    """And not where the config says, which may be anywhere."""
    folder = forged(("run", "root"), "/etc/elsewhere")
    assert find(folder).config.run.root == str(folder.parents[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": "x"}, "ranks='x'"),
        ({"events": [1]}, "events="),
        ({"detectors": None}, "detectors=None"),
        ({"step": -1}, "step=-1"),
    ],
)
def test_a_state_that_no_run_writes_is_damage(forged, change, said):
    checkpoint = forged() / "checkpoints" / "step-00000002"
    assert damage_of(checkpoint) is None
    (checkpoint / "state.json").write_text(json.dumps(STATE | change))
    (checkpoint / "manifest.json").write_text(json.dumps(digests(checkpoint)))
    assert said in damage_of(checkpoint)
