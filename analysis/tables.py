"""Tables of a sweep, every seed shown."""

from __future__ import annotations

import pandas as pd

from analysis.load import Sweep


def arms(sweep: Sweep) -> pd.DataFrame:
    """A row per arm; each cell lists the seeds in order. K3 is the median over steps, ESS the lowest of any step."""
    rows = []
    for arm, runs in sweep.runs.sort_values("seed").groupby("arm", sort=False):
        per_seed = [_run_row(sweep.steps[sweep.steps.run == run], runs.loc[run]) for run in runs.index]
        rows.append({"arm": arm, "seeds": ", ".join(str(seed) for seed in runs.seed)} | _joined(per_seed))
    return pd.DataFrame(rows).sort_values("arm", key=lambda names: names.map(_order), kind="stable").reset_index(drop=True)


def _run_row(steps: pd.DataFrame, run: pd.Series) -> dict[str, str]:
    evaluations = steps["eval/reward"].dropna() if "eval/reward" in steps else pd.Series(dtype=float)
    outcome = f"{run.detector} at {run.onset:.0f}" if run.event else ("no" if run.state == "done" else run.state)
    return {
        "final eval": _number(evaluations.iloc[-1:].mean(), ".3f"),
        "best eval": _number(evaluations.max(), ".3f"),
        "K3 (nats)": _number(_column(steps, "rollout_corr/k3_kl").median(), ".1e"),
        "lowest sequence ESS": _number(_column(steps, "mismatch/ess_sequence").min(), ".3f"),
        "largest abs. log ratio": _number(_column(steps, "mismatch/log_ratio_max_abs").max(), ".2f"),
        "collapsed": outcome,
    }


def _column(steps: pd.DataFrame, name: str) -> pd.Series:
    return steps[name] if name in steps else pd.Series(dtype=float)


def _number(value: float, form: str) -> str:
    return "–" if pd.isna(value) else format(value, form)


def _joined(rows: list[dict[str, str]]) -> dict[str, str]:
    return {column: " / ".join(row[column] for row in rows) for column in rows[0]}


def _order(arm: str) -> tuple:
    """The control first, then by how coarse the precision is, plain arms before corrected ones."""
    precisions = ["fp32", "fp16", "bf16", "fp8_channel", "fp8_tensor", "int8", "nvfp4"]
    first, *rest = arm.split()
    return precisions.index(first) if first in precisions else len(precisions), len(rest), arm
