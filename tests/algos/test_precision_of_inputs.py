"""Half-precision inputs are computed in fp32, and weights far below 1 keep their digits."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.diagnostics.mismatch import mismatch
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import KL, LOSSES
from tests.algos.algo_cases import LOSS_PARAMS, of_ratio

HALF = (torch.bfloat16, torch.float16)
SPEC = Correction(
    weight=Weight("token", "truncate", upper=2.0),
    reject={
        "diff": Reject("token", "prob_diff", -0.05, 0.05),
        "geo": Reject("geometric", "ratio", 0.9, 1.1),
        "error": Reject("worst_token", "mult_error", None, 3.0),
    },
)


def half(dtype, rows=64, columns=100):
    """(log π_θ, a batch) in half precision."""
    generator = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(rows, columns, generator=generator)
    rollout = old + 0.1 * torch.randn(rows, columns, generator=generator)
    mask = torch.rand(rows, columns, generator=generator) < 0.9
    tensors = (old - 0.05, rollout, old, torch.randn(rows, columns, generator=generator), old + 0.02)
    logp, rollout, old, advantages, ref = (tensor.to(dtype) for tensor in tensors)
    return logp, Batch(rollout, mask, old, advantages, logp_ref=ref)


def of_correction(batch):
    return finish_diagnostics(correct_with_diagnostics(batch, SPEC)[1], SPEC)


def fp32(batch):
    return Batch._make(t.float() if t is not None and t.is_floating_point() else t for t in batch)


@pytest.mark.parametrize("dtype", HALF)
def test_diagnostics_and_corrections(dtype):
    """To the bit what the same numbers give in fp32."""
    _, batch = half(dtype)
    for one, other in zip(correct(batch, SPEC), correct(fp32(batch), SPEC), strict=True):
        assert torch.equal(one, other)
    for function in (mismatch, probabilities, positions, of_correction):
        ours, wide = function(batch), function(fp32(batch))
        assert [name for name in wide if not torch.equal(ours[name], wide[name]) and not wide[name].isnan()] == []


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", sorted(LOSS_PARAMS))
def test_objectives_and_their_metrics(name, dtype):
    """Loss and metrics to the bit; KL terms among them."""
    logp, batch = half(dtype)
    made = functools.partial(LOSSES[name], **LOSS_PARAMS[name])
    corrected = correct(batch, Correction())
    counts = Counts.of(corrected.counted)
    for kind in KL.names():
        objective = Objective(made, Correction(), "old", "token_mean", kl=KL[kind], kl_coef=0.1)
        one = objective(logp, objective.select(batch, corrected.counted), corrected, counts)
        other = objective(logp.float(), objective.select(fp32(batch), corrected.counted), corrected, counts)
        assert torch.equal(one[0], other[0])
        assert [key for key in other[1] if not torch.equal(one[1][key], other[1][key])] == []


def test_a_perplexity_in_bfloat16():
    """100 tokens of −.1, which bfloat16 holds as −.10009765625: a sum in bfloat16 would have given 0.1."""
    logp = torch.full((1, 100), -0.1, dtype=torch.bfloat16)
    found = mismatch(Batch(logp, torch.ones(1, 100, dtype=torch.bool), logp))
    assert found["rollout_corr/rollout_log_ppl"].item() == pytest.approx(0.10009765625, abs=1e-8)
    assert found["rollout_corr/training_ppl"].item() == pytest.approx(math.exp(0.10009765625), abs=1e-7)


SMALL, SMALLER = math.exp(-16), math.exp(-20)


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_weights_far_below_one(level):
    """Two responses of 4 tokens whose weights are e^−16 and e^−20, or of which each token has these weights."""
    l = torch.tensor([[-4.0] * 4, [-5.0] * 4]) * (1 if level == "sequence" else 4)
    batch = of_ratio(l, torch.ones(2, 4, dtype=torch.bool))
    spec = Correction(weight=Weight(level, "truncate", upper=2.0))
    found = finish_diagnostics(correct_with_diagnostics(batch, spec)[1], spec)
    mean, square = (SMALL + SMALLER) / 2, (SMALL**2 + SMALLER**2) / 2
    expected = {
        "mean": mean,
        "std": math.sqrt(square - mean**2),
        "eff_sample_size": mean**2 / square,  # (1 + e^−4)²/(2(1 + e^−8)) = .51831
        "max": SMALL,
        "min": SMALLER,
    }
    for name, value in expected.items():
        assert found[f"correction/raw_{name}"].item() == pytest.approx(value, rel=1e-5), name
        assert found[f"rollout_corr/rollout_is_{name}"].item() == pytest.approx(value, rel=1e-5), name
    assert found["rollout_corr/rollout_is_seq_min"].item() == pytest.approx(2.0612e-9, rel=1e-4)
    assert found["rollout_corr/rollout_is_seq_mean"].item() == pytest.approx(mean, rel=1e-5)
    if level == "token":
        assert found["mismatch/ess_token"].item() == pytest.approx(mean**2 / square, rel=1e-5)
        assert found["mismatch/ratio_mean"].item() == pytest.approx(mean, rel=1e-5)
        assert found["mismatch/ratio_std"].item() == pytest.approx(expected["std"], rel=1e-5)


def test_a_tiny_weight_among_ones():
    """One response of weight e^−20 and one of e^(1e-4): each keeps its digits, and so does their deviation."""
    batch = of_ratio(torch.tensor([[-20.0, 0.0], [1e-4, 0.0]]), torch.ones(2, 2, dtype=torch.bool))
    spec = Correction(weight=Weight("sequence", "truncate", upper=2.0))
    found = finish_diagnostics(correct_with_diagnostics(batch, spec)[1], spec)
    assert found["rollout_corr/rollout_is_seq_min"].item() == pytest.approx(math.exp(-20), rel=1e-5)
    assert found["rollout_corr/rollout_is_seq_max"].item() - 1 == pytest.approx(1e-4, rel=2e-3)
    assert found["rollout_corr/rollout_is_std"].item() == pytest.approx(math.exp(1e-4) / 2, rel=1e-6)
