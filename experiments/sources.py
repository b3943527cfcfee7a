"""The map of sources of mismatch (docs/sources.md): `python -m experiments.sources COMMAND`.

COMMAND is starts SEED..., list N, record, record later or print.

starts makes the warm starts of the given seeds, and records them in starts.csv, which decides which seeds count. list N prints
the commands of list N that have no records yet. record adds the ended runs to endpoints.csv; record later, those of lists 4 and 5
to later/endpoints.csv, since their warm starts are of another machine. print writes the tables of sources, the comparisons and
the answers to table.md, and draws docs/sources.png. All other files are below experiments/study/sources.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.load import load
from analysis.results import Results
from analysis.statistics.tests import difference_p, holm_of_planned
from experiments.plan import Comparisons, StudyPlan, listed, publish, record, recorded
from experiments.regimes import starts, train_command
from experiments.sources_figure import draw
from experiments.verdict_study import EARLY, POLICIES, RUN, added, endpoints
from harness.boundary import command
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import FINISHED

SOURCES = (
    "salted_parts",
    "kept_parts",
    "kept_prompts",
    "fp8_cache_stale",
    "fp8_cache_p99",
    "bf16_masters",
    "no_masters",
    "kahan",
    "stochastic",
    "mxfp4",
    "int4",
    "four_over_six",
    "w4a4_last",
    "w4a4_bf16",
    "unified_w4a4",
    "wrong_draft",
)
"""Sources of mismatch that docs/sources.md adds to those of the study of the verdict, as options +regime/source=NAME."""
ANCHORS = ("partial", "stale_2", "fp8_cache", "fp8_tensor", "nvfp4", "w4a4", "fixed_0.2", "fresh_0.2")
"""Sources of mismatch in the study of the verdict (docs/decision.md) that docs/sources.md compares with its own."""
MAPPED = (*ANCHORS, *SOURCES)
GONE = ("fp8_cache_stale", "int4", "four_over_six", "w4a4_last", "wrong_draft", "batch_shape")
"""Sources of MAPPED and LATER that had no effect of their own, and were removed after their runs were recorded."""
LATER = ("bf16", "batch_shape")
"""Sources that were planned after the results of MAPPED were known, and are compared in families of their own."""
ADAPTERS = ("lora_merged", "lora_in_place")
"""Sources of mismatch of low-rank adapters, planned last. They are compared with ADAPTED and not with the exact control."""
ADAPTED = "lora_apart"
BEDS = ("dense", "moe")
FIRST_SEED, SEEDS = 110, 5
"""Runs have the lowest SEEDS seeds, from FIRST_SEED on, whose warm starts are fit for RL on each model and task."""
CHANGED = "diagnostics.changed_weights=true"
ROOT, SWEEP = Path("runs"), "sources"
FOLDER = Path("experiments/study/sources")
ADDED, AFTER = FOLDER / "later", (4, 5)
"""Folder of the records of the lists that were planned after the results, and the numbers of these lists."""
STARTS_FILE = FOLDER / "starts.csv"
LATE = 20
"""Two medians of K3 are compared, each of this many steps: the last ones of a run, and those after its first EARLY (20)."""
LENGTH = 64
"""Response length, in tokens, for which the column `ess_64` estimates the sequence ESS."""


# --- lists ---------------------------------------------------------------------------------------------------------------------


def seeds() -> list[int]:
    """The lowest SEEDS seeds whose recorded warm starts are all fit for RL.

    Raises UserError if STARTS_FILE has fewer such seeds, or has no record of a lower seed from FIRST_SEED on.
    """
    table = pd.read_csv(STARTS_FILE) if STARTS_FILE.is_file() else pd.DataFrame(columns=["seed", "bed", "fit"])
    fit = [int(seed) for seed, part in table.groupby("seed") if len(part) == len(BEDS) and part.fit.all()]
    tried = set(table.seed)
    gaps = [seed for seed in range(FIRST_SEED, max(fit[:SEEDS], default=FIRST_SEED)) if seed not in tried]
    if len(fit) < SEEDS or gaps:
        raise UserError(
            f"{STARTS_FILE}: has {len(fit)} fit seeds of {SEEDS}, and lacks {gaps or 'further ones'}; "
            f"python -m experiments.sources starts {FIRST_SEED} {FIRST_SEED + 1} ..."
        )
    return sorted(fit)[:SEEDS]


def commands(number: int, chosen: Collection[int], done: Collection[tuple[str, str, int]] = ()) -> list[str]:
    """The shell commands of list `number`, without sources whose runs are all in `done`: (model and task, source, seed).

    1: the exact controls, without mismatch. 2 and 3: the sources of mismatch on the dense model and on the mixture of experts.
    4: the sources planned later, and controls of their own, on both. 5: low-rank adapters, on both. Raises UserError on another
    number.
    """
    lists = {
        1: (BEDS, ("exact",)),
        2: (BEDS[:1], MAPPED),
        3: (BEDS[1:], MAPPED),
        4: (BEDS, ("exact", *LATER)),
        5: (BEDS, (ADAPTED, *ADAPTERS)),
    }
    if number not in lists:
        raise UserError(f"list {number}: there are lists 1 to 5; docs/sources.md has them")
    beds, sources = lists[number]
    lines = []
    for bed in beds:
        left = [one for one in sources if one not in GONE and not {(bed, one, seed) for seed in chosen} <= set(done)]
        if left:
            given = f"+regime/bed={bed}", f"+regime/source={','.join(left)}", f"seed={','.join(map(str, chosen))}"
            lines.append(train_command(*given, CHANGED, f"run.sweep={SWEEP}"))
    return lines


# --- records -------------------------------------------------------------------------------------------------------------------


def names(chosen: Collection[int]) -> dict[str, tuple[str, str]]:
    """The (model and task, source of mismatch) of each planned run, by its config digest. chosen: seeds."""
    found = {}
    kept = [source for source in ("exact", *MAPPED, *LATER, ADAPTED, *ADAPTERS) if source not in GONE]
    for bed, source, seed in product(BEDS, kept, chosen):
        given = f"+regime/bed={bed}", f"+regime/source={source}", f"seed={seed}", CHANGED
        found[parse(compose(*given)).digest] = (bed, source)
    return found


def rows(results: Results, known: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Table with a row per finished run and policy: the columns of `verdict_study.endpoints`, and further ones.

    ess_64: the sequence ESS at LENGTH tokens, ess^(LENGTH/tokens), as for independent, equal tokens. ratio, ratio_error:
    mean of mismatch/ratio_mean over the first EARLY steps, and its standard error over these steps. growth: log of a quotient,
    the median K3 of the last LATE steps over that of the LATE steps after the first EARLY. changed: mean of actor/changed_bf16.
    """

    def named(config: Mapping[str, Any]) -> tuple[str, str, str]:
        digest = parse(dict(config)).digest
        if digest not in known:
            raise UserError(f"{ROOT / SWEEP / digest}: no run of the map; move it to another sweep")
        return (*known[digest], "none")

    table = endpoints(results, named)
    more = []
    for run, about in results.runs[results.runs.state.isin(FINISHED)].iterrows():
        steps = results.steps[results.steps.run == run]
        bed, source, _ = named(results.configs[str(run)])
        ratio, k3 = steps["mismatch/ratio_mean"][steps.step < EARLY].dropna(), steps["rollout_corr/k3_kl"].dropna()
        row = {"bed": bed, "source": source, "seed": about.seed, "ratio": ratio.mean(), "ratio_error": ratio.sem()}
        early, late = k3.iloc[EARLY : EARLY + LATE].median(), k3.tail(LATE).median()
        row["growth"] = np.log(late / early) if early > 0 and late > 0 else np.nan
        row["changed"] = steps.get("actor/changed_bf16", pd.Series(dtype=float)).mean()
        more.append(row)
    table = table.merge(pd.DataFrame(more, columns=["bed", "source", "seed", "ratio", "ratio_error", "growth", "changed"]))
    return table.assign(ess_64=table.ess ** (LENGTH / table.tokens), pair=table.bed + "/" + table.seed.astype(str))


# --- table and comparisons -----------------------------------------------------------------------------------------------------


def mapped(runs: pd.DataFrame) -> pd.DataFrame:
    """The table of sources of mismatch, a row per model and source: medians over seeds, and the mean cost for each policy.

    cost: final reward of the control (no mismatch, with adapters for ADAPTERS), less that under the source, as a share of the
    control's gain.
    """
    own, controls = runs[runs.policy == "trainer"], ("exact", ADAPTED)
    starts = own.groupby(["bed", "source"]).start.mean()
    ends = runs.groupby(["policy", "bed", "source"]).end.mean()
    shown = ["k3", "ess_64", "persistence_1", "persistence_20", "ratio", "ratio_error", "changed"]
    table = own[~own.source.isin(controls)].groupby(["bed", "source"])[shown].median()
    for policy in POLICIES:
        costs = []
        for bed, source in table.index:
            control = ADAPTED if source in ADAPTERS else "exact"
            gain = ends["trainer", bed, control] - starts[bed, control]
            costs.append((ends[policy, bed, control] - ends[policy, bed, source]) / gain)
        table[f"cost, {policy}"] = costs
    return table.reset_index()


def cost_plan(families: Mapping[str, tuple[Sequence[str], str]]) -> StudyPlan:
    """Comparisons of the final reward under sources of mismatch with a control's, in ten pairs with equal model, task and seed.

    families: name -> (sources, control). Holm's adjustment covers the sources of a family for one policy.
    """
    return StudyPlan(
        [
            Comparisons(f"{policy}{name}", [(source, control) for source in compared], difference_p, {"policy": policy})
            for policy in POLICIES
            for name, (compared, control) in families.items()
        ],
        "end",
        paired="pair",
    )


COSTS = cost_plan({"": (MAPPED, "exact")})
LATER_COSTS = cost_plan({", planned later": (LATER, "exact"), ", adapters": (ADAPTERS, ADAPTED)})


class Contrast(NamedTuple):
    """A question: is `endpoint` higher, or if not `above` lower, under the mismatch `source` than under `reference`?"""

    words: str
    endpoint: str
    source: str
    reference: str
    above: bool = True


QUESTIONS = (
    Contrast("Does stale KV grow over syncs?", "growth", "kept_prompts", "fresh_0.2"),
    Contrast("Does training without masters raise persistence?", "persistence_20", "no_masters", "bf16_masters"),
    Contrast("Does training without masters cost reward?", "end", "no_masters", "bf16_masters", above=False),
    Contrast("Does unified W4A4 end with more reward than its rollouts alone?", "end", "unified_w4a4", "w4a4_bf16"),
)
"""Planned questions on sources of mismatch, answered for the trainer's policy. Holm's adjustment covers all of them."""


def answers(runs: pd.DataFrame) -> pd.DataFrame:
    """Table with a row per question that has runs: the difference, its interval, p, adjusted p, and the answer.

    answer: yes or no, by the sign of the difference, if the adjusted p is at most 0.05; else "not told".
    """
    own, found = runs[runs.policy == "trainer"], []
    for one in QUESTIONS:
        plan = StudyPlan([Comparisons(one.words, [(one.source, one.reference)])], one.endpoint, paired="pair")
        found.append(plan.compared(own.assign(arm=own.source)).assign(above=one.above))
    table = pd.concat(found, ignore_index=True).rename(columns={"family": "question"})
    table["holm_p"] = holm_of_planned(table.p.fillna(1.0).to_list(), len(QUESTIONS))
    table["answer"] = np.where(table.holm_p > 0.05, "not told", np.where((table.difference > 0) == table.above, "yes", "no"))
    return table[["question", "arm", "reference", "difference", "low", "high", "p", "holm_p", "answer"]]


# --- commands ------------------------------------------------------------------------------------------------------------------


def _endpoints(folder: Path) -> pd.DataFrame:
    empty = pd.DataFrame(columns=RUN)
    return recorded(folder, "") if (folder / "endpoints.csv").is_file() else empty


def _record(folder: Path) -> None:
    record(folder, added(_endpoints(folder), rows(load(ROOT / SWEEP), names(seeds())), RUN))


def _print() -> None:
    runs = recorded(FOLDER, "python -m experiments.sources record")
    later = recorded(ADDED, "python -m experiments.sources record later")
    table, compared = mapped(runs), COSTS.compared(runs.assign(arm=runs.source))
    more = mapped(later), LATER_COSTS.compared(later.assign(arm=later.source))
    publish(FOLDER, table, compared, answers(runs))
    publish(ADDED, *more)
    own = runs[(runs.source == "exact") & (runs.policy == "trainer")]
    print(draw(table, compared, own.end.mean() - own.start.mean(), Path("docs/sources.png")))


def main(words: list[str]) -> None:
    match words:
        case ["starts", *given] if given and all(seed.isdecimal() for seed in given):
            print(starts([int(seed) for seed in given], BEDS, STARTS_FILE).to_string(index=False))
        case ["list", number] if number.isdigit():
            known = _endpoints(folder := ADDED if int(number) in AFTER else FOLDER)
            done = set(zip(known.bed, known.source, known.seed, strict=True))
            listed(commands(int(number), seeds(), done), folder)
        case ["record"]:
            _record(FOLDER)
        case ["record", "later"]:
            _record(ADDED)
        case ["print"]:
            _print()
        case _:
            raise UserError("give starts with seeds, list N, record [later] or print: python -m experiments.sources list 1")


if __name__ == "__main__":
    with command("interrupted; the same command goes on from there"):
        main(sys.argv[1:])
