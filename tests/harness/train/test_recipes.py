"""Recipes' additions to a step: schedules, dynamic sampling, an entropy bonus, a KL penalty and length in the reward."""

from pathlib import Path

import pytest
import torch

from algos.shaping import adapted
from harness.build import build_advantage
from harness.errors import UserError
from harness.rollouts import Rollout
from harness.run.loop import Run
from harness.run.restore import Checkpoint
from harness.seeding import generator
from harness.tasks import PAD
from harness.train.data.advantages import AdvantageEstimator
from harness.train.data.responses import Responses
from harness.train.data.rewards import RewardPenalty
from harness.train.options.greedy import GREEDY, GREEDY_LENGTHS
from harness.train.options.overlong import Overlong
from harness.train.schedule import learning_rates
from harness.train.trainer import Trainer
from harness.validate import check
from sweeps.branch import _seeded
from tests.harness.train.test_trainer import folder_of, untimed

EASY = ["warmstart.keep_low=0", "warmstart.keep_high=1"]


def rates(config):
    return [learning_rates(config)(update) / config.actor.lr for update in range(config.updates)]


def test_the_rates_of_each_schedule(tiny):
    """Four steps of two mini-batches: the rise takes u/2, the rest is a function of (u − 2)/6."""
    shared = ["actor.num_minibatches=2", "actor.schedule.warmup_steps=2"]
    rest = [k / 6 for k in range(6)]
    expected = {
        "constant": [1.0] * 6,
        "linear": [1 - x for x in rest],
        "cosine": [1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873],  # (1 + cos πx)/2
        "inverse_sqrt": [(2 / u) ** 0.5 for u in range(2, 8)],
    }
    for name, values in expected.items():
        assert rates(tiny(*shared, f"actor.schedule.name={name}")) == pytest.approx([0, 0.5, *values], abs=1e-7)
    lowest = rates(tiny(*shared, "actor.schedule.name=cosine", "actor.schedule.min_lr_ratio=0.2"))
    assert lowest == pytest.approx([0, 0.5, *(0.2 + 0.8 * x for x in expected["cosine"])], abs=1e-7)
    assert rates(tiny()) == [1.0] * 4


def sampled_of(lengths, rewards) -> Responses:
    lengths = torch.tensor(lengths)
    tokens = torch.where(torch.arange(8) < lengths[:, None], 1, PAD)
    rollout = Rollout(tokens, torch.zeros(tokens.shape), torch.zeros(tokens.shape, dtype=torch.long))
    return Responses(torch.zeros(len(tokens), 2, dtype=torch.long), rollout, torch.tensor(rewards))


def test_the_greedy_response_of_remax_is_punished_for_its_length_as_the_sampled_ones(tiny):
    """8 tokens at most, b = 4: 6 and 8 tokens cost 1/2 and 1. A response as long as the greedy one has its reward's advantage."""
    config = tiny("advantage=remax", "overlong.buffer=4", "rollout.prompts=2", "rollout.group_size=2")
    greedy = {GREEDY: torch.tensor([1.0, 0.0]), GREEDY_LENGTHS: torch.tensor([6, 8])}
    sampled = sampled_of([6, 4, 8, 5], [[1.0, 1.0], [0.0, 1.0]])._replace(of_prompts=greedy)
    shaped, _ = Overlong(8, 4, 1.0)(sampled)
    assert shaped.of_prompts[GREEDY].tolist() == [0.5, -1.0] and greedy[GREEDY].tolist() == [1.0, 0.0]
    credit = AdvantageEstimator(build_advantage(config), None)(shaped)
    assert credit.advantages[:, 0].tolist() == [0.0, 0.5, 0.0, 1.75]  # 0.5 − 0.5, 1 − 0.5, −1 − −1, 0.75 − −1


def test_length_and_kl_are_taken_off_the_reward(tiny):
    """8 tokens at most, b = 4: 0, −1/4, −1/2, −1 for 4, 5, 6, 8 tokens. KL by k2 at x = 0.2: 0.02 a token, times coef 0.5."""
    config = tiny("kl=k2", "kl.coef=0.5", "kl.place=reward", "kl.target=0.01", "kl.horizon=10")
    shaping, sampled = RewardPenalty(config), sampled_of([4, 5, 6, 8], [[1.0, 0.0], [1.0, 1.0]])
    old = torch.full((4, 8), -1.0)
    shaped, of_length = Overlong(8, 4, 1.0)(sampled)
    penalty, metrics = shaping(old, old - 0.2, sampled.rollout.mask)
    rewards, metrics = shaped.rewards, metrics | of_length
    length = torch.tensor([[0, 0.25], [0.5, 1]])
    kl = 0.5 * 0.02 * torch.tensor([[4, 5], [6, 8]])
    torch.testing.assert_close(rewards, sampled.rewards - length)
    torch.testing.assert_close(penalty.sum(-1).view(2, 2).float(), kl)
    assert not penalty[0, 4:].any()  # of four tokens
    assert metrics["reward/overlong_penalty"] == pytest.approx(1.75 / 4) and metrics["reward/overlong"] == 0.75
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.02) and metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert shaping.coef == pytest.approx(0.5 * (1 + 0.2 * 4 / 10))  # twice the target is clipped at 20 %
    other = RewardPenalty(config)
    other.restore(shaping.state()["kl.coef"])
    assert other.coef == shaping.coef
    fixed = RewardPenalty(tiny("kl=k2", "kl.place=reward"))
    fixed.restore(shaping.state()["kl.coef"])
    assert fixed.coef == 0.001 and fixed.state() == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["overlong.buffer=2"], "overlong.buffer=2 has no effect: each response of task=chain has 4 tokens"),
        (["kl=k3", "kl.place=reward", "actor.scoring=none", "proximal=rollout"], "actor.scoring=none: kl.place=reward reads it"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(tiny, overrides, message):
    with pytest.raises(UserError, match=message):
        check(tiny(*overrides))


def test_a_branch_goes_on_with_the_coefficient_that_its_checkpoint_holds(tiny):
    adaptive = ["kl=k2", "kl.place=reward", "kl.target=0.01", "kl.horizon=10"]
    checkpoint = Checkpoint(tiny(*adaptive), Path("nowhere"), 2)
    with pytest.raises(UserError, match=r"kl\.coef has no effect, since the checkpoint"):
        _seeded(checkpoint, "kl.coef=0.5", 1, "branches")
    assert len(_seeded(checkpoint, "kl.coef=0.5 kl.target=null kl.horizon=null", 1, "branches")) == 1
    assert len(_seeded(checkpoint, "kl.target=0.02", 1, "branches")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("max_rounds", [2, 12])
def test_equal_groups_are_sampled_anew(tiny, max_rounds):
    """The step has the first informative groups of all rounds, each the walk's next prompts; then the first of the others."""
    config = tiny(*EASY, f"rollout.filter.max_rounds={max_rounds}", "rollout.prompts=8", "rollout.group_size=2")
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        trainer.load_weights()
        sampler = trainer.sampler
        for step in (0, 3):
            sampled = sampler.sample(step)
            metrics = sampler.describe(sampled)
            rounds = []
            for number in range(step * max_rounds, step * max_rounds + int(metrics["rollout/rounds"])):
                prompts = sampler.draw_prompts(number)
                uniforms = torch.rand(16, 4, generator=generator(config.seed, "rollout", number))
                rounds.append(sampler.sample_by(sampler.engine, prompts, uniforms))
            rewards = torch.cat([one.rewards for one in rounds])
            unequal = rewards[:, 0] != rewards[:, 1]
            order = [*unequal.nonzero().flatten().tolist(), *(~unequal).nonzero().flatten().tolist()][:8]
            tokens = torch.cat([one.rollout.tokens for one in rounds]).view(-1, 2, 4)
            assert torch.equal(sampled.rollout.tokens, tokens[order].flatten(0, 1))
            assert torch.equal(sampled.rewards, rewards[order])
            assert metrics["rollout/filtered_groups"] == 1 - unequal.double().mean()
            assert metrics["rollout/filler_groups"] == max(0, 1 - int(unequal.sum()) / 8)
            assert metrics["reward/informative_groups"] == pytest.approx(min(8, int(unequal.sum())) / 8)
            assert metrics["reward/sampled"] == rewards.mean()
            assert len(rounds) == max_rounds or int(unequal[:-8].sum()) < 8 <= int(unequal.sum())


@pytest.mark.slow
def test_an_entropy_bonus_keeps_entropy(tiny):
    """Six steps from the same start, with and without a bonus that outweighs the loss."""
    ends = []
    for coeff in (0.0, 10.0):
        small = ["steps=6", "actor.num_minibatches=2", "actor.micro_tokens=30"]
        config = tiny("loss=cross_entropy", f"entropy_coeff={coeff}", *small)
        with folder_of(config).claim() as folder:
            trainer = Trainer(check(config), folder)
            ends.append([trainer.step(step)["actor/entropy"] for step in range(6)])
    assert ends[1][-1] > ends[0][-1]


@pytest.mark.slow
def test_a_resumed_run_has_the_schedule_the_coefficient_and_the_rounds_of_one_that_was_not_stopped(tiny):
    recipe = ["actor.schedule.name=cosine", "actor.schedule.warmup_steps=2", "kl=k3", "kl.place=reward", "kl.target=1e-3",
              "kl.horizon=32", "rollout.filter.max_rounds=3", "actor.num_minibatches=2", "entropy_coeff=0.01"]  # fmt: skip
    config = tiny(*recipe)
    rows = {}
    for sweep, stop in (("whole", None), ("stopped", 2)):
        config = tiny(*recipe, f"run.sweep=recipe-{sweep}")
        with folder_of(config).claim() as folder:
            run = Run(check(config), folder)
            for step in range(4):
                if step == stop:
                    run.save(step)
                    run = Run(check(config), folder)
                    assert run.resume() == step
                folder.log_metrics(step, run.trainer.step(step))
            rows[sweep] = untimed(folder.metrics())
    assert rows["stopped"] == rows["whole"]
    coefs = [row["actor/reward_kl_penalty_coeff"] for row in rows["whole"]]
    for row, after in zip(rows["whole"], coefs[1:], strict=False):
        kl, before = row["actor/reward_kl_penalty"], row["actor/reward_kl_penalty_coeff"]
        assert after == pytest.approx(adapted(before, kl, target=1e-3, horizon=32, responses=16), rel=1e-12)
    assert coefs[0] == 0.001 != coefs[1] and rows["whole"][0]["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-6)
    assert [row["actor/lr"] / config.actor.lr for row in rows["whole"]] == pytest.approx([0.5, *(0.9330127, 0.5, 0.0669873)])
