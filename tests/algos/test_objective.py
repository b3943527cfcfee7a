"""The objective's KL term, its metrics, and what it needs of π_old."""

import functools

import pytest
import torch

from algos import kl
from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.losses import pg, ppo
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import KL
from tests.algos.algo_cases import f64, shared_batch

PPO = functools.partial(ppo, eps_low=0.2, eps_high=0.2, dual_clip=3.0)


def value_and_gradient(objective, batch, ref=None, rows=slice(None)):
    logp, given = batch
    given = given._replace(logp_ref=ref)
    corrected = correct(given, objective.correction)
    leaf = logp[rows].clone().requires_grad_()
    value, metrics = objective(leaf, given.rows(rows), corrected.rows(rows), Counts.of(corrected.counted))
    return value.detach(), torch.autograd.grad(value, leaf)[0], metrics


@pytest.mark.parametrize("reduction", ["token_mean", "seq_mean_token_mean", "token_sum"])
def test_the_kl_term_is_its_coefficient_times_the_estimator(reduction):
    """k2 of x = log π_ref − log π_θ has gradient −x; mean over the 5 tokens of the shared batch, or as the reduction says.

    No weight multiplies it.
    """
    batch = shared_batch()
    ref = batch[0] + f64([[0.5, -0.2, 0.0], [0.1, -0.4, 9.0]])
    plain = Objective(PPO, Correction(weight=Weight("token", upper=2.0)), "old", reduction)
    with_kl = plain._replace(kl=kl.k2, kl_coef=0.3)
    value, gradient, metrics = value_and_gradient(with_kl, batch, ref)
    base, base_gradient, _ = value_and_gradient(plain, batch)
    per_token = {
        "token_mean": f64([[1, 1, 1], [1, 1, 0]]) / 5,
        "seq_mean_token_mean": f64([[1 / 3] * 3, [1 / 2, 1 / 2, 0]]) / 2,
        "token_sum": f64([[1, 1, 1], [1, 1, 0]]),
    }[reduction]
    x = f64([[0.5, -0.2, 0.0], [0.1, -0.4, 0.0]])
    torch.testing.assert_close(value - base, 0.3 * (per_token * x.square() / 2).sum())
    torch.testing.assert_close(gradient - base_gradient, -0.3 * per_token * x)
    assert metrics["actor/kl"].item() == pytest.approx((0.25 + 0.04 + 0.01 + 0.16) / 2 / 5)


def test_the_kl_term_of_rejected_tokens_is_dropped_and_parts_add_up():
    batch = shared_batch()
    ref = batch[0] + 0.3
    keep = Correction(reject={"veto": Reject("token", "ratio", None, 2.0)})  # ρ = e of the third token is rejected
    objective = Objective(PPO, keep, "old", "token_mean", kl=kl.k3, kl_coef=1.0)
    whole = value_and_gradient(objective, batch, ref)
    assert whole[1][0, 2] == 0
    parts = [value_and_gradient(objective, batch, ref, rows) for rows in (slice(0, 1), slice(1, 2))]
    torch.testing.assert_close(sum(p[0] for p in parts), whole[0])
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), whole[1])
    torch.testing.assert_close(sum(p[2]["actor/kl"] for p in parts), whole[2]["actor/kl"])


def test_a_kl_term_without_a_reference_is_an_error():
    with pytest.raises(ValueError, match="a KL term needs logp_ref"):
        value_and_gradient(Objective(PPO, Correction(), "old", "token_mean", kl=kl.k3, kl_coef=1.0), shared_batch())


def test_the_dual_clip_is_counted_on_its_own():
    """A = −1 and r = 5, 2, .5, with c = 3 and clip .2: capped, clipped by neither (r > 1 with A < 0), clipped below; A = 0
    has no bound to be at."""
    old, mask = f64([[-2, -2, -2, -2]]), torch.ones(1, 4).bool()
    logp, advantages = old + f64([[5, 2, 0.5, 5]]).log(), f64([[-1, -1, -1, 0]])
    metrics = value_and_gradient(Objective(PPO, Correction(), "old", "token_mean"), (logp, Batch(old, mask, old, advantages)))[2]
    assert metrics["actor/pg_clipfrac_lower"].item() == pytest.approx(1 / 4)
    assert metrics["actor/clip_share"].item() == pytest.approx(2 / 4)


def test_what_reads_the_old_policy():
    token, current = Correction(weight=Weight("token", "truncate", None, 2.0)), Reject("geometric", "ratio", 0.9, None)
    reads = functools.partial(Objective, reduction="token_mean")
    assert reads(PPO, Correction(), "old").reads_old
    assert not reads(PPO, Correction(), "rollout").reads_old
    assert reads(PPO, token, "rollout").reads_old
    assert not reads(pg, Correction(), "old").reads_old
    assert reads(pg, token, "old").reads_old
    assert not reads(pg, Correction(ratio="current", reject={"geo": current}), "old").reads_old
    for name in KL.names():
        assert reads(pg, Correction(), "old", kl=KL[name], kl_coef=0.1).reads_old == (name == "k3_unbiased")
    assert reads(pg, Correction(), "old", kl=lambda *_: None).reads_old  # a plug-in that does not say


@pytest.mark.parametrize("name", [name for name in KL.names() if not KL[name].anchored])
def test_a_kl_term_that_reads_no_old_policy_does_without_it(name):
    logp, given = shared_batch()
    rollout = given.logp_rollout
    objective = Objective(pg, Correction(), "old", "token_mean", kl=KL[name], kl_coef=0.1)
    others = (given, given._replace(logp_old=given.logp_old + 0.5))
    values = [value_and_gradient(objective, (logp, other), rollout) for other in others]
    assert torch.equal(values[0][1], values[1][1])
    corrected = correct(given, Correction())
    without = objective(logp, given._replace(logp_old=None, logp_ref=rollout), corrected, Counts.of(given.mask))[0]
    assert torch.equal(without, values[0][0])
