"""Splitting a batch over micro-batches or ranks changes neither the loss, nor its gradient, nor any diagnostic."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import REDUCTIONS, Correction, Reject, Weight
from algos.diagnostics.correction import (
    applied_rows,
    correct_with_diagnostics,
    correction_rows,
    finish_applied,
    finish_diagnostics,
)
from algos.diagnostics.mismatch import finish_mismatch, mismatch, mismatch_rows
from algos.diagnostics.positions import by_length, by_position, position_rows
from algos.diagnostics.probabilities import finish_probabilities, probabilities, probability_rows
from algos.diagnostics.rows import merge
from algos.objective import Objective
from algos.ratios import Ratio
from algos.reductions import Counts
from algos.registry import LOSSES
from tests.algos import oracles
from tests.algos.algo_cases import LOSS_PARAMS, of_ratio

SPEC = Correction(
    weight=Weight("sequence", upper=1.5),
    reject={"far": Reject("geometric", lower=0.5, upper=3.0), "token": Reject("token", "k3", upper=2.0)},
    normalize="batch",
    denominator="kept",
)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def parts(rows, cuts):
    edges = [0, *sorted(cut % (rows + 1) for cut in cuts), rows]
    return [slice(a, b) for a, b in itertools.pairwise(edges) if b > a]


@pytest.mark.parametrize("name", LOSSES.names())
@settings(max_examples=12, deadline=None)
@given(
    batch=oracles.batches(rows=6),
    cuts=st.lists(st.integers(0, 6), max_size=3),
    mode=st.sampled_from(REDUCTIONS),
    data=st.data(),
)
def test_loss_and_gradient(name, batch, cuts, mode, data):
    logp, rollout, advantages, mask = batch
    old = torch.where(mask, rollout + 0.3 * advantages, 0.0)
    objective = Objective(
        functools.partial(LOSSES[name], **LOSS_PARAMS[name]), SPEC, "old", mode, 5 if mode.endswith("norm") else None
    )
    given = Batch(rollout, mask, old, advantages, prompt=torch.arange(len(mask)) // 2)
    whole = correct(given, SPEC)
    given = objective.select(given, whole.counted)
    counts = Counts.of(whole.counted, given.prompt)
    leaf = logp.clone().requires_grad_()
    value, metrics = objective(leaf, given, whole, counts)
    gradient = torch.autograd.grad(value, leaf)[0]

    pieces = parts(len(mask), cuts)
    order = data.draw(st.permutations(pieces))
    total, sums, again = 0.0, {}, logp.clone().requires_grad_()
    for p in order:
        part, part_metrics = objective(again[p], given.rows(p), whole.rows(p), counts.rows(p))
        part.backward()
        total = total + part.detach()
        sums = {key: sums.get(key, 0.0) + x for key, x in part_metrics.items()}
    close(total, value.detach())
    close(again.grad, gradient)
    for key, x in metrics.items():
        close(sums[key], x)


def diagnostics_whole_and_split(batch, order):
    """Every diagnostic of a batch at once, and of its slices `order`."""
    corrected, rows = correct_with_diagnostics(batch, SPEC)
    whole = {
        **mismatch(batch),
        **probabilities(batch),
        **finish_diagnostics(rows, SPEC),
        **by_position(position_rows(batch)),
        **by_length(position_rows(batch)),
    }
    take = [batch.rows(p) for p in order]
    applied = merge([applied_rows(corrected.rows(p), batch.mask[p]) for p in order])
    positions = merge([position_rows(part) for part in take])
    split = {
        **finish_mismatch(merge([mismatch_rows(part) for part in take])),
        **finish_probabilities(merge([probability_rows(part) for part in take])),
        **finish_diagnostics(merge([correction_rows(Ratio(part), SPEC) for part in take]) | applied, SPEC),
        **finish_applied(applied),
        **by_position(positions),
        **by_length(positions),
    }
    assert whole.keys() == split.keys()
    return whole, split


def assert_same(whole, split, probabilities):
    """To 1e-12; a variance E[x²] − E[x]² to 1e-12 of E[x²], and so a correlation to 1e-12 of √(E[π²]E[μ²])/(σ_π σ_μ)."""
    for name, value in whole.items():
        if name.endswith("std"):
            square = value.square() + whole[name.removesuffix("std") + "mean"].square()
            torch.testing.assert_close(split[name].square(), value.square(), rtol=0, atol=1e-12 * square.item(), equal_nan=True)
        elif name.endswith("pearson"):
            scale = [(p.square().mean() / (p - p.mean()).square().mean()).sqrt().item() for p in probabilities]
            assert not (split[name] - value).abs() > 1e-12 * scale[0] * scale[1]
        else:
            close(split[name], value)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(batch=oracles.batches(rows=40, columns=5), cuts=st.lists(st.integers(0, 40), max_size=4), data=st.data())
def test_diagnostics(batch, cuts, data):
    logp, rollout, _, mask = batch
    rollout = torch.where(mask, rollout, float("nan"))
    order = data.draw(st.permutations(parts(len(mask), cuts)))
    assert_same(*diagnostics_whole_and_split(Batch(rollout, mask, logp), order), (logp[mask].exp(), rollout[mask].exp()))


@pytest.mark.parametrize("l", [0.3, 0.123])
def test_spreads_of_a_constant_ratio(l):
    """One ρ everywhere: what is left of E[x²] − E[x]² is rounding, whose root is 1e-8 and depends on the split."""
    mask = torch.arange(7) < torch.tensor([1, 7, 3, 5, 2, 6])[:, None]
    rollout = torch.full(mask.shape, -1.7, dtype=torch.float64)
    whole, split = diagnostics_whole_and_split(Batch(rollout, mask, rollout + l), [slice(i, i + 1) for i in (3, 0, 5, 1, 4, 2)])
    assert_same(whole, split, (rollout.exp(), (rollout + l).exp()))
    assert whole["mismatch/ratio_std"] < 1e-7 and whole["mismatch/prob_pearson"] == split["mismatch/prob_pearson"] == 0


def test_a_mean_of_micro_batch_means_would_be_noticed():
    """One response per part: the mean of the parts' weight means is not the batch mean when lengths differ."""
    batch = of_ratio(torch.tensor([[1.0, 1, 1], [-1, 0, 0]]).double(), torch.tensor([[1, 1, 1], [1, 0, 0]]).bool())
    spec = Correction(weight=Weight("token", upper=9.0), normalize="batch")
    whole = correct(batch, spec).weights
    alone = torch.cat([correct(batch.rows(slice(i, i + 1)), spec).weights for i in range(2)])
    assert not torch.allclose(whole, alone)


def test_a_long_batch_is_worked_on_in_chunks_without_a_trace():
    generator = torch.Generator().manual_seed(0)
    l = 0.1 * torch.randn(300, 2000, generator=generator)
    mask = torch.rand(300, 2000, generator=generator) < 0.9
    l = torch.where(mask, l, 0.0)
    batch = of_ratio(l, mask)
    halves = [mismatch_rows(batch.rows(p)) for p in (slice(0, 137), slice(137, 300))]
    whole = mismatch(batch)
    for name, value in finish_mismatch(merge(halves)).items():
        close(value, whole[name])
    torch.testing.assert_close(whole["rollout_corr/kl"], -l.double().sum() / mask.sum())
