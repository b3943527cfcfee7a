"""Tables of a sweep, every seed counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from analysis import predictors, survival
from analysis.load import Sweep
from analysis.performance import bootstrap, iqm, paired_difference, rewards
from harness.collapse import replay

PRECISIONS = ("fp32", "fp16", "bf16", "fp8_channel", "fp8_tensor", "fp8", "fp8_per_block", "int8", "nvfp4")
DELTAS, LENGTHS = (0.2, 0.3, 0.5, 0.7), (1, 3, 5)
"""The robustness grid of D1: δ x m."""
RESAMPLING = 0
"""Seed of every bootstrap, so that a report is reproducible."""
SIGNIFICANT = 0.05


def arm_order(runs: pd.DataFrame) -> list[str]:
    """Arms: the control first, then by how coarse the precision is, by loss, plain arms before corrected ones."""
    arms = runs.drop_duplicates("arm")

    def key(run: tuple) -> tuple:
        return not run.control, _coarseness(run.precision), run.loss, run.correction != "none", run.correction, run.setting

    return [run.arm for run in sorted(arms.itertuples(), key=key)]


def reference_arms(runs: pd.DataFrame) -> dict[str, str]:
    """Arm -> what it is compared with: a corrected one with the uncorrected one, an uncorrected one with the control, all else
    equal. An arm whose reference the sweep lacks is absent."""
    arms = runs.drop_duplicates("arm")
    plain = {(a.precision, a.loss, a.setting): a.arm for a in arms[arms.correction == "none"].itertuples()}
    controls = {(a.loss, a.setting): a.arm for a in arms[arms.control].itertuples()}
    found = {}
    for a in arms.itertuples():
        wanted = controls.get((a.loss, a.setting)) if a.correction == "none" else plain.get((a.precision, a.loss, a.setting))
        if wanted not in (None, a.arm):
            found[a.arm] = wanted
    return found


def measures(sweep: Sweep) -> pd.DataFrame:
    """A row per run: last and best held-out reward; its mismatch up to its collapse, if there was one, for what comes after is no
    cause of it: K3 the median over steps, ESS the lowest of any; and the mean share of tokens that its correction touched."""
    onset = sweep.steps.run.astype(str).map(sweep.runs.onset)
    before = sweep.steps[~(sweep.steps.step > onset)].groupby("run", observed=True)

    def of(metric: str, how: str) -> pd.Series:
        values = before[metric].agg(how) if metric in sweep.steps else pd.Series(dtype=float)
        return values.reindex(sweep.runs.index)

    reward = rewards(sweep.runs, sweep.steps)
    return pd.DataFrame(
        {
            "final eval": reward.final,
            "best eval": reward.best,
            "K3 (nats)": of("rollout_corr/k3_kl", "median"),
            "lowest sequence ESS": of("mismatch/ess_sequence", "min"),
            "largest abs. log ratio": of("mismatch/log_ratio_max_abs", "max"),
            "tokens rejected": 1 - of("correction/kept_tokens", "mean"),
            "tokens weighted 0": of("correction/weight_zero", "mean"),
        }
    )


EVALUATED = (
    "eval/stderr",
    "rollout_corr/k3_kl",
    "mismatch/ess_sequence",
    "mismatch/log_ratio_max_abs",
    "actor/grad_norm",
    "actor/entropy",
    "correction/kept_tokens",
    "correction/weight_zero",
)
"""What `evaluations` has of a step beside its held-out reward."""


def evaluations(sweep: Sweep) -> pd.DataFrame:
    """A row per run and evaluation: arm, seed, step, the held-out reward, what the training step beside it measured, and what
    probed precisions would have had."""
    if "eval/reward" not in sweep.steps:
        return pd.DataFrame(columns=["run", "arm", "seed", "step", "eval/reward"])
    probed = [name for name in sweep.steps if name.startswith("probe/")]
    names = ["run", "step", "eval/reward", *(name for name in EVALUATED if name in sweep.steps), *probed]
    rows = sweep.steps.loc[sweep.steps["eval/reward"].notna(), names].astype({"run": str})
    return rows.join(sweep.runs[["arm", "seed"]], on="run")[["run", "arm", "seed", *names[1:]]]


SHOWN = {
    "final eval": ".3f",
    "best eval": ".3f",
    "K3 (nats)": ".1e",
    "lowest sequence ESS": ".3f",
    "largest abs. log ratio": ".2f",
}
"""What of `measures` the table of arms shows, and how."""


def arms(sweep: Sweep) -> pd.DataFrame:
    """A row per arm; each cell lists the `measures` of its seeds in order, and their outcomes."""
    measured = measures(sweep)
    cells = pd.DataFrame({name: measured[name].map(_number(form)) for name, form in SHOWN.items()})
    cells["outcome"] = [_outcome(run) for run in sweep.runs.itertuples()]
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

    Columns are numbers; `said` tells where they are too few to carry a comparison, or count what is no health. τ is common to all
    arms. The share that collapsed is of the runs whose outcome is known; survival times use what was seen of the others too.
    Each comparison answers one `question`, of the precision or of a correction: Holm's correction is over those of one question.
    """
    runs, references = sweep.runs, reference_arms(sweep.runs)
    placed = combinations(sweep).set_index("arm")[["least", "most", "from control"]]
    tau, reward = survival.horizon(runs), rewards(runs, sweep.steps)
    rows = []
    for arm in arm_order(runs):
        mine = runs[runs.arm == arm]
        known = int((mine.outcome != "unfinished").sum())
        share = survival.fraction(mine.event.sum(), known)
        lived = survival.rmst(mine.time.to_numpy(), mine.event.to_numpy(bool), tau)[0] if known else np.nan
        row = {
            "arm": arm,
            "runs": len(mine),
            "known": known,
            "collapsed": int(mine.event.sum()),
            "share": share.value,
            "share low": share.lower,
            "share high": share.upper,
            "never learned": int((mine.outcome == "never learned").sum()),
            "unfinished": len(mine) - known,
            "τ (steps)": tau,
            "RMST (steps)": float(lived),
        }
        final = reward.final[mine.index[mine.outcome != "unfinished"]].dropna()
        if len(final):
            row |= _averages(final, mine.arm[final.index])
        rows.append(row | _against(runs, mine, references.get(arm), tau, reward.final))
    table = pd.DataFrame(rows).join(placed, on="arm")
    for p, holm in {"exact p": "Holm p", "reward p": "reward Holm p"}.items():
        table[holm] = table.groupby("question")[p].transform(lambda of: survival.holm(of.to_numpy()))
    return table


def _averages(final: pd.Series, strata: pd.Series) -> dict[str, float]:
    """Interquartile mean and mean of last rewards, each with its bootstrap interval, drawn within strata."""
    middle = bootstrap(final, strata, iqm, np.random.default_rng(RESAMPLING))
    mean = bootstrap(final, strata, np.mean, np.random.default_rng(RESAMPLING))
    found = {"final IQM": middle.value, "IQM low": middle.lower, "IQM high": middle.upper}
    return found | {"final mean": mean.value, "mean low": mean.lower, "mean high": mean.upper}


def _against(runs: pd.DataFrame, mine: pd.DataFrame, reference: str | None, tau: float, final: pd.Series) -> dict[str, object]:
    """The comparison with the reference arm, of the runs that have made a step."""
    never = int((mine.outcome == "never learned").sum())
    notes = [f"{never} never learned, which counts as no collapse"] if never else []
    untested = {"exact p": np.nan, "reward p": np.nan}
    if reference is None:
        return {"reference": "", "question": "", **untested, "said": "; ".join(["no reference arm", *notes])}
    question = "precision" if (mine.correction == "none").all() else "correction"
    rng = np.random.default_rng(RESAMPLING)
    mine, other = mine[mine.time > 0], runs[(runs.arm == reference) & (runs.time > 0)]
    n, m = (int((part.outcome != "unfinished").sum()) for part in (mine, other))
    least = survival.smallest_p(n, m)
    if least > SIGNIFICANT:
        notes.insert(0, f"{n} against {m} runs: p ≥ {least:.2g}, too few to carry an order")
    found = {"reference": reference, "question": question, **untested, "least p": least, "said": "; ".join(notes)}
    if not (n and m):
        return found
    gained = survival.rmst_difference(mine, other, tau, rng)
    both = pd.concat([mine, other])
    group = (both.arm == mine.arm.iloc[0]).to_numpy()
    # Without a collapse in either arm p would be 1 by construction: no comparison, and none that the others pay for.
    p = survival.logrank_exact(both.time, both.event, group, rng) if both.event.any() else np.nan
    steps = {"steps gained": gained.value, "gained low": gained.lower, "gained high": gained.upper}
    found |= steps | {"paired by seed": survival.paired_by_seed(mine, other), "exact p": p}
    ended = (part[part.outcome != "unfinished"] for part in (mine, other))
    one, another = (pd.Series(final[part.index].to_numpy(), part.seed).dropna() for part in ended)
    if len(one.index.intersection(another.index)):
        reward = paired_difference(one, another, rng)
        found |= {"reward gained": reward.value, "reward low": reward.lower, "reward high": reward.upper}
        found["shared seeds"] = len(one.index.intersection(another.index))
    if len(one) and len(another):
        last = np.concatenate([one, another])
        found["reward p"] = survival.means_exact(last, np.arange(len(last)) < len(one), rng)
    return found


def combinations(sweep: Sweep) -> pd.DataFrame:
    """A row per arm with a run that has ended, placed by precision and correction, and by loss and setting, the longer list
    `down` and the other `across`: collapsed of known, never learned, and the last reward: mean, least, most, and `from
    control`, its mean difference from the control of the same loss and setting over the seeds that both have."""
    runs = sweep.runs[sweep.runs.outcome != "unfinished"]
    runs = runs.assign(final=rewards(runs, sweep.steps).final, column=(runs.loss + " " + runs.setting).str.strip())
    controls = {column: part.set_index("seed").final for column, part in runs[runs.control].groupby("column")}
    rows = []
    for arm in arm_order(runs):
        mine = runs[runs.arm == arm]
        first, final = mine.iloc[0], mine.final.dropna()
        control = None if first.control else controls.get(first.column)
        apart = np.nan if control is None else (mine.set_index("seed").final - control).mean()
        place = first.precision if first.correction == "none" else f"{first.precision} {first.correction}"
        row = {"arm": arm, "down": place, "across": first.column, "collapsed": int(mine.event.sum()), "known": len(mine)}
        row["never learned"] = int((mine.outcome == "never learned").sum())
        last = {"mean": final.mean(), "least": final.min(), "most": final.max()} if len(final) else {}
        rows.append(row | last | {"from control": apart})
    columns = ["arm", "down", "across", "collapsed", "known", "never learned", "mean", "least", "most", "from control"]
    table = pd.DataFrame(rows, columns=columns)
    wide = table.across.nunique() > table.down.nunique()
    return table.rename(columns={"down": "across", "across": "down"}) if wide else table


def pooled(sweep: Sweep) -> pd.DataFrame:
    """A row per precision and correction: the last reward over the losses and settings that all rows have, drawn within each of
    these. Empty where there are not two rows, or no two losses or settings, that could be pooled."""
    runs = sweep.runs[sweep.runs.outcome != "unfinished"]
    runs = runs.assign(final=rewards(runs, sweep.steps).final, stratum=runs.loss + " " + runs.setting).dropna(subset=["final"])
    runs = runs.sort_values("arm", key=lambda arms: arms.map(arm_order(runs).index), kind="stable")
    groups = {key: part for key, part in runs.groupby(["precision", "correction"], sort=False)}
    shared = set.intersection(*(set(part.stratum) for part in groups.values())) if groups else set()
    if len(groups) < 2 or len(shared) < 2:
        return pd.DataFrame()
    rows = []
    for (precision, correction), part in groups.items():
        mine = part[part.stratum.isin(shared)]
        rows.append({"precision": precision, "correction": correction, "strata": len(shared), "runs": len(mine)})
        rows[-1] |= _averages(mine.final, mine.stratum)
    return pd.DataFrame(rows)


def disagreements(sweep: Sweep) -> list[str]:
    """Runs whose rows, given to the detectors again, tell another outcome than their record of events does."""
    told = []
    for run, rows in _evaluations(sweep).items():
        mine, configured = sweep.runs.loc[run], sweep.configs[run]["collapse"]["detectors"]
        watched = {name: configured[name] for name in ("drawdown", "learning") if name in configured}
        again = {name: event["onset"] for name, event in replay(rows, watched).items()}
        for name in watched:
            if again.get(name) != mine.onsets.get(name):
                at = [f"at step {onset}" if onset is not None else "none" for onset in (again.get(name), mine.onsets.get(name))]
                told.append(f"{mine.arm} seed {mine.seed}: the event of {name} is {at[0]} by its rows and {at[1]} by its events.")
    return told


def _evaluations(sweep: Sweep) -> dict[str, list[dict[str, float]]]:
    """The rows of each run that hold an evaluation, as detectors read them. Without branches: their detectors have also seen what
    came before the checkpoint, which is in the record of another run."""
    if not {"eval/reward", "eval/stderr"} <= set(sweep.steps.columns):
        return {}
    whole = sweep.steps.groupby("run", observed=True).step.transform("min") == 0
    rows = sweep.steps.loc[whole, ["run", "step", "eval/reward", "eval/stderr"]].dropna()
    return {run: part.to_dict("records") for run, part in rows.groupby("run", observed=True)}


def robustness(sweep: Sweep) -> pd.DataFrame:
    """Collapsed runs by D1 alone per arm (rows) for each δ and m (columns), all else as configured; missing where the
    evaluations needed for it were not recorded."""
    counts = pd.DataFrame(np.nan, index=arm_order(sweep.runs), columns=[f"δ={d:g} m={m}" for d, m in product(DELTAS, LENGTHS)])
    curves = _evaluations(sweep)
    for run in sweep.runs.itertuples():
        configured = sweep.configs[run.Index]["collapse"]["detectors"].get("drawdown")
        if configured is None or run.Index not in curves:
            continue
        for delta, m in product(DELTAS, LENGTHS):
            fired = replay(curves[run.Index], {"drawdown": configured | {"delta": delta, "consecutive": m}})
            column = f"δ={delta:g} m={m}"
            counts.loc[run.arm, column] = np.nansum([counts.loc[run.arm, column], bool(fired)])
    return counts


def causes(sweep: Sweep) -> pd.DataFrame:
    """Collapsed runs per arm by the detector that dated the collapse and the cause before it."""
    collapsed = sweep.runs[sweep.runs.event].assign(cause=lambda runs: runs.cause.fillna("nothing seen before"))
    counted = collapsed.groupby(["arm", "detector", "cause"], sort=False).onset.agg(["size", "median"]).reset_index()
    return counted.rename(columns={"size": "runs", "median": "median onset (step)"})


def warnings(sweep: Sweep) -> pd.DataFrame:
    """What each diagnostic would have warned of, in the runs whose outcome is known: see predictors.evaluate."""
    return predictors.evaluate(sweep.runs[sweep.runs.outcome != "unfinished"], sweep.steps)


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
    """Per arm: how many of the ended runs reached `healthy`, and the mismatch that each probed precision would have had."""
    names = sorted({column.split("/")[1] for column in sweep.steps if column.startswith("probe/")}, key=_coarseness)
    best = rewards(sweep.runs, sweep.steps).best
    arm = sweep.steps.run.astype(str).map(sweep.runs.arm)
    rows = []
    for name in arm_order(sweep.runs) if names else []:
        mine, steps = sweep.runs[sweep.runs.arm == name], sweep.steps[arm == name]
        ended = mine.index[mine.outcome != "unfinished"]
        row = {"arm": name, f"reached {healthy}": f"{(best[ended] >= healthy).sum()}/{len(ended)}"}
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
