"""The anatomy of a mismatch as a picture: `python -m experiments.gpu_check.drawing FOLDER`, with the dumps of `check_anatomy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.marks import HUES, NEUTRAL
from harness.dumps.files import read

DECADES = 6
"""Number of bins of a token's probability under μ, a factor of ten each; the last one is open below."""


class DumpedTokens(NamedTuple):
    """All tokens of an arm as flat arrays: log μ, log π − log μ (nats), number of the response, place in it from 0."""

    logp_rollout: np.ndarray
    log_ratio: np.ndarray
    response: np.ndarray
    place: np.ndarray


def load(path: Path) -> DumpedTokens:
    """Load the tokens of a dump from its file."""
    rollout, ratios, lengths = [], [], []
    for table in read(path):
        mu, pi = (table[name].combine_chunks() for name in ("logp_rollout", "logp_old"))
        lengths.append(mu.value_lengths().to_numpy())
        rollout.append(mu.flatten().to_numpy())
        ratios.append(pi.flatten().to_numpy() - rollout[-1])
    counts = np.concatenate(lengths)
    response = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return DumpedTokens(np.concatenate(rollout), np.concatenate(ratios).astype(float), response, place)


def k3(log_ratio: np.ndarray) -> float:
    """K3, the mean of ρ − 1 − log ρ with ρ = π/μ over tokens, in nats."""
    return float((np.expm1(log_ratio) - log_ratio).mean())


def by_probability(tokens: DumpedTokens) -> tuple[np.ndarray, np.ndarray]:
    """(lower end of each bin of μ, mean |log ratio| of the tokens in it), NaN for an empty bin."""
    bins = np.minimum((-tokens.logp_rollout / np.log(10)).astype(int), DECADES - 1)
    count, total = (np.bincount(bins, weights, minlength=DECADES) for weights in (None, np.abs(tokens.log_ratio)))
    return 10.0 ** -(np.arange(DECADES) + 1), np.divide(total, count, out=np.full(DECADES, np.nan), where=count > 0)


def ess_by_length(tokens: DumpedTokens) -> tuple[np.ndarray, np.ndarray]:
    """(T, ESS of the sequence weights over all responses if each is cut after its first T tokens)."""
    places = np.arange(tokens.place.max() + 1)
    out = []
    for last in places:
        within = tokens.place <= last
        weight = np.exp(np.bincount(tokens.response[within], tokens.log_ratio[within], tokens.response.max() + 1))
        out.append(weight.sum() ** 2 / (len(weight) * (weight**2).sum()))
    return places + 1, np.array(out)


def by_place(tokens: DumpedTokens, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(last place of each block of `width` places in a response, K3 of the tokens there)."""
    bins = tokens.place // width
    values = np.bincount(bins, np.expm1(tokens.log_ratio) - tokens.log_ratio) / np.bincount(bins)
    return (np.arange(len(values)) + 1) * width, values


def draw(folder: Path) -> Figure:
    """Draw K3 by arm and by place, ESS by length, |log ratio| by probability under μ. Arms without a mismatch are left out."""
    arms = {path.stem: load(path) for path in sorted(folder.glob("*.parquet"))}
    arms = {name: tokens for name, tokens in arms.items() if k3(tokens.log_ratio) > 1e-8}
    width = max(8, max(int(tokens.place.max()) + 1 for tokens in arms.values()) // 16)
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    (size, place), (length, probability) = figure.subplots(2, 2)
    colors = {name: HUES.get(name, NEUTRAL) for name in dict.fromkeys(name.split("-", 1)[1] for name in arms)}
    for name, tokens in arms.items():
        engine, arm = name.split("-", 1)
        look = {"color": colors[arm], "linestyle": "-" if engine == "local" else "--", "label": name.replace("-", " ", 1)}
        place.plot(*by_place(tokens, width), **look)
        length.plot(*ess_by_length(tokens), **look)
        probability.plot(*by_probability(tokens), marker=".", **look)
    _bars(size, {name: k3(tokens.log_ratio) for name, tokens in arms.items()}, colors)
    place.set(yscale="log", xlabel=f"place in the response (means of {width})", ylabel="K3 (nats per token)", title="By position")
    length.set(ylim=(0, 1), xlabel="tokens of each response counted", ylabel="ESS of the sequence weights", title="By length")
    probability.set(
        xscale="log",
        yscale="log",
        xlabel="μ of the token, at least",
        ylabel="mean |log π − log μ| (nats)",
        title="By probability",
    )
    probability.invert_xaxis()
    figure.legend(*length.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return figure


def _bars(axis: Axes, values: dict[str, float], colors: dict[str, str]) -> None:
    names = sorted(values, key=values.__getitem__)
    bars = axis.barh(names, [values[name] for name in names], color=[colors[name.split("-", 1)[1]] for name in names])
    for bar, name in zip(bars, names, strict=True):
        bar.set_hatch("" if name.startswith("local") else "//")
    axis.set(xscale="log", xlabel="K3 (nats per token)", title="By precision; hatched: vLLM")


if __name__ == "__main__":
    draw(Path(sys.argv[1])).savefig(Path(sys.argv[1]) / "anatomy.png", dpi=110)
