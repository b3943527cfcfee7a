"""mismatch/persistence_k and the reward of both policies."""

import math

import pytest
import torch

from harness.build import samples_as_trainer
from harness.errors import UserError
from harness.run.folder import RunFolder
from harness.run.loop import train
from harness.train.persistence import correlation
from harness.train.trainer import Trainer
from harness.validate import check

WINDOW = ["steps=24", "diagnostics.persistence.every=22", "diagnostics.persistence.responses=6", "actor.lr=1e-9"]


def measured(config):
    train(config)
    rows = {row["step"]: row for row in RunFolder(config.path).metrics()}
    return {lag: row[name] for lag in (1, 5, 20) if (name := f"mismatch/persistence_{lag}") in (row := rows[lag])}


def test_uncentred_correlation():
    """(1·2 + 2·(−1)) / √(5·5) = 0; of equal tensors 1; of one and its negative −1; nothing to say without a difference."""
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, -1.0])
    assert correlation(one, other) == 0
    assert correlation(one, one) == pytest.approx(1)
    assert correlation(one, -one) == pytest.approx(-1)
    assert correlation(one, torch.zeros(2)) is None


@pytest.mark.slow
def test_fixed_noise_persists_and_fresh_noise_does_not(tiny):
    """Weights that hardly move. Fixed ε gives the same log ratios at each sync. Fresh ε gives independent ones, whose
    correlation has mean 0; tokens share weights, so that single values of a small model scatter widely."""
    fixed = measured(tiny(*WINDOW, "rollout.engine.noise=0.02", "rollout.engine.noise_persistence=1"))
    assert set(fixed) == {1, 5, 20}
    assert all(value > 0.999 for value in fixed.values())
    fresh = measured(tiny(*WINDOW, "rollout.engine.noise=0.02"))
    assert abs(sum(fresh.values()) / 3) < 0.5


@pytest.mark.slow
def test_exact_rollouts_have_no_persistence(tiny):
    assert measured(tiny(*WINDOW, "rollout/precision=fp32")) == {}


def test_noise_may_have_the_seed_of_its_run(tiny):
    """Seeds of one arm then have noises of their own: null in a run of seed 7 is 7. Without noise the control stays exact."""
    own, noisy = "rollout.engine.noise_seed=null", ["rollout/precision=fp32", "rollout.engine.noise=0.02"]
    given, known = (
        Trainer(check(config), RunFolder(config.path)).sampler.engine
        for config in (tiny(*noisy, "seed=7", own), tiny(*noisy, "rollout.engine.noise_seed=7"))
    )
    shape = torch.Size([3, 4])
    assert torch.equal(given.noise.draw("w", shape, 2), known.noise.draw("w", shape, 2))
    control = tiny("rollout/precision=fp32", own)
    check(control)
    assert samples_as_trainer(control)


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_window(tiny):
    """Killed between the first scoring and the last: the responses and their log ratios are part of the checkpoint."""
    config = tiny(*WINDOW, "rollout/precision=bf16", "checkpoint.every=3", "actor.lr=1e-3")
    whole = measured(config)
    trainer = Trainer(check(config), RunFolder(config.path))
    for step in range(3):
        trainer.step(step)
    updates, tensors = trainer.state()
    again = Trainer(check(config), RunFolder(config.path))
    again.restore(updates, tensors)
    assert torch.equal(again.persistence.first, trainer.persistence.first)
    assert torch.equal(again.persistence.tokens, trainer.persistence.tokens)
    assert set(whole) == {1, 5, 20}


def test_what_cannot_be_measured_is_refused(tiny):
    with pytest.raises(UserError, match=r"diagnostics.persistence.responses=500: at most 7 prompts of task=chain are held out"):
        train(tiny(*WINDOW, "diagnostics.persistence.responses=500"))
    with pytest.raises(UserError, match=r"diagnostics\.persistence\.every"):
        tiny("diagnostics.persistence.every=20")


def test_both_policies_are_judged(tiny):
    """The exact control's engine is the trainer's own policy: no gap. Under noise the two differ by the gap."""
    config = tiny("steps=3", "rollout/precision=fp32", "evaluation.policy=both")
    check(config)
    train(config)
    for row in RunFolder(config.path).metrics():
        if "eval/reward" in row:
            assert row["eval/gap"] == 0
            assert row["eval/rollout_reward"] == row["eval/reward"]
            assert row["eval/rollout_stderr"] == row["eval/stderr"]
    noisy = tiny("steps=3", "evaluation.policy=both", "rollout.engine.noise=1", "evaluation.samples=16", "evaluation.prompts=6")
    train(noisy)
    rows = [row for row in RunFolder(noisy.path).metrics() if "eval/gap" in row]
    assert any(row["eval/gap"] != 0 for row in rows)
    for row in rows:
        assert math.isclose(row["eval/gap"], row["eval/reward"] - row["eval/rollout_reward"], abs_tol=1e-12)


def test_the_two_rewards_are_those_of_two_runs_of_one_policy_each(tiny):
    rewards = {}
    for policy in ("own", "rollout", "both"):
        config = tiny("steps=2", "rollout/precision=fp8_tensor", f"evaluation.policy={policy}")
        train(config)
        rewards[policy] = [row for row in RunFolder(config.path).metrics() if "eval/reward" in row]
    assert [row["eval/reward"] for row in rewards["both"]] == [row["eval/reward"] for row in rewards["own"]]
    assert [row["eval/rollout_reward"] for row in rewards["both"]] == [row["eval/reward"] for row in rewards["rollout"]]
