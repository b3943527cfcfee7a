"""Statements about expectations, as finite sums in fp64: the batch is every response, weighted by its probability under
μ.

The weight enters through the advantages, A = μ(y)·R(y): every loss is of degree one in A ≥ 0 and A ≤ 0 alike.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import pytest
import torch

from algos.advantages import dr_grpo, pass_at_k, rloo
from algos.batch import Batch
from algos.corrections.apply import bounded_weights, correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.mismatch import mismatch
from algos.enumerable import EnumerablePolicy, policies, rewards
from algos.kl import k1, k2, k3, k3_k2, k3_unbiased
from algos.losses import ctpo, gspo, ppo, sapo
from algos.objective import Objective
from algos.ratios import Ratio, at_level
from algos.reductions import Counts
from algos.registry import LOSSES
from tests.algos.algo_cases import LOSS_PARAMS, UNBOUNDED, of_ratio

SPACE = EnumerablePolicy.of(3, 4)
PI, MU, OLD = policies(SPACE, 0.3, 0.2)
R = rewards(SPACE)
SAMPLED = Batch(SPACE.logp(MU), SPACE.mask, SPACE.logp(PI))
UNTRUNCATED = {level: Correction(ratio="current", weight=Weight(level, upper=math.inf)) for level in ("token", "sequence")}


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=tolerance, rtol=tolerance)


def mu():
    """μ(y), [N]."""
    return SPACE.logp(MU).sum(-1).exp()


def expected_gradient(loss, correction, *, proximal="old", old=OLD, reduction="token_sum", reward=R, behaviour=MU):
    """∇_θ E_μ[the objective] at θ = PI: every response once, with its probability as a factor of the advantage."""
    theta = PI.clone().requires_grad_()
    logp, logp_mu, logp_old = SPACE.logp(theta), SPACE.logp(behaviour), SPACE.logp(old)
    advantages = (logp_mu.sum(-1).exp() * reward)[:, None].expand_as(logp)
    objective = Objective(loss, correction, proximal, reduction)
    batch = Batch(logp_mu, SPACE.mask, logp_old, advantages)
    current = correction.ratio == "current"
    corrected = correct(batch, correction, logp.detach() if current else None)
    return torch.autograd.grad(
        objective(logp, objective.select(batch, corrected.counted), corrected, Counts.of(corrected.counted))[0], theta
    )[0]


def true_gradient(reward=R):
    """−∇_θ E_π[R] at θ = PI."""
    theta = PI.clone().requires_grad_()
    return torch.autograd.grad(-(SPACE.logp(theta).sum(-1).exp() * reward).sum(), theta)[0]


def sequence_ratio(target=PI):
    return (SPACE.logp(target) - SPACE.logp(MU)).sum(-1).exp()


def test_ratios_have_mean_one_at_every_state_and_for_every_prefix():
    rho = correct(SAMPLED, UNTRUNCATED["token"]).weights
    for state in SPACE.state.unique():
        here = SPACE.state == state
        # every response through a state, weighted by μ(y): the conditional expectation of the token's ratio
        weight = torch.where(here, mu()[:, None], 0.0)
        close((weight * rho).sum() / weight.sum(), 1.0)
    for t in range(4):
        close((mu() * rho[:, : t + 1].prod(-1)).sum(), 1.0)


def test_the_untruncated_sequence_weight_is_unbiased_and_the_token_weight_is_not():
    exact = true_gradient()
    close(expected_gradient(LOSSES["pg"], UNTRUNCATED["sequence"]), exact)
    token = (expected_gradient(LOSSES["pg"], UNTRUNCATED["token"]) - exact).norm() / exact.norm()
    nothing = (expected_gradient(LOSSES["pg"], Correction()) - exact).norm() / exact.norm()
    assert 1e-2 < token < nothing


def test_the_prefix_product_is_biased_under_a_sampled_terminal_reward():
    """w_t = Π_{s≤t} ρ_s leaves the continuation under μ: exact with Q^π(prefix) for the reward, not with R itself."""
    per_token, prefix = torch.func.jacrev(SPACE.logp)(PI), (SPACE.logp(PI) - SPACE.logp(MU)).cumsum(-1).exp()
    pi = SPACE.logp(PI).sum(-1).exp()
    same = torch.stack([(SPACE.tokens[:, None, : t + 1] == SPACE.tokens[None, :, : t + 1]).all(-1) for t in range(4)], -1)
    q = torch.einsum("mnt,n->mt", same.double(), pi * R) / torch.einsum("mnt,n->mt", same.double(), pi)
    exact = true_gradient()
    sampled, expected = (torch.einsum("nt,ntsv->sv", -mu()[:, None] * prefix * r, per_token) for r in (R[:, None], q))
    close(expected, exact)
    assert correct(SAMPLED, Correction(weight=Weight("prefix", upper=math.inf))).weights.allclose(prefix, rtol=1e-12)
    unclipped = functools.partial(ctpo, log_low=20.0, log_high=20.0, log_dual_clip=None, power=0.5)
    close(expected_gradient(unclipped, Correction(), proximal="rollout"), sampled)
    assert (sampled - exact).norm() > 1e-2 * exact.norm()


def test_a_response_of_two_versions_is_corrected_exactly_by_the_mu_of_each_token_and_not_by_that_of_one_version():
    """Two tokens by μ_1 and two by μ_2 are drawn from m(y) = Π_t μ_v(t)(y_t | y_<t), which is a policy: the weight Π_t π/μ_v(t)
    is exact. With μ_1 for all tokens the expectation is E_π[R·m/μ_1] instead."""
    first, second = SPACE.logp(MU), SPACE.logp(OLD)
    logp_mu = torch.cat([first[:, :2], second[:, 2:]], 1)
    drawn, segments = logp_mu.sum(-1).exp(), torch.tensor([0, 0, 1, 1]).expand_as(logp_mu)
    close(drawn.sum(), 1.0)
    sequence = Correction(weight=Weight("sequence", upper=math.inf))

    def weights(logp_rollout, correction):
        return correct(Batch(logp_rollout, SPACE.mask, SPACE.logp(PI), segments=segments), correction).weights

    pi = SPACE.logp(PI).sum(-1).exp()
    own, one = weights(logp_mu, sequence)[:, 0], weights(first, sequence)[:, 0]
    close((drawn * own * R).sum(), (pi * R).sum())
    bias = (pi * R * ((second - first)[:, 2:].sum(-1).exp() - 1)).sum()
    close((drawn * one * R).sum(), (pi * R).sum() + bias)
    assert bias.abs() > 1e-2 * (pi * R).sum().abs()
    # A version as a segment: each factor has mean 1, given what came before it, and their product is the weight of the response.
    by_version = weights(logp_mu, Correction(weight=Weight("segment", upper=math.inf)))
    close((drawn[:, None] * by_version).sum(0), torch.ones(4))
    close(by_version[:, 0] * by_version[:, 3], own)

    def gradient(logp_rollout):
        theta = PI.clone().requires_grad_()
        batch = Batch(logp_rollout, SPACE.mask, SPACE.logp(PI), (drawn * R)[:, None].expand_as(logp_mu))
        corrected = correct(batch, sequence)
        loss, _ = Objective(LOSSES["pg"], sequence, "old", "token_sum")(
            SPACE.logp(theta), batch, corrected, Counts.of(corrected.counted)
        )
        return torch.autograd.grad(loss, theta)[0]

    close(gradient(logp_mu), true_gradient())
    assert (gradient(first) - true_gradient()).norm() > 1e-2 * true_gradient().norm()


def test_the_ppo_ratio_against_mu_is_the_token_weight():
    """−A·r anchored on μ has the gradient of −(π/μ)·A·log π: both are the token weight without truncation."""
    unclipped = functools.partial(ppo, **UNBOUNDED["ppo"])
    close(
        expected_gradient(unclipped, Correction(), proximal="rollout"),
        expected_gradient(LOSSES["pg"], UNTRUNCATED["token"]),
    )


@pytest.mark.parametrize("cap", [1.0, 1.3, 2.0, 50.0])
def test_truncation_masking_and_rejection_have_the_stated_means_and_gradients(cap):
    rho = sequence_ratio()
    pi, keep = mu() * rho, sequence_ratio() <= cap
    assert cap == 50.0 or not keep.all()

    def weights(**kwargs):
        return correct(SAMPLED, Correction(weight=Weight("sequence", **kwargs))).weights[:, 0]

    truncated, masked = weights(upper=cap), weights(action="mask", upper=cap)
    close((mu() * truncated).sum(), 1 - (mu() * (rho - cap).clamp(min=0)).sum())
    close((mu() * masked).sum(), pi[keep].sum())
    # the bias of truncation is at most E_μ[(ρ − C)₊·‖f‖], f the gradient of one response
    per_response = torch.func.jacrev(lambda theta: SPACE.logp(theta).sum(-1))(PI)
    f = -(R[:, None, None] * per_response)
    tis = expected_gradient(LOSSES["pg"], Correction("current", Weight("sequence", upper=cap)))
    close(tis, torch.einsum("n,nsv->sv", mu() * truncated, f))
    bound = (mu() * (rho - cap).clamp(min=0) * f.flatten(1).norm(dim=-1)).sum()
    assert (tis - true_gradient()).norm() <= bound + 1e-12
    mis = expected_gradient(LOSSES["pg"], Correction("current", Weight("sequence", "mask", upper=cap)))
    close(mis, torch.einsum("n,nsv->sv", pi * keep, f))  # P_π(keep)·E_π[f | keep]
    rejected = expected_gradient(LOSSES["pg"], Correction("current", reject={"s": Reject("sequence", upper=cap)}))
    close(rejected, torch.einsum("n,nsv->sv", mu() * keep, f))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_limits_of_the_bound(level):
    """C → ∞: truncate, mask and no bound are one. C → 0: truncate is C times no correction, mask leaves nothing.

    So under Adam, which divides a scale out, a truncation far below 1 is no correction, and C < 1 is refused.
    """
    ratio = Ratio(SAMPLED)
    rho = ratio.at_level(level)
    free, pg = expected_gradient(LOSSES["pg"], UNTRUNCATED[level]), LOSSES["pg"]
    for action in ("truncate", "mask"):
        for cap in (rho.max().item(), 1e9):
            assert torch.equal(expected_gradient(pg, Correction("current", Weight(level, action, upper=cap))), free)
    per_token = torch.func.jacrev(SPACE.logp)(PI)
    uncorrected, share = expected_gradient(pg, Correction()), []
    for cap in (0.9, 0.5 * rho.min().item(), 1e-6):
        with pytest.raises(ValueError, match=f"upper={cap} is below 1"):
            Weight(level, upper=cap)
        below = SimpleNamespace(level=level, action="truncate", upper=cap, lower=None)
        weights = bounded_weights(rho, below).expand_as(SPACE.mask)
        gradient = torch.einsum("n,nt,ntsv->sv", -mu() * R, weights, per_token) / cap
        share.append(((gradient - uncorrected).norm() / uncorrected.norm()).item())
        below.action = "mask"
        assert (bounded_weights(rho, below) == 0).all() == (cap < rho.min())
    assert share[0] > 1e-2 and max(share[1:]) < 1e-12


def test_the_denominator_decides_between_a_mean_and_a_conditional_mean():
    """μ uniform, so that the responses listed once are the population: original: E[1{keep}·f], kept: E[f | keep]."""
    uniform = torch.zeros_like(MU)
    theta = PI.clone().requires_grad_()
    logp, logp_mu = SPACE.logp(theta), SPACE.logp(uniform)
    advantages = R[:, None].expand_as(logp)
    values = {}
    for denominator in ("original", "kept"):
        spec = Correction("current", reject={"s": Reject("sequence", upper=1.2)}, denominator=denominator)
        objective = Objective(LOSSES["pg"], spec, "old", "seq_mean_token_sum")
        batch = Batch(logp_mu, SPACE.mask, advantages=advantages)
        corrected = correct(batch, spec, logp.detach())
        values[denominator] = objective(logp, batch, corrected, Counts.of(corrected.counted))[0]
    keep = (logp - logp_mu).sum(-1).exp() <= 1.2
    f = -R * logp.sum(-1)
    assert 0 < keep.sum() < len(keep)
    close(values["original"], torch.where(keep, f, 0.0).mean().detach())
    close(values["kept"], f[keep].mean().detach())


def test_tails_of_the_ratio_under_mu():
    rho = sequence_ratio()
    chi2 = (mu() * rho.square()).sum() - 1
    for cap in (1.5, 2.0, 4.0):
        tail = mu()[rho > cap].sum()
        assert tail <= 1 / cap and tail <= chi2 / (cap - 1) ** 2
    largest = torch.maximum(rho, 1 / rho).max()
    assert chi2 <= largest.square() * (mu() * rho.log().square()).sum()


def test_kl_is_the_mean_of_k1_and_of_k3():
    logp_mu, logp_pi = SPACE.logp(MU), SPACE.logp(PI)
    kl = (mu() * (logp_mu - logp_pi).sum(-1)).sum()
    close((mu()[:, None] * k1(logp_mu, logp_pi, SPACE.mask)).sum(), kl)
    close((mu()[:, None] * k3(logp_mu, logp_pi, SPACE.mask)).sum(), kl)
    total = (logp_pi - logp_mu).sum(-1)
    close((mu() * (torch.expm1(total) - total)).sum(), kl)
    assert (k3(logp_mu, logp_pi, SPACE.mask) >= 0).all() and (k1(logp_mu, logp_pi, SPACE.mask) < 0).any()
    tv = (mu() - logp_pi.sum(-1).exp()).abs().sum() / 2
    assert tv <= (kl / 2).sqrt()


def test_diagnostics_are_the_population_values_when_mu_is_uniform():
    """Every response once is the population of a uniform μ: plug-in estimates are then exact."""
    uniform = torch.zeros_like(MU)
    logp_mu, logp_pi = SPACE.logp(uniform), SPACE.logp(PI)
    out = mismatch(Batch(logp_mu, SPACE.mask, logp_pi))
    rho = (logp_pi - logp_mu).sum(-1).exp()
    chi2 = rho.square().mean() - 1
    close(out["rollout_corr/chi2_seq"], chi2)
    close(out["mismatch/chi2_sequence_normalized"], chi2)  # E[ρ] = 1 here
    close(out["mismatch/ess_sequence"], 1 / (1 + chi2))
    close(out["mismatch/ess_sequence"], 1 / (1 + rho.var(correction=0) / rho.mean() ** 2))
    close(out["mismatch/ratio_mean"], 1.0)
    close(out["rollout_corr/kl"] * 4, (logp_mu - logp_pi).sum(-1).mean())
    close(out["rollout_corr/k3_kl"] * 4, (logp_mu - logp_pi).sum(-1).mean())
    bounded = {"token": out["mismatch/ess_token"], "sequence": out["mismatch/ess_sequence"]}
    assert 1 / SPACE.mask.sum() <= bounded["token"] <= 1 and 1 / len(rho) <= bounded["sequence"] <= 1


def test_clamped_weights_cannot_show_a_low_ess():
    """Kantorovich: weights in [a, b] have ESS/N ≥ 4ab/(a + b)², .64 for [½, 2], attained by the right mixture."""
    log_weights = torch.log(torch.tensor([0.5] * 4 + [2.0], dtype=torch.float64))[:, None]
    ess = mismatch(of_ratio(log_weights, torch.ones_like(log_weights).bool()))["mismatch/ess_token"]
    close(ess, 0.64)


def test_the_geometric_ratio_is_a_ratio_of_perplexities_and_gspos():
    logp_mu, logp_pi = SPACE.logp(MU), SPACE.logp(PI)
    geometric = at_level(logp_pi - logp_mu, SPACE.mask, "geometric").exp()[:, 0]
    close(geometric, (-logp_mu.mean(-1)).exp() / (-logp_pi.mean(-1)).exp())
    ratio = gspo(logp_pi, logp_mu, -torch.ones_like(logp_mu), SPACE.mask, eps_low=1.0, eps_high=math.inf).loss
    close(ratio, geometric[:, None].expand_as(ratio))


def test_decoupled_is_independent_of_the_proximal_policy_until_it_is_truncated():
    unclipped = functools.partial(ppo, **UNBOUNDED["ppo"])
    token = Correction(weight=Weight("token", upper=math.inf))
    first, second = (expected_gradient(unclipped, token, old=old) for old in (OLD, MU))
    close(first, second)
    assert ((OLD - MU).abs() > 0).any()
    truncated = Correction(weight=Weight("token", upper=1.0))
    a, b = (expected_gradient(unclipped, truncated, old=old) for old in (OLD, MU))
    assert (a - b).abs().max() > 1e-3


def test_bypass_is_decoupled_with_mu_as_the_proximal_policy():
    clipped = functools.partial(ppo, **LOSS_PARAMS["ppo"])
    bypass = expected_gradient(clipped, Correction(), proximal="rollout")
    decoupled = expected_gradient(clipped, Correction(weight=Weight("token", upper=2.0)), old=MU)
    assert torch.equal(bypass, decoupled)


def test_a_leave_one_out_baseline_keeps_the_weight_unbiased_and_a_self_inclusive_one_shrinks_it():
    """All pairs (G = 2) from μ: E[w·(R_i − R_j)·∇log π_i] = ∇J, and half of it with the pair's mean as baseline."""
    space = EnumerablePolicy.of(2, 2)
    pi, behaviour = policies(space, 0.5)
    reward = rewards(space)
    probability = space.logp(behaviour).sum(-1).exp()
    theta = pi.clone().requires_grad_()
    log_pi = space.logp(theta).sum(-1)
    exact = torch.autograd.grad((log_pi.exp() * reward).sum(), theta, retain_graph=True)[0]
    n = len(reward)
    pairs = torch.stack([reward[:, None].expand(n, n), reward[None].expand(n, n)], -1).reshape(-1, 2)
    weight = (log_pi.detach() - space.logp(behaviour).sum(-1)).exp()
    for estimator, factor in ((rloo, 1.0), (dr_grpo, 0.5)):
        advantage = estimator(pairs)[:, 0].reshape(n, n)
        value = (probability[:, None] * probability[None] * weight[:, None] * advantage * log_pi[:, None]).sum()
        close(torch.autograd.grad(value, theta, retain_graph=True)[0], factor * exact)


def test_the_lead_of_the_best_is_the_gradient_of_the_expected_maximum():
    """All pairs from π: E[Σ_i (max R − max_{j≠i} R_j)·∇log π_i] = ∇E[max(R_1, R_2)]."""
    space = EnumerablePolicy.of(2, 2)
    (pi,) = policies(space)
    reward = rewards(space)
    theta = pi.clone().requires_grad_()
    log_pi = space.logp(theta).sum(-1)
    first, second = (part.flatten() for part in torch.meshgrid(reward, reward, indexing="ij"))
    log_pair = log_pi[:, None] + log_pi[None]
    exact = torch.autograd.grad((log_pair.exp().flatten() * torch.maximum(first, second)).sum(), theta, retain_graph=True)[0]
    lead = pass_at_k(torch.stack([first, second], -1), std=False).view(len(reward), len(reward), 2)
    scores = lead[..., 0] * log_pi[:, None] + lead[..., 1] * log_pi[None]
    close(torch.autograd.grad((log_pair.exp().detach() * scores).sum(), theta)[0], exact)


def gradient_at_the_anchor(name, params, *, without_selected=False):
    """θ = θ_prox: the gradient of a loss, −A·∇log π_θ of every token or of those not selected, and the selection."""
    objective = Objective(functools.partial(LOSSES[name], **params), Correction(), "old", "seq_mean_token_mean")
    theta = PI.clone().requires_grad_()
    logp = SPACE.logp(theta)
    old, advantages = logp.detach(), R[:, None].expand_as(logp)
    corrected = correct(Batch(old, SPACE.mask, old), Correction())
    batch = objective.select(Batch(old, SPACE.mask, old, advantages), corrected.counted)
    value, _ = objective(logp, batch, corrected, Counts.of(SPACE.mask))
    gradient = torch.autograd.grad(value, theta, retain_graph=True)[0]
    policy = -R[:, None] * (torch.where(batch.selected, 0.0, logp) if without_selected else logp)
    return gradient, torch.autograd.grad(policy.mean(), theta)[0], batch.selected


@pytest.mark.parametrize("name", sorted(set(LOSS_PARAMS) - {"cross_entropy", "clip_cov"}))
def test_every_loss_is_the_policy_gradient_at_the_anchor(name):
    """With a mean over the tokens of a row the sequence losses agree too; luspo has the length instead."""
    gradient, exact, _ = gradient_at_the_anchor(name, LOSS_PARAMS[name])
    close(gradient, exact * (4 if name == "luspo" else 1))


def test_clip_cov_drops_its_selected_tokens_even_at_the_anchor():
    """Its published share of the 324 tokens is less than one token, and then one is selected; an empty band is ppo."""
    params = {"eps_low": 0.2, "eps_high": 0.2, "share": 2e-4, "lower": 1.0, "upper": 5.0}
    gradient, without, selected = gradient_at_the_anchor("clip_cov", params, without_selected=True)
    close(gradient, without)
    empty, exact, none = gradient_at_the_anchor("clip_cov", params | {"lower": 98.0, "upper": 99.0})
    close(empty, exact)
    assert selected.sum() == 1 and not none.any() and (gradient - exact).norm() > 1e-3 * exact.norm()


@pytest.mark.parametrize("name", UNBOUNDED)
def test_losses_without_their_bounds_have_the_gradient_of_the_ratio(name):
    close(
        expected_gradient(functools.partial(LOSSES[name], **UNBOUNDED[name]), Correction()),
        expected_gradient(functools.partial(ppo, **UNBOUNDED["ppo"]), Correction()),
    )


def test_sapo_without_temperature_has_the_gradient_of_the_ratio():
    soft = functools.partial(sapo, tau_pos=1e-7, tau_neg=1e-7)
    close(
        expected_gradient(soft, Correction()),
        expected_gradient(functools.partial(ppo, **UNBOUNDED["ppo"]), Correction()),
        tolerance=1e-9,  # the departure is of order τ²
    )


def test_gspo_token_is_gspo_for_uniform_advantages():
    theta = PI.clone().requires_grad_()
    logp, old = SPACE.logp(theta), SPACE.logp(OLD)
    advantages = R[:, None].expand_as(logp)
    token = gspo(logp, old, advantages, SPACE.mask, eps_low=0.03, eps_high=0.04)
    s = (logp - old).mean(-1).exp()
    through_the_mean = torch.maximum(-R * s, -R * s.clamp(0.97, 1.04))
    assert token.clipped.any() and not token.clipped.all()
    a = torch.autograd.grad(token.loss.mean(-1).sum(), theta, retain_graph=True)[0]
    close(a, torch.autograd.grad(through_the_mean.sum(), theta)[0])


ONE = EnumerablePolicy.of(4, 1)


def test_gradients_of_the_kl_estimators():
    """One token, so that KL(π‖ref) is a sum of four terms: which estimator's mean gradient is the KL's."""
    pi, ref, prox = policies(ONE, 0.5, 0.4, seed=3)
    theta = pi.clone().requires_grad_()
    logp, logp_ref, logp_prox = ONE.logp(theta), ONE.logp(ref), ONE.logp(prox)
    p, q = logp.exp(), logp_ref.exp()
    forward = torch.autograd.grad((p * (logp - logp_ref)).sum(), theta, retain_graph=True)[0]
    reverse = torch.autograd.grad((q * (logp_ref - logp)).sum(), theta, retain_graph=True)[0]

    def mean_gradient(estimator, behaviour):
        value = (behaviour.detach() * estimator(logp, logp_ref, ONE.mask, logp_prox)).sum()
        return torch.autograd.grad(value, theta, retain_graph=True)[0]

    close(mean_gradient(k1, p), torch.zeros_like(theta))
    close(mean_gradient(k2, p), forward)
    close(mean_gradient(k3, p), reverse)
    close(mean_gradient(k3_k2, p), forward)
    close(mean_gradient(k3_unbiased, logp_prox.exp()), forward)
    value = (logp_prox.exp() * k3_unbiased(logp, logp_ref, ONE.mask, logp_prox)).sum()
    close(value.detach(), (p * (logp - logp_ref)).sum().detach())
