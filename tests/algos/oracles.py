"""Slow oracles: one token at a time, in Python floats, straight from the equations; and ragged batches."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

BOUND = 20.0


def exp(x: float) -> float:
    return math.exp(max(-BOUND, min(BOUND, x)))


def clip(x: float, low: float | None, high: float | None) -> float:
    return max(-math.inf if low is None else low, min(math.inf if high is None else high, x))


@st.composite
def batches(draw, rows=5, columns=6, spread=2.5):
    """(logp, prox, advantages, mask) with empty rows, holes, one token and anything at masked positions."""
    b, t = draw(st.integers(1, rows)), draw(st.integers(1, columns))
    numbers = st.floats(-spread, spread, width=32)

    def tensor(element):
        return torch.tensor(draw(st.lists(st.lists(element, min_size=t, max_size=t), min_size=b, max_size=b)))

    mask = tensor(st.booleans())
    base = -3 + tensor(numbers).double()
    logp, advantages = base + tensor(numbers).double(), tensor(numbers).double()
    garbage = draw(st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
    return (*(torch.where(mask, x, garbage) for x in (logp, base, advantages)), mask)


def tokens(mask: torch.Tensor) -> list[list[int]]:
    """The positions of the response tokens of each row."""
    return [[t for t, here in enumerate(row) if here] for row in mask.tolist()]


def token_loss(name: str, d: list[float], lp: list[float], a: list[float], i: int, p: dict) -> tuple[float, float]:
    """(value, derivative by log π) of token i of one response: d = log r, lp = log π, a = A of its tokens."""
    r, adv, n = exp(d[i]), a[i], len(d)
    inside = 1.0 if abs(d[i]) < BOUND else 0.0
    if name in ("gspo", "luspo"):
        r, inside = exp(sum(d) / n), 1.0
    if name in ("ppo", "gspo", "luspo"):
        value, slope = -adv * r, -adv * r * inside
        bounded = -adv * clip(r, 1 - p["eps_low"], 1 + p["eps_high"])
        if bounded > value:
            value, slope = bounded, 0.0
        if p.get("dual_clip") is not None and adv < 0 and value > -adv * p["dual_clip"]:
            value, slope = -adv * p["dual_clip"], 0.0
        scale = n if name == "luspo" else 1
        return scale * value, scale * slope
    if name == "ctpo":
        log_s, width = clip(sum(d[: i + 1]), -BOUND, BOUND), (i + 1) ** p["power"]
        value, slope = -adv * math.exp(log_s), -adv * math.exp(log_s)
        bounded = -adv * math.exp(clip(log_s, -p["log_low"] * width, p["log_high"] * width))
        if bounded > value:
            value, slope = bounded, 0.0
        if p["log_dual_clip"] is not None and adv < 0 and value > -adv * math.exp(p["log_dual_clip"] * width):
            value, slope = -adv * math.exp(p["log_dual_clip"] * width), 0.0
        return value, slope
    if name == "minpro":
        weight = clip(exp(d[i] + min(d[:i], default=0.0)), p["lower"], p["upper"])
        return -weight * adv * lp[i], -weight * adv
    if name == "gmpo":
        low, high = math.log(p["lower"]), math.log(p["upper"])
        cut = [min(x, high) if y >= 0 else max(x, low) for x, y in zip(d, a, strict=True)]
        g = exp(sum(cut) / n)
        return -adv * g, -adv * g * (cut[i] == d[i])
    if name == "sapo":
        tau = p["tau_pos"] if adv > 0 else p["tau_neg"]
        s = 1 / (1 + math.exp(-tau * (r - 1)))
        return -adv * s * 4 / tau, -adv * 4 * s * (1 - s) * r * inside
    if name == "dro":
        return -adv * lp[i] + p["beta"] / 2 * d[i] ** 2, -adv + p["beta"] * d[i]
    if name == "dppo":
        now, then = math.exp(lp[i]), math.exp(lp[i] - d[i])
        distance = abs(now - then)
        if p["divergence"] == "kl":
            distance = then * math.log(then / now) + (1 - then) * math.log((1 - then) / (1 - now))
        drop = (adv > 0 and r > 1 and distance > p["delta_high"]) or (adv < 0 and r < 1 and distance > p["delta_low"])
        if p["upper"] is not None and r > p["upper"]:
            r, inside = p["upper"], 1.0
        return (0.0, 0.0) if drop else (-adv * r, -adv * r * inside)
    weight = {
        "pg": lambda: 1.0,
        "gpg": lambda: 1.0,
        "cispo": lambda: clip(r, p["lower"], p["upper"]),
        "rollout_is": lambda: r if p["lower"] <= r <= p["upper"] else 0.0,
        "topr": lambda: 1.0 if adv >= 0 else min(exp(sum(d)), p["upper"]),
        "vespo": lambda: _vespo(clip(sum(d), -BOUND, BOUND), adv, p),
    }
    if name == "cross_entropy":
        return -lp[i], -1.0
    return -weight[name]() * adv * lp[i], -weight[name]() * adv


def _vespo(log_w: float, adv: float, p: dict) -> float:
    k, lam = (p["k_pos"], p["lambda_pos"]) if adv >= 0 else (p["k_neg"], p["lambda_neg"])
    return math.exp(min(k * log_w + lam * (1 - math.exp(log_w)), BOUND))


def unit(level: str, row: list[int], t: int, segments: list[int] | None) -> list[int]:
    """The tokens of a response that share their value at `level` with token t."""
    if level == "token":
        return [t]
    if level in ("prefix", "suffix"):
        return [u for u in row if u < t + (level == "prefix")]
    if level.startswith("segment"):
        return [u for u in row if segments[u] == segments[t]]
    return row


def ratio(l: list[float], members: list[int], level: str) -> float:
    total = sum(l[u] for u in members)
    return exp(total / len(members) if level.endswith("geometric") else total)


def weight(rho: float, spec) -> float:
    if spec.action == "mask":
        return rho if clip(rho, spec.lower, spec.upper) == rho else 0.0
    return clip(rho, spec.lower, spec.upper)


def _two_events(logp: float, logq: float) -> float:
    """KL((p, 1 − p) ‖ (q, 1 − q)), both probabilities in [1e-6, 1 − 1e-6]."""
    logp, logq = (min(max(x, math.log(1e-6)), math.log1p(-1e-6)) for x in (logp, logq))
    rest_p, rest_q = -math.expm1(logp), -math.expm1(logq)
    return math.exp(logp) * (logp - logq) + rest_p * math.log(rest_p / rest_q)


def passes(l: list[float], mu: list[float], members: list[int], filter_) -> bool:
    """Whether the unit `members` of one response passes a filter."""
    if filter_.statistic == "ratio":
        values = [exp(l[u]) for u in members]
        if filter_.level not in ("worst_token", "suffix"):
            values = [ratio(l, members, filter_.level)]
        return all(clip(v, filter_.lower, filter_.upper) == v for v in values)
    statistic = {
        "k2": lambda u: l[u] ** 2 / 2,
        "k3": lambda u: exp(l[u]) - 1 - l[u],
        "mult_error": lambda u: exp(abs(l[u])),
        "prob_diff": lambda u: math.exp(mu[u] + l[u]) - math.exp(mu[u]),
        "binary_kl": lambda u: max(_two_events(mu[u] + l[u], mu[u]), _two_events(mu[u], mu[u] + l[u])),
    }[filter_.statistic]
    values = [statistic(u) for u in members]
    if filter_.level in ("prefix", "sequence", "segment"):
        values = [sum(values)]
    elif filter_.level in ("geometric", "segment_geometric"):
        values = [sum(values) / len(values)]
    return all(clip(v, filter_.lower, filter_.upper) == v for v in values)
