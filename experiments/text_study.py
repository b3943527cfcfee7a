"""The study of real text (docs/text.md): `python -m experiments.text_study list N | record | predict | score | power`.

list N prints the commands of list N that have no records yet. record adds the ended runs to endpoints.csv and questions.parquet,
which outlive the run folders. predict writes the correction that each frozen rule of docs/decision.md chooses. score writes the
tables. power simulates the tests from the recorded study of three seeds. All files are below experiments/study/text.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import load
from analysis.results import Results
from analysis.statistics.tests import difference_p, non_inferior_p
from experiments import sums, verdict_study
from experiments.plan import Comparisons, StudyPlan, listed, publish, record, recorded
from harness.boundary import command
from harness.errors import UserError
from harness.run.folder import FINISHED, RunFolder

ROOT, SWEEP = Path("runs"), "text"
FOLDER = Path("experiments/study/text")
RULES = verdict_study.FOLDER / "rules.json"
TOKEN, SEQUENCE = (f"correction={level}_truncate correction.ratio=current" for level in ("token", "sequence"))
ARMS = {
    "fp16": "rollout/precision=fp16",
    "fp8": "rollout/precision=fp8_channel",
    "fp8 token": f"rollout/precision=fp8_channel {TOKEN}",
    "fp8 sequence": f"rollout/precision=fp8_channel {SEQUENCE}",
    "bf16": "rollout/precision=bf16",
}
"""Config overrides of each arm (rollout precision and correction), in the order of a list of commands."""
ENGINE = "rollout/engine=vllm rollout.engine.eager=true"
"""Config overrides of every run: the rollout engine. On one GPU several runs go side by side, which each start at once."""
SEEDS = tuple(range(201, 209))
"""Seeds of the study of real text, one for each list of commands."""
STEPS, LONG = 40, 150
"""Number of RL steps of a run, and of a run with the last seed."""
EVALUATIONS, TRAINED = 3, 10
"""Numbers of held-out evaluations and of RL steps, at the end of a run, whose mean rewards are endpoints."""
MARGIN = 0.05
"""Reward by which a precision with a correction may be below its reference and still count as no worse."""
POLICIES = {"trainer": "eval/reward", "sampler": "eval/rollout_reward"}
"""Metric of the held-out reward of each judged policy, the trainer's and the rollout engine's."""
QUESTIONS = {"held_out/own": "trainer", "held_out/rollout": "sampler"}
"""Policy that is judged by the rewards under each key of a run's questions.jsonl, which holds rewards by prompt."""
KEY = ["arm", "seed"]
SHOWN = 120
"""Maximum number of characters of an error that are recorded."""


# --- lists and records -------------------------------------------------------------------------------------------------------


def commands(number: int, done: set[tuple[str, int]]) -> list[str]:
    """The shell commands of list `number`: runs of one seed, without the (arm, seed) in `done`.

    Raises UserError if there is no such list.
    """
    if not 1 <= number <= len(SEEDS):
        raise UserError(f"list {number}: there are lists 1 to {len(SEEDS)}; docs/text.md has them")
    seed = SEEDS[number - 1]
    steps = LONG if seed == SEEDS[-1] else STEPS
    return [
        f"python -m experiments.train +experiment=smollm2/sums {overrides} {ENGINE} seed={seed} steps={steps} && "
        "python -m experiments.text_study record"
        for arm, overrides in ARMS.items()
        if (arm, seed) not in done
    ]


def arm_of(config: Mapping[str, Any]) -> str:
    """The precision and correction of a recorded run, as a key of ARMS. Raises UserError on a combination without a key."""
    precision, level = config["rollout"]["precision"]["name"], config["correction"]["weight"]["level"]
    arm = " ".join(filter(None, (precision.removesuffix("_channel"), level)))
    if arm not in ARMS:
        raise UserError(f"{precision} with a weight by {level}: no arm of the study of real text; use {', '.join(ARMS)}")
    return arm


def finished(results: Results) -> list[tuple[str, str, int]]:
    """List of (run, precision and correction, seed), one for each finished run."""
    ended = results.runs[results.runs.state.isin(FINISHED)]
    return [(str(run), arm_of(results.configs[str(run)]), int(about.seed)) for run, about in ended.iterrows()]


def endpoints(results: Results) -> pd.DataFrame:
    """Table with a row per finished run: arm (precision, correction), seed, rewards, outcome, k3, ess, tokens and seconds.

    start: held-out reward before the first step. trainer, sampler: mean of the last EVALUATIONS held-out evaluations of each
    policy up to step STEPS. rollouts: mean reward of the last TRAINED steps up to STEPS. late_trainer, late_sampler,
    late_rollouts: the same at the end of a run of LONG steps, else NaN. k3 (nats per token), ess (of the sequence weights) and
    tokens (of a response): medians of steps up to STEPS. seconds: median duration of a step.
    """
    rows = []
    for run, arm, seed in finished(results):
        steps = results.steps[results.steps.run == run]
        row = {"arm": arm, "seed": seed, "outcome": results.runs.loc[run].outcome, "start": steps["eval/reward"].dropna().iloc[0]}
        for prefix, end in (("", STEPS), ("late_", LONG)):
            done = end <= steps.step.max() + 1
            for policy, metric in POLICIES.items():
                judged = steps[steps.step <= end].dropna(subset=[metric])
                row[prefix + policy] = judged[metric].tail(EVALUATIONS).mean() if done else np.nan
            trained = steps[steps.step < end]["reward/rollout"].dropna()
            row[f"{prefix}rollouts"] = trained.tail(TRAINED).mean() if done else np.nan
        early = steps[steps.step < STEPS]
        medians = {"k3": "rollout_corr/k3_kl", "ess": "mismatch/ess_sequence", "tokens": "rollout/response_tokens"}
        row |= {name: early[metric].median() for name, metric in (medians | {"seconds": "time/step"}).items()}
        rows.append(row)
    return pd.DataFrame(rows)


def questions(results: Results) -> pd.DataFrame:
    """Table with a row per finished run, policy and evaluation: `rewards` has the reward of each held-out prompt [N].

    All runs have the same prompts in the same places, and the same random numbers for them.
    """
    rows = []
    for run, arm, seed in finished(results):
        for judged in RunFolder(ROOT / SWEEP / run).questions():
            for key, policy in QUESTIONS.items():
                rows.append({"arm": arm, "seed": seed, "policy": policy, "step": judged["step"], "rewards": judged[key]})
    return pd.DataFrame(rows, columns=[*KEY, "policy", "step", "rewards"])


def origins(results: Results) -> pd.DataFrame:
    """Table with a row per run, also of those that failed: arm (precision and correction), seed, state, steps, error and origin.

    Of its last process: commit, whether the tree had other changes (`changed`), device, and versions of torch and vllm.
    """
    rows = []
    for run, about in results.runs.iterrows():
        process = results.provenance[str(run)][-1]
        packages = process["packages"]
        rows.append(
            {
                "arm": arm_of(results.configs[str(run)]),
                "seed": int(about.seed),
                "state": about.state,
                "steps": int(about.step),
                "error": str(about.error)[:SHOWN],
                "commit": process["commit"],
                "changed": bool(process["diff"]),
                "device": process["device"],
                "torch": packages["torch"],
                "vllm": packages["vllm"],
            }
        )
    return pd.DataFrame(rows).sort_values(KEY)


def _record(results: Results) -> None:
    """Add the finished runs to the records, and delete their checkpoints, which take 1.6 GB each."""
    record(FOLDER, verdict_study.added(_endpoints(), endpoints(results), KEY))
    known = pd.read_csv(FOLDER / "origins.csv") if (FOLDER / "origins.csv").is_file() else pd.DataFrame()
    verdict_study.added(known, origins(results), [*KEY, "state"]).to_csv(FOLDER / "origins.csv", index=False)
    file = FOLDER / "questions.parquet"
    known = pd.read_parquet(file) if file.is_file() else pd.DataFrame(columns=[*KEY, "policy", "step", "rewards"])
    verdict_study.added(known, questions(results), [*KEY, "policy", "step"]).to_parquet(file, index=False, compression="zstd")
    for run, _, _ in finished(results):
        shutil.rmtree(ROOT / SWEEP / run / "checkpoints", ignore_errors=True)


def _endpoints() -> pd.DataFrame:
    return recorded(FOLDER, "") if (FOLDER / "endpoints.csv").is_file() else pd.DataFrame(columns=KEY)


# --- predictions -------------------------------------------------------------------------------------------------------------

SEEN = verdict_study.Seen(k3=4.1e-2, persistence=0.30, tokens=13.0, verdict="token")
"""The measurements from which the rules of docs/decision.md choose a correction under FP8, all made before this study.

K3 is the median of FP8 runs in experiments/study/smollm2/sums, tokens about the mean length of a response in the first steps
there. Persistence is that over 20 syncs at the same learning rate, 1e-5 (RESULTS.md, "SmolLM2"). The verdict is that of
`faultline replay` on experiments/study/smollm2/local-fp8_channel.parquet."""


def predictions(rules: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row per judged policy and rule: the arm that the rule chooses under FP8. rules: content of rules.json."""
    rows = []
    for policy, frozen in rules.items():
        named = verdict_study.rules(verdict_study.Cutoffs(**frozen["v2"]), frozen["best"])
        rows += [
            {"policy": policy, "rule": name, "arm": f"fp8 {rule(SEEN)}".removesuffix(" none")} for name, rule in named.items()
        ]
    return pd.DataFrame(rows)


def scored(chosen: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add to `predictions` the mean reward of the chosen correction less the best one's, under FP8; NaN without runs of it."""
    means = judged(runs).groupby(["policy", "arm"]).reward.mean()
    fp8 = [arm for arm in ARMS if arm.startswith("fp8")]
    short = [
        means.get((row.policy, row.arm), np.nan) - max(means.get((row.policy, arm), np.nan) for arm in fp8)
        for row in chosen.itertuples()
    ]
    return chosen.assign(**{"reward less the best": short})


# --- tests -------------------------------------------------------------------------------------------------------------------

PRIMARY = [("fp8", "fp16"), ("fp8 token", "fp8")]
ALL = [*PRIMARY, ("fp8 sequence", "fp8"), ("fp8 sequence", "fp8 token"), ("bf16", "fp16"), ("fp8", "bf16")]
WORSE = [("bf16", "fp16"), ("fp8", "fp16"), ("fp8 token", "fp16"), ("fp8 token", "fp8"), ("fp8 sequence", "fp8")]
no_worse = partial(non_inferior_p, margin=MARGIN)
"""One-sided p for the rewards of two sets of runs: small if the first is better, or worse by less than MARGIN."""
PLAN = StudyPlan(
    families=[
        Comparisons("primary", PRIMARY, difference_p, {"policy": "trainer"}),
        Comparisons("trainer loses, sampler gains", PRIMARY[:1], difference_p, {"policy": "sampler less trainer"}),
        *(Comparisons("secondary", ALL, difference_p, {"policy": policy}) for policy in ("trainer", "sampler", "rollouts")),
        Comparisons(f"no worse by {MARGIN}", WORSE, no_worse, {"policy": "trainer"}),
        Comparisons(f"no worse by {MARGIN}", WORSE, no_worse, {"policy": "sampler"}),
    ],
    paired="seed",
)
"""The comparisons of docs/text.md. Each family of comparisons of a policy has Holm's adjustment of its own."""


def judged(runs: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per run and policy: arm (precision and correction), seed, policy, reward.

    Policies are trainer, sampler, rollouts (the rewards of training), and "sampler less trainer", a difference.
    """
    values = runs.assign(**{"sampler less trainer": runs.sampler - runs.trainer})
    return values.melt(KEY, ["trainer", "sampler", "rollouts", "sampler less trainer"], "policy", "reward")


def by_arm(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per precision and correction: number of seeds, and means of endpoints, K3, ESS, tokens per response, step seconds."""
    names = [
        "start",
        *POLICIES,
        "rollouts",
        *(f"late_{name}" for name in (*POLICIES, "rollouts")),
        "k3",
        "ess",
        "tokens",
        "seconds",
    ]
    table = runs.groupby("arm")[names].mean().reindex([arm for arm in ARMS if arm in set(runs.arm)]).reset_index()
    table.insert(1, "seeds", [int((runs.arm == arm).sum()) for arm in table.arm])
    return table


# --- power -------------------------------------------------------------------------------------------------------------------

THREE_SEEDS = Path("experiments/study/smollm2/sums")
DIFFERENCES = (0.02, 0.04, 0.06, 0.08, 0.10)
"""True differences of reward at which the power is simulated."""


def spread(runs: pd.DataFrame) -> float:
    """Standard deviation of paired differences of reward, pooled over FP8 less BF16 and token truncation less none in either."""
    ends = runs.pivot(index="seed", columns="arm", values="reward")
    bf16, fp8 = sums.BF16, sums.FP8
    pairs = [(fp8, bf16), (f"{fp8} token-truncate", fp8), (f"{bf16} token-truncate", bf16)]
    return float(np.sqrt(np.mean([(ends[one] - ends[other]).var(ddof=1) for one, other in pairs])))


def power(sd: float, pairs: int = len(SEEDS), draws: int = 2000) -> pd.DataFrame:
    """Table with a row per true difference δ of reward: shares of simulated studies that find it, and that claim "no worse".

    Differences of pairs are normal with mean δ and standard deviation sd. The share that finds δ is given at p ≤ 0.05 and at p ≤
    0.025, the stricter of Holm's two levels. "no worse" is the share of studies in which runs that are truly δ below their
    reference count as no worse.
    """
    rng, zeros = np.random.default_rng(0), np.zeros(pairs)
    rows = []
    for true in (0.0, *DIFFERENCES):
        drawn = rng.normal(true, sd, (draws, pairs))
        p = np.array([difference_p(row, zeros, paired=True) for row in drawn])
        worse = np.mean([no_worse(-row, zeros, paired=True) <= 0.05 for row in drawn])
        rows.append({"difference": true, "p 0.05": (p <= 0.05).mean(), "p 0.025": (p <= 0.025).mean(), "no worse": worse})
    return pd.DataFrame(rows)


# --- commands ----------------------------------------------------------------------------------------------------------------


def _predict() -> None:
    if not RULES.is_file():
        raise UserError(f"{RULES}: not there; the study of the verdict writes it: python -m experiments.verdict_study tune")
    FOLDER.mkdir(parents=True, exist_ok=True)
    predictions(json.loads(RULES.read_text())).to_csv(FOLDER / "predictions.csv", index=False)


def whole(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of seeds that ended in every arm: the study, by the plan, if the time on the GPU ends first."""
    return runs[runs.seed.isin([seed for seed, of in runs.groupby("seed") if set(of.arm) == set(ARMS)])]


def _score() -> None:
    runs = whole(recorded(FOLDER, "python -m experiments.text_study record"))
    tables = [by_arm(runs), PLAN.compared(judged(runs)).drop(columns=["holds", "pairs"])]
    if (file := FOLDER / "predictions.csv").is_file():
        tables.append(scored(pd.read_csv(file), runs))
    publish(FOLDER, *tables)


def main(words: list[str]) -> None:
    match words:
        case ["list", number] if number.isdigit():
            known = _endpoints()
            listed(commands(int(number), set(zip(known.arm, known.seed, strict=True))), FOLDER)
        case ["record"]:
            _record(load(ROOT / SWEEP))
        case ["predict"]:
            _predict()
        case ["score"]:
            _score()
        case ["power"]:
            sd = spread(recorded(THREE_SEEDS, "python -m experiments.sums"))
            print(f"standard deviation of a paired difference: {sd:.3f}\n{power(sd).round(2).to_string(index=False)}")
        case _:
            raise UserError("give list N, record, predict, score or power: python -m experiments.text_study list 1")


if __name__ == "__main__":
    with command():
        main(sys.argv[1:])
