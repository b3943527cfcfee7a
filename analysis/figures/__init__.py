"""The figures of a sweep. Each function returns a matplotlib figure, or a sentence that says why there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from analysis.figures import dumped, mismatch, outcome, settings
from analysis.load import Sweep


class Output(NamedTuple):
    """A figure with its title, the question that it answers, and how to read it."""

    title: str
    reading: str
    draw: Callable[[Sweep], Figure | str]


FIGURES = {
    "survival": Output(
        "Which arm survives how long?",
        "Kaplan-Meier share of runs not yet collapsed, a panel per precision and loss in which one did; at the right the 95 % "
        "interval at the end (beta product). A tick is a run whose record ended without one, learned or not; below, the runs "
        "still at risk.",
        outcome.survival_curves,
    ),
    "reward": Output(
        "How does the held-out reward go?",
        "The trainer's own policy on held-out prompts: every seed of an arm of up to five; of more the median while all go on, "
        "with ten seeds faint behind it.",
        outcome.reward_curves,
    ),
    "forest": Output(
        "How many steps without collapse does an arm gain?",
        "Difference of the restricted mean survival time against the arm's reference: for a correction the uncorrected arm, for "
        "an uncorrected one the control. p: exact permutation log-rank test, Holm's correction over the comparisons of "
        "one question, the precision's or a correction's. Pairs without a collapse are left out. "
        "With few seeds the bootstrap's interval is too narrow: the test decides.",
        outcome.forest,
    ),
    "heatmaps": Output(
        "Which combination of loss and correction collapses?",
        "Left: collapsed of ended runs, as many as there are seeds; † where a run never learned. Right: mean of "
        "their last reward; below it the mean difference from the control of the same loss and setting, over the seeds that "
        "both have. Dark is bad.",
        outcome.heat_maps,
    ),
    "ends": Output(
        "Where does every run end?",
        "Last held-out reward of every seed, a cross where it collapsed, the bar their mean. Black: the control; blue: "
        "uncorrected; orange: with a correction.",
        outcome.ends,
    ),
    "dose": Output(
        "Does the size of the early mismatch foretell the collapse?",
        "A point is a run. If one curve fitted all sources of mismatch, its size alone would tell the time of the collapse.",
        mismatch.dose_response,
    ),
    "aligned": Output(
        "What happens around a collapse?",
        "Traces of collapsed runs by the source of the mismatch, whatever their loss and correction, shifted so that the onset "
        "is at 0: each of up to five runs; of more the median and the middle half.",
        mismatch.aligned_traces,
    ),
    "lead": Output(
        "What warned first?",
        "Each diagnostic with a threshold chosen on the other seeds: how long before the onset it alarmed, how many collapses it "
        "saw, how many other runs it alarmed for, and how well it ranks runs of one source by whether they collapse soon.",
        settings.lead_times,
    ),
    "bounds": Output(
        "How much does the bound of a correction matter?",
        "A row per level and action, a column per upper bound, the uncorrected arm at the right. Left: collapsed of ended runs. "
        "Right: mean of their last reward. Dark is bad.",
        settings.bounds,
    ),
    "density": Output(
        "Where do rollout and trainer disagree?",
        "Density of the log ratio over the rollout's own log-probability, and the tail of its absolute value.",
        dumped.density,
    ),
    "positions": Output(
        "Does the mismatch grow along a response, and how heavy is the tail of the sequence weights?",
        "Left: K3 of the tokens at a place. Right: Hill's estimate from the m largest weights; above the dotted 0.7 no average "
        "of them can be relied on (Vehtari et al., arXiv 1507.02646).",
        dumped.positions,
    ),
    "gap": Output(
        "Is what is trained what is deployed, and what is thrown away?",
        "Left: reward of the sampling policy on the prompts of training less that of the trainer's on held-out ones, median of "
        "all runs of a source; what the control shows of it is the prompts' doing. Then the end of a run over what its "
        "correction left, filters and weights of 0 counted. Then, where lengths differ: mean length of the responses of which it "
        "used no token, over that of the others at the same steps; above the line it drops the long ones.",
        mismatch.deployment_gap,
    ),
    "frontier": Output(
        "Where is the edge of stability?",
        "Uncorrected runs, a row per precision, loss and setting, a column per learning rate. Left: collapsed of ended runs. "
        "Right: those of which at least one evaluation reached the level of health, a maximum over noisy ones. Dark is bad.",
        settings.frontier,
    ),
    "costs": Output(
        "What does an arm cost?",
        "Median seconds of a step, on whatever else the machine did meanwhile; share of sampled tokens rejected or weighted 0.",
        settings.costs,
    ),
}
