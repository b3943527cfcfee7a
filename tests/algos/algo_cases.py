"""Parameters for each built-in, and the small batches that several tests share."""

from __future__ import annotations

import torch

from algos.batch import Batch
from algos.corrections.apply import Corrected

LOSS_PARAMS = {
    "ppo": {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": 3.0},
    "gspo": {"eps_low": 3e-2, "eps_high": 4e-2},
    "luspo": {"eps_low": 0.2, "eps_high": 0.2},
    "gmpo": {"lower": 0.67, "upper": 1.49},
    "ctpo": {"log_low": 0.3, "log_high": 0.5, "log_dual_clip": 0.6, "power": 0.5},
    "minpro": {"lower": 0.5, "upper": 2.0},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "dro": {"beta": 0.05},
    "dppo": {"divergence": "tv", "delta_low": 0.2, "delta_high": 0.2, "upper": 1.5},
    "clip_cov": {"eps_low": 0.2, "eps_high": 0.2, "share": 0.2, "lower": 0.05, "upper": 5.0},
    "kl_cov": {"share": 0.2, "coef": 1.0},
    "pg": {},
    "gpg": {},
    "cross_entropy": {},
    "cispo": {"lower": 0.0, "upper": 5.0},
    "rollout_is": {"lower": 0.5, "upper": 2.0},
    "topr": {"upper": 1.0},
    "vespo": {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
}

UNBOUNDED = {
    "ppo": {"eps_low": 1.0, "eps_high": torch.inf, "dual_clip": None},
    "cispo": {"lower": 0.0, "upper": torch.inf},
    "rollout_is": {"lower": 0.0, "upper": torch.inf},
    "dppo": {"divergence": "kl", "delta_low": torch.inf, "delta_high": torch.inf, "upper": None},
    "kl_cov": {"share": 0.1, "coef": 0.0},
}
"""Settings at which a loss's gradient is that of −A·r."""


def f64(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def shared_batch():
    """log π_θ and the batch of the reference values of the PyPI packages."""
    old = f64([[-1, -1.5, -0.5], [-2, -2, -2]])
    rollout = f64([[-1.5, -1, -1.5], [-1, -2.5, -2]])
    logp = f64([[-0.9, -1.7, -0.5], [-2.3, -1.6, -2]])
    advantages = f64([[1, 1, 1], [-1, -1, -1]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    return logp, Batch(rollout, mask, old, advantages)


def of_ratio(l, mask, rollout=None, **fields):
    """A batch with log π_old − log μ = l: μ's log-probabilities are 0 where `rollout` gives none."""
    rollout = torch.zeros_like(l) if rollout is None else rollout
    return Batch(rollout, mask, rollout + l, **fields)


def correction(kept, counted=None):
    """A correction with weights of 1, the kept tokens and those that are counted."""
    return Corrected(kept.double(), kept, kept if counted is None else counted)
