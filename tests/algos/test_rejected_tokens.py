"""The response that a loss sees after a rejection: all its tokens (SkyRL, TRL), or the kept ones (verl).

The expected numbers are derived beside each case; tests/oracles compares the same with the packages.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import LOSSES
from tests.algos.algo_cases import f64

WIDE = {"eps_low": 1.0, "eps_high": torch.inf}
DENOMINATORS = ("original", "kept")


def value(name, params, denominator, old, logp, advantages, gap):
    """Token-mean loss where the filter [.5, 2] on ρ rejects the last token, whose log ratio is `gap`, and no other."""
    rollout = f64([old])
    rollout[0, -1] -= gap
    batch = Batch(rollout, torch.ones(1, len(old), dtype=torch.bool), f64([old]), f64([advantages]))
    spec = Correction(reject={"token": Reject("token", lower=0.5, upper=2.0)}, denominator=denominator)
    objective = Objective(functools.partial(LOSSES[name], **params), spec, "old", "token_mean")
    corrected = correct(batch, spec)
    assert corrected.kept.tolist() == [[True] * (len(old) - 1) + [False]]
    return objective(f64([logp]), objective.select(batch, corrected.counted), corrected, Counts.of(corrected.counted))[0].item()


KEPT, WHOLE = math.exp(0.1), math.exp((0.1 + 0.1 - 0.3) / 3)  # the mean of log r over two tokens and over three
SEQUENCE = {  # loss, parameters -> the value of a kept token with the whole response, and with what is kept of it
    "gspo": (WIDE, -WHOLE, -KEPT),
    "gmpo": ({"lower": 0.5, "upper": 2.0}, -WHOLE, -KEPT),
    "luspo": (WIDE, -3 * WHOLE, -2 * KEPT),
}


@pytest.mark.parametrize("name", SEQUENCE)
def test_the_mean_over_a_response(name):
    """log r = .1, .1, −.3 with A = 1: verl's GSPO has −e^.1 = −1.10517, the mean over the response −e^(−.1/3) = −.96722."""
    params, whole, kept = SEQUENCE[name]
    values = [value(name, params, d, [-1, -1, -1], [-0.9, -0.9, -1.3], [1, 1, 1], 1.5) for d in DENOMINATORS]
    assert values == pytest.approx([2 * whole / 3, kept], abs=1e-12)  # two kept tokens over three, over two
    if name == "gspo":
        assert values[1] == pytest.approx(-1.10517, abs=1e-5) and values[0] * 3 / 2 == pytest.approx(-0.96722, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "params", "weight"),
    [
        ("topr", {"upper": 1.0}, lambda log_w: math.exp(log_w)),
        ("vespo", {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 1.0, "lambda_neg": 0.0}, lambda log_w: math.exp(log_w)),
    ],
)
def test_the_product_over_a_response(name, params, weight):
    """log r = −.1, −.1, −.3 with A = −1: w = e^−.5 of the response, e^−.2 of its kept tokens; L = w·log π on both kept tokens."""
    values = [value(name, params, d, [-1, -1, -1], [-1.1, -1.1, -1.3], [-1, -1, -1], 1.5) for d in DENOMINATORS]
    assert values == pytest.approx([weight(-0.5) * -2.2 / 3, weight(-0.2) * -2.2 / 2], abs=1e-12)


def test_the_selection_by_covariance():
    """kl_cov chooses one token: by all four the second, by the three that are kept the third.

    Deviations of log π_old and A from their means: of all, (2.25, 1.25, 2.25, −5.75) and (−2.375, −1.375, −1.875, 5.625),
    whose products are −5.3, −1.7, −4.2, −32; of the first three, (1/3, −2/3, 1/3) and (−.5, .5, 0): −1/6, −1/3, 0.
    L = −A·r + coef·|log r| there, with log r = .1, .2, .3.
    """
    old, advantages = [-1, -2, -1, -9], [1, 2, 1.5, 9]
    logp = [-0.9, -1.8, -0.7, -9]
    policy = -(math.exp(0.1) + 2 * math.exp(0.2) + 1.5 * math.exp(0.3))
    values = [value("kl_cov", {"share": 0.34, "coef": 10.0}, d, old, logp, advantages, 1.5) for d in DENOMINATORS]
    assert values == pytest.approx([(policy + 2.0) / 4, (policy + 3.0) / 3], abs=1e-12)


def test_the_band_of_covariances():
    """clip_cov drops a kept token whose covariance lies in (−.4, −.3): none by all four, the second by those that are kept."""
    old, advantages = [-1, -2, -1, -9], [1, 2, 1.5, 9]
    params = WIDE | {"share": 1.0, "lower": -0.4, "upper": -0.3}
    values = [value("clip_cov", params, d, old, old, advantages, 1.5) for d in DENOMINATORS]
    assert values == pytest.approx([-4.5 / 4, -2.5 / 3], abs=1e-12)
