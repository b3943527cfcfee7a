"""The demo: its table and its last line from ends by hand, and the whole of it in a few steps."""

import re

import pytest

from experiments import demo
from experiments.demo import ARMS, End, main, outcome, proposed, table
from harness.errors import UserError
from tests.sweeps.conftest import in_process

CONTROL, NONE = End(0.0, 0.75, 0.75), End(9e-2, 0.35, 0.65)


def test_the_last_line_says_how_much_of_the_loss_came_back():
    """0.35 to 0.65 of 0.75: 0.30 of 0.40 lost."""
    line = outcome(CONTROL, NONE, End(9e-2, 0.65, 0.6), "fixed", "correction=token_truncate", 2)
    assert line == (
        "fixed cost 0.40. The verdict said correction=token_truncate; with it the reward rose by 0.30 (75% of what was lost). "
        "2 seeds prove nothing yet."
    )


@pytest.mark.parametrize(
    ("none", "followed", "said"),
    [
        (NONE, End(0.1, 0.30, 0.1), "the reward fell by 0.05 further. 1 seed proves nothing yet."),
        (End(0.1, 0.80, 0.8), End(0.1, 0.85, 0.8), "the reward rose by 0.05. 1 seed proves nothing yet."),
        (NONE, None, "The verdict proposed no correction for fixed, which ended 0.40 below the control."),
    ],
)
def test_a_loss_is_told_as_plainly_as_a_gain(none, followed, said):
    assert outcome(CONTROL, none, followed, "fixed", "correction=token_truncate", 1).endswith(said)


def test_the_table_has_the_followed_arm_last():
    lines = table({arm: CONTROL for arm in ARMS}, "w4a4", NONE)
    assert len(lines) == 1 + len(ARMS) + 1 and lines[-1].startswith("W4A4, as the verdict says")
    assert lines[-1].split()[-3:] == ["0.35", "0.65", "9.0e-02"]


def test_the_choice_for_the_trainers_policy_is_followed():
    """A rule may say that nothing is needed."""
    mask = {"policy": "trainer", "settings": {"verl": ["a=1"], "Faultline": ["correction=sequence_mask"]}}
    assert proposed({"deployed": [mask, {"policy": "sampler", "settings": {}}]}) == ["correction=sequence_mask"]
    assert proposed({"deployed": [mask | {"settings": {}}]}) == []


@pytest.mark.parametrize("words", [[], ["x"], ["steps=3"]])
def test_seeds_are_asked_for(words):
    with pytest.raises(UserError, match="give the seeds first"):
        main(words)


@pytest.mark.slow
def test_the_demo_in_two_steps(tmp_path, capfd, monkeypatch):
    """Every part runs for real: seven runs, the verdict on the most harmed arm's dump, its setting, the report.

    The two multiruns are commands of this process, which import torch and DeepSpeed once. The others are processes.
    """
    call, trained = demo._call, []

    def called(module: str, *words: str) -> None:
        if module != "experiments.train":
            return call(module, *words)
        code, told = in_process(*words)
        assert code == 0, told
        trained.append(words)

    monkeypatch.setattr(demo, "_call", called)
    few = ["steps=2", "warmstart.steps=20", "warmstart.keep_low=0", "evaluation.every=1"]
    main(["3", *few, f"run.root={tmp_path}", "tracking=disabled"])
    out = capfd.readouterr().out
    assert re.search(r"LOG-PROBABILITIES +consistent", out) and "VERDICT" in out
    assert (tmp_path / "demo" / "report.html").exists()
    last = out.rstrip().splitlines()[-1]
    assert last.endswith("1 seed proves nothing yet.") == (len(trained) == 2)
    assert last.endswith(("1 seed proves nothing yet.", "below the control."))


def test_a_command_of_the_demo_that_fails_ends_it():
    with pytest.raises(SystemExit) as ended:
        demo._call("faultline", "--nosuch")
    assert ended.value.code == 2
