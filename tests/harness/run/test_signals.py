"""What a run prints as it goes."""

import pytest

from harness.run.signals import RunProgress

STEP = {"reward/rollout": 1.0}


@pytest.mark.parametrize(
    ("gradients", "trained"), [([0.0, 0.0], False), ([0.0, 0.1], True), ([None, 0.0], False), ([None, None], True)]
)
def test_a_run_without_any_gradient_says_that_it_trained_nothing(gradients, trained, capsys):
    """Steps of the critic alone have no gradient norm, and prove nothing."""
    progress = RunProgress(0, 2)
    for done, gradient in enumerate(gradients, 1):
        progress.show(done, STEP if gradient is None else STEP | {"actor/grad_norm": gradient})
    progress.end({"eval/reward": 0.5})
    last = capsys.readouterr().out.splitlines()[-1]
    nothing = "no step had a gradient, so nothing was trained: all advantages or all weights were 0. If each prompt's responses "
    remedy = "have equal rewards, try rollout.temperature=1 rollout.top_p=1 rollout.top_k=0"
    assert last == ("evaluation at the end 0.500" if trained else nothing + remedy)
