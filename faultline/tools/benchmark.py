"""`faultline benchmark`: train a loss or correction under several rollout mismatches, print its scores beside recorded ones."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.frames import show
from analysis.statistics.benchmark import CONTROL, NONE, POLICIES, scores
from analysis.statistics.rules import ARMS, Cutoffs, Rule, Seen, constant, regret
from experiments.benchmark import SEEDS, Planned, Regimes, ended, of_study, plan, read_regimes, references, train
from experiments.regimes import STUDIED, regimes
from experiments.verdict_study import ARMS as CORRECTIONS
from faultline import records
from harness.config import OPERATION
from harness.errors import UserError

SWEEP = ("run.sweep=benchmark", "tracking=disabled")
"""Default config overrides of all runs of a benchmark. Overrides on the command line replace them."""
LAUNCHER = ("hydra/launcher=", "hydra.launcher.", "+hydra.launcher.")
"""Beginnings of command-line words that choose a Hydra launcher and set its keys."""
FEW = 3
"""Largest number of seeds of which a 95 % interval is the range from the lowest seed's own mean gain to the highest."""
SHOWN = 10
"""Number of best recorded losses or corrections in a printed table, besides the user's own, no correction and no mismatch."""


def benchmark_command(
    words: Sequence[str],
    *,
    name: str | None = None,
    file: Path | None = None,
    full: bool = False,
    rules: bool = False,
    seeds: Collection[int] = (),
    deploy: str | None = None,
    every_row: bool = False,
) -> None:
    """Train an entry (a loss, advantage or correction) in setups with a rollout mismatch (regimes), and print its scores.

    Runs without a correction and runs without mismatch are trained too, because warm starts differ by processor: an entry is
    scored against those of its own machine, and a recorded entry against recorded ones. Runs that ended earlier are skipped.
    words: overrides of the entry, see `experiments.benchmark.overrides`, keys of a launcher, and keys of OPERATION for all runs.
    name: label of the entry, by default its words. file: a set of regimes in place of the quick set; full: all regimes of
    docs/decision.md. rules: score the frozen rules that choose a correction, in place of an entry. deploy: the policy to
    judge; None: both. every_row: print all records. Raises UserError on wrong arguments and on the name of another recorded
    entry, and SystemExit if a run has failed.
    """
    launcher = [word for word in words if word.startswith(LAUNCHER)]
    settings = [*SWEEP, *(word for word in words if word.partition("=")[0].partition(".")[0] in OPERATION)]
    own = [word for word in words if word not in (*launcher, *settings)]
    if rules == bool(own):
        raise UserError("give an entry, as correction=icepop, or --rules for the frozen rules of the verdict; not both")
    label = name or " ".join(own)
    if label in (NONE, CONTROL):
        raise UserError(f"--name {label}: the name of a reference; give another")
    frozen = records.verdict()
    chosen = _regimes(file, full)
    seeds = seeds or (STUDIED if rules else SEEDS)
    policies = POLICIES if deploy is None else (deploy,)
    arms = [(arm, [f"correction={CORRECTIONS[arm]}"]) for arm in ARMS if arm != NONE] if rules else [(label, own)]
    runs = references(chosen, seeds, *settings)
    runs += [run for entry, given in arms for run in plan(entry, given, chosen, seeds, *settings)]
    known = recorded(records.rows(), runs)
    own_name(label, known, runs)
    train(runs, launcher)
    rows = ended(runs)
    needed = {(run.entry, run.regime, run.seed) for run in runs}
    if missing := needed - set(zip(rows.entry, rows.regime, rows.seed, strict=True)):
        print(f"{len(missing)} of {len(needed)} runs have not ended; the same command goes on", file=sys.stderr)
        return
    if len(known) and not alike(rows, known):
        print("Recorded rows have other regimes or seeds, and are not shown beside these.", file=sys.stderr)
        known = known.iloc[:0]
    for policy in policies:
        where = f"{policy}'s policy deployed, {len(chosen)} regimes x {len(seeds)} seeds"
        if rules:
            show(f"Regret as a share of the control's gain: {where}", regrets(rows, policy, frozen[policy]))
        else:
            what = "Gain (none 0, control about 1 where the mismatch costs much)"
            show(f"{what}: {where}", table(beside(rows, known, policy), label, every_row))
    if not rules and len(seeds) <= FEW:
        chance = f"1 in {2 ** len(seeds)} entries without an effect do"
        print(f"\nAn interval above 0 means that all {len(seeds)} seeds gained: {chance}.")


def beside(rows: pd.DataFrame, known: pd.DataFrame, policy: str) -> pd.DataFrame:
    """Scores of all entries for a deployed policy, best first: those of `rows`, and of recorded runs `known` for other entries.

    Each table is scored by its own runs without a correction and without mismatch.
    """
    found = [scores(runs, policy) for runs in (rows, known) if len(runs)]
    both = pd.concat(found, ignore_index=True).drop_duplicates("entry")
    return both.sort_values("gain", ascending=False, ignore_index=True)


def alike(rows: pd.DataFrame, known: pd.DataFrame) -> bool:
    """Whether `known`, recorded runs, have the regimes and seeds of `rows`: else their gains are no means of the same things."""
    own, theirs = (set(zip(one.regime, one.seed, strict=True)) for one in (rows, known[known.entry == NONE]))
    return own == theirs


def _regimes(file: Path | None, full: bool) -> Regimes:
    if full:
        parts = regimes()
        return {str(one): of_study(one) for one in (*parts.calibration, *parts.held_out)}
    return read_regimes(file) if file else records.quick()


def recorded(rows: pd.DataFrame, runs: Sequence[Planned]) -> pd.DataFrame:
    """Recorded `rows` of each regime (training setup) and seed whose run without correction has the same config in `runs`.

    A regime from a user's file may have a recorded name but a different config. Then none of its rows is returned.
    """
    own = {(run.regime, run.seed): run.config.digest for run in runs if run.entry == NONE}
    none = rows[rows.entry == NONE]
    known = {(row.regime, row.seed) for row in none.itertuples(index=False) if own.get((row.regime, row.seed)) == row.digest}
    return rows[np.array([pair in known for pair in zip(rows.regime, rows.seed, strict=True)], dtype=bool)]


def own_name(label: str, known: pd.DataFrame, runs: Sequence[Planned]) -> None:
    """Raise UserError if a recorded run in `known` has the name `label`, but a config that no planned run in `runs` has."""
    planned = {run.config.digest for run in runs if run.entry == label}
    if not set(known[known.entry == label].digest) <= planned:
        raise UserError(f"{label}: the name of a recorded entry with another config; give --name NAME with a name of its own")


def table(found: pd.DataFrame, label: str, every_row: bool) -> pd.DataFrame:
    """Format the scores `found`, best first: `label`, no correction, no mismatch, the best SHOWN (every_row: all) others."""
    others = found[~found.entry.isin([label, NONE, CONTROL])].index[: None if every_row else SHOWN]
    kept = found[found.entry.isin([label, NONE, CONTROL]) | found.index.isin(others)]
    rows = [
        {
            "": ">>>" if row["entry"] == label else "",
            "entry": row["entry"],
            "gain (interval)": f"{row['gain']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            "P(above none)": f"{row['improvement']:.2f}",
            "worst regime": f"{row['worst']:.2f} in {row['in']}",
            "collapses": f"{row['collapses']} of {row['runs']}",
        }
        for row in kept.to_dict("records")
    ]
    return pd.DataFrame(rows)


def regrets(rows: pd.DataFrame, policy: str, frozen: dict) -> pd.DataFrame:
    """Table of rules that choose a correction: mean and worst reward lost against the best choice (regret) over training setups.

    A regret is a share of the reward gained without mismatch. Column "study's mean": the mean in docs/decision.md. frozen: the
    rules for the deployed `policy`, from `records.verdict`.
    """
    named: dict[str, Rule] = {f"always {arm}": constant(arm) for arm in ARMS}
    named |= {"best constant": constant(frozen["best"]), "v2": Cutoffs(**frozen["v2"])}
    found = []
    for regime, part in rows.groupby("regime"):
        control = part[part.entry == CONTROL]
        gain = control[policy].mean() - control["start"].mean()
        ends = part[part.entry.isin(ARMS)].pivot(index="seed", columns="entry", values=policy)
        plain = part[part.entry == NONE].set_index("seed")
        seen = {seed: Seen(row.k3, row.persistence, row.tokens, NONE) for seed, row in plain.iterrows()}
        for name, rule in named.items():
            share = regret(ends, {seed: rule(seen[seed]) for seed in ends.index}) / gain
            found.append({"rule": name, "regime": regime, "share": share})
    shares = pd.DataFrame(found)
    out = []
    for name in named:
        part = shares[shares.rule == name].set_index("regime").share
        study = frozen["scores"][name]["mean"]
        out.append({"rule": name, "mean": part.mean(), "worst": part.max(), "in": part.idxmax(), "study's mean": study})
    return pd.DataFrame(out)
