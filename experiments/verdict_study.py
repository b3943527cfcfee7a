"""The study of the verdict (docs/decision.md).

    python -m experiments.verdict_study list N | verdicts | record | tune | score | controls

list N prints the commands of list N whose runs lack records. verdicts runs `faultline replay` on the first dump of each
uncorrected run. record adds the ended runs to endpoints.csv and questions.parquet, which outlive the run folders. tune chooses
the cut-offs for choosing a correction on calibration regimes. score tests them on held-out regimes. controls records runs without
mismatch that were made again on the machine of the held-out regimes, and prints the costs against these. All files are below
experiments/study/verdict.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import asdict
from functools import cache, partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import markdown
from analysis.load import load
from analysis.results import Results
from analysis.statistics.dose import LAST
from analysis.statistics.rules import Cutoffs, Rule, Seen, constant, regret
from analysis.statistics.tests import difference_p, equivalent_p, holm_of_planned
from experiments.plan import Comparisons, StudyPlan, listed, publish, record, recorded
from experiments.regimes import STUDIED as SEEDS
from experiments.regimes import Regime, Split, admitted, bed_of, regimes, source_of, train_command
from harness.boundary import command
from harness.compose import compose
from harness.errors import UserError
from harness.run.folder import FINISHED, RunFolder

ROOT, SWEEP = Path("runs"), "verdict"
FOLDER = Path("experiments/study/verdict")
ARMS = {
    "none": "none",
    "token": "token_truncate",
    "sequence": "sequence_truncate",
    "mask": "sequence_mask",
    "geometric": "geometric_token_mask",
}
"""Presets of the corrections in the study, by arm. A setting that only a verdict proposes has a name such as "token 1.03"."""
POLICIES = {"trainer": "", "sampler": "rollout_"}
"""Prefix in the metrics of each policy that may be deployed, trainer's or rollout engine's, as in eval/rollout_reward."""
EARLY = 20
"""Number of first steps of a run. From these steps a rule chooses a correction, and the harm of a mismatch is predicted."""
HARMED = 0.25
"""Smallest loss of reward, as a share of the gain of the run without mismatch, that the forecast counts as harm."""
MARGIN = 0.02
"""Two rules for choosing a correction count as equivalent if the rewards that they lose differ by less than this margin."""


# --- lists -------------------------------------------------------------------------------------------------------------------


Runs = Set[tuple[str, str, int]]
"""Names of runs, each (regime as MODEL-AND-TASK/MISMATCH, correction, seed). The mismatch of a control is `exact`."""


def commands(
    number: int, parts: Split, beds: Iterable[str], verdicts: pd.DataFrame | None = None, done: Runs = frozenset()
) -> list[str]:
    """The shell commands of list `number` of runs, without the models and mismatches whose runs are all in `done`.

    1: the controls, without mismatch. 2 to 4: the calibration regimes (tasks with a mismatch) without correction, with the
    corrections, and with the verdict's settings. 5 to 7: the held-out regimes in these three ways. verdicts: the verdicts of the
    uncorrected runs, which lists 4 and 7 need. Raises UserError on another number, and on missing verdicts.
    """
    if number == 1:
        left = _left([Regime(bed, "exact") for bed in beds], ["none"], done)
        return [_study_command(",".join(regime.bed for regime in left), "exact", correction="none")] if left else []
    if number not in range(2, 8):
        raise UserError(f"list {number}: there are lists 1 to 7; docs/decision.md has them")
    part = parts.calibration if number < 5 else parts.held_out
    kind = (number - 2) % 3
    if kind < 2:
        arms = list(ARMS)[:1] if kind == 0 else list(ARMS)[1:]
        more: dict[str, Any] = {"correction": ",".join(ARMS[arm] for arm in arms)} | ({"dump.every": EARLY} if kind == 0 else {})
        return [_study_command(bed, ",".join(sources), **more) for bed, sources in _by_bed(_left(part, arms, done))]
    if verdicts is None:
        raise UserError(f"list {number}: needs the verdicts of list {number - 2}; python -m experiments.verdict_study verdicts")
    names = set(map(str, part))
    asked = verdicts[verdicts.regime.isin(names) & ~verdicts.arm.isin(ARMS)]
    rows = asked[["regime", "arm", "seed"]].itertuples(index=False, name=None)
    return [_own_setting(*row) for row in rows if row not in done]


def _left(part: list[Regime], arms: Collection[str], done: Runs) -> list[Regime]:
    return [regime for regime in part if not {(str(regime), arm, seed) for arm in arms for seed in SEEDS} <= done]


def _by_bed(part: list[Regime]) -> list[tuple[str, list[str]]]:
    ordered = sorted(part)
    return [(bed, [regime.source for regime in group]) for bed, group in groupby(ordered, key=lambda regime: regime.bed)]


def _study_command(bed: str, source: str, seed: str = ",".join(map(str, SEEDS)), **more: Any) -> str:
    given = [f"{key}={value}" for key, value in more.items()]
    return train_command(f"+regime/bed={bed}", f"+regime/source={source}", f"seed={seed}", f"run.sweep={SWEEP}", *given)


def _own_setting(regime: str, arm: str, seed: int) -> str:
    (bed, source), (level, upper) = regime.split("/"), arm.split()
    return _study_command(bed, source, str(seed), correction=ARMS[level], **{"correction.weight.upper": upper})


# --- the verdict of today ----------------------------------------------------------------------------------------------------


def arm_of_verdict(verdict: Mapping[str, Any]) -> str:
    """The correction that an answer of `faultline replay --json` proposes, for example "none", "token" or "token 1.03".

    The number is the upper bound of the weight, left out if it is 2, as for the truncations in ARMS.
    """
    proposal = verdict["proposal"]
    if proposal is None:
        return "none"
    return proposal["level"] if proposal["upper"] == 2 else f"{proposal['level']} {proposal['upper']:g}"


def ask(results: Results, known: pd.DataFrame) -> pd.DataFrame:
    """Run `faultline replay` on the dump of step 0 of each uncorrected run. Runs with a row in `known` are skipped.

    Returns `known` with a row more per run asked: regime (task with a mismatch), seed, arm (the proposed correction), k3
    in nats per token, and mean tokens of a response.
    """
    rows = known.to_dict("records")
    asked = set(zip(known.regime, known.seed, strict=True))
    for run, about in results.runs.iterrows():
        config = results.configs[str(run)]
        source = source_of(config)
        regime = str(Regime(bed_of(config), source))
        dump = ROOT / SWEEP / str(run) / "dumps" / f"step-{0:08d}.parquet"
        if source == "exact" or arm_of(config) != "none" or (regime, about.seed) in asked or not dump.exists():
            continue
        with tempfile.TemporaryDirectory() as out:
            words = ["-m", "faultline", "replay", str(dump), "--json", "--corrections", "none", "--out", out]
            answer = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
        verdict = json.loads(answer)
        row = {"regime": regime, "seed": about.seed, "arm": arm_of_verdict(verdict)}
        rows.append(row | {"k3": verdict["mismatch"]["k3"], "tokens": verdict["dump"]["mean_tokens"]})
    return pd.DataFrame(rows, columns=["regime", "seed", "arm", "k3", "tokens"]).sort_values(["regime", "seed"])


# --- records -----------------------------------------------------------------------------------------------------------------


@cache
def _settings() -> list[tuple[str, dict[str, Any]]]:
    return [(arm, compose(f"correction={name}")["correction"]) for arm, name in ARMS.items()]


def arm_of(config: Mapping[str, Any]) -> str:
    """The correction of a recorded run, such as "token" or "token 1.03". Raises UserError if the study has no such correction."""
    correction = config["correction"]
    for arm, setting in _settings():
        upper = correction["weight"]["upper"]
        if _bare(correction) == _bare(setting) and (upper == setting["weight"]["upper"] or arm in ("token", "sequence")):
            return arm if upper == setting["weight"]["upper"] else f"{arm} {upper:g}"
    raise UserError(f"correction {correction}: no arm of the study; use one of {', '.join(ARMS)}")


def _bare(correction: Mapping[str, Any]) -> tuple:
    weight, reject = correction["weight"], correction["reject"]
    filters = [(name, one["level"], one["statistic"], one["lower"], one["upper"]) for name, one in sorted(reject.items())]
    return weight["level"], weight["action"], weight["lower"], filters


def endpoints(results: Results, named: Callable[[Mapping[str, Any]], tuple[str, str, str]] | None = None) -> pd.DataFrame:
    """The endpoints of the study of the verdict: a table with a row per finished run and policy.

    named: function from a recorded config to (bed, source, arm); by default as in docs/decision.md. Columns: bed (model and
    task), source (of mismatch), arm (correction), seed, policy, outcome. start: the first held-out reward. end, train: means of
    the last LAST evaluations on held-out and on training prompts. onset: step of a collapse. k3, ess (of the sequence weights),
    identity (|mean ratio − 1|), gradient (norm): medians of the first EARLY steps. tokens: mean tokens of a response in these
    steps. persistence_k: the first measured correlation of the log ratios over k syncs, for k = 1, 5 and 20.
    """
    medians = {"k3": "rollout_corr/k3_kl", "ess": "mismatch/ess_sequence", "gradient": "actor/grad_norm"}
    rows = []
    for run, about in results.runs[results.runs.state.isin(FINISHED)].iterrows():
        config, steps = results.configs[str(run)], results.steps[results.steps.run == run]
        early = steps[steps.step < EARLY]
        bed, source, arm = (bed_of(config), source_of(config), arm_of(config)) if named is None else named(config)
        row = {"bed": bed, "source": source, "arm": arm, "seed": about.seed}
        row |= {"outcome": about.outcome, "onset": about.onset, "tokens": early["rollout/response_tokens"].mean()}
        row |= {name: early[metric].median() for name, metric in medians.items()}
        row["identity"] = (early["mismatch/ratio_mean"] - 1).abs().median()
        for lag in (1, 5, 20):
            measured = steps.get(f"mismatch/persistence_{lag}", pd.Series(dtype=float)).dropna()
            row[f"persistence_{lag}"] = measured.iloc[0] if len(measured) else np.nan
        for policy, prefix in POLICIES.items():
            held_out, train = (steps[f"eval/{part}{prefix}reward"].dropna() for part in ("", "train_"))
            ends = {"start": held_out.iloc[0], "end": held_out.tail(LAST).mean(), "train": train.tail(LAST).mean()}
            rows.append({**row, "policy": policy, **ends})
    return pd.DataFrame(rows).sort_values(["bed", "source", "arm", "seed", "policy"]).reset_index(drop=True)


RUN = ["bed", "source", "arm", "seed", "policy"]
"""Columns that identify a row of endpoints.csv. A row is about one run and one policy that it is judged by."""


def added(known: pd.DataFrame, more: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Add to `known` the rows of `more` with new values in `columns`, and sort by `columns`. Known rows stay unchanged."""
    new = more[~more.set_index(columns).index.isin(known.set_index(columns).index)] if len(known) else more
    return pd.concat([known, new], ignore_index=True).sort_values(columns, ignore_index=True)


def done(runs: pd.DataFrame) -> Runs:
    """The names (regime, correction, seed) of the runs in endpoints.csv."""
    return set(zip(runs.bed + "/" + runs.source, runs.arm, runs.seed, strict=True))


QUESTIONS = {"held_out/own": "trainer", "held_out/rollout": "sampler"}
"""Policy, trainer's or rollout engine's, that earned the rewards of held-out prompts, by their key in questions.jsonl."""


def questions(results: Results) -> pd.DataFrame:
    """A row per finished run and policy: `rewards` is the mean reward [N] of each held-out prompt over the last LAST evaluations.

    Runs of one model and task with one seed have the same prompts in the same places.
    """
    rows = []
    for run, about in results.runs[results.runs.state.isin(FINISHED)].iterrows():
        config = results.configs[str(run)]
        row = {"bed": bed_of(config), "source": source_of(config), "arm": arm_of(config), "seed": about.seed}
        judged = RunFolder(ROOT / SWEEP / str(run)).questions()[-LAST:]
        for name, policy in QUESTIONS.items():
            rewards = np.mean([one[name] for one in judged], axis=0, dtype=np.float32)
            rows.append({**row, "policy": policy, "rewards": rewards.tolist()})
    return pd.DataFrame(rows)


# --- rules -------------------------------------------------------------------------------------------------------------------


LEVELS = ("sequence", "token", "mask")
GRID = [
    Cutoffs(*values) for values in product((0.0, 1e-3, 5e-3, 2e-2), (-1.0, 0.3, 0.6), (10, 20), LEVELS, LEVELS)
]  # constants come first, and a tie goes to the first
"""Every set of cut-offs that `tune` considers for choosing a correction by K3, persistence and response length."""


def rules(v2: Rule, best: str) -> dict[str, Rule]:
    """The compared rules by name. A rule is a function from the measurements of an uncorrected run to a correction.

    v2: the rule with tuned cut-offs. best: the correction of the rule "best constant".
    """
    always = {f"always {arm}": constant(arm) for arm in ARMS}
    return always | {"verdict": lambda seen: seen.verdict, "v2": v2, "best constant": constant(best)}


def seen(runs: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per uncorrected run with a verdict, by (regime, seed). Column `seen`: what a rule chooses from."""
    plain = runs[(runs.arm == "none") & (runs.source != "exact") & (runs.policy == "trainer")]
    plain = plain.assign(regime=plain.bed + "/" + plain.source)
    both = plain.merge(verdicts[["regime", "seed", "arm"]].rename(columns={"arm": "verdict"}), on=["regime", "seed"])
    columns = both[["k3", "persistence_20", "tokens", "verdict"]].fillna({"persistence_20": 0.0})
    table = both.assign(seen=[Seen(*row) for row in columns.itertuples(index=False)])
    return table.set_index(["regime", "seed"])[["seen"]]


# --- regret ------------------------------------------------------------------------------------------------------------------


def gains(runs: pd.DataFrame) -> pd.Series:
    """Gain of each bed's exact control in mean held-out reward of the trainer's policy, by bed (model, task, lr, loss)."""
    control = runs[(runs.source == "exact") & (runs.arm == "none") & (runs.policy == "trainer")].groupby("bed")
    return control.end.mean() - control.start.mean()


def regrets(runs: pd.DataFrame, about: pd.DataFrame, policy: str, named: Mapping[str, Rule]) -> pd.DataFrame:
    """Table with a row per regime and rule for choosing a correction: arm (the rule's name), regime, policy, regret, and share.

    A regime is a task with a mismatch. regret: reward lost against the regime's best correction, chosen on other seeds. share:
    regret as share of the gain of runs without mismatch. about: from `seen`. Raises UserError if runs are missing.
    """
    gain, rows = gains(runs), []
    for (bed, source), part in runs[(runs.policy == policy) & (runs.source != "exact")].groupby(["bed", "source"]):
        regime = f"{bed}/{source}"
        if regime not in about.index.get_level_values("regime"):
            continue
        ends = part.pivot(index="seed", columns="arm", values="end")
        known = about.loc[regime].seen
        if len(ends) < len(SEEDS) or not set(ARMS) <= set(ends) or ends[list(ARMS)].isna().any(axis=None):
            raise UserError(f"{regime}: lacks runs of its arms; finish its lists, and record them")
        for name, rule in named.items():
            chosen = {seed: rule(known[seed]) for seed in ends.index}
            lacking = [f"{arm} of seed {seed}" for seed, arm in chosen.items() if arm not in ends or np.isnan(ends.at[seed, arm])]
            if lacking:
                raise UserError(f"{regime}: {name} asks for {', '.join(lacking)}, which has not run; see lists 4 and 7")
            value = regret(ends, chosen)
            rows.append({"arm": name, "regime": regime, "policy": policy, "regret": value, "share": value / gain[bed]})
    return pd.DataFrame(rows, columns=["arm", "regime", "policy", "regret", "share"])


def tuned(runs: pd.DataFrame, about: pd.DataFrame, policy: str) -> tuple[Cutoffs, str]:
    """Return the cut-offs of GRID, and the fixed correction of ARMS, with the least mean `share`. Ties go to the first."""
    candidates: dict[str, Rule] = {str(i): cut for i, cut in enumerate(GRID)}
    candidates |= {arm: constant(arm) for arm in ARMS}
    means = regrets(runs, about, policy, candidates).groupby("arm").share.mean().round(12)
    return GRID[int(means[[str(i) for i in range(len(GRID))]].idxmin())], str(means[list(ARMS)].idxmin())


# --- tests -------------------------------------------------------------------------------------------------------------------

BELOW = (("v2", "best constant"), ("verdict", "always none"), ("v2", "always token"))


def _plan(endpoint: str, pairs: Iterable[tuple[str, str]], test: Callable[..., float]) -> StudyPlan:
    families = [Comparisons(policy, [pair], test, {"policy": policy}) for policy in POLICIES for pair in pairs]
    return StudyPlan(families, endpoint, paired="regime")


PLANS = {
    "below": _plan("share", BELOW, difference_p),
    "equivalent": _plan("regret", BELOW[:1], partial(equivalent_p, margin=MARGIN)),
}
"""Planned comparisons of the reward that two rules for choosing a correction lose, by claim. A pair is a held-out regime (task
with a mismatch). below: the first rule loses less; beside a small p the difference must be negative. equivalent: the losses
differ by less than MARGIN. Holm's adjustment covers the four comparisons of a policy, of both claims together."""


def claims(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per planned comparison of two rules for choosing a correction, by lost reward. rows: from `regrets`.

    Holm's adjustment covers the four comparisons of a policy.
    """
    table = pd.concat([plan.compared(rows).assign(claim=claim) for claim, plan in PLANS.items()], ignore_index=True)
    for _, part in table.groupby("policy"):
        table.loc[part.index, "holm_p"] = holm_of_planned(part.p.to_list(), len(BELOW) + 1)
    return table[["policy", "claim", "arm", "reference", "difference", "low", "high", "p", "holm_p"]]


def without_a_source(rows: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per policy and rule for choosing a correction: mean, least and greatest share of the gain that it loses.

    The gain is that of runs without mismatch. mean: over all regimes (tasks with a mismatch). least, greatest: extremes of the
    mean when one source of mismatch is left out.
    """
    source = rows.regime.str.partition("/")[2]
    others = [rows[source != one].groupby(["policy", "arm"]).share.mean() for one in source.unique()]
    spread = pd.concat(others, axis=1)
    means = rows.groupby(["policy", "arm"]).share.mean()
    return pd.DataFrame({"mean": means, "least": spread.min(axis=1), "greatest": spread.max(axis=1)}).reset_index()


# --- law and forecast --------------------------------------------------------------------------------------------------------


def tau(persistence: Mapping[int, float]) -> float:
    """τ = 1 + 2·Σ_{k=1..20} ρ_k, the factor by which a mismatch that persists outweighs one redrawn at each weight sync.

    persistence: ρ_k by k, the correlation of the log ratios over k syncs, for k = 1, 5 and 20. The others are interpolated
    linearly, from ρ_0 = 1 on.
    """
    lags = np.array([0, *sorted(persistence)])
    known = np.array([1.0, *(persistence[lag] for lag in sorted(persistence))])
    return float(1 + 2 * np.interp(np.arange(1, 21), lags, known).sum())


def dose(k3: float, persistence: Mapping[int, float]) -> float:
    """The dose K3·τ in nats per token, with τ from `tau`. Correlations just below 0 can make τ negative; the dose is 0 then."""
    return max(0.0, k3 * tau(persistence))


def costs(runs: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Table with a row per regime (model and mismatch): its cost in reward without correction, and early measurements.

    Columns: regime, cost (lost share of the gain of runs without mismatch), collapsed (share of seeds), and onset (median step).
    Medians of the first EARLY steps: k3, identity (|mean ratio − 1|), gradient (norm), spread (1 − sequence ESS). dose: that of
    k3 and the persistence.
    """
    gain = gains(runs)
    control = runs[(runs.source == "exact") & (runs.policy == policy)].groupby("bed").end.mean()
    rows = []
    plain = runs[(runs.arm == "none") & (runs.source != "exact") & (runs.policy == policy)]
    for (bed, source), part in plain.groupby(["bed", "source"]):
        measured = {lag: part[f"persistence_{lag}"].dropna() for lag in (1, 5, 20)}
        lags = {lag: float(values.median()) if len(values) else 0.0 for lag, values in measured.items()}
        row = {"regime": f"{bed}/{source}", "cost": (control[bed] - part.end.mean()) / gain[bed], "k3": part.k3.median()}
        row |= {"dose": dose(row["k3"], lags), "identity": part.identity.median(), "gradient": part.gradient.median()}
        row |= {"spread": 1 - part.ess.median(), "collapsed": (part.outcome == "collapsed").mean()}
        onsets = part.onset.dropna()
        rows.append(row | {"onset": onsets.median() if len(onsets) else np.nan})
    return pd.DataFrame(rows)


def law(fitted: pd.DataFrame, held_out: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per law of the reward that a mismatch costs: its mean absolute error on held-out regimes.

    The laws are cost = a·√dose for dose = K3·τ and for dose = K3, and cost = 0. a: by least squares on `fitted`. τ: the factor
    for persistence that `tau` returns. fitted, held_out: tables of `costs`.
    """
    rows = []
    for name, column in (("K3 times tau", "dose"), ("K3", "k3")):
        x, new = (np.sqrt(part[column]) for part in (fitted, held_out))
        a = float((fitted.cost * x).sum() / (x**2).sum())
        rows.append({"law": name, "a": a, "error": (held_out.cost - a * new).abs().mean()})
    return pd.DataFrame([*rows, {"law": "no cost", "a": 0.0, "error": held_out.cost.abs().mean()}])


def auc(score: np.ndarray, event: np.ndarray) -> float:
    """Area under the ROC curve: P(score of an event > score of a non-event), ties counting half; NaN if either kind is absent."""
    high, low = score[event][:, None], score[~event][None, :]
    return float(((high > low) + 0.5 * (high == low)).mean()) if high.size and low.size else np.nan


def forecast(held_out: pd.DataFrame) -> pd.DataFrame:
    """A row per early measurement, such as K3: the AUC with which it forecasts harm. held_out: table of `costs`.

    Harm is a cost of at least HARMED, or a collapse in most seeds. lead: median steps from EARLY to the onset of such collapses.
    """
    harmed = ((held_out.cost >= HARMED) | (held_out.collapsed > 0.5)).to_numpy()
    lead = (held_out.onset[held_out.collapsed > 0.5] - EARLY).median()
    signals = {"K3": "k3", "K3 times tau": "dose", "1 − sequence ESS": "spread", "|mean ratio − 1|": "identity"}
    signals["gradient norm"] = "gradient"
    rows = [{"signal": name, "AUC": auc(held_out[column].to_numpy(), harmed)} for name, column in signals.items()]
    return pd.DataFrame(rows).assign(harmed=int(harmed.sum()), regimes=len(held_out), lead=lead)


# --- commands ----------------------------------------------------------------------------------------------------------------


def _record(results: Results) -> None:
    file = FOLDER / "questions.parquet"
    known = pd.read_parquet(file) if file.is_file() else pd.DataFrame(columns=[*RUN, "rewards"])
    record(FOLDER, added(_endpoints(), endpoints(results), RUN))
    added(known, questions(results), RUN).to_parquet(file, index=False, compression="zstd")


def _endpoints() -> pd.DataFrame:
    empty = pd.DataFrame(columns=RUN)
    return recorded(FOLDER, "") if (FOLDER / "endpoints.csv").is_file() else empty


def _verdicts() -> pd.DataFrame:
    file = FOLDER / "verdicts.csv"
    return pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["regime", "seed", "arm", "k3", "tokens"])


def _of(runs: pd.DataFrame, part: list[Regime]) -> pd.DataFrame:
    """Rows of `runs` in the regimes `part`, and of all controls, whose rollouts have no mismatch."""
    names = set(map(str, part))
    return runs[(runs.source == "exact") | (runs.bed + "/" + runs.source).isin(names)]


def check_complete(about: pd.DataFrame, part: list[Regime]) -> None:
    """Raise UserError unless `about`, from `seen`, has every regime (task with a mismatch) of `part` with every seed of SEEDS."""
    lacking = {str(regime) for regime in part if not {(str(regime), seed) for seed in SEEDS} <= set(about.index)}
    if lacking:
        raise UserError(
            f"{', '.join(sorted(lacking))}: lacks uncorrected runs or their verdicts; see lists 2 and 5, and verdicts"
        )


def _tune(runs: pd.DataFrame, about: pd.DataFrame) -> None:
    chosen = {policy: tuned(runs, about, policy) for policy in POLICIES}
    found = {policy: {"v2": asdict(v2), "best": best} for policy, (v2, best) in chosen.items()}
    (FOLDER / "rules.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


def _score(runs: pd.DataFrame, about: pd.DataFrame, parts: Split) -> None:
    file = FOLDER / "rules.json"
    if not file.is_file():
        raise UserError(f"{file}: not there; python -m experiments.verdict_study tune, and commit it before list 5")
    frozen, held_out = json.loads(file.read_text()), _of(runs, parts.held_out)
    named = {policy: rules(Cutoffs(**one["v2"]), one["best"]) for policy, one in frozen.items()}
    rows = pd.concat([regrets(held_out, about, policy, named[policy]) for policy in POLICIES])
    rows.to_csv(FOLDER / "regrets.csv", index=False)
    means = (
        rows.groupby(["policy", "arm"]).share.agg(["mean", "max"]).reset_index().rename(columns={"arm": "rule", "max": "worst"})
    )
    fitted, others = (costs(_of(runs, part), "trainer") for part in parts)
    tables = means, claims(rows), without_a_source(rows), law(fitted, others), forecast(others)
    publish(FOLDER, *(table.round(4) for table in tables))


CONTROLS = "controls"
"""Name of the sweep, and of the file, with the controls that were made again on the machine of the held-out regimes."""


def against(runs: pd.DataFrame, controls: pd.DataFrame) -> pd.DataFrame:
    """`runs`, with `controls` in place of the runs without mismatch of the same beds (model, task, learning rate, loss)."""
    return pd.concat([runs[~((runs.source == "exact") & runs.bed.isin(controls.bed))], controls], ignore_index=True)


def matched(runs: pd.DataFrame, parts: Split) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs of calibration and of held-out regimes, each with controls of the machine that made the regime."""
    controls = pd.read_csv(FOLDER / f"{CONTROLS}.csv", float_precision="round_trip")
    return _of(runs, parts.calibration), against(_of(runs, parts.held_out), controls)


def _controls(runs: pd.DataFrame, parts: Split) -> None:
    """Print cost, law and forecast of the held-out regimes against the controls that were made again; not planned."""
    if (ROOT / CONTROLS).is_dir():
        endpoints(load(ROOT / CONTROLS)).to_csv(FOLDER / f"{CONTROLS}.csv", index=False)
    fitted, others = (costs(part, "trainer") for part in matched(runs, parts))
    columns = ["regime", "k3", "cost", "collapsed"]
    for table in (others[columns].sort_values("cost"), law(fitted, others), forecast(others)):
        print(markdown(table.round(4)), end="\n\n")


def main(words: list[str]) -> None:
    beds = admitted()
    parts = regimes(beds)
    match words:
        case ["list", number] if number.isdigit():
            verdicts = _verdicts()
            lines = commands(int(number), parts, beds, verdicts if len(verdicts) else None, done(_endpoints()))
            listed(lines, FOLDER)
        case ["verdicts"]:
            ask(load(ROOT / SWEEP), _verdicts()).to_csv(FOLDER / "verdicts.csv", index=False)
        case ["record"]:
            _record(load(ROOT / SWEEP))
        case ["controls"]:
            _controls(recorded(FOLDER, "python -m experiments.verdict_study record"), parts)
        case ["tune"] | ["score"]:
            runs = recorded(FOLDER, "python -m experiments.verdict_study record")
            about = seen(runs, _verdicts())
            check_complete(about, parts.calibration if words == ["tune"] else [*parts.calibration, *parts.held_out])
            if words == ["tune"]:
                _tune(_of(runs, parts.calibration), about)
            else:
                _score(runs, about, parts)
        case _:
            raise UserError("give list N, verdicts, record, tune, score or controls: python -m experiments.verdict_study list 1")


if __name__ == "__main__":
    with command():
        main(sys.argv[1:])
