"""Nothing reads a value back from the device: on tensors without values (device meta) every function runs to its end."""

import functools

import pytest
import torch

from algos.corrections.apply import weight_sum
from algos.corrections.m2po import m2po
from algos.corrections.spec import Correction, Plugin, Reject, Weight
from algos.diagnostics.correction import examine, finish
from algos.diagnostics.positions import by_length, by_position, position_rows
from algos.diagnostics.probabilities import details
from algos.objective import Objective
from algos.ratios import log_ratio
from algos.reductions import Counts
from algos.registry import KL, LOSSES
from tests.algos.algo_cases import LOSS_PARAMS

SPEC = Correction(
    weight=Weight("token", "mask", 0.5, 2.0),
    reject={
        "k3": Reject("geometric", "k3", None, 0.01),
        "veto": Reject("worst_token", "ratio", 1e-4, None),
        "opsm": Reject("geometric", "ratio", 0.9, None, "negative_advantage"),
        "diff": Reject("token", "prob_diff", -0.2, 0.2),
        "turn": Reject("segment", "ratio", 0.5, 2.0),
        "m2po": Plugin("m2po", {"tau": 0.04}),
    },
    normalize="batch",
)


def batch():
    logp, old, rollout, advantages = (torch.zeros(4, 6, device="meta") for _ in range(4))
    mask = torch.ones(4, 6, dtype=torch.bool, device="meta")
    return logp, old, rollout, advantages, mask


def test_reading_a_value_would_raise():
    with pytest.raises(RuntimeError):
        batch()[0].sum().item()


def test_corrections_and_diagnostics():
    _, old, rollout, advantages, mask = batch()
    l, segments = log_ratio(old, rollout, mask), torch.zeros(4, 6, dtype=torch.long, device="meta")
    batch_sum = weight_sum(l, mask, SPEC, segments)
    inputs = {"logp_rollout": rollout, "advantages": advantages, "segments": segments}
    rows = examine(l, mask, SPEC, **inputs)[1]
    assert examine(l, mask, SPEC, **inputs, batch=batch_sum)[0].weights.shape == mask.shape
    metrics = finish(rows, SPEC) | details(l, mask, rollout)
    assert len(metrics) > 100 and all(value.device.type == "meta" for value in metrics.values())
    profile = position_rows(l, mask)
    assert by_position(profile) and by_length(profile) and m2po(l, mask, tau=0.04).shape == mask.shape


@pytest.mark.parametrize("name", LOSS_PARAMS)
def test_losses(name):
    logp, old, rollout, advantages, mask = batch()
    logp.requires_grad_()
    loss = functools.partial(LOSSES[name], **LOSS_PARAMS[name])
    objective = Objective(loss, Correction(weight=Weight("token", "truncate", None, 2.0)), "old", "seq_mean_token_mean")
    corrected = objective.corrected(old, rollout, mask, advantages)
    selected = objective.select(old, rollout, advantages, mask)
    counts = Counts.of(corrected.counted)
    objective(logp, old, rollout, advantages, mask, corrected, counts, selected)[0].backward()
    assert logp.grad.shape == logp.shape


@pytest.mark.parametrize("name", KL.names())
def test_kl(name):
    logp, old, rollout, _, mask = batch()
    assert KL[name](logp, old, mask, rollout).device.type == "meta"
