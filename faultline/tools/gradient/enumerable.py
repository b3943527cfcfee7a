"""Exact bias and variance of gradient estimators: all responses of a tiny policy are listed, so that expectations are sums.

One response y ~ μ gives the estimate f(y) = Σ_t c_t(y)·∇log π(y_t), with coefficients c_t of the estimator. The truth is
g = −∇E_π[reward]. bias = |E_μ f − g|/|g|, and variance = (E_μ|f|² − |E_μ f|²)/|g|². rmse is for a mean of `responses` estimates.
"""

from __future__ import annotations

import math

import pandas as pd
import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.spec import Reject
from algos.enumerable import EnumerablePolicy, policies, rewards
from faultline.tools.gradient.methods import Method, coefficients
from harness.errors import UserError


def exact_table(
    methods: list[Method], *, vocabulary: int = 3, length: int = 4, noise: float = 0.3, seed: int = 0, responses: int = 256
) -> pd.DataFrame:
    """Table with a row per gradient estimator: cosine and norm ratio of its mean to the true gradient, bias, sd, rmse.

    Columns family and bound: kind of correction and its bound, if any. sd is that of one response; rmse is that of a mean over
    `responses`. noise: standard deviation of the noise added to the logits of π to give those of μ. Methods must reduce by
    token_sum.
    """
    for method in methods:
        _refuse_coupled(method)
    space = EnumerablePolicy.of(vocabulary, length)
    pi, mu = policies(space, noise, seed=seed)
    reward = rewards(space, seed=seed + 1)
    probability = space.logp(pi).sum(-1).exp()
    reward = reward - (probability * reward).sum()  # the mean as baseline: no bias, less variance
    score = _scores(space, pi)
    truth = -torch.einsum("n,n,ntp->p", probability, reward, score)
    behaviour = space.logp(mu).sum(-1).exp()
    batch = Batch(space.logp(mu), space.mask, space.logp(pi), reward[:, None].expand_as(space.state).double())
    rows = []
    for method in methods:
        estimates = torch.einsum("nt,ntp->np", coefficients(method.objective, batch), score)
        mean = behaviour @ estimates
        variance = behaviour @ estimates.square().sum(-1) - mean.square().sum()
        bias = (mean - truth).norm() / truth.norm()
        sd = variance.clamp(min=0).sqrt() / truth.norm()
        cosine = torch.nn.functional.cosine_similarity(mean, truth, dim=0) if mean.norm() > 0 else torch.nan
        rows.append(
            {
                "method": method.name,
                "cosine": float(cosine),
                "norm ratio": float(mean.norm() / truth.norm()),
                "bias": float(bias),
                "sd": float(sd),
                "rmse": math.hypot(bias, sd / math.sqrt(responses)),
                "family": method.family,
                "bound": method.bound,
            }
        )
    return pd.DataFrame(rows)


def _refuse_coupled(method: Method) -> None:
    """Raise UserError for a gradient estimator that weighs a response by others of its batch. Exact sums take each one alone."""
    correction, loss = method.objective.correction, method.objective.loss
    plugins = [name for name, filter_ in correction.reject.items() if not isinstance(filter_, Reject)]
    coupled = correction.normalize == "batch" or correction.weight.level == "group" or plugins
    if coupled or getattr(getattr(loss, "func", loss), "select", None):
        raise UserError(
            f"{method.name}: the gradient of one response depends on the rest of the batch, so --enumerable has no exact sum "
            "for it; leave it out of --losses and --corrections, or use a checkpoint"
        )


def _scores(space: EnumerablePolicy, logits: Tensor) -> Tensor:
    """Gradient of each token's log π by the logits, [N, T, parameters]: one-hot of the token minus π at the token's state."""
    n, t = space.tokens.shape
    one_hot = torch.nn.functional.one_hot(space.tokens, logits.shape[1]).double()
    there = torch.nn.functional.one_hot(space.state, len(logits)).double()
    here = one_hot - logits.softmax(-1)[space.state]
    return torch.einsum("nts,ntv->ntsv", there, here).reshape(n, t, -1)
