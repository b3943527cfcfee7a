"""The critic of advantage=gae: the values that it learns, the run around it, and what stops and goes on."""

import itertools

import pytest
import torch

from algos.batch import Batch
from algos.kl import k3
from harness.build import build_advantage
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.models import build
from harness.rollouts import Rollout
from harness.run.loop import Run
from harness.run.restore import Checkpoint, find, parts_at
from harness.train.critic import Critic
from harness.train.data.advantages import AdvantageEstimator
from harness.train.data.batch import TrainingBatch
from harness.train.data.responses import Responses
from harness.train.trainer import Trainer
from harness.validate import check
from sweeps.branch import _seeded
from tests.harness.train.model.test_actor import SHAPE
from tests.harness.train.test_trainer import folder_of, untimed

FAST = ["critic.lr=3e-3", "critic.cliprange_value=null", "actor.eps=1e-8", "actor.num_minibatches=1", "actor.max_grad_norm=10"]


def all_responses(rewards: torch.Tensor) -> Responses:
    """Each of the 9 responses of 2 tokens over 3 symbols once, to one prompt: what a uniform policy samples, exactly."""
    tokens = torch.tensor(list(itertools.product(range(3), repeat=2)))
    rollout = Rollout(tokens, torch.full((9, 2), -1.0986), torch.zeros(9, 2, dtype=torch.long))
    return Responses(torch.full((9, 2), 5), rollout, rewards.view(1, 9))


@pytest.mark.slow
def test_the_critic_learns_the_exact_values_of_an_enumerable_policy():
    """V of the start is the mean of all nine rewards; V after a first token the mean of the three that begin so."""
    rewards = torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 0.25, 0.0, 0.0, 0.75])
    config = parse(compose("advantage=gae", "rollout.prompts=1", "rollout.group_size=9", "tracking=disabled", *FAST))
    critic = Critic(build(SHAPE, 0), config)
    credit, sampled = AdvantageEstimator(build_advantage(config), critic), all_responses(rewards)
    first = credit(sampled)
    assert not first.values.any() and torch.equal(first.returns, rewards[:, None].expand(9, 2))  # a head of zeros, λ = 1
    for _ in range(100):
        learned = credit(sampled)
        batch = Batch(sampled.rollout.logp, sampled.rollout.mask, advantages=learned.advantages)
        collected = TrainingBatch(sampled.prompts, sampled.rollout.tokens, None, None, batch, learned.values, learned.returns)
        metrics = critic.update(collected, [torch.arange(9)])
    values = critic.values(sampled.prompts, sampled.rollout.tokens)
    exact = torch.stack([rewards.mean().expand(9), rewards.view(3, 3).mean(1).repeat_interleave(3)], 1)
    torch.testing.assert_close(values, exact, atol=1e-2, rtol=0)
    left = (rewards[:, None].expand(9, 2) - exact).double().var() / (rewards[:, None].expand(9, 2).double().var() + 1e-5)
    assert float(metrics["critic/explained_variance"]) == pytest.approx(1 - float(left), abs=5e-3)
    assert float(metrics["critic/loss"]) == pytest.approx(0.5 * float((rewards[:, None] - exact).square().mean()), abs=5e-3)


def test_a_value_sees_what_came_before_its_token_and_no_padding():
    """Changing token t leaves V up to t as it was; padding on either side changes nothing, and has 0 itself."""
    config = parse(compose("advantage=gae", "tracking=disabled", "actor.micro_tokens=20"))
    critic = Critic(build(SHAPE, 0), config)
    torch.nn.init.normal_(critic.model.engine.module.value_head.weight)
    prompts, tokens = torch.tensor([[1, 2]] * 8), torch.tensor([[3, 4, 5, 6]] * 8)
    tokens[1, 2] = 9
    values = critic.values(prompts, tokens)
    assert torch.allclose(values[0, :3], values[1, :3], atol=1e-6) and (values[0, 3] - values[1, 3]).abs() > 1e-3
    padded = torch.nn.functional.pad(tokens, (0, 2), value=-1)
    found = critic.values(torch.nn.functional.pad(prompts, (1, 0), value=-1), padded)
    torch.testing.assert_close(found, torch.nn.functional.pad(values, (0, 2)), atol=1e-5, rtol=0)


GAE = ["advantage=gae", "advantage.lam=0.9", "rollout.prompts=8", "rollout.group_size=2", "actor.num_minibatches=2"]


@pytest.mark.slow
def test_the_policy_waits_for_the_critic_and_the_penalty_falls_on_each_token(tiny):
    """Two steps of warm-up: the critic's weights move and the policy's do not; then both. Credit against its equations."""
    penalised = ["kl=k3", "kl.coef=0.3", "kl.place=reward"]
    config = tiny(*GAE, *penalised, "critic.warmup_steps=2", "advantage.lam=1", "actor.epochs=2", "steps=5")
    assert config.updates == 3 * 2 * 2
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        weights = [{name: w.detach().clone() for name, w in trainer.actor.weights()}]
        heads, rows = [], []
        for step in range(4):
            rows.append(trainer.step(step))
            weights.append({name: w.detach().clone() for name, w in trainer.actor.weights()})
            heads.append(trainer.critic.model.engine.module.value_head.weight.detach().clone())
        moved = [any(not torch.equal(now[name], before[name]) for name in now) for before, now in itertools.pairwise(weights)]
        assert moved == [False, False, True, True] and trainer.learner.updates == 8
        assert heads[0].any() and not torch.equal(heads[0], heads[1])
        assert [("actor/loss" in row, "critic/loss" in row) for row in rows] == [(False, True)] * 2 + [(True, True)] * 2
        sampled = trainer.sampler.sample(4)
        scores = trainer.scorer.score(sampled, trainer.learner.minibatch_order(4))
        collected, _ = trainer.assemble(sampled, scores)
        penalty = 0.3 * k3(scores.old, scores.reference, collected.batch.mask)
        token = torch.nn.functional.pad(sampled.rewards.view(-1, 1), (3, 0)) - penalty
        expected = token.flip(-1).cumsum(-1).flip(-1)  # λ = γ = 1: the return to go
        torch.testing.assert_close(collected.returns, expected, atol=1e-5, rtol=0)
        raw = expected - trainer.critic.values(sampled.prompts, sampled.rollout.tokens)
        torch.testing.assert_close(collected.batch.advantages, (raw - raw.mean()) / raw.std(), atol=1e-4, rtol=0)


@pytest.mark.slow
def test_one_response_to_a_prompt_trains_with_a_critic(tiny):
    """Sixteen prompts with a response each. The advantages are whitened over the step, not over groups: their mean is 0."""
    one = ["rollout.group_size=1", "rollout.prompts=16", "evaluation.prompts=4"]
    with folder_of(config := tiny(*GAE, *one)).claim() as folder:
        trainer = Trainer(check(config), folder)
        before = {name: w.detach().clone() for name, w in trainer.actor.weights()}
        metrics = trainer.step(0)
        assert any(not torch.equal(before[name], w) for name, w in trainer.actor.weights())
        sampled = trainer.sampler.sample(1)
        assert sampled.rewards.shape == (16, 1) and len({tuple(row) for row in sampled.prompts.tolist()}) > 4
        scores = trainer.scorer.score(sampled, trainer.learner.minibatch_order(1))
        collected, _ = trainer.assemble(sampled, scores)
        assert abs(float(collected.batch.advantages.mean())) < 1e-5 and collected.batch.advantages.std() > 0.5
    assert metrics["critic/loss"] > 0 and metrics["reward/informative_groups"] == 0


@pytest.mark.slow
def test_a_resumed_run_has_the_critic_of_one_that_was_not_stopped(tiny):
    """Stopped within the warm-up and after it; the checkpoint gives its values back to whoever looks at it."""
    rows = {}
    for sweep, stops in (("whole", ()), ("stopped", (1, 3))):
        config = tiny(*GAE, "critic.warmup_steps=2", "critic.cliprange_value=0.01", f"run.sweep=critic-{sweep}")
        with folder_of(config).claim() as folder:
            folder.write("config.json", config.model_dump(mode="json"))
            run = Run(check(config), folder)
            for step in range(4):
                if step in stops:
                    run.save(step)
                    run = Run(check(config), folder)
                    assert run.resume() == step
                folder.log_metrics(step, run.trainer.step(step))
            run.save(4)
            rows[sweep] = untimed(folder.metrics())
    assert rows["stopped"] == rows["whole"]
    assert all(0 < row["critic/clipfrac"] < 1 for row in rows["whole"][1:])
    prompts, tokens = torch.tensor([[5, 1, 2]]), torch.tensor([[1, 2, 3, 4]])
    with parts_at(find(config.path)) as parts:
        assert torch.equal(parts.critic.values(prompts, tokens), run.trainer.critic.values(prompts, tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("loss=gspo", "correction=sequence_truncate", "actor.scoring=forward", "actor.zero_stage=3"),
        ("loss=pg", "correction=token_truncate", "correction.ratio=current", "critic.warmup_steps=1"),
        ("proximal=rollout", "actor.scoring=none", "critic.warmup_steps=1", "actor.dtype=bf16", "rollout.staleness=1"),
        ("correction=verl/decoupled_seq_is_rs", "rollout.filter.max_rounds=2", "actor.micro_tokens=30"),
    ],
)  # fmt: skip
def test_gae_trains_with_losses_corrections_and_engines(tiny, overrides):
    config = tiny(*GAE, *overrides, "steps=3")
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        rows = [trainer.step(step) for step in range(3)]
    for row in rows:
        assert all(torch.tensor(value).isfinite() for value in row.values())
    assert rows[-1]["actor/grad_norm"] > 0 and rows[-1]["critic/value_mean"] != 0


def test_a_branch_has_the_critic_of_its_checkpoint(tiny, tmp_path):
    with pytest.raises(UserError, match="advantage=gae needs a critic, and the checkpoint has none"):
        _seeded(Checkpoint(tiny(), tmp_path, 2), "advantage=gae", 1, "branches")
    (changed,) = _seeded(Checkpoint(tiny("advantage=gae"), tmp_path, 2), "critic.lr=3e-3 actor.lr=1e-4", 1, "branches")
    assert changed.critic.lr == 3e-3 and changed.advantage.name == "gae"
    (without,) = _seeded(Checkpoint(tiny("advantage=gae"), tmp_path, 2), "advantage=rloo critic=none", 1, "branches")
    assert without.critic.lr is None
