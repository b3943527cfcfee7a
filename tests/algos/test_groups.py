"""The weight and the baseline of a group, against exact sums."""

import math

import pytest
import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Weight
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.diagnostics.mismatch import mismatch
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import LOSSES
from tests.algos.algo_cases import f64

GEPO = Correction(weight=Weight("group", upper=math.inf))


def test_the_weight_of_gepo_by_hand():
    """μ̄ = 1/2 and √(1/4·1/16) = 1/8, so Ê = (1/4 + 1/64)/(1/2 + 1/8) = 17/40; π̄ = 1/4 and √(1·1/4) = 1/2 give 10/17 and 20/17."""
    mu = f64([[1 / 2, math.nan], [1 / 4, 1 / 16]]).log()
    pi = f64([[1 / 4, math.nan], [1, 1 / 4]]).log()
    mask, prompt = torch.tensor([[True, False], [True, True]]), torch.tensor([7, 7])
    batch = Batch(mu, mask, pi, prompt=prompt)
    assert correct(batch, GEPO).weights.flatten().tolist() == pytest.approx([10 / 17, 0, 20 / 17, 20 / 17], rel=1e-12)
    apart = correct(batch._replace(prompt=torch.tensor([7, 3])), GEPO).weights  # of one response it is π̄/μ̄
    assert apart.flatten().tolist() == pytest.approx([1 / 2, 0, 4, 4], rel=1e-12)
    empty = correct(batch._replace(mask=torch.tensor([[True, False], [False, False]])), GEPO).weights
    assert empty.flatten().tolist() == pytest.approx([1 / 2, 0, 0, 0])


def drawn(seed) -> tuple[Tensor, Tensor, Batch]:
    """(π, μ, their batch): probabilities [9, 3] in sixteenths; groups of unequal size whose responses lie apart in the batch."""
    random = torch.Generator().manual_seed(seed)
    prompt = torch.randint(4, (9,), generator=random) * 5
    mask = torch.arange(3) < torch.randint(4, (9, 1), generator=random)  # some without a token
    pi, mu = (torch.randint(1, 16, (9, 3), generator=random).double() / 16 for _ in range(2))
    return pi, mu, Batch(mu.log(), mask, pi.log(), torch.randn(9, 1, generator=random).double().expand(9, 3), prompt=prompt)


@pytest.mark.parametrize("seed", range(4))
def test_the_weight_of_gepo_against_a_loop(seed):
    pi, mu, batch = drawn(seed)
    lengths = batch.mask.sum(1).tolist()

    def of_response(probabilities, i):
        return math.prod(probabilities[i, : lengths[i]].tolist()) ** (1 / lengths[i])

    expected = torch.zeros(9, 3, dtype=torch.float64)
    for i in range(9):
        group = [of_response(mu, j) for j in range(9) if batch.prompt[j] == batch.prompt[i] and lengths[j]]
        if lengths[i]:
            expected[i, : lengths[i]] = of_response(pi, i) * sum(group) / sum(q * q for q in group)
    torch.testing.assert_close(correct(batch, GEPO).weights, expected, rtol=1e-12, atol=0)


def test_the_gradient_of_gepo_is_that_of_its_objective():
    """−mean_i A_i·exp(mean_t log π_θ)/Ê_i, which the authors' code differentiates: a detached weight times a loss by token."""
    _, mu, batch = drawn(0)
    present, lengths = batch.mask.any(1), batch.mask.sum(1).clamp(min=1)

    def of_response(logp):
        return (torch.where(batch.mask, logp, 0.0).sum(1) / lengths).exp() * present

    q, same = of_response(mu.log()), batch.prompt[:, None] == batch.prompt
    expectation = (same * q.square()).sum(1) / (same * q).sum(1)
    logp = batch.logp_old.clone().requires_grad_()
    theirs = -(batch.advantages[:, 0] * of_response(logp) / expectation)[present].mean()
    corrected = correct(batch, GEPO)
    ours, _ = Objective(LOSSES["pg"], GEPO, "old", "seq_mean_token_mean")(logp, batch, corrected, Counts.of(corrected.counted))
    gradients = [torch.autograd.grad(loss, logp)[0] for loss in (ours, theirs)]
    assert gradients[1].abs().amax() > 0.01
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


def test_the_weight_of_gepo_does_not_depend_on_the_length():
    """μ̄ = e^−2 and e^−3 whatever the lengths: Ê = (e^−4 + e^−6)/(e^−2 + e^−3), and π = μ gives e^−2/Ê and e^−3/Ê."""
    mu = torch.full((2, 1000), -2.0)
    mu[1] = -3.0
    expectation = (math.exp(-4) + math.exp(-6)) / (math.exp(-2) + math.exp(-3))
    for lengths in ([1000, 1000], [1, 1000], [1000, 1]):
        mask = torch.arange(1000) < torch.tensor(lengths)[:, None]
        weights = correct(Batch(mu, mask, mu, prompt=torch.zeros(2, dtype=torch.long)), GEPO).weights
        assert weights.dtype == torch.float32
        assert weights[:, 0].tolist() == pytest.approx([math.exp(-2) / expectation, math.exp(-3) / expectation], rel=1e-6)


def test_the_diagnostics_see_whole_groups():
    """More tokens than a chunk has, and groups whose responses differ in length, so that chunks by length part them."""
    lengths = torch.tensor([40, 4000]).repeat(32)
    mask = torch.arange(4000) < lengths[:, None]
    mu = -lengths[:, None] / 4000 * torch.rand(64, 4000, generator=torch.Generator().manual_seed(0))
    corrected, rows = correct_with_diagnostics(Batch(mu, mask, mu, prompt=torch.arange(64) // 2), GEPO)
    applied = finish_diagnostics(rows, GEPO)["rollout_corr/rollout_is_mean"]
    assert applied.item() == pytest.approx((corrected.weights.double().sum() / mask.sum()).item(), rel=1e-6)
    assert applied.item() != pytest.approx(1, rel=1e-2)  # as it is where each response is a group


@pytest.mark.parametrize("size", [60.0, 1e-4])
def test_the_diagnostics_of_the_mismatch_are_those_of_any_level(size):
    """fp32 log ratios of 60 nats a response, whose e^120 no fp32 holds, and of 1e-4, whose spread it loses."""
    generator = torch.Generator().manual_seed(0)
    mu = -torch.rand(8, 4, generator=generator) - 1
    pi = mu + size * torch.randn(8, 4, generator=generator)
    batch = Batch(mu, torch.ones(8, 4).bool(), pi, prompt=torch.arange(8) // 2)
    rows = correct_with_diagnostics(batch, GEPO)[1]
    assert all(value.dtype == torch.float64 for value in rows.values())
    expected = mismatch(batch)
    assert expected["rollout_corr/chi2_seq"].isfinite()
    found = finish_diagnostics(rows, GEPO)
    for name, value in expected.items():
        assert found[name] == value or (found[name].isnan() and value.isnan()), name


@pytest.mark.parametrize("level", ["group", "token", "sequence"])
def test_the_chi2_of_sequences_by_hand_at_any_level(level):
    """Five tokens of 10 nats each: E[ρ²] − 1 = e¹⁰⁰ − 1 = 2.688e43, above fp32's 3.4e38.

    Two responses with S = ±x, x = 2⁻¹³ = 1.2e-4 (exact in fp32): E[ρ²]/E[ρ]² − 1 = cosh 2x/cosh² x − 1 = tanh² x = 1.49e-8.
    """
    spec = GEPO if level == "group" else Correction(weight=Weight(level, upper=math.inf))

    def found(mu: Tensor, pi: Tensor) -> dict[str, Tensor]:
        batch = Batch(mu, torch.ones_like(mu).bool(), pi, prompt=torch.zeros(len(mu), dtype=torch.long))
        return finish_diagnostics(correct_with_diagnostics(batch, spec)[1], spec)

    far = found(torch.full((2, 5), -11.0), torch.full((2, 5), -1.0))
    assert far["rollout_corr/chi2_seq"].item() == pytest.approx(math.expm1(100), rel=1e-12)
    near = found(torch.full((2, 1), -1.0), torch.tensor([[-1 + 2**-13], [-1 - 2**-13]]))
    assert near["mismatch/chi2_sequence_normalized"].item() == pytest.approx(math.tanh(2**-13) ** 2, rel=1e-6)


def test_the_weight_of_gepo_needs_whole_groups():
    batch = Batch(torch.zeros(1, 1), torch.ones(1, 1).bool(), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="level=group needs prompt, the number of the prompt that each response answers"):
        correct(batch, GEPO)
    with pytest.raises(ValueError, match=r"ratio=current with weight.level=group: .* use ratio=old"):
        Correction(ratio="current", weight=Weight("group", upper=2.0))
