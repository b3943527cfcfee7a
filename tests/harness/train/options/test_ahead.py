"""Staleness, epochs and micro-batches: what they change, and what they must not."""

import contextlib

import pytest
import torch

from harness.build import build_task
from harness.config import PrecisionConfig
from harness.models import policy_config
from harness.rollouts.local import LocalEngine
from harness.run.loop import train
from harness.train.trainer import Trainer
from harness.validate import check
from tests.harness.train.test_ranks import train_until
from tests.harness.train.test_trainer import folder_of, untimed

pytestmark = pytest.mark.slow

STALE = ["rollout/precision=fp32", "rollout.staleness=2", "actor.num_minibatches=2", "steps=5"]
FP32 = PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None)


def rows_of(config) -> list[dict]:
    return untimed(folder_of(config).metrics())


def assert_resumes_to_the_bit(tiny, name: str, *overrides: str) -> list[dict]:
    """A run that is stopped after two steps and started again has the rows of one that is not, which are returned."""
    whole, cut = (tiny(*overrides, f"run.sweep={name}-{kind}") for kind in ("whole", "cut"))
    train(whole)
    with contextlib.suppress(SystemExit):
        train_until(cut, 2)
    assert folder_of(cut).state == "preempted"
    train(cut)
    assert rows_of(cut) == rows_of(whole)
    return rows_of(whole)


def test_a_stale_engine_holds_the_weights_of_two_steps_ago(tiny):
    """Its report has the bits that an engine with the weights of step s − 2 gives; π_old is that of the present ones."""
    config = tiny(*STALE)
    weights, batches = [], []
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        update = trainer.learner.update
        trainer.learner.update = lambda collected, order, **more: (batches.append(collected), update(collected, order, **more))[1]
        for step in range(4):
            weights.append({name: w.detach().clone() for name, w in trainer.actor.weights()})
            metrics = trainer.step(step)
            assert metrics["rollout/version_lag"] == 2 * min(step, 2)  # two optimizer steps each
    engine = LocalEngine(policy_config(config.model, build_task(config)), FP32)
    for step, sampled in enumerate(batches):
        batch = sampled.batch
        engine.load_weights(weights[max(0, step - 2)].items(), 0)
        assert torch.equal(engine.score(sampled.prompts, sampled.tokens), batch.logp_rollout)
        engine.load_weights(weights[step].items(), 0)
        assert torch.equal(engine.score(sampled.prompts, sampled.tokens), batch.logp_old)
        assert torch.equal(batch.logp_old, batch.logp_rollout) == (step == 0)


def test_a_stale_run_resumes_to_the_bit(tiny):
    """The checkpoint has the responses sampled ahead, which could not be sampled again, the weights being gone."""
    assert_resumes_to_the_bit(tiny, "stale", *STALE, "steps=6", "actor.epochs=2")


def test_epochs_pass_over_a_rollout_again(tiny):
    """Two epochs of two mini-batches are four optimizer steps, each epoch with every row once and in its own order."""
    config = tiny("actor.epochs=2", "actor.num_minibatches=2")
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        order = trainer.learner.minibatch_order(0)
        trainer.step(0)
    assert trainer.learner.updates == len(order) == 4
    first, second = torch.cat(order[:2]), torch.cat(order[2:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(16)) and first.tolist() != second.tolist()


@pytest.mark.parametrize("ratio", ["old", "current"])
def test_micro_batches_change_no_number(tiny, ratio):
    """8 rows of 7 tokens a mini-batch: 15 tokens are two rows, so four micro-batches; stale, so that the correction acts."""
    loss = {"old": "ppo", "current": "pg"}[ratio]
    shared = [*STALE, f"loss={loss}", "correction=token_truncate", f"correction.ratio={ratio}", "correction.normalize=batch"]
    whole, split = tiny(*shared), tiny(*shared, "actor.micro_tokens=15")
    with folder_of(split).claim() as folder:
        parts = Trainer(check(split), folder).learner.forward.micro_batches(torch.zeros(8, 3), torch.zeros(8, 4))
        assert [len(part) for part in parts] == [2, 2, 2, 2]
    train(whole)
    train(split)
    assert len(rows_of(split)) == 6
    for row, other in zip(rows_of(split), rows_of(whole), strict=True):
        assert row == pytest.approx(other, rel=1e-5, abs=1e-5)
