"""Spread of the mismatch over tokens: rounding moves all probabilities a little, while another computation moves some a lot."""

from __future__ import annotations

import torch

from algos.diagnostics.pairs import LogpPairs
from algos.diagnostics.places import moved

SURE, DOUBTED = 0.9, 0.5
"""A token flips if the sampler gives it a probability above SURE, and the trainer one below DOUBTED."""


def tails(pairs: LogpPairs) -> dict[str, float]:
    """K3 of the batch, its concentration on few tokens, and the share of the sampler's certain tokens that the trainer doubts.

    k3: E[ρ − 1 − log ρ], ρ = π/μ, nats per token. top_share: share of it due to the 1 % of tokens with the largest K3. kurtosis:
    E[d⁴]/E[d²]² of d = logit π − logit μ within ±5; 3 for a normal error. typical: median |d|/0.6745, the standard deviation of
    a normal error, hardly affected by a tail. sure: share of tokens with μ > 0.9. flips: share of these with π < 0.5, whose logit
    moves by 2.2 or more. Rounding in a usual precision gives almost no flips.
    """
    square, doubtful = moved(pairs)
    square = square[doubtful]
    k3, n = pairs.k3, len(pairs)
    sure = pairs.mu > torch.tensor(SURE).double().log()
    flips = sure & (pairs.pi < torch.tensor(DOUBTED).double().log())
    total = float(k3.sum())
    second = float(square.mean()) if len(square) else 0.0
    return {
        "tails/k3": total / max(1, n),
        "tails/top_share": float(k3.topk(max(1, n // 100)).values.sum()) / total if total > 0 else 0.0,
        "tails/kurtosis": float(square.square().mean()) / second**2 if second > 0 else 0.0,
        "tails/typical": float(square.sqrt().median()) / 0.6745 if len(square) else 0.0,
        "tails/sure": float(sure.sum()) / max(1, n),
        "tails/flips": float(flips.sum()) / max(1, int(sure.sum())),
    }
