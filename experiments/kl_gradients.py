"""`python -m experiments.kl_gradients`: exact bias and spread of the gradients of K1, K2 and K3, on enumerated policies.

K1, K2 and K3 are estimators k(x_t) of KL(π‖π_ref), with x = log π_ref − log π of token t. A penalty enters as a loss Σ_t k(x_t),
or as a reward −Σ_s k(x_s) of the whole response. One response y ~ π gives the gradient f(y) = Σ_t c_t(y)·∇log π(y_t), where c_t
is the coefficient of token t. An expectation is a sum over all responses.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor
from torch.func import jacrev

from algos import kl
from algos.enumerable import EnumerablePolicy, policies
from analysis.frames import markdown

ESTIMATORS = {"K1": kl.k1, "K2": kl.k2, "K3": kl.k3}
DISTANCES = (0.1, 0.5, 1.5)
"""Standard deviations of the noise on the logits that makes π_ref from π."""
SEEDS = range(20)
"""Seeds of the random policies over which the printed table averages."""


def table(seed: int, vocabulary: int = 3, length: int = 4) -> pd.DataFrame:
    """Table with a row per distance of π_ref from π, KL estimator, and penalty in the loss or the reward. seed: of the random π.

    KL: nats per response. bias = |E f − ∇KL|/|∇KL| and sd = √(E|f|² − |E f|²)/|∇KL|, where f is the gradient that one response
    gives, and ∇KL that of a response's KL(π‖π_ref). "bias at fixed prefixes" replaces ∇KL in the numerator by the part that a
    loss per token can have, Σ_t E[−x_t·∇log π(y_t)], x = log π_ref − log π. The penalty in the reward has its mean as baseline.
    """
    space = EnumerablePolicy.of(vocabulary, length)
    logits, *references = policies(space, *DISTANCES, seed=seed)
    score = jacrev(space.logp)(logits).flatten(2)
    logp = space.logp(logits).requires_grad_()
    probability = logp.detach().sum(-1).exp()

    def expected(coefficients: Tensor) -> Tensor:
        return torch.einsum("n,nt,ntp->p", probability, coefficients, score)

    rows = []
    for reference in references:
        ref = space.logp(reference)
        ratio = (logp - ref).detach()
        fixed, whole = expected(ratio), expected(ratio.sum(-1, keepdim=True).expand_as(ratio))
        for name, estimator in ESTIMATORS.items():
            value = estimator(logp, ref, space.mask)
            penalty = value.detach().sum(-1)
            centred = (penalty - probability @ penalty)[:, None].expand_as(ratio)
            for place, coefficients in (("loss", torch.autograd.grad(value.sum(), logp)[0]), ("reward", centred)):
                mean = expected(coefficients)
                square = probability @ torch.einsum("nt,ntp->np", coefficients, score).square().sum(-1)
                rows.append(
                    {
                        "KL": float(probability @ ratio.sum(-1)),
                        "estimator": name,
                        "as": place,
                        "bias": float((mean - whole).norm() / whole.norm()),
                        "bias at fixed prefixes": float((mean - fixed).norm() / whole.norm()),
                        "sd": float((square - mean.square().sum()).clamp(min=0).sqrt() / whole.norm()),
                    }
                )
    return pd.DataFrame(rows)


def average() -> pd.DataFrame:
    """Bias and spread of KL gradients, means over SEEDS: a row per distance to π_ref, estimator, penalty in loss or reward."""
    tables = [table(seed) for seed in SEEDS]
    return tables[0].assign(**pd.concat(tables).groupby(level=0).mean(numeric_only=True))


if __name__ == "__main__":
    print(markdown(average().round(3)))
