"""Draw the anatomy of a mismatch: `python -m experiments.gpu_check.drawing FOLDER`. FOLDER has the dumps of `check_anatomy`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.dumped import Dumped, by_position, load
from analysis.marks import HUES, NEUTRAL

DECADES = 6
"""Number of bins of a token's probability under the sampler μ, a factor of ten each; the last bin is open below."""


def k3(log_ratio: np.ndarray) -> float:
    """K3 in nats, an estimate of KL(μ‖π) for sampler μ and trainer π: mean of ρ − 1 − log ρ over tokens, with ρ = π/μ."""
    return float((np.expm1(log_ratio) - log_ratio).mean(dtype=float))


def by_probability(tokens: Dumped) -> tuple[np.ndarray, np.ndarray]:
    """Return (lower end of each bin of the probability μ, mean |log π − log μ| of the bin's tokens or NaN without tokens)."""
    bins = np.minimum((-tokens.logp_rollout / np.log(10)).astype(int), DECADES - 1)
    count, total = (np.bincount(bins, weights, minlength=DECADES) for weights in (None, np.abs(tokens.log_ratio)))
    return 10.0 ** -(np.arange(DECADES) + 1), np.divide(total, count, out=np.full(DECADES, np.nan), where=count > 0)


def ess_by_length(tokens: Dumped) -> tuple[np.ndarray, np.ndarray]:
    """Return (lengths T, effective sample size of the weights Π π/μ of responses cut after T tokens, as a share of responses)."""
    lengths, response = np.arange(1, tokens.position.max() + 1), np.cumsum(tokens.position == 1) - 1
    out = []
    for length in lengths:
        within = tokens.position <= length
        weight = np.exp(np.bincount(response[within], tokens.log_ratio[within], len(tokens.log_weight)))
        out.append(weight.sum() ** 2 / (len(weight) * (weight**2).sum()))
    return lengths, np.array(out)


def draw(folder: Path) -> Figure:
    """Draw K3 by precision and position, ESS by length, |log ratio| by probability, of dumps in `folder` with K3 > 1e-8."""
    arms = {path.stem: load([path]) for path in sorted(folder.glob("*.parquet"))}
    arms = {name: tokens for name, tokens in arms.items() if k3(tokens.log_ratio) > 1e-8}
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    (size, place), (length, probability) = figure.subplots(2, 2)
    colors = {name: HUES.get(name, NEUTRAL) for name in dict.fromkeys(name.split("-", 1)[1] for name in arms)}
    for name, tokens in arms.items():
        engine, arm = name.split("-", 1)
        look = {"color": colors[arm], "linestyle": "-" if engine == "local" else "--", "label": name.replace("-", " ", 1)}
        place.plot(*by_position(tokens), **look)
        length.plot(*ess_by_length(tokens), **look)
        probability.plot(*by_probability(tokens), marker=".", **look)
    _bars(size, {name: k3(tokens.log_ratio) for name, tokens in arms.items()}, colors)
    place.set(yscale="log", xlabel="place in the response", ylabel="K3 (nats per token)", title="By position")
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
