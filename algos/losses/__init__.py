"""Losses: pure functions from log-probabilities to an unreduced token loss; `losses.base` has the signature."""

from algos.losses.base import TokenLoss, loss
from algos.losses.clipped import ppo
from algos.losses.covariance import clip_cov, kl_cov
from algos.losses.prefix import ctpo, minpro
from algos.losses.sequence import gmpo, gspo, luspo
from algos.losses.smooth import dro, sapo
from algos.losses.trust_region import dppo
from algos.losses.weighted import cispo, cross_entropy, pg, rollout_is, topr, vespo

__all__ = [
    "TokenLoss",
    "cispo",
    "clip_cov",
    "cross_entropy",
    "ctpo",
    "dppo",
    "dro",
    "gmpo",
    "gspo",
    "kl_cov",
    "loss",
    "luspo",
    "minpro",
    "pg",
    "ppo",
    "rollout_is",
    "sapo",
    "topr",
    "vespo",
]
