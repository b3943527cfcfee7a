"""TensorBoard's event files as a mirror: really written, and read by TensorBoard's own reader."""

import sys

import pytest

from harness.config import Config
from harness.run.tensorboard import EventFiles


@pytest.fixture
def config(tiny) -> Config:
    return tiny("tracking=tensorboard")


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    rewards = [(event.step, event.value) for event in accumulator.Scalars("eval/reward")]
    return rewards, accumulator.Tags()


def test_rows_and_events_and_a_resume(config, tmp_path):
    """A process dies after step 3, whose checkpoint was of step 2: what the next one writes from 2 on is what counts."""
    pytest.importorskip("tensorboard")
    for first, values in ((0, [0.0, 0.25, 0.5, 0.75]), (2, [0.125, 0.375])):
        mirror = EventFiles(config, tmp_path, first)
        for step, value in enumerate(values, first):
            mirror.log(step, {"eval/reward": value, "actor/grad_norm": float("nan")})
        mirror.event(3, "collapse", "drawdown", {"onset": 2})
        mirror.finish()
    rewards, tags = scalars(tmp_path)
    assert rewards == [(0, 0.0), (1, 0.25), (2, 0.125), (3, 0.375)]
    assert "actor/grad_norm" in tags["scalars"] and "collapse/drawdown/text_summary" in tags["tensors"]


def test_a_mirror_that_cannot_be_written_is_told_of_once(config, tmp_path, capsys, monkeypatch):
    (tmp_path / "tensorboard").write_text("a file in its place")
    mirror = EventFiles(config, tmp_path, 0)
    mirror.log(0, {"eval/reward": 0.5})
    mirror.finish()
    assert capsys.readouterr().out.count("nothing more is mirrored there") == 1
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    EventFiles(config, tmp_path / "other", 0).log(0, {"eval/reward": 0.5})
    assert "pip install -e '.[tensorboard]'" in capsys.readouterr().out


def test_nothing_is_written_unless_asked_for(tiny, tmp_path):
    mirror = EventFiles(tiny("tracking=wandb"), tmp_path, 0)
    mirror.log(0, {"eval/reward": 0.5})
    mirror.finish()
    assert list(tmp_path.iterdir()) == []
