"""Labels under which reports and figures show columns, metrics and names of runs, and the order of precisions."""

from __future__ import annotations

import re

PRECISIONS = (
    "fp32",
    "fp16",
    "bf16",
    "fp8_block_w8a16",
    "fp8_channel",
    "fp8_block",
    "fp8_tensor",
    "mxfp8",
    "int8",
    "nvfp4",
    "nvfp4_w4a4",
)
"""The precisions in experiments/conf/rollout/precision, from fine to coarse: their order in tables and figures."""

COLUMNS = {
    "final_reward": "last held-out reward",
    "best_reward": "best held-out reward",
    "k3": "K3 (nats)",
    "ess_sequence_min": "lowest sequence ESS",
    "log_ratio_max": "largest |log ratio|",
    "persistence": "persistence over 20 syncs",
    "tokens_weighted_zero": "tokens weighted 0",
    "final_iqm": "last reward, IQM",
    "final_mean": "last reward, mean",
    "median_lead": "median lead (steps)",
    "median_onset": "median onset (step)",
    "step_seconds": "step (s)",
    "generate_seconds": "sampling (s)",
    "train_seconds": "training (s)",
    "auc": "AUC",
    "strata": "losses and settings",
    "reached_healthy": "healthy runs",
}
"""Labels of columns in a report's tables, by the column's name. Any other column is labelled with the words of its name."""

METRICS = {
    "eval/reward": ("held-out reward", ""),
    "rollout_corr/k3_kl": ("K3", "nats"),
    "mismatch/ess_sequence": ("sequence ESS", ""),
    "mismatch/log_ratio_max_abs": ("largest |log ratio|", "nats"),
    "rollout_corr/training_ppl": ("perplexity of π_old", ""),
    "actor/grad_norm": ("gradient norm", ""),
    "actor/entropy": ("entropy", "nats"),
    "correction/weight_zero": ("tokens weighted 0", ""),
    "correction/kept_sequences": ("sequences kept", ""),
    "rollout/response_tokens": ("response length", "tokens"),
}
"""Displayed name and unit of metrics in figures, tables and findings, by the metric's name. A pure number has the unit ""."""


def column(name: object) -> str:
    """The label under which a table of a report shows the column `name`."""
    if isinstance(name, tuple):  # a column of statistics.definitions.robustness
        delta, consecutive = name
        return f"δ = {delta:g}, m = {consecutive}"
    return COLUMNS.get(str(name)) or (str(name) if "=" in str(name) else str(name).replace("_", " "))  # a setting is a name


def metric(name: str, unit: bool = False) -> str:
    """The displayed label of a metric. unit: whether to add the metric's unit in parentheses."""
    label, measured_in = METRICS[name]
    return f"{label} ({measured_in})" if unit and measured_in else label


def brief(name: str) -> str:
    """The name of an arm or a part of it, with each dotted config key in it cut to its last part, as in `upper=2.5`."""
    return re.sub(r"(?<!\S)(?:\w+\.)+(?=\w+=)", "", name)


def coarseness(precision: str) -> int:
    """Index of a precision in PRECISIONS, from fine to coarse. Precisions of a plug-in come last."""
    return PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS)
