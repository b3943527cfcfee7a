"""The figures of a sweep. Each function returns a matplotlib figure, or a sentence that says why there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from analysis.figures import mismatch, outcome, settings
from analysis.load import Sweep


class Output(NamedTuple):
    """A figure with its title, the question that it answers, and how to read it."""

    title: str
    reading: str
    draw: Callable[[Sweep], Figure | str]


FIGURES = {
    "survival": Output(
        "Which arm survives how long?",
        "Kaplan-Meier share of runs not yet collapsed, a panel per precision and loss in which one did, with 95 % bands; a tick "
        "is a run whose record ended in health; below, the runs still at risk.",
        outcome.survival_curves,
    ),
    "reward": Output(
        "How does the held-out reward go?",
        "Median over seeds of the trainer's own policy on held-out prompts, up to ten seeds faint behind it.",
        outcome.reward_curves,
    ),
    "forest": Output(
        "How many steps of health does an arm gain?",
        "Difference of the restricted mean survival time against the arm's reference: for a correction the uncorrected arm, for "
        "an uncorrected one the fp32 control. p: exact permutation log-rank test, Holm's correction over all rows.",
        outcome.forest,
    ),
    "heatmaps": Output(
        "Which combination of loss and correction collapses?",
        "Share of runs that collapsed (left) and interquartile mean of the last reward (right), with the number of seeds.",
        outcome.heat_maps,
    ),
    "dose": Output(
        "Does the size of the early mismatch foretell the collapse?",
        "A point is a run. If one curve fitted all sources of mismatch, its size alone would tell the time of the collapse.",
        mismatch.dose_response,
    ),
    "aligned": Output(
        "What happens around a collapse?",
        "Traces of collapsed runs, shifted so that the onset is at 0: median and middle half.",
        mismatch.aligned_traces,
    ),
    "lead": Output(
        "What warned first?",
        "Each diagnostic with a threshold chosen on the other seeds: how long before the onset it alarmed, how many collapses it "
        "saw, how many healthy runs it alarmed for, and how well it ranks runs by whether they collapse within the horizon.",
        settings.lead_times,
    ),
    "bounds": Output(
        "How much does the bound of a correction matter?",
        "Share collapsed and last reward over the upper bound; the grey square is the uncorrected arm.",
        settings.bounds,
    ),
    "density": Output(
        "Where do rollout and trainer disagree?",
        "Density of the log ratio over the rollout's own log-probability, and the tail of its absolute value.",
        mismatch.density,
    ),
    "gap": Output(
        "Is what is trained what is deployed, and what is thrown away?",
        "Left: reward of the sampling policy less that of the trainer's. Right: the end of a run over what its correction kept.",
        mismatch.deployment_gap,
    ),
    "frontier": Output(
        "Where is the edge of stability?",
        "Share of uncorrected runs that collapsed over the learning rate, with Clopper-Pearson intervals.",
        settings.frontier,
    ),
    "costs": Output(
        "What does an arm cost?", "Median seconds of a step; share of sampled tokens rejected or weighted 0.", settings.costs
    ),
}
