"""Tables of a sweep, every seed counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from analysis import predictors, survival
from analysis.load import Sweep
from analysis.performance import bootstrap, iqm, rewards
from harness.collapse import replay

PRECISIONS = ("fp32", "fp16", "bf16", "fp8_channel", "fp8_tensor", "fp8", "fp8_per_block", "int8", "nvfp4")
CONTROL = "fp32"
DELTAS, LENGTHS = (0.2, 0.3, 0.5, 0.7), (1, 3, 5)
"""The robustness grid of D1: δ x m."""
RESAMPLING = 0
"""Seed of every bootstrap, so that a report is reproducible."""
SIGNIFICANT = 0.05


def arm_order(runs: pd.DataFrame) -> list[str]:
    """Arms: the control first, then by how coarse the precision is, by loss, plain arms before corrected ones."""
    arms = runs.drop_duplicates("arm")

    def key(run: tuple) -> tuple:
        return _coarseness(run.precision), run.loss, run.correction != "none", run.correction, run.setting

    return [run.arm for run in sorted(arms.itertuples(), key=key)]


def reference_arms(runs: pd.DataFrame) -> dict[str, str]:
    """Arm -> what it is compared with: a corrected one with the uncorrected one, an uncorrected one with the fp32 control, all
    else equal. An arm whose reference the sweep lacks is absent."""
    arms = runs.drop_duplicates("arm").set_index(["precision", "loss", "correction", "setting"]).arm
    found = {}
    for (precision, loss, correction, setting), arm in arms.items():
        wanted = (precision if correction != "none" else CONTROL, loss, "none", setting)
        if wanted in arms.index and arms[wanted] != arm:
            found[arm] = arms[wanted]
    return found


def arms(sweep: Sweep) -> pd.DataFrame:
    """A row per arm; each cell lists the seeds in order. K3 is the median over steps, ESS the lowest of any step."""
    grouped = sweep.steps.groupby("run", observed=True)

    def of(metric: str, how: str) -> pd.Series:
        values = grouped[metric].agg(how) if metric in sweep.steps else pd.Series(dtype=float)
        return values.reindex(sweep.runs.index)

    reward = rewards(sweep.runs, sweep.steps)
    cells = pd.DataFrame(
        {
            "final eval": reward.final.map(_number(".3f")),
            "best eval": reward.best.map(_number(".3f")),
            "K3 (nats)": of("rollout_corr/k3_kl", "median").map(_number(".1e")),
            "lowest sequence ESS": of("mismatch/ess_sequence", "min").map(_number(".3f")),
            "largest abs. log ratio": of("mismatch/log_ratio_max_abs", "max").map(_number(".2f")),
            "outcome": [_outcome(run) for run in sweep.runs.itertuples()],
        }
    )
    rows = []
    for arm in arm_order(sweep.runs):
        runs = sweep.runs[sweep.runs.arm == arm].sort_values("seed")
        joined = {column: " / ".join(cells.loc[runs.index, column]) for column in cells}
        rows.append({"arm": arm, "seeds": ", ".join(map(str, runs.seed)), **joined})
    return pd.DataFrame(rows)


def _outcome(run: tuple) -> str:
    if run.outcome == "collapsed":
        return f"{run.detector} at {run.onset:.0f}{f', after {run.cause}' if run.cause else ''}"
    return run.state if run.outcome == "unfinished" else run.outcome


def outcomes(sweep: Sweep) -> pd.DataFrame:
    """A row per arm: what became of its runs, the steps of health gained on its reference arm, and the reward at the end.

    Columns are numbers; `said` tells where they are too few to carry a comparison. τ is common to all arms.
    """
    runs, references = sweep.runs, reference_arms(sweep.runs)
    tau, reward = survival.horizon(runs), rewards(runs, sweep.steps)
    rows = []
    for arm in arm_order(runs):
        mine = runs[runs.arm == arm]
        share = survival.fraction(mine.event.sum(), len(mine))
        row = {
            "arm": arm,
            "runs": len(mine),
            "collapsed": int(mine.event.sum()),
            "share": share.value,
            "share low": share.lower,
            "share high": share.upper,
            "never learned": int((mine.outcome == "never learned").sum()),
            "unfinished": int((mine.outcome == "unfinished").sum()),
            "RMST (steps)": float(survival.rmst(mine.time.to_numpy(), mine.event.to_numpy(bool), tau)[0]),
        }
        final = reward.final[mine.index].dropna()
        if len(final):
            band = bootstrap(final, mine.setting[final.index], iqm, np.random.default_rng(RESAMPLING))
            row |= {"final IQM": band.value, "IQM low": band.lower, "IQM high": band.upper, "final mean": final.mean()}
        rows.append(row | _against(runs, mine, references.get(arm), tau))
    table = pd.DataFrame(rows)
    table["Holm p"] = survival.holm(table["exact p"].to_numpy())
    return table


def _against(runs: pd.DataFrame, mine: pd.DataFrame, reference: str | None, tau: float) -> dict[str, object]:
    if reference is None:
        return {"reference": "", "exact p": np.nan, "said": "no reference arm"}
    rng = np.random.default_rng(RESAMPLING)
    other = runs[runs.arm == reference]
    gained = survival.rmst_difference(mine, other, tau, rng)
    both = pd.concat([mine, other])
    p = survival.logrank_exact(both.time, both.event, (both.arm == mine.arm.iloc[0]).to_numpy(), rng)
    least = survival.smallest_p(len(mine), len(other))
    said = f"{len(mine)} against {len(other)} runs: p ≥ {least:.2g}, too few to carry an order" if least > SIGNIFICANT else ""
    return {
        "reference": reference,
        "steps gained": gained.value,
        "gained low": gained.lower,
        "gained high": gained.upper,
        "paired by seed": survival.paired_by_seed(mine, other),
        "exact p": p,
        "said": said,
    }


def robustness(sweep: Sweep) -> pd.DataFrame:
    """Collapsed runs by D1 alone per arm (rows) for each δ and m (columns), all else as configured; missing where the
    evaluations needed for it were not recorded."""
    counts = pd.DataFrame(np.nan, index=arm_order(sweep.runs), columns=[f"δ={d:g} m={m}" for d, m in product(DELTAS, LENGTHS)])
    if not {"eval/reward", "eval/stderr"} <= set(sweep.steps.columns):
        return counts
    rows = sweep.steps.dropna(subset=["eval/reward", "eval/stderr"])
    curves = {
        run: part.to_dict("records")
        for run, part in rows[["run", "step", "eval/reward", "eval/stderr"]].groupby("run", observed=True)
    }
    for run in sweep.runs.itertuples():
        configured = sweep.configs[run.Index]["collapse"]["detectors"].get("drawdown")
        if configured is None or run.Index not in curves:
            continue
        for delta, m in product(DELTAS, LENGTHS):
            fired = replay(curves[run.Index], {"drawdown": configured | {"delta": delta, "m": m}})
            column = f"δ={delta:g} m={m}"
            counts.loc[run.arm, column] = np.nansum([counts.loc[run.arm, column], bool(fired)])
    return counts


def causes(sweep: Sweep) -> pd.DataFrame:
    """Collapsed runs per arm by the detector that dated the collapse and the cause before it."""
    collapsed = sweep.runs[sweep.runs.event].assign(cause=lambda runs: runs.cause.fillna("nothing seen before"))
    counted = collapsed.groupby(["arm", "detector", "cause"], sort=False).onset.agg(["size", "median"]).reset_index()
    return counted.rename(columns={"size": "runs", "median": "median onset (step)"})


def warnings(sweep: Sweep) -> pd.DataFrame:
    """What each diagnostic would have warned of: see predictors.evaluate."""
    return predictors.evaluate(sweep.runs, sweep.steps)


def costs(sweep: Sweep) -> pd.DataFrame:
    """Per arm the median seconds of a step and its parts, and the share of sampled tokens that the correction threw away."""
    arm = sweep.steps.run.astype(str).map(sweep.runs.arm)
    parts = {"time/step": "step (s)", "time/generate": "sampling (s)", "time/train": "training (s)"}
    table = pd.DataFrame({word: sweep.steps[name].groupby(arm).median() for name, word in parts.items() if name in sweep.steps})
    if "correction/kept_tokens" in sweep.steps:
        table["tokens rejected"] = (1 - sweep.steps["correction/kept_tokens"]).groupby(arm).mean()
    if "correction/weight_zero" in sweep.steps:
        table["tokens weighted 0"] = sweep.steps["correction/weight_zero"].groupby(arm).mean()
    return table.reindex(arm_order(sweep.runs)).rename_axis("arm").reset_index()


def probes(sweep: Sweep, healthy: float) -> pd.DataFrame:
    """Per arm: how many runs reached `healthy`, and the mismatch that each probed precision would have had along them."""
    names = sorted({column.split("/")[1] for column in sweep.steps if column.startswith("probe/")}, key=_coarseness)
    best = rewards(sweep.runs, sweep.steps).best
    arm = sweep.steps.run.astype(str).map(sweep.runs.arm)
    rows = []
    for name in arm_order(sweep.runs) if names else []:
        mine, steps = sweep.runs[sweep.runs.arm == name], sweep.steps[arm == name]
        row = {"arm": name, f"reached {healthy}": f"{(best[mine.index] >= healthy).sum()}/{len(mine)}"}
        for precision in names:
            row |= {
                f"{precision} K3": steps[f"probe/{precision}/k3_kl"].median(),
                f"{precision} lowest ESS": steps[f"probe/{precision}/ess_sequence"].min(),
                f"{precision} largest |log ratio|": steps[f"probe/{precision}/log_ratio_max_abs"].max(),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def _coarseness(precision: str) -> int:
    return PRECISIONS.index(precision) if precision in PRECISIONS else len(PRECISIONS)


def _number(form: str):
    return lambda value: "–" if pd.isna(value) else format(value, form)
