"""The leaderboard of losses and corrections (docs/benchmark.md).

    python -m experiments.leaderboard quick|train|record|print|rules

quick chooses the regimes (each a model, task and mismatch) of the quick benchmark from the records of the study of the verdict.
train makes the runs of every row in these regimes, as the sweep `leaderboard`; keys of a launcher may follow, and what has ended
is skipped. record adds them, and the runs of that study in other regimes, to the records of the package. print writes tables and
the figure. rules copies the frozen rules for choosing a correction, with their scores, into the package.
"""

from __future__ import annotations

import json
import sys
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from algos.registry import LOSSES
from analysis.statistics.benchmark import CONTROL, NONE, POLICIES, scores
from analysis.statistics.rules import ARMS
from experiments.benchmark import SEEDS, Planned, Regimes, ended, of_study, plan, read_regimes, references, train
from experiments.leaderboard_figure import draw
from experiments.plan import publish
from experiments.regimes import STUDIED, Regime, admitted, regimes
from experiments.verdict_study import ARMS as CORRECTIONS
from experiments.verdict_study import FOLDER as STUDY
from experiments.verdict_study import claims, gains, matched
from harness.boundary import command
from harness.compose import compose
from harness.conf import CONF
from harness.errors import UserError
from harness.yaml_file import read_yaml

RECORDS = Path("faultline/records")
FOLDER = Path("experiments/study/leaderboard")
SWEEP = ("run.sweep=leaderboard", "tracking=disabled")
CHOOSERS = STUDIED[len(SEEDS) :]
"""Seeds whose runs choose the regimes (tasks with a mismatch) of the quick benchmark. Its scores use other seeds, SEEDS, so that
the noise that favoured a regime is not in them."""
MOST, BUDGET = 6, 1200
"""Maximum number of regimes (tasks with a mismatch) of the quick benchmark, and maximum of their `cost` in seconds."""
COSTS = {"dense": (180, 27), "moe": (165, 38), "long20": (690, 22), "long32": (360, 26)}
"""Processor seconds by kind of warm start: (of making it, of a run of 200 steps that begins from it)."""
ENTRIES = 3
"""Number of entries that a benchmark trains: the user's loss or correction, no correction, and no mismatch."""
KINDS = {"dense_half": "dense", "ppo": "dense", "moe_half": "moe", "moe_ppo": "moe"}
"""Kind of warm start, a key of COSTS, by bed (model, task, learning rate, loss). An absent bed's kind is its own name."""
SEQUENCES = "reduce=seq_mean_token_mean"
RECOMMENDED = {name: [f"loss={name}"] for name in LOSSES.names()} | {
    "gpg": ["loss=gpg", "advantage=gpg"],
    "dppo": ["loss=dppo", "proximal=rollout"],
    "rollout_is": ["loss=rollout_is", "proximal=rollout"],
    **{name: [f"loss={name}", SEQUENCES] for name in ("ctpo", "gmpo", "gspo", "luspo", "sapo")},
}
"""Config overrides of each loss with its own recommended settings, those of experiments/PAPERS.md."""
NEEDED = {"slime/opsm": ["loss=ppo"]}
"""Further overrides of a correction preset that a loss of a regime would refuse: slime's loss is PPO's, with this anchor."""


class Row(NamedTuple):
    """A row of the leaderboard: name of a loss or correction, its overrides `words`, and other presets with equal settings."""

    name: str
    words: list[str]
    others: list[str]


# --- rows --------------------------------------------------------------------------------------------------------------------


def rows() -> list[Row]:
    """Rows of the leaderboard: every registered loss, then every distinct correction. Presets with equal settings share a row."""
    losses = [Row(f"loss {name}", words, []) for name, words in RECOMMENDED.items()]
    alike = [group for group in presets_alike() if group[0] != NONE]
    return losses + [Row(first, [f"correction={first}", *NEEDED.get(first, [])], others) for first, *others in alike]


def presets_alike() -> list[list[str]]:
    """Groups of correction presets that set the same keys to the same values. Faultline's own precede those of frameworks."""
    folder = CONF / "correction"
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")]
    alike: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (name.count("/"), name != NONE, name)):
        composed = compose(f"correction={name}")
        chosen = read_yaml(folder / f"{name}.yaml").get("defaults")
        key = json.dumps([composed["correction"], composed["proximal"], composed["loss"], chosen])
        alike.setdefault(key, []).append(name)
    return list(alike.values())


def planned(quick: Regimes) -> list[Planned]:
    """The runs of all rows under each mismatch of the quick benchmark, with those without a correction and without mismatch.

    All are of one sweep: warm starts differ by processor, so the runs of a mismatch should come from one machine.
    """
    runs = references(quick, SEEDS, *SWEEP)
    return runs + [run for row in rows() for run in plan(row.name, row.words, quick, SEEDS, *SWEEP)]


# --- the quick set -----------------------------------------------------------------------------------------------------------


def separation(ends: pd.DataFrame) -> float:
    """Variance of the final reward between corrections under one mismatch, beyond the noise of seeds. ends [seeds, corrections].

    The rewards are shares of the gain of runs without mismatch. MS_arms and MS_rest are the mean squares of a two-way layout of
    S seeds and A corrections (arms). The variance component of the arms is
        separation = max(0, (MS_arms − MS_rest)/S)
    """
    x = ends.to_numpy()
    seeds, arms = x.shape
    by_arm, by_seed = x.mean(0), x.mean(1, keepdims=True)
    between = seeds * ((by_arm - x.mean()) ** 2).sum() / (arms - 1)
    rest = ((x - by_arm - by_seed + x.mean()) ** 2).sum() / ((arms - 1) * (seeds - 1))
    return float(max(0.0, (between - rest) / seeds))


def separations(runs: pd.DataFrame) -> pd.Series:
    """The `separation` of the corrections in each regime, by its name BED/SOURCE: the sum over trainer's and sampling policy.

    Only runs with the seeds CHOOSERS count. Rewards are shares of the gain of runs without mismatch, with these seeds too.
    """
    runs = runs[runs.seed.isin(CHOOSERS)]
    gain = gains(runs)
    mine = runs[(runs.source != "exact") & runs.arm.isin(ARMS)]
    found: dict[str, float] = {}
    for (bed, source, _), part in mine.groupby(["bed", "source", "policy"]):
        ends = part.pivot(index="seed", columns="arm", values="end")[list(ARMS)] / gain[bed]
        found[f"{bed}/{source}"] = found.get(f"{bed}/{source}", 0.0) + separation(ends)
    return pd.Series(found, dtype=float)


def cost(names: tuple[str, ...]) -> float:
    """Processor seconds of the first benchmark on a machine: warm starts, and runs of one entry and both references with SEEDS.

    names: of the regimes (tasks with a mismatch), as BED/SOURCE.
    """
    kinds = [KINDS.get(bed, bed) for bed in (name.partition("/")[0] for name in names)]
    return len(SEEDS) * (sum(COSTS[kind][0] for kind in set(kinds)) + ENTRIES * sum(COSTS[kind][1] for kind in kinds))


def best_set(found: pd.Series) -> list[str]:
    """At most MOST regimes (tasks with a mismatch), within BUDGET seconds, with the largest sum of `found`, largest first.

    found: variance of reward between corrections, by regime. A regime whose variance is 0 is left out.
    """
    sets = chain.from_iterable(combinations(found.index, size) for size in range(1, MOST + 1))
    best = max((names for names in sets if cost(names) <= BUDGET), key=lambda names: found[list(names)].sum())
    return sorted((name for name in best if found[name] > 0), key=lambda name: -found[name])


def choose(runs: pd.DataFrame) -> None:
    """Choose and write the regimes (tasks with a mismatch) of the quick benchmark, and write the table of `separations`.

    runs: endpoints of the study of the verdict.
    """
    names = [str(regime) for regime in regimes(admitted()).calibration]
    found = separations(runs).reindex(names)
    if found.isna().any():
        raise UserError(
            f"{', '.join(found.index[found.isna()])}: no records of lists 2 and 3; docs/decision.md has their commands"
        )
    chosen = best_set(found)
    lines = [f"{name}: {' '.join(of_study(Regime(*name.split('/'))))}\n" for name in chosen]
    head = "# The quick set of `faultline benchmark`, chosen by `python -m experiments.leaderboard quick` (docs/decision.md).\n"
    (RECORDS / "quick.yaml").write_text(head + "".join(lines))
    table = found.sort_values(ascending=False).rename_axis("regime").reset_index(name="separation")
    (FOLDER / "quick").mkdir(parents=True, exist_ok=True)
    publish(FOLDER / "quick", table.assign(chosen=table.regime.isin(chosen)))


# --- records -----------------------------------------------------------------------------------------------------------------


def of_the_study(runs: pd.DataFrame, quick: Regimes) -> pd.DataFrame:
    """Table of benchmark runs with SEEDS from the study of the verdict: its corrections, and no mismatch.

    runs: its endpoints. Mismatches of the quick benchmark are left out: their runs are those of `planned`.
    """
    wide = runs.pivot(index=["bed", "source", "arm", "seed"], columns="policy", values=["start", "end", "outcome"])
    found = []
    pairs = runs.loc[runs.source != "exact", ["bed", "source"]].drop_duplicates().itertuples(index=False, name=None)
    for regime in (Regime(*pair) for pair in pairs if str(Regime(*pair)) not in quick):
        arms = [(CONTROL, "exact", NONE, []), *((arm, regime.source, arm, [f"correction={CORRECTIONS[arm]}"]) for arm in ARMS)]
        for arm, source, studied, words in arms:
            entry = CORRECTIONS.get(arm, arm)
            for run in plan(entry, words if arm not in (NONE, CONTROL) else [], {str(regime): of_study(regime)}, SEEDS):
                key = (regime.bed, source, studied, run.seed)
                if key not in wide.index:
                    continue
                row = wide.loc[key]
                values = [row["start", "trainer"], row["end", "trainer"], row["end", "sampler"]]
                found.append([entry, run.regime, run.seed, run.config.digest, row["outcome", "trainer"], *values])
    return pd.DataFrame(found, columns=["entry", "regime", "seed", "digest", "outcome", "start", "trainer", "sampler"])


def _record(runs: pd.DataFrame, quick: Regimes) -> None:
    """Record runs of the sweep `leaderboard` and of the study of the verdict."""
    others = pd.concat([of_the_study(part, quick) for part in matched(runs, regimes(admitted()))], ignore_index=True)
    sweep = planned(quick)
    own = ended(sweep)[others.columns] if sweep[0].config.path.parent.is_dir() else others[:0]
    both = pd.concat([others, own], ignore_index=True).sort_values(["entry", "regime", "seed"])
    both.to_csv(RECORDS / "rows.csv", index=False)
    print(f"{len(both)} runs of {both.entry.nunique()} entries in {RECORDS / 'rows.csv'}")


def _known() -> pd.DataFrame:
    return pd.read_csv(RECORDS / "rows.csv", float_precision="round_trip", keep_default_na=False)


def never_learned(known: pd.DataFrame) -> list[str]:
    """Sorted names of the losses and corrections all of whose runs, under any mismatch, have the outcome "never learned"."""
    return sorted(entry for entry, part in known.groupby("entry") if (part.outcome == "never learned").all())


def distinct(known: pd.DataFrame) -> pd.DataFrame:
    """`known` without entries whose rewards all equal those of NONE or of an entry whose name comes before theirs.

    Such presets differ in what never acts, as in the name of a filter. Own presets precede those of frameworks.
    """
    seen: set[tuple] = set()
    dropped = set()
    for name in sorted(known.entry.unique(), key=lambda name: (name != NONE, name.count("/"), name)):
        ends = known[known.entry == name].sort_values(["regime", "seed"])
        key = tuple(ends[["regime", "seed", "trainer", "sampler"]].itertuples(index=False, name=None))
        if key in seen:
            dropped.add(name)
        seen.add(key)
    return known[~known.entry.isin(dropped)]


def _print(known: pd.DataFrame, quick: Regimes) -> None:
    """Write the table of the quick set and then that of all regimes, each for both policies, and draw the first."""
    own = distinct(known[known.regime.isin(list(quick))])
    tables, full = ({policy: scores(runs, policy) for policy in POLICIES} for runs in (own, known))
    FOLDER.mkdir(parents=True, exist_ok=True)
    publish(FOLDER, *(table.round(3) for table in (*tables.values(), *full.values())))
    print(f"\nNever learned in any regime: {', '.join(never_learned(own)) or 'none'}")
    print(draw(tables, len(quick), Path("docs/leaderboard.png")))


# --- rules of the verdict ----------------------------------------------------------------------------------------------------


def scored(frozen: dict[str, Any], regret: pd.DataFrame) -> dict[str, Any]:
    """The frozen rules for choosing a correction, with their scores, as `faultline.records.verdict` returns them.

    frozen: rules.json of the study of the verdict. regret: its regrets.csv. The chosen rule is the tuned one (v2) if it loses
    significantly less reward than the best fixed correction, else that correction.
    """
    found: dict[str, Any] = {}
    for policy, rules in frozen.items():
        mine = regret[regret.policy == policy]
        parts = {rule: part.set_index("regime").share for rule, part in mine.groupby("arm")}
        values = {rule: {"mean": part.mean(), "worst": part.max(), "in": part.idxmax()} for rule, part in parts.items()}
        claim = claims(regret).query("policy == @policy and claim == 'below' and arm == 'v2' and reference == 'best constant'")
        holds = len(claim) == 1 and claim.holm_p.iloc[0] <= 0.05 and claim.difference.iloc[0] < 0
        chosen = "v2" if holds else "best constant"
        found[policy] = {**rules, "chosen": chosen, "regimes": mine.regime.nunique(), "scores": values}
    return found


def _rules() -> None:
    for name, makes in (("rules.json", "tune"), ("regrets.csv", "score")):
        if not (STUDY / name).is_file():
            raise UserError(f"{STUDY / name}: not there; python -m experiments.verdict_study {makes}")
    content = scored(json.loads((STUDY / "rules.json").read_text()), pd.read_csv(STUDY / "regrets.csv"))
    (RECORDS / "verdict.json").write_text(json.dumps(content, indent=2) + "\n")
    chosen = ", ".join(f"{policy}: {one['chosen']}" for policy, one in content.items())
    print(f"{RECORDS / 'verdict.json'}: {chosen}")


def _endpoints() -> pd.DataFrame:
    file = STUDY / "endpoints.csv"
    if not file.is_file():
        raise UserError(f"{file}: not there; lists 1 to 3 of docs/decision.md make it")
    return pd.read_csv(file, float_precision="round_trip")


def main(words: list[str]) -> None:
    quick = read_regimes(RECORDS / "quick.yaml")
    match words:
        case ["quick"]:
            choose(_endpoints())
        case ["record"]:
            _record(_endpoints(), quick)
        case ["train", *words]:
            train(planned(quick), words)
        case ["print"]:
            _print(_known(), quick)
        case ["rules"]:
            _rules()
        case _:
            raise UserError("give quick, train, record, print or rules: python -m experiments.leaderboard train")


if __name__ == "__main__":
    with command():
        main(sys.argv[1:])
