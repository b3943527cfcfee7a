"""The figures of a sweep. Each function returns a matplotlib figure, or a clause with the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.figures import dose, dumped, mismatch, outcome, routing, search, settings
from analysis.figures.style import FigureOrReason
from analysis.marks import CONTROL
from analysis.results import Results
from analysis.statistics.performance import HEALTHY


class Output(NamedTuple):
    """A figure of a sweep's report, with its title and caption.

    draw: makes the figure, or returns the reason why there is none. panels: sentences on single panels, by words that the panel
    shows. The caption gets a sentence if the figure shows its words. control: sentence that the caption gets if a line has the
    colour of the control, the uncorrected runs in the trainer's own precision.
    """

    title: str
    caption: str
    draw: Callable[[Results], FigureOrReason]
    panels: Mapping[str, str] = MappingProxyType({})
    control: str = ""

    def explain(self, figure: Figure) -> str:
        """The caption of a drawn figure, with the sentences on panels and the control (runs without mismatch) that it shows."""
        words = " ".join(text.get_text() for text in figure.findobj(Text))
        conditional = [text for name, text in self.panels.items() if name in words]
        black = any(to_hex(line.get_color()) == CONTROL for axis in figure.axes for line in axis.lines)
        return " ".join(filter(None, (self.caption, *conditional, self.control if black else "")))


FIGURES = {
    "survival": Output(
        "Survival of the arms",
        "Kaplan-Meier share of runs that have not collapsed, in the panels with a collapse. Bars at the right: 95% interval at "
        "the end (beta product). Ticks: censored runs. The runs at risk stand below the axis, beside the "
        "marker of their arm.",
        outcome.survival_curves,
    ),
    "reward": Output(
        "Held-out reward",
        "Reward of the trainer's own policy on held-out prompts. A panel compares all uncorrected arms, or one source of "
        "mismatch with its corrections. Up to five seeds of an arm are drawn one by one. Of more, the median is drawn until the "
        "first record ends, with ten seeds faint behind it.",
        outcome.reward_curves,
        control="The control has the colour of the text. It is thin and pale where it is repeated for comparison.",
    ),
    "forest": Output(
        "Steps gained on the reference arm",
        "Difference of the restricted mean survival time (RMST) from the reference arm: the uncorrected arm for a corrected one, "
        "the control for an uncorrected one. p: exact log-rank, Holm-adjusted over the comparisons of one question. Pairs "
        "without a collapse are left out. With few seeds the bootstrap interval is too narrow, so the test decides.",
        outcome.forest,
    ),
    "heatmaps": Output(
        "Losses and corrections",
        "A row per precision and correction, a column per loss and setting. A strong colour is bad.",
        outcome.heat_maps,
        {
            "collapsed": "Left: how many of the ended runs collapsed.",
            "last reward": "Last reward: the mean of the ended runs.",
            "; below": "Below it: the mean difference from the control of the same loss and setting over shared seeds.",
            "†": "† marks an arm with runs that never learned.",
        },
    ),
    "ends": Output(
        "Last reward of every run",
        "Last held-out reward of every seed. Filled: collapsed runs; open: all others. Bars: means.",
        outcome.ends,
        control="The control has the colour of the text.",
    ),
    "response": Output(
        "Reward by dose",
        "Mean of the last three held-out evaluations over the K3 of arms with synthetic noise, a row per policy and "
        "correction, a column per persistence. Lines: fits that never rise, with 95% bands over seeds, which cover less with at "
        "most five of them. Arms of fewer than three doses have points alone. Open markers: real precisions, in the panel whose "
        "runs measured the nearest persistence over 20 syncs.",
        dose.response,
    ),
    "dose": Output(
        "Early mismatch and time to collapse",
        "A point is a run, filled if it collapsed. If one curve fits all sources of mismatch, the size of the mismatch alone "
        "predicts the collapse.",
        mismatch.dose_response,
    ),
    "aligned": Output(
        "Metrics around a collapse",
        "Collapsed runs by source of mismatch, over all losses and corrections, aligned at the onset. Up to five runs are drawn "
        "one by one. Of more, the median and the middle half are drawn.",
        mismatch.aligned_traces,
    ),
    "lead": Output(
        "Diagnostics as early warnings",
        "Each threshold was chosen on the other seeds. Left: median lead before the onset. Middle: share of collapses detected, "
        "share of other runs with a false alarm. Right: ranking of runs of one source by whether they collapse soon.",
        settings.lead_times,
    ),
    "bounds": Output(
        "Upper bound of a correction",
        "A row per level and action, a column per upper bound, the uncorrected arm at the right. Left: collapsed of ended runs. "
        "Right: mean last reward. A strong colour is bad.",
        settings.bounds,
    ),
    "search": Output(
        "Healthy against a searched threshold",
        "Left: share of the runs at a value that did not collapse, with its 95% interval (Clopper-Pearson). Next: their last "
        "rewards. Last: how much each parameter decides between good and bad trials (PED-ANOVA), where there are several.",
        search.search,
    ),
    "density": Output(
        "Log ratios of tokens",
        "Density of the log ratio over the rollout's own log-probability, and the tail of its absolute value.",
        dumped.density,
    ),
    "positions": Output(
        "Mismatch by position, and tail of the sequence weights",
        "Left: K3 of the tokens at a position. Right: Hill's tail index from the m largest weights. Above the dotted line at 0.7 "
        "the mean of the weights is unreliable (Vehtari et al., arXiv 1507.02646).",
        dumped.positions,
    ),
    "routing": Output(
        "Routing of a mixture of experts",
        "Left: the part of K3 that is gone once the trainer takes the engine's experts, and the rest; median over seeds. "
        "Right: share of response tokens whose experts differ, by layer, mean over steps and seeds.",
        routing.routing,
    ),
    "gap": Output(
        "Deployment gap, and tokens thrown away",
        "Difference: rollout reward on training prompts minus the trainer's reward on held-out prompts, median over runs of a "
        "source.",
        mismatch.deployment_gap,
        {
            "Tokens used": "Tokens used: the share that a correction keeps at a weight above 0. A point is an ended run, filled "
            "if it collapsed.",
            "Length of dropped": "Length of dropped responses: a mean per run. Above the line long ones are dropped.",
        },
        "The control, in the colour of the text, shows how much of the difference the prompts explain.",
    ),
    "frontier": Output(
        "Edge of stability",
        "Uncorrected runs; a row per precision, loss and setting, a column per learning rate. Left: collapsed of ended runs. "
        f"Right: runs with an evaluation of at least {HEALTHY}, a maximum over noisy values. A strong colour is bad.",
        settings.frontier,
    ),
    "costs": Output(
        "Cost",
        "",
        settings.costs,
        {
            "step (s)": "Median seconds of a step, beside whatever else the machine computed.",
            "tokens": "Mean share of tokens that a correction rejected or weighted 0.",
        },
    ),
}
