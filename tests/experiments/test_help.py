"""`--help` tells what each key means and accepts."""

from functools import cache

import pytest

from experiments.help import CONF, show
from harness.compose import choices
from harness.config.describe import keys
from harness.errors import UserError

composed = cache(choices)
CHOICES = [
    [],
    ["correction=skyrl/recommended", "kl=k2", "rollout/engine=vllm"],
    ["correction=m2po", "advantage=pass_at_k", "+experiment=regime"],
    ["model=hub", "warmstart=none", "task=gsm8k"],
    ["model=hub", "warmstart=none", "task=arithmetic"],
    *[[f"loss={name}"] for name in sorted(path.stem for path in CONF.glob("loss/*.yaml"))],
]


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    """A terminal of the default width, so that lines wrap where these tests expect them."""
    monkeypatch.setenv("COLUMNS", "130")


@pytest.mark.slow
@pytest.mark.parametrize("overrides", CHOICES, ids=" ".join)
def test_every_key_has_its_value_and_a_meaning(overrides, capsys, monkeypatch):
    monkeypatch.setattr("experiments.help.choices", composed)  # once for the help and for what is compared with it
    show(["--help", *overrides])
    lines = capsys.readouterr().out.partition("KEY=VALUE;")[2].splitlines()
    config = composed(*overrides).config
    for key in keys(config):
        (at,) = [n for n, line in enumerate(lines) if line.strip().startswith(f"{key.name}=")]
        told = lines[at][42:].strip() or lines[at + 1].strip()
        assert told and not told.startswith("["), lines[at]
    assert max(map(len, lines)) <= 130


def test_values_accepted_and_meanings_stand_beside_the_key(capsys):
    show(["--help", "loss=gspo", "actor.epochs=2"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "faultline train [-m] [GROUP=OPTION | KEY=VALUE] ..."
    assert "actor.lr=0.0005 Learning rate; with a schedule, its highest value. [number in (0, 1]]" in lines
    assert "actor.epochs=2 Passes of training over the responses of a step. [integer > 0]" in lines
    assert any(line.startswith("loss.eps_low=0.0003 The sequence ratio is clipped below") for line in lines)
    assert any(line.startswith("loss=gspo cispo, clip_cov") for line in lines)
    first = "rollout.top_p=1.0 Probability mass of the most probable tokens, from which responses are sampled. 1: all"
    assert lines[lines.index(first) + 1] == "tokens. [number in (0, 1]]"
    assert "dump.every=null Steps between two dumps of the whole batch. null: no dumps. [integer > 0 | null]" in lines


def test_groups_of_a_folder_of_ones_own(tmp_path, capsys):
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss/mine.yaml").write_text("name: ppo\neps_low: 0.1  # A bound.\neps_high: 0.3\n")
    show(["--help", "--config-dir", str(tmp_path), "loss=mine"])
    assert "loss.eps_low=0.1" in capsys.readouterr().out


def test_a_wrong_choice_is_refused_as_by_a_run():
    with pytest.raises(UserError, match=r"loss/nosuch: there is no such option"):
        show(["--help", "loss=nosuch"])
