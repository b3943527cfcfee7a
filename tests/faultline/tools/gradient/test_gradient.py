"""The gradient laboratory: exact statements on an enumerable policy, the estimators on known vectors, and a real checkpoint."""

import numpy as np
import pandas as pd
import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Weight
from algos.enumerable import EnumerablePolicy, policies, rewards
from algos.objective import Objective
from algos.reductions import Counts
from faultline.tools.gradient.command import gradient_command
from faultline.tools.gradient.enumerable import _scores, exact_table
from faultline.tools.gradient.estimate import Grams
from faultline.tools.gradient.methods import EXACT, Method, coefficients, load_loss, methods
from faultline.tools.gradient.page import RING, answer, draw, present_paired, shown, together
from faultline.tools.gradient.paired import Paired
from harness.config import PluginConfig
from harness.errors import UserError


@pytest.fixture(scope="module")
def exact():
    return exact_table(methods(["pg"], ["none", "token_truncate", "sequence_truncate", "sequence_mask"], "token_sum"))


def test_the_exact_sequence_weight_is_unbiased_and_no_other_is(exact):
    """Statement 2 of the invariants: the untruncated sequence weight's expected gradient is the true one."""
    bias = exact.set_index("method").bias
    assert bias[EXACT] < 1e-12
    assert (bias[["pg none", "pg token_truncate", "pg sequence_truncate", "pg sequence_mask"]] > 0.05).all()


def test_the_token_weight_is_biased_even_without_truncation_but_less_than_nothing():
    """Statement 3; the reward is terminal."""
    untruncated = Correction(weight=Weight("token", upper=float("inf")))
    token, none = (Objective(load_loss("pg"), correction, "old", "token_sum") for correction in (untruncated, Correction()))
    table = exact_table([Method("token", token), Method("none", none)]).set_index("method")
    assert 1e-2 < table.bias["token"] < table.bias["none"]


def test_bias_falls_and_variance_rises_along_the_bounds_of_a_truncated_sequence_weight(exact):
    along = exact[exact.family == "truncate-sequence"].sort_values("bound")
    assert (np.diff(along.bias) < 0).all() and (np.diff(along.sd) > 0).all()


def test_a_mask_is_more_biased_than_a_truncation_at_the_same_bound(exact):
    """Statement 6 in numbers: masking gives P_π(keep)·E_π[f | keep], so it loses what it rejects."""
    bias = exact.dropna(subset="family").pivot(index="bound", columns="family", values="bias").loc[[1.2, 1.5, 2.0]]
    assert (bias["mask-sequence"] > bias["truncate-sequence"]).all()


def test_methods_in_one_place_share_a_number_and_the_closest_has_the_ring():
    """The bias of `none` differs by a thousandth of the figure's width between two losses, less than a digit's. The exact weight
    has the lowest rmse, and is no method to choose."""
    table = pd.DataFrame(
        {
            "method": ["pg none", "ppo none", "pg icepop", EXACT],
            "bias": [1.0, 1.001, 0.5, 0.0],
            "sd": [1.0, 1.0, 2.0, 3.0],
            "rmse": [1.2, 1.2, 0.9, 0.8],
            "family": None,
            "bound": np.nan,
        }
    )
    assert [list(group.method) for group in together(table)] == [[EXACT], ["pg icepop"], ["pg none", "ppo none"]]
    figure = draw(table)
    (axis,) = figure.axes
    digits = {line.get_marker(): line.get_label() for line in axis.lines if line.get_marker() != "o"}
    assert digits == {"$1$": EXACT, "$2$": "pg icepop", "$3$": "pg, ppo none"}
    assert [line.get_xydata().tolist() for line in axis.lines if line.get_markeredgecolor() == RING] == [[[0.5, 2.0]]]


def test_bounds_beside_their_points_cover_nothing(exact):
    """Texts of the drawn figure, pair by pair; there is room for some of the 24, and not for all."""
    figure = draw(exact)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert 8 < len(boxes) < 24
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[i + 1 :])


def test_without_mismatch_every_method_is_the_truth():
    table = exact_table(methods(["pg", "ppo"], ["none", "token_truncate", "skyrl/geometric_mask"], "token_sum"), noise=0.0)
    assert (table.bias < 1e-12).all() and np.allclose(table.cosine, 1) and np.ptp(table.sd) < 1e-12


@pytest.mark.slow
def test_sd_and_rmse_by_simulation(exact):
    """The exact sd of one response is that of responses drawn from μ: 200,000 draws give it to 1 %."""
    space = EnumerablePolicy.of(3, 4)
    pi, mu = policies(space, 0.3)
    probability = space.logp(pi).sum(-1).exp()
    reward = rewards(space)
    reward = reward - (probability * reward).sum()
    score = _scores(space, pi).sum(1)
    truth = -torch.einsum("n,n,np->p", probability, reward, score)
    weight = (space.logp(pi) - space.logp(mu)).sum(-1).exp()
    drawn = torch.multinomial(space.logp(mu).sum(-1).exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(0))
    estimates = -(weight * reward)[drawn, None] * score[drawn]
    sd = estimates.var(0).sum().sqrt() / truth.norm()
    row = exact.set_index("method").loc[EXACT]
    assert row.sd == pytest.approx(float(sd), rel=0.01)
    assert row.rmse == pytest.approx(row.sd / 16, rel=1e-9)  # 256 responses, no bias


def test_coefficients_carry_the_whole_gradient():
    """Through a policy with parameters: Σ c·∇log π is what autograd gives for the objective itself."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64)
    theta = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)
    logp = -(x @ theta).square() - 0.1
    rollout = (logp + 0.3 * torch.randn(6, 5, generator=generator)).detach()
    advantages, mask = torch.randn(6, 5, generator=generator, dtype=torch.float64), torch.rand(6, 5, generator=generator) < 0.8
    for method in methods(["ppo", "gspo", "sapo"], ["token_truncate", "sequence_mask", "verl/bypass_ppo_clip"], "token_mean"):
        batch = Batch(rollout, mask, logp.detach(), advantages)
        c = coefficients(method.objective, batch)
        objective = method.objective
        corrected = correct(batch, objective.correction)
        value, _ = objective(logp, batch, corrected, Counts.of(corrected.counted))
        expected = torch.autograd.grad(value, theta, retain_graph=True)[0]
        actual = torch.autograd.grad((c * logp).sum(), theta, retain_graph=True)[0]
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_estimates_of_known_vectors():
    """g_b ~ N(m, s²·I), r_b ~ N(e, s²·I) in 50 dimensions, 400 batches: m = (.6, .8, 0 …)·1.5 against e = (1, 0, …).

    cosine .6, norm ratio 1.5, bias |m − e| = √(.01 + 1.44) = 1.2042, sd of one batch √50 = 7.071.
    """
    generator = torch.Generator().manual_seed(0)
    m, e = torch.zeros(50), torch.zeros(50)
    m[:2], e[0] = 1.5 * torch.tensor([0.6, 0.8]), 1.0
    g, r = (v + torch.randn(400, 50, generator=generator) for v in (m, e))
    found = Grams(g, r).summary()
    for name, value in {"cosine": 0.6, "norm ratio": 1.5, "bias": 1.2042, "sd": 7.071, "rmse": 7.173}.items():
        assert found[name] == pytest.approx(value, rel=0.15), name
        assert found[f"{name} low"] <= value <= found[f"{name} high"] or name == "sd", name


def test_noise_is_not_taken_for_bias():
    """Equal expectations, few batches, much noise: the plug-in |ḡ − r̄| would be √(2·50·25/64) = 6.2 with |e| = 1."""
    generator = torch.Generator().manual_seed(1)
    e = torch.zeros(50)
    e[0] = 1.0
    draws = []
    for _ in range(20):
        g, r = (e + 5 * torch.randn(64, 50, generator=generator) for _ in range(2))
        draws.append(Grams(g, r).summary()["bias"] ** 2)
    assert np.nanmedian(draws) < 6.2**2 / 4


@pytest.mark.filterwarnings("error")
def test_few_batches_have_no_interval():
    """Half of the resamples of two batches, and 3·3⁻³ = 11 % of those of three, hold one batch alone, which has no pair."""
    generator = torch.Generator().manual_seed(0)
    e = torch.zeros(50)
    e[0] = 1.0
    for batches, known in ((2, False), (3, False), (6, True)):
        g, r = (e + 0.01 * torch.randn(n, 50, generator=generator) for n in (batches, 64))
        found = Grams(g, r).summary()
        assert found["norm ratio"] == pytest.approx(1, abs=0.02)
        assert np.isfinite(found["norm ratio low"]) == np.isfinite(found["norm ratio high"]) == known, batches
        cell = shown(pd.DataFrame([{"method": "pg none"} | found]))["norm ratio"][0]
        assert ("[" in cell) == known and "nan" not in cell


def test_the_loss_of_a_run_keeps_its_parameters():
    """PPO against μ with an upper clip of 0.01 gives no gradient at a ratio of e^0.1 > 1.01; with 0.2, its file's, it does."""
    own = PluginConfig(name="ppo", eps_low=0.01, eps_high=0.01, dual_clip=None)
    batch = Batch(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.full((1, 1), 0.1), torch.ones(1, 1))
    for given, clipped in ((None, False), (own, True)):
        made = {method.name: method for method in methods(["ppo"], ["verl/bypass_ppo_clip"], "token_mean", None, given)}
        assert (coefficients(made["ppo verl/bypass_ppo_clip"].objective, batch).item() == 0) == clipped


def test_a_preset_that_sets_the_dual_clip_has_it():
    """verl bounds PPO's loss by 3·|A| where A < 0: no gradient at a ratio of e² = 7.4, but one at e = 2.7."""
    (method,) = (m for m in methods(["ppo"], ["verl/bypass_ppo_clip"], "token_mean") if m.name == "ppo verl/bypass_ppo_clip")
    for old, bounded in ((1.0, False), (2.0, True)):
        batch = Batch(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.full((1, 1), old), -torch.ones(1, 1))
        assert (coefficients(method.objective, batch).item() == 0) == bounded


def test_the_answer_in_words():
    table = pd.DataFrame(
        {
            "method": [EXACT, "pg none", "pg a", "pg b"],
            "bias": [0.0, 0.5, 0.1, 0.2],
            "sd": [2.0, 1.0, 1.2, 1.0],
            "rmse": [2.0, 1.118, 1.204, 1.02],
            "family": None,
        }
    )
    closest, least, plain, variance = answer(table)
    assert closest.startswith("Closest in mean squared error: pg b") and least.startswith("Least biased: pg a")
    assert plain == "Uncorrected: bias 0.5, sd 1, rmse 1.12."
    assert variance == "The least biased method has 1.44 times the variance of the uncorrected one."  # 1.2²


@pytest.mark.parametrize(
    ("losses", "corrections"), [(["pg"], [name]) for name in ("m2po", "slime/mis", "gepo")] + [(["clip_cov"], ["none"])]
)
def test_what_couples_responses_has_no_exact_sum(losses, corrections):
    """A plug-in on the batch's second moment, weights normalised over the batch or by groups, a loss that selects tokens."""
    with pytest.raises(UserError, match="depends on the rest of the batch"):
        exact_table(methods(losses, corrections, "token_sum"))


def shared(bias: float, sd: float, batches: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients (of a method, of no correction, of the exact weight) of one batch in 8 dimensions, all but the last orthogonal
    noise: E none lies 0.5 from E exact and E method `bias`; of the sds none's is 1 and the method's `sd`."""
    noise = torch.randn(batches, 8, generator=torch.Generator().manual_seed(2)) / 8**0.5
    ahead = torch.zeros(8)
    ahead[0] = 1.0
    return sd * noise + bias * ahead, noise + 0.5 * ahead, 1.5 * noise


@pytest.mark.slow
def test_where_a_method_pays():
    """bias² + sd²·32/n is equal at n = 32·(1.2² − 1)/(0.5² − 0.3²) = 88 responses; for the exact weight at 32·1.25/0.25 = 160."""
    method, none, exact = shared(0.3, 1.2, batches=1600)
    for gradients, ratio, bias, pays in ((method, 1.2, 0.3, 88), (exact, 1.5, 0.0, 160), (none, 1.0, 0.5, np.nan)):
        found = Paired(gradients, none, exact, 32).summary()
        assert (found["sd ratio"], found["bias"]) == pytest.approx((ratio, bias), abs=0.02)
        assert found["pays from"] == pytest.approx(pays, rel=0.05, nan_ok=True)
        assert found["sd ratio low"] <= found["sd ratio"] <= found["sd ratio high"]
    assert pytest.approx(0.3**2 + 1.2**2 * 32 / 88) == 0.5**2 + 32 / 88


@pytest.mark.slow
@pytest.mark.parametrize("bias, sd, said", [(0.3, 0.9, "0 [0, 0]"), (0.7, 1.2, "never [never, never]"), (0.7, 0.9, "never [")])
def test_a_method_always_pays_or_never(bias, sd, said, tmp_path, capsys):
    method, none, exact = shared(bias, sd, batches=400)
    rows = [{"method": name, **Paired(part, none, exact, 32).summary()} for name, part in (("m", method), ("none", none))]
    written = present_paired(pd.DataFrame(rows), "title", "A note.", tmp_path)
    shown = capsys.readouterr().out
    assert "No correction: none. A note." in shown and said in shown and "│ – " in shown
    assert pd.read_csv(written).method.tolist() == ["m", "none"]


def test_rounding_is_no_difference():
    """Gradients that differ in the seventh digit cost and gain nothing: there is no number from which they pay."""
    _, none, exact = shared(0.3, 1.2, batches=40)
    found = Paired(none * (1 + 6e-8), none, exact, 32).summary()
    assert np.isnan(found["pays from"]) and found["sd ratio"] == 1


def test_two_paired_batches_have_no_interval():
    found = Paired(*shared(0.3, 1.2, batches=2), 32).summary()
    assert np.isnan(found["sd ratio low"]) and np.isnan(found["pays from low"])


@pytest.mark.parametrize("given", [{"enumerable": True}, {"checkpoint": "runs/x", "reference": 8}])
def test_what_has_no_effect_on_a_paired_comparison_is_refused(given):
    with pytest.raises(UserError, match="--paired compares on the batches of a checkpoint alone"):
        gradient_command(**({"checkpoint": None} | given), paired=True)
