"""Replay of sampling masks: top-p and top-k in the ratios and in the gradient."""

import math

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Weight
from algos.enumerable import EnumerablePolicy, policies, rewards
from algos.losses import pg
from algos.objective import Objective
from algos.reductions import Counts
from faultline.tools.gradient.sampled import SampledGradients
from harness.errors import UserError
from harness.models import build
from harness.rollouts.local import LocalEngine
from harness.rollouts.recorded import Recorded, pack, sizes, unpack
from harness.run.loop import train
from harness.run.restore import find, parts_at
from harness.tasks import PAD
from harness.train.model import head
from harness.train.model.equal_rows import distinct
from harness.train.model.head import ScoringHead
from harness.validate import check
from sweeps.branch import _check_waiting
from tests.harness.engines import engine_of
from tests.harness.train.model.test_actor import SHAPE
from tests.harness.train.test_trainer import folder_of, stepped

SPACE = EnumerablePolicy.of(3, 3)
OLD = policies(SPACE)[0]
R = rewards(SPACE)
LEFT = OLD.topk(2, dim=-1).values[:, -1:] <= OLD
"""top_k=2 of three symbols: in each of the 13 states the two that π_old, here also μ's own policy, likes most."""


def test_bits_are_numpys():
    sets = torch.rand(3, 5, 21, generator=torch.Generator().manual_seed(0)) < 0.4
    assert np.array_equal(pack(sets).numpy(), np.packbits(sets.numpy(), -1, bitorder="little"))
    assert torch.equal(unpack(pack(sets), 21), sets) and torch.equal(sizes(pack(sets)), sets.sum(-1))


def truncated(theta):
    """log π^S [N, 3] of each response by the definition; −inf where one of its tokens is not left."""
    return SPACE.logp(theta.masked_fill(~LEFT, -torch.inf))


def through_head(theta, masks):
    """log π [N, 3] and H of all responses by the actor's head: its hidden states are the states, one of 13 each."""
    hidden = torch.eye(len(theta), dtype=torch.float64)[SPACE.state]
    return ScoringHead(torch.nn.Parameter(theta.t()), 1.0)(hidden, SPACE.tokens, pack(LEFT[SPACE.state]) if masks else None)


def expected_gradient(masks, correction=Correction()):  # noqa: B008  frozen
    """∇_θ of E_μ[the corrected loss of the policy gradient] at θ = OLD, with log π through the actor's head."""
    weight = torch.nn.Parameter(OLD.t().clone())
    hidden = torch.eye(len(OLD), dtype=torch.float64)[SPACE.state]
    mu = truncated(OLD)
    drawn = mu.sum(-1).exp()
    logp, _ = ScoringHead(weight, 1.0)(hidden, SPACE.tokens, pack(LEFT[SPACE.state]) if masks else None)
    rows = drawn > 0  # the others are never sampled
    batch = Batch(mu[rows], SPACE.mask[rows], logp[rows].detach(), (drawn * R)[rows, None].expand(-1, 3))
    corrected = correct(batch, correction)
    loss, _ = Objective(pg, correction, "old", "token_sum")(logp[rows], batch, corrected, Counts.of(corrected.counted))
    return torch.autograd.grad(loss, weight)[0].t()


@pytest.mark.parametrize(("chunk", "tolerance"), [(1, 1e-6), (2**24, 1e-12)], ids=["by place", "at once"])
def test_the_gradient_is_biased_by_the_truncated_mass_without_masks_and_exact_with_them(monkeypatch, chunk, tolerance):
    """With Z_t = π_θ(S_t), S_t the tokens left before token t and held fixed, log π_θ = log π^S_θ + log Z_t. So with masks the
    gradient is that of J(θ) = E_{π^S_θ}[R], and without them it is off by E_μ[R Σ_t ∇ log Z_t]. Chunks add up in fp32."""
    monkeypatch.setitem(head.CHUNK, "cpu", chunk)
    theta = OLD.clone().requires_grad_()
    true = torch.autograd.grad(-(truncated(theta).sum(-1).exp() * R).sum(), theta)[0]
    mass = theta.softmax(-1).masked_fill(~LEFT, 0.0).sum(-1).log()[SPACE.state].sum(-1)
    bias = torch.autograd.grad(-(truncated(OLD).sum(-1).exp() * R * mass).sum(), theta)[0]
    torch.testing.assert_close(expected_gradient(masks=True), true, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(expected_gradient(masks=False), true + bias, atol=tolerance, rtol=tolerance)
    assert bias.norm() > 0.1 * true.norm()
    # The untruncated sequence weight Π Z_t does not mend it: that is the gradient of E_π[R·1{every token is left}].
    weighted = expected_gradient(masks=False, correction=Correction(weight=Weight("sequence", upper=math.inf)))
    inside = torch.autograd.grad(-(SPACE.logp(theta).sum(-1).exp() * R)[truncated(OLD).sum(-1).isfinite()].sum(), theta)[0]
    torch.testing.assert_close(weighted, inside, atol=tolerance, rtol=tolerance)
    assert (inside - true).norm() > 0.1 * true.norm()


def test_without_masks_every_ratio_of_the_control_is_the_mass_that_was_left():
    """π_old/μ = Z_t ≤ 1 of every token that can be drawn, though the two are one policy; with masks it is 1."""
    drawn, mu = truncated(OLD).isfinite(), truncated(OLD)
    mass = OLD.softmax(-1).masked_fill(~LEFT, 0.0).sum(-1)[SPACE.state]
    without, (masked, entropy) = through_head(OLD, masks=False)[0], through_head(OLD, masks=True)
    torch.testing.assert_close((without - mu).exp()[drawn], mass[drawn], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(masked[drawn], mu[drawn], atol=1e-12, rtol=1e-12)
    two = OLD.masked_fill(~LEFT, -torch.inf).softmax(-1).clamp(min=1e-300)
    torch.testing.assert_close(entropy, -(two * two.log()).sum(-1)[SPACE.state], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 0), (1.0, 3), (0.7, 5)])
def test_an_engine_without_truncation_replays_the_log_probabilities_to_the_bit(top_p, top_k):
    """Ragged prompts, equal ones among them, and responses that end: what is left holds the drawn token and at most top_k."""
    generator = torch.Generator().manual_seed(0)
    net = build(SHAPE, 0)
    shared = {"temperature": 0.7, "stop": (3,)}
    truncating = engine_of(LocalEngine, net.config, top_p=top_p, top_k=top_k, record_support=True, **shared)
    whole = engine_of(LocalEngine, net.config, **shared)
    for engine in (truncating, whole):
        engine.load_weights(net.named_parameters(), 0)
    prompts = torch.randint(0, SHAPE.vocab_size, (3, 4), generator=generator).repeat_interleave(8, 0)
    prompts[:8, 0] = PAD
    rollout = truncating.generate(prompts, torch.rand(24, 6, generator=generator))
    left = unpack(rollout.support, SHAPE.vocab_size)
    assert (rollout.tokens == PAD).any() and torch.equal(left.any(-1), rollout.written)
    assert left.gather(-1, rollout.tokens.clamp(min=0)[..., None])[..., 0][rollout.written].all()
    assert left.sum(-1).max() <= (top_k or SHAPE.vocab_size)
    assert torch.equal(whole.score(prompts, rollout.tokens, Recorded(support=rollout.support)), rollout.logp)
    assert (whole.score(prompts, rollout.tokens) < rollout.logp).any()
    assert whole.generate(prompts, torch.rand(24, 2, generator=generator)).support is None


def test_rows_whose_masks_differ_are_computed_apart():
    prompts, tokens = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 1, dtype=torch.int64)
    support = torch.tensor([[[3]], [[3]], [[7]]], dtype=torch.uint8)
    first, place = distinct(prompts, tokens, Recorded(support=support))
    assert len(first) == 2 and place[0] == place[1] != place[2]


TOP = ["rollout/precision=fp32", "rollout.top_k=2"]
REPLAY = "rollout.replay_sampling_mask=true"


@pytest.mark.slow
def test_the_control_is_exact_with_masks_alone(tiny):
    """Truncated sampling by the trainer's own weights, two tokens at each place; mini-batches by unmoved weights are at π_old."""
    shared = [*TOP, "actor.num_minibatches=2", "actor.lr=1e-12"]
    plain, masked = (stepped(tiny(*shared, *more))[0] for more in ([], [REPLAY]))
    assert abs(masked["actor/ppo_kl"]) < 1e-6
    assert masked["rollout_corr/k3_kl"] == masked["mismatch/log_ratio_max_abs"] == 0.0
    assert masked["rollout/support_tokens"] == 2.0 and "rollout/support_tokens" not in plain
    assert plain["rollout_corr/kl"] > 1e-3  # K1 = E −log Z
    forward = stepped(tiny(*TOP, REPLAY, "actor.scoring=forward"))[0]
    assert forward["mismatch/log_ratio_max_abs"] < 1e-4


@pytest.mark.slow
def test_the_gradient_laboratory_replays_masks(tiny):
    """From a checkpoint: the batch of the engine is at ratio 1, and the network's gradient is that of the renormalised policy."""
    config = tiny(*TOP, REPLAY, "steps=1", "checkpoint.every=1")
    train(config)
    with parts_at(find(config.path)) as parts:
        gradients = SampledGradients(parts, prompts=2, seed=0)
        drawn = gradients._draw(parts.sampler.engine, "test", 0)
        assert torch.equal(drawn.batch.logp_old, drawn.batch.logp_rollout) and drawn.replay.routes is None
        ones, layout = torch.ones(drawn.batch.mask.shape), drawn.rows.layout
        ours = gradients.policy.gradient(drawn.rows, ones)
        whole = gradients.policy.gradient(drawn.rows._replace(layout=layout._replace(places={})), ones)
    assert ours.isfinite().all() and not torch.allclose(ours, whole)


@pytest.mark.slow
def test_a_reference_is_renormalised_too_and_the_dump_lists_what_was_left(tiny):
    """At the start the policy is its reference, so their KL is 0 with masks; without, it has −log Z."""
    config = tiny(*TOP, REPLAY, "kl=k3", "dump.every=1")
    metrics, _ = stepped(config)
    assert metrics["actor/kl"] == 0.0
    table = read_table(folder_of(config).path / "dumps" / "step-00000000.parquet")
    sets, tokens = table["sampling_mask"].to_pylist(), table["tokens"].to_pylist()
    assert all(token in left and len(left) == 2 for row, own in zip(sets, tokens, strict=True)
               for left, token in zip(row, own, strict=True))  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([REPLAY], r"replay_sampling_mask=true has no effect with top_p=1 and top_k=0.*set rollout\.top_p"),
        ([REPLAY, "rollout.top_k=1000"], r"no effect: rollout\.top_k=1000 leaves all \d+ tokens; lower it"),
    ],
)
def test_a_replay_without_effect_is_refused(tiny, overrides, reason):
    with pytest.raises(UserError, match=reason):
        check(tiny(*overrides))


def test_a_branch_cannot_replay_what_waiting_rollouts_lack(tiny):
    origin = tiny(*TOP, "rollout.staleness=1")
    _check_waiting(origin, origin, "")
    with pytest.raises(UserError, match=r"replay_sampling_mask=true reads what the rollouts that wait.*set it to false"):
        _check_waiting(origin, tiny(*TOP, "rollout.staleness=1", REPLAY), "x")
