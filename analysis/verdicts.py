"""The findings of a sweep in words; each sentence has the counts of runs and the uncertainty."""

from __future__ import annotations

import itertools

import pandas as pd

from analysis.caveats import count, version
from analysis.labels import brief, metric
from analysis.results import Results
from analysis.statistics import survival, tests
from analysis.statistics.outcomes import SIGNIFICANT
from analysis.statistics.performance import FEWEST, HEALTHY

QUESTIONS = {
    "precision": "Precision against the control",
    "correction": "Correction against no correction",
}
TESTS = {"collapse": "time to collapse", "reward": "last reward"}
"""The quantity that each test compares, in words, by the prefix of the test's columns in `Results.outcomes`."""
SETTINGS = {
    "task.name": "task {}",
    "task.length": "length {}",
    "loss.name": "loss {}",
    "steps": "{} RL steps",
    "rollout.prompts": "{} prompts a step",
    "rollout.group_size": "{} responses a prompt",
    "actor.num_minibatches": "mini-batches {}",
    "actor.lr": "learning rate {:g}",
    "rollout.staleness": "staleness {}",
}
"""Formats of config values in words, by config key. The report's note on provenance begins with those that all runs share."""
LISTED = 5
"""Maximum number of items listed in a sentence; the tables have the rest."""


def answer(results: Results) -> list[str]:
    """The answer to "does the rollout's precision matter, and does a correction help?" as a list of paragraphs."""
    runs = results.ended
    worst = _worst(runs)
    proof = _proof(runs[runs.source == worst], results.outcomes) if worst else ""
    some = _long_enough(results) and not (runs.outcome == "never learned").all()  # otherwise the headline says so
    compared = _comparisons(results.outcomes, hopeless=not proof)
    return [
        sentence
        for sentence in [
            f"{_finding(runs, worst)}{proof}." if worst else "",
            _headline(results),
            _untrained(results),
            *(
                [_stable(results)]
                if results.control_only
                else [*compared, _control(results), "" if compared or proof else _alone(runs)]
            ),
            *(_by_source(runs[runs.source != worst]) if some else []),
            _compatible(runs) if some else "",
            _never_learned(runs) if some else "",
            _definitions(results),
            _warned(results.warnings),
        ]
        if sentence
    ]


def _alone(runs: pd.DataFrame) -> str:
    """A sentence on arms that have one seed each and are compared with none; "" otherwise."""
    if runs.arm.nunique() < 2 or runs.groupby("arm").size().max() > 1:
        return ""
    return "Each arm has one seed, so no difference between arms is evidence: give more, as seed=0,1,2,3,4."


def _long_enough(results: Results) -> bool:
    """Whether a run collapsed, or one was evaluated often enough to show that it did not."""
    runs = results.ended
    return bool(runs.event.any()) or not results.evaluated[runs.index].max() < FEWEST


def _finding(runs: pd.DataFrame, source: str) -> str:
    """A clause on a source of mismatch: numbers of collapsed runs without a correction, and with each correction, best first."""
    part, control = runs[(runs.source == source) & ~runs.control], runs[runs.control]
    plain = part[part.correction == "none"]
    corrected = sorted(part[part.correction != "none"].groupby("correction"), key=lambda group: group[1].event.mean())
    beside = f" and the control {control.event.sum()} of {len(control)}" if control.event.any() else ""
    parts = [f"{source} rollouts collapsed {plain.event.sum()} of {len(plain)}{_where(plain)}{beside}"]
    parts += [f"with {brief(str(name))} {mine.event.sum()} of {len(mine)}{_where(mine)}" for name, mine in corrected]
    return _listed(parts)


def _worst(runs: pd.DataFrame) -> str:
    """The source of mismatch with the largest share of collapses among uncorrected runs; "" if none of them collapsed."""
    plain = runs[(runs.correction == "none") & ~runs.control]
    shares = plain.event.groupby(plain.source, sort=False).mean()
    return str(shares.idxmax()) if len(shares) and shares.max() > 0 else ""


def _proof(runs: pd.DataFrame, table: pd.DataFrame) -> str:
    """A clause such as `; 2 seeds prove nothing, at least 4 are needed`; "" without tests, or if one could be significant."""
    tested = int(max(table[f"{test}_p"].notna().groupby(table.question).sum().max() for test in TESTS))
    seeds = int(runs.groupby("arm").size().max())
    if not tested or tested * tests.smallest_p(seeds, seeds) <= SIGNIFICANT:
        return ""
    least = next(n for n in itertools.count(seeds) if tested * tests.smallest_p(n, n) <= SIGNIFICANT)
    return f"; {count(seeds, 'seed')} {'proves' if seeds == 1 else 'prove'} nothing, at least {least} are needed"


def _headline(results: Results) -> str:
    """A sentence with the numbers of runs that collapsed, survived, never learned, and have not ended."""
    runs, left = results.ended, results.runs[results.runs.outcome == "unfinished"]
    if runs.empty:
        return f"No run has ended: {_states(left)}."
    number, kinds = len(runs), runs.outcome.value_counts()
    fallen, never, survived = (int(kinds.get(kind, 0)) for kind in ("collapsed", "never learned", "survived"))
    rest = ", ".join(f"{part} {kind}" for part, kind in ((survived, "survived"), (never, "never learned")) if part)
    if fallen:
        where = f"{runs.arm[runs.event].nunique()} of {runs.arm.nunique()} arms"
        sentence = f"{fallen} of {number} runs collapsed, in {where}.{f' {rest}.' if rest else ''}"
    elif not _long_enough(results):
        most = results.evaluated[runs.index].max()
        sentence = f"{count(number, 'run')} ended too early to tell: no more than {count(most, 'evaluation')} each, of {FEWEST}."
    elif never == number:
        sentence = f"{never} of {number} runs never learned: no held-out reward rose by three standard errors. None collapsed."
    else:
        sentence = f"0 of {number} runs collapsed: {rest}."
    if left.empty:
        return sentence
    return f"{sentence} Another {count(len(left), 'run')} {'counts' if len(left) == 1 else 'count'} in no share: {_states(left)}."


def _untrained(results: Results) -> str:
    """A sentence on ended runs whose gradient was 0 in every step, as with a group filter over rewards that never differ."""
    if "actor/grad_norm" not in results.steps:
        return ""
    largest = results.steps["actor/grad_norm"].groupby(results.steps.run, observed=True).max()
    arms = results.ended.arm[largest.reindex(results.ended.index) == 0]
    if arms.empty:
        return ""
    return f"No step had a gradient, so nothing was trained: {_by_arm(arms)}. All advantages or all weights were 0."


def _states(runs: pd.DataFrame) -> str:
    """The number of runs in each state, as words such as `2 failed, 1 queued`."""
    return ", ".join(f"{number} {state}" for state, number in sorted(runs.state.value_counts().items()))


def _stable(results: Results) -> str:
    """Sentences on runs without a mismatch: how many arms (runs alike but for the seed) reached HEALTHY, how many collapsed."""
    runs = results.ended
    if runs.empty:
        return ""
    healthy = results.healthy[runs.index].groupby(runs.arm).mean()
    every, none = int((healthy == 1).sum()), int((healthy == 0).sum())
    seeds = runs.groupby("arm").size()
    each = count(seeds.min(), "seed") if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()} seeds"
    return (
        f"All runs are controls: {count(len(healthy), 'setting')} with ended runs, {each} each. "
        f"A held-out reward of {HEALTHY} was reached by every seed in {every}, by some in {len(healthy) - every - none}, "
        f"by none in {none}. At least one seed collapsed in {runs.arm[runs.event].nunique()}."
    )


def _by_source(runs: pd.DataFrame) -> list[str]:
    sentences = []
    for source, part in runs[~runs.control].groupby("source", sort=False):
        plain, corrected = part[part.correction == "none"], part[part.correction != "none"]
        if len(plain):
            sentences.append(f"Uncorrected {source} rollouts: {_share(plain)} runs collapsed{_where(plain)}.")
        groups = corrected.groupby("correction", sort=False)
        if parts := [f"{brief(str(name))} {mine.event.sum()} of {len(mine)}{_where(mine)}" for name, mine in groups]:
            sentences.append(f"Corrected {source} rollouts, collapsed runs by correction: {'; '.join(parts)}.")
    return sentences


def _share(runs: pd.DataFrame) -> str:
    """The collapsed ones of `runs` as text, such as `1 of 5`, with a 95% interval if the runs differ in nothing but the seed."""
    share = tests.fraction(int(runs.event.sum()), len(runs))
    band = f" (95% interval {share.lower:.0%} to {share.upper:.0%})" if runs.arm.nunique() == 1 else ""
    return f"{runs.event.sum()} of {len(runs)}{band}"


def _where(runs: pd.DataFrame) -> str:
    """The losses, with other config values, in which runs collapsed, in parentheses; "" if `runs` differ in none of these."""
    place = (runs.loss + " " + runs.setting).str.strip()
    if place.nunique() < 2 or not runs.event.any():
        return ""
    place = place.map(brief)
    places = [f"{name} {part.sum()} of {len(part)}" for name, part in runs.event.groupby(place, sort=False) if part.any()]
    return f" ({_listed(places)})"


def _listed(parts: list[str], between: str = ", ") -> str:
    return between.join([*parts[:LISTED], *([f"and {len(parts) - LISTED} more"] if len(parts) > LISTED else [])])


def _compatible(runs: pd.DataFrame) -> str:
    """A sentence on the highest collapse rate that the smallest arm (runs alike but for the seed) without a collapse allows."""
    arms = runs.groupby("arm").event.agg(["sum", "size"])
    fewest = arms["size"][arms["sum"] == 0].min()
    if pd.isna(fewest) or len(runs[["loss", "setting"]].drop_duplicates()) < 2:
        return ""
    upper = tests.fraction(0, int(fewest)).upper
    none = f"No collapse in {count(fewest, 'run')} of an arm"
    return f"{none} is compatible with a collapse rate of up to {upper:.0%} (95% interval)."


def _never_learned(runs: pd.DataFrame) -> str:
    never = runs.arm[runs.outcome == "never learned"]
    if never.empty:
        return ""
    return f"{len(never)} of {len(runs)} runs never learned ({_by_arm(never)}). They do not count as collapsed."


def _by_arm(arms: pd.Series) -> str:
    """The arms (runs alike but for the seed), each with its number of runs. arms: a row per run."""
    return _listed([f"{brief(str(arm))} {number}" for arm, number in arms.value_counts(sort=False).items()])


def _control(results: Results) -> str:
    every, control = (runs[runs.control] for runs in (results.runs, results.ended))
    if every.empty:
        return (
            "The sweep has no control, whose rollouts use the trainer's own precision. "
            "Without it, no result can be attributed to the mismatch."
        )
    if control.empty:
        return f"The control has not ended: {_states(every)}. Without its end, no result can be attributed to the mismatch."
    name = " and ".join(control.precision.unique())
    if control.event.any():
        return (
            f"The {name} control collapsed in {_share(control)} runs{_where(control)}. "
            "The mismatch alone therefore does not explain a collapse there."
        )
    if never := int((control.outcome == "never learned").sum()):
        return (
            f"The {name} control never learned in {never} of {len(control)} runs. "
            "What does not learn without a mismatch says nothing about one."
        )
    reached = int(results.healthy[control.index].sum())
    return (
        f"The {name} control never collapsed in {count(len(control), 'run')}. "
        f"{reached} of them reached a held-out reward of {HEALTHY} in at least one evaluation."
    )


def _comparisons(table: pd.DataFrame, hopeless: bool) -> list[str]:
    """A sentence per question (precision, correction) and test on its significant comparisons.

    hopeless: whether to include a question and test with too few runs for any significance.
    """
    sentences = []
    for question, title in QUESTIONS.items():
        for test, what in TESTS.items():
            rows = table[(table.question == question) & table[f"{test}_p"].notna()]
            if len(rows) and (hopeless or not _hopeless(rows)):
                sentences.append(f"{title}, {what}: {_compared(rows, test)}")
    return sentences


def _hopeless(rows: pd.DataFrame) -> bool:
    return bool(rows["least_p"].min() * len(rows) > SIGNIFICANT)


def _compared(rows: pd.DataFrame, test: str) -> str:
    number, adjusted = count(len(rows), "comparison"), f"{test}_holm_p"
    significant = rows[rows[adjusted] <= SIGNIFICANT].sort_values(adjusted)
    if len(significant):
        shown = [_difference(row, test) for row in significant.to_dict("records")]
        verb = "was" if len(significant) == 1 else "were"
        return f"{len(significant)} of {number} {verb} significant ({_listed(shown, '; ')})."
    if _hopeless(rows):
        most = rows.loc[rows["least_p"].idxmin()]
        least = f"With {count(most.known, 'seed')} an arm, p ≥ {most['least_p']:.2g} before adjustment"
        return f"no comparison could be significant ({len(rows)} tested). {least}."
    return f"no comparison was significant ({len(rows)} tested, smallest Holm-adjusted p {rows[adjusted].min():.2g})."


def _difference(row: dict, test: str) -> str:
    p = f"Holm-adjusted p {row[f'{test}_holm_p']:.2g}"
    pair = f"{brief(row['arm'])} against {brief(row['reference'])}"
    if test == "reward":
        by = f" {row['reward_gained']:+.3f}" if pd.notna(row.get("reward_gained")) else ""
        return f"{pair}{by}, {p}"
    spread = f" ({row['steps_gained_low']:+.0f} to {row['steps_gained_high']:+.0f})" if pd.notna(row["steps_gained_low"]) else ""
    never = f", {count(row['never_learned'], 'run')} never learned" if row["never_learned"] else ""
    return f"{pair} {row['steps_gained']:+.0f} optimizer steps{spread}{never}, {p}"


def _definitions(results: Results) -> str:
    """Sentences on how many collapses a drawdown dated, and on how many there are under other definitions of a drawdown."""
    if not results.ended.event.any():
        return ""
    grid = results.robustness
    counts = grid.sum(min_count=1).dropna()
    if counts.empty:
        return ""
    control = grid.loc[sorted(results.runs.arm[results.runs.control].unique())].sum()
    of_control = f", {_between(control)} of them in the control" if results.runs.control.any() else ""
    dated = int((results.runs.detector[results.runs.event] == "drawdown").sum())
    return (
        f"A drawdown of the reward dated {dated} of these collapses. "
        f"Under {len(counts)} definitions of a drawdown, {_between(counts)} runs collapse{of_control}."
    )


def _between(counts: pd.Series) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low} to {high}" if low < high else str(low or "none")


def _warned(table: pd.DataFrame) -> str:
    if table.empty or not table.detected.notna().any():
        return ""
    if (collapses := int(table.collapsed_runs.max())) < survival.ENOUGH:
        return f"{count(collapses, 'collapse')} {'is' if collapses == 1 else 'are'} too few to rank the diagnostics."
    skill = table.detected - table.false_alarms
    if not skill.max() > 0:
        return "No diagnostic detected a larger share of collapses than its share of false alarms."
    best = table.loc[skill.idxmax()]
    seen = tests.fraction(round(best.detected * best.collapsed_runs), int(best.collapsed_runs))
    alarms = round(best.false_alarms * best.other_runs)
    return (
        f"Of {count(len(table), 'diagnostic')}, {metric(best.diagnostic)} separated collapsed from other runs best. "
        f"It detected {seen.value:.0%} of {best.collapsed_runs} collapses (95% interval {seen.lower:.0%} to {seen.upper:.0%}), "
        f"a median of {best.median_lead:.0f} RL steps ahead. "
        f"It raised false alarms in {alarms} of {best.other_runs} other runs of the same sources of mismatch. "
        "Each threshold was chosen on the other seeds."
    )


def setting(results: Results) -> str:
    """A sentence with the values of the config keys SETTINGS that all runs share."""
    known = [text.format(results.shared[key]) for key, text in SETTINGS.items() if key in results.shared]
    return f"Every run: {', '.join(known)}." if known else ""


def provenance(results: Results) -> str:
    """Sentences on the config values that all runs share, and on the code and the machines of the runs."""
    processes = [process for processes in results.provenance.values() for process in processes]
    if not processes:
        return "No run recorded its code or its machine."
    commits = sorted({version(process) for process in processes})
    machines = sorted({f"{p['host']}, {p['device']}, {p['platform']}, torch {p['packages']['torch']}" for p in processes})
    code = f"Commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} versions of the code"
    return f"{setting(results)} {code}. Machine: {'; '.join(machines)}.".strip()
