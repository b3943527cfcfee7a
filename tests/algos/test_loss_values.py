"""Losses against hand arithmetic and against the values that verl 0.9.1, SkyRL 0.3.0 and TRL 1.16.0 give on one batch.

The batch of `shared_batch`: r = π_θ/π_old is e^[.1, −.2, 0 | −.3, .4] = [1.105171, .818731, 1 | .740818, 1.491825], A =
+1 in the first row and −1 in the second; ρ = π_old/μ is e^[.5, −.5, 1 | −1, .5] = [1.648721, .606531, 2.718282 |
.367879, 1.648721].
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.losses import cispo, clip_cov, ctpo, dppo, gmpo, gspo, kl_cov, luspo, minpro, ppo, rollout_is, sapo, topr, vespo
from algos.losses.covariance import covariance, select_band
from algos.objective import Objective
from algos.ratios import at_level
from algos.reductions import Counts, reduce
from algos.registry import LOSSES
from tests.algos.algo_cases import correction as kept
from tests.algos.algo_cases import f64, shared_batch

PPO = {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": 3.0}
TIS2 = Correction(weight=Weight("token", upper=2.0))


def scalar(name, params, reduction="token_mean", *, correction=None, proximal="old"):
    """(loss, gradient) of one whole-batch step on the shared batch."""
    logp, batch = shared_batch()
    logp.requires_grad_()
    objective = Objective(functools.partial(LOSSES[name], **params), correction or Correction(), proximal, reduction)
    current = objective.correction.ratio == "current"
    corrected = correct(batch, objective.correction, logp.detach() if current else None)
    value, _ = objective(logp, objective.select(batch, corrected.counted), corrected, Counts.of(corrected.counted))
    return value.item(), torch.autograd.grad(value, logp)[0]


@pytest.mark.parametrize(
    ("name", "params", "reduction", "correction", "value"),
    [
        # (−1.105171 − .818731 − 1 + .8 + 1.491825)/5: the fourth token is clipped from .740818 up to .8
        ("ppo", PPO, "token_mean", None, -0.126415),
        # ((−2.923902)/3 + 2.291825/2)/2
        ("ppo", PPO, "seq_mean_token_mean", None, 0.085639),
        # (−1.105171·1.648721 − .818731·.606531 − 1·2 + .8·.367879 + 1.491825·1.648721)/5
        ("ppo", PPO, "token_mean", TIS2, -0.312960),
        # s = e^((.1 − .2 + 0)/3) = .967216 and e^((−.3 + .4)/2) = 1.051271: (−3·.967216 + 2·1.051271)/5
        ("gspo", {"eps_low": 0.2, "eps_high": 0.2}, "token_mean", None, -0.159821),
        ("gspo", {"eps_low": 0.2, "eps_high": 0.2}, "seq_mean_token_mean", None, 0.042028),  # (−.967216 + 1.051271)/2
        (
            "luspo",
            {"eps_low": 0.2, "eps_high": 0.2},
            "seq_mean_token_mean",
            None,
            -0.399553,
        ),  # (−3·.967216 + 2·1.051271)/2
        # 4σ(.105171) = 2.105075, 4σ(−.181269) = 1.819227, 2; 4/1.05·σ(1.05·−.259182) = 1.646967, …(.491825) = 2.386646
        ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, "token_mean", None, -0.378238),
        ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, "seq_mean_token_mean", None, 0.020894),
        # −w·A·log π: 1.105171·.9 + .818731·1.7 + .5 = 2.886497; −.8·2.3 − 1.2·1.6 = −3.76; their sum over 5
        ("cispo", {"lower": 0.8, "upper": 1.2}, "token_mean", None, -0.174701),
        # no lower bound: 2.886497 − .740818·2.3 − 1.491825·1.6, over 5
        ("cispo", {"lower": 0.0, "upper": 5.0}, "token_mean", None, -0.240861),
        # SkyRL 0.3.0's package default is [1, 6]: .9·1.105171 + 1.7 + .5 − 2.3 − 1.491825·1.6, over 5
        ("cispo", {"lower": 1.0, "upper": 6.0}, "token_mean", None, -0.298453),
        ("gpg", {}, "token_mean", None, -0.16),  # (.9 + 1.7 + .5 − 2.3 − 1.6)/5
        # (.9·1.648721 + 1.7·.606531 + .5·2 − 2.3·.367879 − 1.6·1.648721)/5
        ("gpg", {}, "token_mean", TIS2, 0.006175),
        ("cross_entropy", {}, "token_mean", None, 1.4),  # (.9 + 1.7 + .5 + 2.3 + 1.6)/5
        # −(log π·A − .025·d²) = .90025 + 1.701 + .5 − 2.29775 − 1.596 = −.7925, over 5
        ("dro", {"beta": 0.05}, "token_mean", None, -0.1585),
    ],
)
def test_values_on_the_shared_batch(name, params, reduction, correction, value):
    assert scalar(name, params, reduction, correction=correction)[0] == pytest.approx(value, abs=6e-7)


@pytest.mark.parametrize(
    ("name", "params", "correction", "gradient"),
    [
        # −A·r/5, and 0 on the clipped token
        ("ppo", PPO, None, [[-0.221034, -0.163746, -0.2], [0, 0.298365, 0]]),
        ("ppo", PPO, TIS2, [[-0.364424, -0.099317, -0.4], [0, 0.491921, 0]]),  # the same times w
        ("cispo", {"lower": 0.8, "upper": 1.2}, None, [[-0.221034, -0.163746, -0.2], [0.16, 0.24, 0]]),
        ("cispo", {"lower": 0.0, "upper": 5.0}, None, [[-0.221034, -0.163746, -0.2], [0.148164, 0.298365, 0]]),
        ("cispo", {"lower": 1.0, "upper": 6.0}, None, [[-0.221034, -0.2, -0.2], [0.2, 0.298365, 0]]),
    ],
)
def test_gradients_on_the_shared_batch(name, params, correction, gradient):
    torch.testing.assert_close(scalar(name, params, correction=correction)[1], f64(gradient), atol=6e-7, rtol=0)


def test_bypass_modes_of_verl():
    """Anchored on μ: π_θ/μ = e^[.6, −.7, 1 | −1.3, .9] = [1.822119, .496585, 2.718282 | .272532, 2.459603]."""
    # (−1.2 − .496585 − 1.2 + .8 + 2.459603)/5
    assert scalar("ppo", PPO, proximal="rollout")[0] == pytest.approx(0.072604, abs=6e-7)
    # w = min(e^.9, 2) = 2 and e^−.4 = .670320: (2·(.9 + 1.7 + .5) − .670320·(2.3 + 1.6))/5
    is_ = Correction(ratio="current", weight=Weight("sequence", upper=2.0))
    assert scalar("pg", {}, correction=is_)[0] == pytest.approx(0.717150, abs=6e-7)
    # IcePop [.5, 5] zeroes .496585 and .272532: (1.822119·.9 + 2.718282·.5 − 2.459603·1.6)/5
    icepop = Correction(ratio="current", weight=Weight("token", "mask", 0.5, 5.0))
    assert scalar("pg", {}, correction=icepop)[0] == pytest.approx(-0.187263, abs=6e-7)


def test_metrics_of_the_objective():
    """PPO clips one token of five; E[log π_old − log π_θ] = −(.1 − .2 + 0 − .3 + .4)/5 = 0, without the fourth −.06."""
    logp, batch = shared_batch()
    for spec, share, kl in (
        (Correction(), 0.2, 0.0),
        (Correction(reject={"t": Reject("token", lower=0.5)}, denominator="original"), 0.0, -0.06),
    ):
        objective = Objective(functools.partial(ppo, **PPO), spec, "old", "token_mean")
        corrected = correct(batch, spec)
        metrics = objective(logp, batch, corrected, Counts.of(corrected.counted))[1]
        assert metrics["actor/clip_share"].item() == pytest.approx(share)
        assert metrics["actor/ppo_kl"].item() == pytest.approx(kl, abs=1e-12)
    bare = Objective(LOSSES["pg"], Correction(), "old", "token_mean")
    assert bare(logp, batch._replace(logp_old=None), corrected, Counts.of(batch.mask))[1] == {}


@pytest.mark.parametrize("name", ["ppo", "pg"])
def test_everything_rejected_is_a_zero_loss_not_nan(name):
    """verl's geometric presets give NaN on this batch: e^.3 and e^−.2 are both outside [.999, 1.001]."""
    params = PPO if name == "ppo" else {}
    for denominator in ("original", "kept"):
        geo = Correction(reject={"geo": Reject("geometric", lower=0.999, upper=1.001)}, denominator=denominator)
        value, gradient = scalar(name, params, correction=geo, proximal="rollout" if name == "ppo" else "old")
        assert value == 0 and (gradient == 0).all()


def row(values):
    return f64([values])


MASK3 = torch.ones(1, 3, dtype=torch.bool)


def test_skyrl_dual_clip():
    """r = [.5, 1, 10], A = [1, −1, −4], c = 3: max(−.5, −.8) = −.5; 1; min(40, 4·3) = 12; sum 12.5."""
    args = row([-1.69315, -1, -0.69741]), row([-1, -1, -3]), row([1, -1, -4]), MASK3
    assert ppo(*args, **PPO).loss.sum().item() == pytest.approx(12.5, abs=1e-4)


def test_skyrl_cispo():
    """clip(r, .8, 1.2) = [.8, 1, 1.2] times −A·log π = [1.69315, −1, −2.78964]: 1.35452 − 1 − 3.34757 = −2.9930."""
    args = row([-1.69315, -1, -0.69741]), row([-1, -1, -3]), row([1, -1, -4]), MASK3
    assert cispo(*args, lower=0.8, upper=1.2).loss.sum().item() == pytest.approx(-2.9930, abs=1e-4)


tv = functools.partial(dppo, divergence="tv", upper=None)


def test_the_cap_of_dppo_is_a_weight():
    """r = e^[.5, 2, −.5], A = [1, −1, 1], cap 2: 2·A in value and slope where r = 7.39, and A·r on the others; as verl has it."""
    logp = row([-0.5, -1, -1.5]).requires_grad_()
    out = dppo(logp, row([-1, -3, -1]), row([1, -1, 1]), MASK3, divergence="kl", delta_low=9.0, delta_high=9.0, upper=2.0)
    expected = row([-math.exp(0.5), 2, -math.exp(-0.5)])
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(torch.autograd.grad(out.loss.sum(), logp)[0], expected)
    assert out.clipped.tolist() == out.capped.tolist() == [[False, True, False]]


def test_skyrl_dppo_tv():
    """A = [1, −1, 1], p − q = e^[−.3, −2, −.9] − e^−1 = [.373, −.233, .039]: with δ = .2 only the last token stays.

    Its loss is −r = −e^.1 = −1.105171.
    """
    out = tv(row([-0.3, -2, -0.9]), row([-1, -1, -1]), row([1, -1, 1]), MASK3, delta_low=0.2, delta_high=0.2)
    assert out.clipped.tolist() == [[True, True, False]]
    torch.testing.assert_close(out.loss, row([0, 0, -math.exp(0.1)]))


def test_dppo_kl_by_hand():
    """q = .5, p = .8: .5·log(.5/.8) + .5·log(.5/.2) = −.235002 + .458145 = .223144; δ on either side of it."""
    args = row([math.log(0.8)] * 3), row([math.log(0.5)] * 3), row([1, -1, 1]), MASK3
    for delta, dropped in ((0.2231, [True, False, True]), (0.2232, [False] * 3)):
        assert dppo(*args, divergence="kl", delta_low=delta, delta_high=delta, upper=None).clipped.tolist() == [dropped]


def test_dppo_bounds_each_side_by_its_own_delta():
    """q = .5, p = .7 and .3, A = 1 and −1: both .2 away; δ_low bounds the fall, δ_high the rise; steps back are free."""
    logp, prox = torch.log(row([0.7, 0.3])), torch.log(row([0.5, 0.5]))
    args = logp, prox, row([1, -1]), torch.ones(1, 2).bool()
    assert tv(*args, delta_low=0.1, delta_high=0.3).clipped.tolist() == [[False, True]]
    assert tv(*args, delta_low=0.3, delta_high=0.1).clipped.tolist() == [[True, False]]
    back = logp, prox, row([-1, 1]), torch.ones(1, 2).bool()
    assert not tv(*back, delta_low=0.1, delta_high=0.1).clipped.any()


def test_bounds_of_ratio_losses_are_inclusive():
    """r = 1 with lower = upper = 1 is in range: nothing is clipped and the loss is −A·log π."""
    logp = row([-1, -2, -3])
    for loss in (rollout_is, cispo):
        out = loss(logp, logp, row([1, -1, 2]), MASK3, lower=1.0, upper=1.0)
        assert not out.clipped.any()
        torch.testing.assert_close(out.loss, row([1, -2, 6]))
    assert not gmpo(logp, logp, row([1, -1, 2]), MASK3, lower=1.0, upper=1.0).clipped.any()


def test_a_divergence_equal_to_delta_is_inside():
    logp, prox = torch.log(row([0.7, 0.3])), torch.log(row([0.5, 0.5]))
    far = (logp.exp() - prox.exp()).abs()[0].tolist()
    out = tv(logp, prox, row([1, -1]), torch.ones(1, 2).bool(), delta_low=far[1], delta_high=far[0])
    assert not out.clipped.any()


NEMO = row([-1.69315, -1, -0.59453]), row([-1, -1, -1]), row([1, -1, 2]), MASK3
"""r = [.5, 1, 1.5], A = [1, −1, 2]; μ = e^[−.5, −1.5, −.8], so π_old/μ = [.6065, 1.6487, .8187]."""


def test_nemo_ppo_and_gspo():
    # (max(−.5, −.8) + 1 + max(−3, −2.4))/3 = (−.5 + 1 − 2.4)/3
    loss = ppo(*NEMO, **PPO | {"dual_clip": None}).loss
    assert loss.mean().item() == pytest.approx(-0.6333, abs=1e-4)
    # (−.5·.6065 + 1·1.6487 − 2.4·.8187)/3
    weights = row([0.6065, 1.6487, 0.8187])
    assert (loss * weights).mean().item() == pytest.approx(-0.2065, abs=1e-4)
    # tis max .8 caps two of them: (−.5·.6065 + .8 − 2.4·.8)/3
    assert (loss * weights.clamp(max=0.8)).mean().item() == pytest.approx(-0.4744, abs=1e-4)
    # s = e^((−.69315 + 0 + .40547)/3) = .908560: −s·(1 − 1 + 2)/3 (token advantages)
    sequence = gspo(*NEMO, eps_low=0.2, eps_high=0.2).loss
    assert sequence.mean().item() == pytest.approx(-0.6057, abs=1e-4)
    # the sequence weight e^(−.5 + .5 − .2) = .8187 multiplies it; capped at .8 it is −.4846
    assert (sequence * 0.8187).mean().item() == pytest.approx(-0.4959, abs=1e-4)
    assert (sequence * 0.8).mean().item() == pytest.approx(-0.4846, abs=1e-4)


def test_nemo_reinforce():
    """−A·log π = .5, −1, 3; their mean is 2.5/3."""
    loss = LOSSES["pg"](row([-0.5, -1, -1.5]), None, row([1, -1, 2]), MASK3).loss
    assert loss.mean().item() == pytest.approx(0.8333, abs=1e-4)


def test_nemo_gspo_of_two_responses():
    """The second has π_old = e^−2: log r = [.30685, 1, 1.40547], s = e^.904107 = 2.469724, clipped to 1.2 where A > 0.

    Its losses −1.2, 2.469724, −2.4 have mean −.376759; with the first one's −.605707 that is −.491233.
    """
    logp, old, advantages, mask = (torch.cat([part, part]) for part in NEMO)
    old[1] = -2
    loss = gspo(logp, old, advantages, mask, eps_low=0.2, eps_high=0.2).loss
    assert loss[1].tolist() == pytest.approx([-1.2, 2.469724, -2.4], abs=1e-5)
    assert loss.mean().item() == pytest.approx(-0.4912, abs=1e-4)


def test_skyrl_gspo_of_three_lengths():
    """Mean log r = .7/5, 2.6/2, 2.5/4, so s = 1.150274, 3.669297, 1.868246; with A ≥ 0 the last two are clipped to 1.2.

    GSPO's sum is −(1.150274·5.8 + 1.2·4.5 + 1.2·5) = −18.071588, and 6 of 11 tokens are clipped. PPO's is −(1.2·(1.5 + 1 +
    .8) + 2·e^−1.5 + .5·e^−.8) − 1.2·4.5 − (1.2·(.5 + .8 + 2.5) + 1.2·e^−.7) = −15.186827, and 8 are clipped.
    """
    lengths = torch.tensor([[5], [2], [4]])
    mask = torch.arange(8) < lengths
    advantages, log_r = torch.zeros(3, 8).double(), torch.zeros(3, 8).double()
    advantages[mask] = f64([1.5, 2, 1, 0.8, 0.5, 3, 1.5, 0.5, 0.8, 1.2, 2.5])
    log_r[mask] = f64([1.2, -1.5, 0.7, 1.1, -0.8, 1.8, 0.8, 0.5, 1.3, -0.7, 1.4])
    old = torch.full((3, 8), -1.0).double()
    sequence = gspo(old + log_r, old, advantages, mask, eps_low=0.2, eps_high=0.2)
    token = ppo(old + log_r, old, advantages, mask, **PPO | {"dual_clip": None})
    assert sequence.loss.sum().item() == pytest.approx(-18.071588, abs=1e-5) and sequence.clipped.sum() == 6
    assert token.loss.sum().item() == pytest.approx(-15.186827, abs=1e-5) and token.clipped.sum() == 8


def test_skyrl_prompt_mean():
    """Prompt 0 has (1 + 2 + 3)/3 = 2, prompt 1 (5 + 6 + 7 + 8)/4 = 6.5; their mean is 4.25, that over tokens 32/7."""
    values, mask = f64([[1, 2], [3, 4], [5, 6], [7, 8]]), torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]).bool()
    counts = Counts.of(mask, torch.tensor([0, 0, 1, 1]))
    assert reduce(values, kept(mask), counts, "prompt_mean").item() == pytest.approx(4.25)
    shuffled = torch.tensor([2, 1, 3, 0])
    moved = Counts.of(mask[shuffled], torch.tensor([1, 0, 1, 0]))
    assert reduce(values[shuffled], kept(mask[shuffled]), moved, "prompt_mean").item() == pytest.approx(4.25)
    numbers = Counts.of(mask, torch.tensor([90, 90, -7, -7]))  # of any size and order
    assert reduce(values, kept(mask), numbers, "prompt_mean").item() == pytest.approx(4.25)
    alone = Counts.of(mask, torch.zeros(4, dtype=torch.long))
    assert reduce(values, kept(mask), alone, "prompt_mean").item() == pytest.approx(32 / 7)


def test_nemo_dual_clip_is_a_mean_of_three_cases():
    """slime: r = [2, 2, .5], A = [2, −2, 2], ε = .2, c = 1.5 → −1.2·2 = −2.4; min(2·2, 1.5·2) = 3; −.5·2 = −1."""
    old, logp = row([-2, -2, -1]), row([-2 + math.log(2), -2 + math.log(2), -1 + math.log(0.5)])
    out = ppo(logp, old, row([2, -2, 2]), MASK3, eps_low=0.2, eps_high=0.2, dual_clip=1.5)
    torch.testing.assert_close(out.loss, row([-2.4, 3.0, -1.0]))
    assert out.clipped.tolist() == [[True, True, False]]


def test_slime_cispo_bounds():
    """r = [1, 3, 9, .4] with bounds [0, 5] is weighted [1, 3, 5, .4]; its gradient is −w·A."""
    logp = torch.log(row([1, 3, 9, 0.4])) - 4
    logp.requires_grad_()
    out = cispo(logp, row([-4] * 4), row([1, -0.5, 2, -1]), torch.ones(1, 4).bool(), lower=0.0, upper=5.0)
    gradient = torch.autograd.grad(out.loss.sum(), logp)[0]
    torch.testing.assert_close(gradient, row([-1, 1.5, -10, 0.4]))


def test_sapo_by_hand():
    """τ = 1, 2; A = [1, −1, .5]; r − 1 = e^[−.5, .2, −.1] − 1 = [−.393469, .221403, −.095163].

    L = −A·(4/τ)/(1 + e^(−τ(r − 1))).
    """
    expected = [-4 / (1 + math.exp(0.393469)), 2 / (1 + math.exp(-0.442806)), -2 / (1 + math.exp(0.095163))]
    out = sapo(row([-1.5, -0.8, -1.1]), row([-1] * 3), row([1, -1, 0.5]), MASK3, tau_pos=1.0, tau_neg=2.0)
    torch.testing.assert_close(out.loss, row(expected), atol=2e-6, rtol=0)


def test_gmpo_by_hand():
    """A = +1, r = [2, .5, 1], bounds [.8, 1.25]: only 2 is cut to 1.25; g = (1.25·.5·1)^(1/3) = .854988, L = −g.

    With A = −1 only .5 is raised to .8: g = (2·.8·1)^(1/3) = 1.169607. The cut token has no gradient, the others −A·g.
    """
    for sign, g, cut in ((1, 0.854988, [0.0, 1, 1]), (-1, 1.169607, [1.0, 0, 1])):
        logp = (torch.log(row([2, 0.5, 1])) - 3).requires_grad_()
        out = gmpo(logp, row([-3] * 3), row([sign] * 3), MASK3, lower=0.8, upper=1.25)
        torch.testing.assert_close(out.loss, row([-sign * g] * 3), atol=1e-6, rtol=0)
        gradient = torch.autograd.grad(out.loss.sum(), logp)[0]
        torch.testing.assert_close(gradient, row([-sign * g * c for c in cut]), atol=1e-6, rtol=0)


def test_topr_and_vespo_by_hand():
    """Π r = 2·2·.5 = 2. TOPR: w = 1 for A > 0, min(2, 1) = 1 and min(2, 1.5) = 1.5 for A < 0.

    VESPO with (2, 3): φ = 2²·e^(3(1−2));
    with (3, 2): 2³·e^(2(1−2)).
    """
    logp, prox = torch.log(row([2, 2, 0.5])) - 3, row([-3] * 3)
    up, down = row([1, 1, 1]), row([-1, -1, -1])
    torch.testing.assert_close(topr(logp, prox, up, MASK3, upper=1.0).loss, -logp)
    torch.testing.assert_close(topr(logp, prox, down, MASK3, upper=1.0).loss, logp)
    torch.testing.assert_close(topr(logp, prox, down, MASK3, upper=1.5).loss, 1.5 * logp)
    assert topr(logp, prox, row([-1, 0, 1]), MASK3, upper=1.5).clipped.tolist() == [[True, False, False]]
    kernel = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
    torch.testing.assert_close(vespo(logp, prox, up, MASK3, **kernel).loss, -4 * math.exp(-3) * logp)
    torch.testing.assert_close(vespo(logp, prox, down, MASK3, **kernel).loss, 8 * math.exp(-2) * logp)


@pytest.mark.parametrize(
    ("log_w", "kernel"),
    [
        (11.0, {"k_pos": 5.0, "lambda_pos": 0.0}),  # w^k = e^55, whose square no fp32 holds
        (20.0, {"k_pos": 100.0, "lambda_pos": 0.0}),  # w^k = e^2000
        (-30.0, {"k_pos": 0.0, "lambda_pos": 100.0}),  # e^(100·(1 − e^−20))
    ],
)
def test_the_kernel_of_vespo_is_bounded_as_a_ratio_is(log_w, kernel):
    """φ = e²⁰ for A = 1, in fp32."""
    logp = row([log_w - 40, -1, -1]).float().requires_grad_()
    value = vespo(logp, row([-40, -1, -1]).float(), row([1, 1, 1]), MASK3, **kernel, k_neg=0.0, lambda_neg=0.0).loss
    torch.testing.assert_close(value, -math.exp(20) * logp, rtol=1e-5, atol=0, check_dtype=False)
    assert torch.autograd.grad(value.sum(), logp)[0][0].tolist() == pytest.approx([-math.exp(20)] * 3, rel=1e-5)


def test_verl_dro():
    """−(log π·A − .025·d²): 1.6 + .025·.04 = 1.601 and −1.35 + .025·.04 = −1.349; the third token is masked."""
    mask = torch.tensor([[True, True, False]])
    batch = row([-0.8, -0.9, -0.1]), row([-1, -0.7, -0.2]), row([2, -1.5, 9]), mask
    torch.testing.assert_close(LOSSES["dro"](*batch, beta=0.05).loss, row([1.601, -1.349, 0]))


def test_ctpo_by_hand():
    """Sums of log r: .1, −.1, −.1 | −.3, .1. Windows at low .05, high .2: ±(.05, .2)·√t, so low .05, .0707, .0866.

    A = 1: −min(s, clip s) = −e^.1, −e^−.1, −e^−.1. A = −1: max(s, clip s) = e^−.05, clipped, and e^.1.
    A dual clip of .05 caps the last at e^(.05·√2) = 1.073271, below e^.1 = 1.105171.
    """
    logp, batch = shared_batch()
    logp.requires_grad_()
    window = {"log_low": 0.05, "log_high": 0.2, "power": 0.5}
    out = ctpo(logp, batch.logp_old, batch.advantages, batch.mask, **window, log_dual_clip=None)
    up, down = math.exp(0.1), math.exp(-0.1)
    assert out.loss[batch.mask].tolist() == pytest.approx([-up, -down, -down, math.exp(-0.05), up], rel=1e-12)
    assert out.clipped[batch.mask].tolist() == [False, False, False, True, False]
    gradient = torch.autograd.grad(out.loss.sum(), logp)[0]
    assert gradient[batch.mask].tolist() == pytest.approx([-up, -down, -down, 0, up], rel=1e-12)
    dual = ctpo(logp, batch.logp_old, batch.advantages, batch.mask, **window, log_dual_clip=0.05)
    assert dual.loss[1, 1].item() == pytest.approx(1.073271, abs=1e-6) and dual.capped.sum() == 1
    assert torch.autograd.grad(dual.loss.sum(), logp)[0][1, 1] == 0
    flat = ctpo(logp, batch.logp_old, batch.advantages, batch.mask, **window | {"power": 0.0}, log_dual_clip=None)
    assert flat.clipped[batch.mask].tolist() == [False, False, False, True, False]


def test_minpro_by_hand():
    """log r: .1, −.2, 0 | −.3, .4. Least before: 1, e^.1, e^−.2 | 1, e^−.3. Products: .1, −.1, −.2 | −.3, .1.

    In [e^−.15, 1.1] the third and the fourth are raised to e^−.15, the first and the last lowered to 1.1. A is 1, then −1.
    """
    logp, batch = shared_batch()
    logp.requires_grad_()
    low = math.exp(-0.15)
    out = minpro(logp, batch.logp_old, batch.advantages, batch.mask, lower=low, upper=1.1)
    weights = [1.1, math.exp(-0.1), low, -low, -1.1]
    gradient = torch.autograd.grad(out.loss.sum(), logp)[0]
    assert gradient[batch.mask].tolist() == pytest.approx([-w for w in weights], rel=1e-12)
    values = [-w * value for w, value in zip(weights, logp[batch.mask].tolist(), strict=True)]
    assert out.loss[batch.mask].tolist() == pytest.approx(values, rel=1e-12)
    assert out.clipped[batch.mask].tolist() == [True, False, True, True, True]
    free = minpro(logp, batch.logp_old, batch.advantages, batch.mask, lower=0.0, upper=1e9)
    exact = at_level((logp - batch.logp_old).detach(), batch.mask, "prefix").exp()
    assert torch.allclose((free.loss / (-batch.advantages * logp))[:, :2], exact[:, :2])  # the product of two, and not of three
    assert (free.loss / (-batch.advantages * logp))[0, 2].item() == pytest.approx(math.exp(-0.2)) != exact[0, 2].item()


def test_luspo_is_gspo_without_the_length_mean():
    value, gradient = scalar("luspo", {"eps_low": 0.2, "eps_high": 0.2}, "seq_mean_token_mean")
    other, other_gradient = scalar("gspo", {"eps_low": 0.2, "eps_high": 0.2}, "seq_mean_token_sum")
    assert value == pytest.approx(other, abs=1e-12)
    torch.testing.assert_close(gradient, other_gradient)
    assert luspo.anchored


COV = row([-1, -2, -3, -4]), row([1, 0, -1, 2]), torch.ones(1, 4, dtype=torch.bool)
"""means −2.5 and .5; covariances 1.5·.5, .5·−.5, −.5·−1.5, −1.5·1.5 = [.75, −.25, .75, −2.25]."""


def test_kl_cov_by_hand():
    """⌊.5·4⌋ = 2 tokens of largest covariance, the first and third; r = e^[.1, …]: −A·r + 2·|.1| there; r = e^−.1 costs as
    much."""
    prox, advantages, mask = COV
    fallen = kl_cov(prox - 0.1, prox, advantages, mask, share=0.5, coef=2.0).loss
    torch.testing.assert_close(fallen, row([-math.exp(-0.1) + 0.2, 0, math.exp(-0.1) + 0.2, -2 * math.exp(-0.1)]))
    out = kl_cov(prox + 0.1, prox, advantages, mask, share=0.5, coef=2.0).loss
    r = math.exp(0.1)
    torch.testing.assert_close(out, row([-r + 0.2, 0, r + 0.2, -2 * r]))


def test_clip_cov_by_hand():
    """In the band (.5, 1) lie the first and third; a share of 1/4 takes one, of 1/2 both; the others are PPO."""
    prox, advantages, mask = COV
    params = {"eps_low": 0.2, "eps_high": 0.2, "lower": 0.5, "upper": 1.0}
    both = clip_cov(prox + 0.1, prox, advantages, mask, share=0.5, **params)
    r = math.exp(0.1)
    torch.testing.assert_close(both.loss, row([0, 0, 0, -2 * r]))
    low = clip_cov(prox, prox, advantages, mask, share=1.0, **params | {"lower": -1.0, "upper": 0.5})
    assert low.clipped.tolist() == [[False, True, False, False]]
    edge = covariance(prox, advantages, mask)[0, 0].item()  # a covariance at a bound is outside
    for band in ({"lower": edge, "upper": 9.0}, {"lower": -9.0, "upper": edge}):
        assert not select_band(prox, advantages, mask, share=1.0, **band)[0, 0]
    for share in (0.25, 0.49, 0.01):  # ⌊4·share⌋, but at least one
        one = clip_cov(prox + 0.1, prox, advantages, mask, share=share, **params)
        assert one.clipped.sum() == 1 and one.clipped[0, [0, 2]].any()


def test_verl_icepop_integration():
    """old = lp = −1, μ = e^[−.5, −3.5, −.8], A = [1, −1, 2], [.5, 5]: e^2.5 = 12.2 is out of bounds.

    w = [.606531, 0, .818731]; mean(w·−A·r) with r = 1: (−.606531 − 1.637462)/3 = −.747997.
    """
    old, rollout, advantages = row([-1] * 3), row([-0.5, -3.5, -0.8]), row([1, -1, 2])
    weights = correct(Batch(rollout, MASK3, old), Correction(weight=Weight("token", "mask", 0.5, 5.0))).weights
    torch.testing.assert_close(weights, row([0.60653067, 0, 0.81873075]))
    loss = ppo(old, old, advantages, MASK3, **PPO).loss
    assert (loss * weights).mean().item() == pytest.approx(-0.747997, abs=1e-6)
