"""The launchers as Hydra calls them, without a process of their own."""

import pytest

from hydra_plugins.faultline_launcher import LocalLauncher
from sweeps.states import RunState


def test_the_last_line_of_a_failing_sweep_is_not_hydras(tiny, monkeypatch, capsys):
    """Hydra prints "Error executing job with overrides" when it meets a job that failed."""
    config = tiny()
    launcher = LocalLauncher(parallel=1, retry_failed=False, extend=True)
    monkeypatch.setattr(launcher, "_parse", lambda overrides: config)
    failed = {config.digest: RunState("bf16 ppo", 0, 4, "failed")}
    monkeypatch.setattr("sweeps.launch.launch", lambda *given, **more: failed)
    with pytest.raises(SystemExit) as left:
        [result.return_value for result in launcher.launch([["seed=0"]], 0)]
    assert left.value.code == 1 and "Error executing job" not in capsys.readouterr().err
