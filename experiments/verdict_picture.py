"""The pictures of the study of the verdict: `python -m experiments.verdict_picture`.

It reads regrets.csv and endpoints.csv below experiments/study/verdict. It writes docs/decision.png, the reward that each rule for
choosing a correction loses, and docs/k3.png, what a mismatch costs by its K3.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from scipy.stats import spearmanr

from analysis.figures.style import png, series, subplots
from analysis.marks import CONTROL as BLACK
from analysis.marks import NEUTRAL
from experiments.plan import recorded
from experiments.regimes import admitted, regimes
from experiments.verdict_study import FOLDER, POLICIES, costs, matched
from harness.boundary import command

TITLES = {"trainer": "the trainer's weights are deployed", "sampler": "the weights that sample are deployed"}
RULES = {
    "v2": "v2: by K3, persistence and length",
    "verdict": "the verdict of before the study",
    "best constant": "best constant of the calibration",
}
"""Names of rules in the figure; others keep their own."""
KINDS = {
    "number formats": ("fp8_tensor", "fp8_block", "fp8_cache", "int8", "nvfp4", "w4a4"),
    "synthetic noise": ("fixed_0.1", "fixed_0.2", "fixed_0.4", "fresh_0.2", "router_noise"),
    "older weights": ("stale_2", "partial"),
}
"""Sources of mismatch by their kind, which has a colour."""
MARKS = {"number formats": "o", "synthetic noise": "s", "older weights": "^"}


def regret_figure(rows: pd.DataFrame) -> Figure:
    """The figure of the reward that each rule for choosing a correction loses. rows: regrets.csv."""
    means = rows.groupby(["policy", "arm"]).share.mean()
    order = means["trainer"].sort_values().index.to_list()
    figure, (axes,) = subplots(1, len(TITLES), 0.8 + 0.3 * len(order), sharey=True)
    for axis, (policy, title) in zip(axes, TITLES.items(), strict=True):
        for place, rule in enumerate(order):
            shares = rows[(rows.policy == policy) & (rows.arm == rule)].share
            axis.plot(shares, [place] * len(shares), "|", color=NEUTRAL, markersize=9)
            axis.plot(shares.mean(), place, "o", color=BLACK, markersize=5)
            axis.annotate(
                f"{shares.mean():.1%}", (shares.mean(), place), (0, 6), textcoords="offset points", ha="center", fontsize=7
            )
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("share of the control's gain lost to the best correction")
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].set_yticks(range(len(order)), [RULES.get(rule, rule) for rule in order])
    axes[0].invert_yaxis()
    figure.suptitle(f"What each rule loses in {rows.regime.nunique()} held-out regimes (a line each; dots: means)", fontsize=10)
    return figure


def finding(most: Mapping[str, float]) -> str:
    """Title of the figure of costs. most: largest cost of a regime's mismatch, a share of the control's gain, by its kind."""
    return ", ".join(f"{kind} cost at most {cost:.0%}" for kind, cost in most.items()).capitalize() + " of the gain, in the mean"


def cost_figure(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """The figure of what a mismatch costs without a correction, by its K3. tables: `costs` by deployed policy."""
    figure, (axes,) = subplots(1, len(TITLES), 3.4, sharey=True)
    most: dict[str, float] = {}
    for axis, (policy, title) in zip(axes, TITLES.items(), strict=True):
        table = tables[policy]
        source = table.regime.str.partition("/")[2]
        for place, (kind, sources) in enumerate(KINDS.items()):
            mine = table[source.isin(sources)]
            if len(mine):
                most[kind] = max(most.get(kind, 0.0), mine.cost.max())
            axis.plot(mine.k3, mine.cost, MARKS[kind], color=series(place)["color"], markersize=5, label=kind)
        rank = spearmanr(table.k3, table.cost).statistic
        axis.set_title(f"{title}:\nrank correlation {rank:.2f} over {len(table)} regimes", fontsize=9)
        axis.axhline(0, color=NEUTRAL, linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xlabel("K3 of the first 20 steps, nats per token")
    figure.suptitle(finding(most), fontsize=10)
    axes[0].set_ylabel("cost: share of the control's gain")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[0].legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    """Draw both figures into docs."""
    runs = recorded(FOLDER, "python -m experiments.verdict_study record")
    parts = regimes(admitted())
    tables = {policy: pd.concat([costs(part, policy) for part in matched(runs, parts)]) for policy in POLICIES}
    Path("docs/decision.png").write_bytes(png(regret_figure(pd.read_csv(FOLDER / "regrets.csv")), dpi=130))
    Path("docs/k3.png").write_bytes(png(cost_figure(tables), dpi=130))


if __name__ == "__main__":
    with command():
        main()
