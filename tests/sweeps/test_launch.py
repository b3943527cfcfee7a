"""A launch that is refused before anything starts."""

import pytest

from harness.errors import UserError
from sweeps.launch import launch, plan
from sweeps.launchers.local import Local
from sweeps.ledger import Sweep


def test_two_launchers_and_an_edited_config(sweep, tiny):
    configs = [tiny(f"seed={seed}") for seed in (0, 1)]
    place = Sweep(configs[0].path.parent)
    plan(place, {c.digest: c for c in configs}, {})
    with place.lock.hold(), pytest.raises(UserError, match=r"another launcher .* is working on this sweep"):
        launch(configs, Local)
    with pytest.raises(UserError, match=r"1 of the 1 runs are not among the 2 .*actor.lr=0.1 \(there 0.0003\).*extend=true"):
        launch([tiny("actor.lr=0.1")], Local)
    assert not (place.path / tiny("actor.lr=0.1").digest).exists()


def test_one_command_launches_one_sweep(tiny):
    with pytest.raises(UserError, match="one command launches one sweep"):
        launch([tiny("run.sweep=bad"), tiny("run.sweep=worse")], Local)
