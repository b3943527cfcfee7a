"""What starts from a checkpoint of another run: the gradient laboratory and branches."""

import pytest

from experiments.gradient.laboratory import Laboratory
from experiments.gradient.methods import EXACT, methods
from experiments.restore import find, transplant
from harness.errors import UserError
from harness.records import RunFolder
from harness.trainer import Trainer, train


def test_a_checkpoint_of_a_real_run(tiny, tmp_path):
    """The control has no mismatch: each correction is uncorrected, and within its interval of the truth; and with fp8 the exact
    weight is not the plain gradient."""
    tables = {}
    for precision in ("fp32", "fp8_tensor"):
        config = tiny(f"rollout/precision={precision}", "steps=2", "checkpoint.every=2", "checkpoint.keep=2")
        train(config)
        found = find(config.path)
        assert found.step == 2
        folder = RunFolder(tmp_path / precision)
        transplant(found, folder)
        trainer = Trainer(config, folder)
        assert trainer.resume() == 2
        chosen = [m for m in methods(["ppo"], ["none", "sequence_truncate"], "token_mean") if m.family is None]
        tables[precision] = Laboratory(trainer, 8, 0).compare(chosen, 16, 64).set_index("method")
    control = tables["fp32"]
    assert control.loc[EXACT, "sd"] == control.loc["ppo none", "sd"] > 0
    assert control.loc["ppo none", "cosine"] > 0.5 and control.loc["ppo none", "bias low"] < 0.5
    assert tables["fp8_tensor"].loc[EXACT, "sd"] != tables["fp8_tensor"].loc["ppo none", "sd"]
    with pytest.raises(UserError, match=r"no checkpoint of step 7; it has 2"):
        find(config.path, 7)
    with pytest.raises(UserError, match="no checkpoint there"):
        find(tmp_path)
    (found.folder / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged \(state.json differs from its checksum\)"):
        find(config.path)
