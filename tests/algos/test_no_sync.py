"""Nothing reads a value back from the device: on tensors without values (device meta) every function runs to its end."""

import functools

import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.m2po import m2po
from algos.corrections.spec import Correction, Plugin, Reject, Weight
from algos.diagnostics.correction import correct_with_diagnostics, finish_diagnostics
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.objective import Objective
from algos.ratios import Ratio
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
    """log π_θ and a batch."""
    logp, old, rollout, advantages, ref = (torch.zeros(4, 6, device="meta") for _ in range(5))
    mask, segments = torch.ones(4, 6, dtype=torch.bool, device="meta"), torch.zeros(4, 6, dtype=torch.long, device="meta")
    return logp, Batch(rollout, mask, old, advantages, segments, ref, torch.zeros(4, dtype=torch.long, device="meta"))


def test_reading_a_value_would_raise():
    with pytest.raises(RuntimeError):
        batch()[0].sum().item()


def test_corrections_and_diagnostics():
    given = batch()[1]
    grouped = Correction(weight=Weight("group", upper=2.0))
    assert correct_with_diagnostics(given, grouped)[0].weights.device.type == "meta"
    corrected, rows = correct_with_diagnostics(given, SPEC)
    assert corrected.weights.shape == given.mask.shape
    metrics = finish_diagnostics(rows, SPEC) | probabilities(given) | positions(given)
    assert len(metrics) > 100 and all(value.device.type == "meta" for value in metrics.values())
    assert m2po(Ratio(given).l, given.mask, tau=0.04).shape == given.mask.shape


@pytest.mark.parametrize("name", LOSS_PARAMS)
def test_losses(name):
    logp, given = batch()
    logp.requires_grad_()
    loss = functools.partial(LOSSES[name], **LOSS_PARAMS[name])
    objective = Objective(loss, Correction(weight=Weight("token", "truncate", None, 2.0)), "old", "prompt_mean")
    corrected = correct(given, objective.correction)
    counts = Counts.of(corrected.counted, given.prompt)
    objective(logp, objective.select(given, corrected.counted), corrected, counts)[0].backward()
    assert logp.grad.shape == logp.shape


@pytest.mark.parametrize("name", KL.names())
def test_kl(name):
    logp, given = batch()
    assert KL[name](logp, given.logp_ref, given.mask, given.logp_old).device.type == "meta"
