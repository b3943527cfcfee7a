"""Regression of log π on log μ, which shows whether one of them has another temperature or another base of the logarithm."""

from __future__ import annotations

import math

from torch import Tensor

from algos.diagnostics.pairs import LogpPairs, clustered_mean, logit

SATURATED = 9.0
"""Maximum |log p − log(1 − p)| of a token in the regression: from p = 0.9999 on, fp32 rounding of 1 − p moves this logit."""


def slope(pairs: LogpPairs) -> dict[str, float]:
    """Slopes of logit π on logit μ and of log π on log μ, with logit p = log p − log(1 − p), and the difference in mean surprise.

    temperature, temperature_error: b of logit π = a + b·logit μ by least squares over tokens with both |logit| ≤ 9, and its
    error, clustered over prompts. T_μ and T_π being the temperatures of sampler and trainer, b = T_μ/T_π exactly for a vocabulary
    of two tokens, where log-softmax(z/T) has logit z/T; for more tokens nearly so. Independent noise of the sampler's logits
    lowers b below T_μ/T_π, by about (its variance)/(variance of logit μ). temperature_most, temperature_most_error: 1/b of the
    regression of logit μ on logit π, which noise of the trainer's logits raises. So T_μ/T_π is between the two, however large
    the noise is (R. Frisch, Statistical Confluence Analysis, 1934).
    temperature_explained: the share of the variance of logit π − logit μ that this line explains.
    temperature_drop: relative difference of the mean surprise, E[−log π]/E[−log μ] − 1, an estimate of KL(μ‖π)/H(μ).
    base: b of log π = b·log μ by least squares. base_left: the share of E[(log π − log μ)²] that this line leaves, 1 for b = 1.
    It is near 0 when log π or log μ is in another base; b is then ln 2 = 0.693, ln 10 = 2.303 or an inverse of these.
    """
    mu, pi = logit(pairs.mu), logit(pairs.pi)
    chosen = (mu.abs() <= SATURATED) & (pi.abs() <= SATURATED)
    mu, pi, cluster = mu[chosen], pi[chosen], pairs.cluster[chosen]
    (b, error, explained), (reverse, reverse_error, _) = _line(mu, pi, cluster), _line(pi, mu, cluster)
    most = 1 / reverse if reverse > 0 else math.nan
    square = float(pairs.mu.square().sum())
    base = float((pairs.mu * pairs.pi).sum()) / square if square > 0 else math.nan
    size = float(pairs.l.square().sum())
    left = float((pairs.pi - base * pairs.mu).square().sum()) / size if size > 0 else 1.0
    surprise = -float(pairs.mu.sum())
    return {
        "slope/temperature": b,
        "slope/temperature_error": error,
        "slope/temperature_explained": explained,
        "slope/temperature_most": most,
        "slope/temperature_most_error": most * most * reverse_error,
        "slope/temperature_drop": -float(pairs.pi.sum()) / surprise - 1 if surprise > 0 else math.nan,
        "slope/base": base,
        "slope/base_left": left,
    }


def _line(x: Tensor, y: Tensor, cluster: Tensor) -> tuple[float, float, float]:
    """Regress y on x: (slope, its standard error clustered by `cluster`, explained share of Var(y − x)); NaN below 8 values."""
    if len(x) < 8:
        return math.nan, math.nan, math.nan
    centred = x - x.mean()
    spread = centred.square().mean()
    if not spread > 0:
        return math.nan, math.nan, math.nan
    difference = y - x - (y - x).mean()
    b = (centred * difference).mean() / spread
    error = clustered_mean(centred * (difference - b * centred), cluster).error / float(spread)
    whole = float(difference.square().mean())
    return 1 + float(b), error, float(b.square() * spread) / whole if whole > 0 else 0.0
