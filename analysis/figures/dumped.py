"""Figures of single tokens and responses, from the dumps of a sweep's runs (docs/dumps.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.figures.style import HEAT, FigureOrReason, grid, legend_below, literal, subplots
from analysis.labels import coarseness
from analysis.marks import NEUTRAL
from analysis.results import Results
from harness.dumps.files import read
from harness.room import bounded

NONE = "no run has dumps; dump.every keeps the log-probabilities of whole batches (docs/dumps.md)"
MOST_TOKENS = 200_000
"""Maximum number of tokens in a density plot. If there are more, evenly spaced ones are drawn."""
TOP = 0.1
"""An estimate of the tail index uses at most this share of a precision's sequence weights, the largest ones."""
TRUSTED = 0.7
"""Tail index k of the sequence weights above which their mean is unreliable (Vehtari et al., arXiv 1507.02646)."""


class Dumped(NamedTuple):
    """Dumped tokens of one precision with finite log-probabilities, as flat arrays.

    Per token: log μ, the log ratio log π_old − log μ (nats), and the position in the response, from 1. Per response: the log of
    its sequence weight, which is the sum of its log ratios.
    """

    logp_rollout: np.ndarray
    log_ratio: np.ndarray
    position: np.ndarray
    log_weight: np.ndarray


def density(results: Results) -> FigureOrReason:
    """The figure of the tokens' log ratio log π_old − log μ against log μ, and of the tail of |log ratio|, per precision."""
    by_precision = _dumped(results)
    if not by_precision:
        return NONE
    figure, axes = grid(len(by_precision) + 1, 3, 2.9)
    for i, (precision, tokens) in enumerate(by_precision.items()):
        axis, every = axes[i], -(-len(tokens.log_ratio) // MOST_TOKENS) or 1
        x, y = tokens.logp_rollout[::every], tokens.log_ratio[::every]
        image = axis.hexbin(x, y, gridsize=50, bins="log", cmap=HEAT, mincnt=1, rasterized=True)
        figure.colorbar(image, ax=axis, shrink=0.8)
        axis.set_title(f"{precision}: {len(x):,} tokens")
        axis.set_xlabel("log μ (nats)")
        axis.set_ylabel("log π_old − log μ (nats)")
        if (y != 0).any():
            axes[-1].plot(*exceedance(np.abs(y)), **results.marks.source(precision).line, label=literal(precision))
    axes[-1].set(xscale="log", yscale="log", xlabel="x: |log π_old − log μ| ≥ x (nats)", ylabel="share of tokens")
    axes[-1].set_title("tail")
    legend_below(figure, axes[-1:])
    return figure


def exceedance(values: np.ndarray, points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """The tail of the values' distribution as (x, share of values ≥ x), at about `points` log-spaced ranks."""
    tail = np.sort(values)[::-1]
    rank = np.unique(np.geomspace(1, (tail > 0).sum(), points).astype(int))
    return tail[rank - 1], rank / len(tail)


def positions(results: Results) -> FigureOrReason:
    """The figure of K3 by a token's position in the response, and of the tail index of the sequence weights, per precision."""
    by_precision = {name: tokens for name, tokens in _dumped(results).items() if (tokens.log_ratio != 0).any()}
    if not by_precision:
        return NONE if not _dumped(results) else "rollout and trainer agree bit for bit in every dump"
    figure, ((left, right),) = subplots(1, 2, 3.4)
    for precision, tokens in by_precision.items():
        line, label = results.marks.source(precision).line, f"{precision} ({len(tokens.log_weight):,} responses)"
        left.plot(*by_position(tokens), **line, label=literal(label))
        right.plot(*hill(tokens.log_weight), **line, label=literal(label))
    left.set(yscale="log", xlabel="place of the token in the response", ylabel="K3 (nats per token)")
    left.set_title("By position")
    right.axhline(TRUSTED, color=NEUTRAL, linewidth=0.8, linestyle=":")
    right.set(xscale="log", ylim=(0, None), xlabel="largest sequence weights counted", ylabel="Hill's estimate of the tail index")
    right.set_title("Tail of the sequence weights")
    legend_below(figure, (left, right))
    return figure


def by_position(tokens: Dumped, points: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """K3 by position in the response: (last position of each bin, mean of ρ − 1 − log ρ there), with ρ = π_old/μ.

    Each position is a bin. If there are more than `points` positions, about `points` bins grow geometrically instead.
    """
    edges = np.unique(np.geomspace(1, tokens.position.max(), points).round().astype(int))
    edges = np.arange(1, tokens.position.max() + 1) if tokens.position.max() <= points else edges
    bins, k3 = np.searchsorted(edges, tokens.position), np.expm1(tokens.log_ratio) - tokens.log_ratio
    number = np.bincount(bins, minlength=len(edges))
    with np.errstate(invalid="ignore"):
        return edges, np.bincount(bins, k3, minlength=len(edges)) / number


def hill(log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hill's estimate of the tail index of weights w, as (m, k̂_m) for the m largest ones, with m up to a tenth of all.

    k̂_m = (1/m) Σ_{i≤m} log w_(i) − log w_(m+1), with w_(i) the i-th largest. The tail index k is that of
    P(w > x) ~ x^(−1/k) (Hill, Annals of Statistics 3, 1975). The weights have a mean for k < 1, and a variance for k < 1/2.
    """
    ordered = np.sort(log_weight)[::-1]
    m = np.arange(1, max(2, int(TOP * len(ordered))))
    return m, np.cumsum(ordered)[m - 1] / m - ordered[np.minimum(m, len(ordered) - 1)]


def _dumped(results: Results) -> dict[str, Dumped]:
    """The dumped tokens of each rollout precision, by its name, from fine to coarse. Runs read from W&B have no dumps."""
    paths: dict[str, list[Path]] = {}
    if results.folder is None:
        return {}
    for run in results.runs.itertuples():
        if files := sorted((results.folder / str(run.Index) / "dumps").glob("step-*.parquet")):
            paths.setdefault(run.precision, []).extend(files)
    return {precision: load(paths[precision]) for precision in sorted(paths, key=lambda name: (coarseness(name), name))}


def load(paths: Iterable[Path]) -> Dumped:
    """Load the tokens with finite log-probabilities of the dump files `paths`."""
    parts: list[Dumped] = []
    for path in paths:
        with bounded(path):
            parts += map(_tokens, read(path))
    return Dumped(*map(np.concatenate, zip(*parts, strict=True)))


def _tokens(table) -> Dumped:
    rollout, old = (table[name].combine_chunks() for name in ("logp_rollout", "logp_old"))
    lengths = rollout.value_lengths().to_numpy()
    first = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(len(lengths)), lengths)
    flat, ratio = rollout.flatten().to_numpy(), old.flatten().to_numpy() - rollout.flatten().to_numpy()
    finite = np.isfinite(ratio)
    weight = np.bincount(row[finite], ratio[finite], minlength=len(lengths))
    return Dumped(flat[finite], ratio[finite], (np.arange(len(flat)) - first[row] + 1)[finite], weight)
