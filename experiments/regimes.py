"""The regimes of the study of the verdict (docs/decision.md): `python -m experiments.regimes list | starts SEED... | admit`.

A regime is a bed (a model with its task, learning rate and loss) and a source of mismatch. Both are options:
`+regime/bed=dense +regime/source=int8`. A seed counts only if RL can begin from its warm starts: `starts` makes them and adds
their solve rates to experiments/study/verdict/starts.csv. A bed counts only if its exact control, which has no mismatch, learns
well enough. `admit` checks it before any other run: it trains the controls, and writes controls.csv, table.csv and table.md in
experiments/study/verdict/admission.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.load import load
from analysis.results import Results
from analysis.sources import deviations
from analysis.statistics.dose import LAST
from experiments.plan import publish
from harness.arms import flatten
from harness.boundary import command
from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.folder import FINISHED
from harness.train.warmstart import warm_start

BEDS = ("dense", "dense_half", "ppo", "moe", "moe_half", "moe_ppo", "long20", "long32")
PLANNED = {
    "fp8_tensor": ("dense", "ppo", "moe"),
    "fp8_block": ("dense_half", "moe", "long32"),
    "fp8_cache": ("dense", "long20", "long32"),
    "int8": ("dense_half", "ppo", "long20"),
    "nvfp4": ("dense", "moe_half", "long32"),
    "w4a4": ("dense", "moe", "long20"),
    "router_noise": ("moe", "moe_half", "moe_ppo"),
    "fixed_0.1": ("dense", "ppo", "moe"),
    "fixed_0.2": ("dense_half", "moe_half", "long20"),
    "fixed_0.4": ("long20", "long32", "ppo"),
    "fresh_0.2": ("dense", "moe_half", "ppo"),
    "stale_2": ("dense_half", "ppo", "long32"),
    "partial": ("ppo", "moe", "long20"),
}
"""The EACH beds (models with task, learning rate and loss) on which each source of mismatch is planned to run, by source."""
EACH = 3
"""Number of beds (models with a task) per source of mismatch: on one, rules for choosing a correction are tuned, on the
others they are scored."""

STUDIED = (71, 72, 73, 75, 77)
"""Seeds of the runs of the study of the verdict: the lowest five above 69 whose warm starts STARTS_FILE calls fit."""
SEEDS = (100, 101, 102)
"""Seeds of the exact controls that decide which beds (models with a task) the study of the verdict admits. No other run has
them."""
STARTS = ("dense", "moe", "long20", "long32")
"""One bed (model, task, learning rate and loss) for each kind of warm start. Several beds may share a warm start."""
SOLVED, KEPT = 0.2, 400
"""Bounds of a warm start from which RL can begin: minimum share of solved prompts, and minimum number of usable prompts, which
are neither too easy nor too hard."""
SWEEP = "verdict_admission"
FOLDER = Path("experiments/study/verdict/admission")
STARTS_FILE = FOLDER.parent / "starts.csv"
GAIN, GAP, ENTROPY = 0.30, 0.15, 0.05
"""Bounds of healthy runs without mismatch, on means over seeds: the minimum gain in held-out reward, the maximum excess of
training over held-out reward, and the minimum final entropy in nats per token."""
TAIL = 20
"""Number of steps, at the end of a run, over which the final entropy is averaged."""


class Regime(NamedTuple):
    """A regime of the study of the verdict: a source of mismatch on a bed (a model with its task, learning rate and loss)."""

    bed: str
    source: str

    def __str__(self) -> str:
        return f"{self.bed}/{self.source}"

    @property
    def place(self) -> str:
        """The sort key of the regime within its source: the SHA-256 of its name, as hexadecimal text."""
        return hashlib.sha256(str(self).encode()).hexdigest()


class Split(NamedTuple):
    """Regimes (tasks with a mismatch) on which rules for choosing a correction are tuned (calibration) or scored (held_out)."""

    calibration: list[Regime]
    held_out: list[Regime]


def regimes(admitted: Collection[str] = BEDS) -> Split:
    """Choose EACH admitted beds (models with a task) per source of mismatch: one for calibration, the others held out.

    The regime with the least `Regime.place` is for calibration. The next admitted bed in the order of BEDS replaces a planned
    one that was not admitted. Router noise gets only mixtures of experts. A source with fewer beds than EACH is left out.
    """
    parts = Split([], [])
    for source, planned in PLANNED.items():
        beds = [bed for bed in dict.fromkeys((*planned, *BEDS)) if bed in admitted]
        if source == "router_noise":
            beds = [bed for bed in beds if bed.startswith("moe")]
        if len(beds) >= EACH:
            first, *others = sorted((Regime(bed, source) for bed in beds[:EACH]), key=lambda regime: regime.place)
            parts.calibration.append(first)
            parts.held_out.extend(others)
    return parts


def train_command(*overrides: str) -> str:
    """The shell command of a multirun on this machine, one run per core. It skips ended runs and resumes stopped ones."""
    return " ".join(("python -m experiments.train -m hydra/launcher=local", *overrides))


def admission_command() -> str:
    """The shell command that trains the exact control, without mismatch, of every bed (model, task, learning rate, loss)."""
    beds, seeds = ",".join(BEDS), ",".join(map(str, SEEDS))
    return train_command(f"+regime/bed={beds}", "+regime/source=exact", f"seed={seeds}", f"run.sweep={SWEEP}")


def bed_of(config: Mapping[str, Any]) -> str:
    """The bed of a recorded run: its model, task, learning rate and loss. Raises UserError if it is no bed of the study."""
    return _named(_bed_keys(config), _beds(), "bed")


def source_of(config: Mapping[str, Any]) -> str:
    """The source of mismatch of a recorded run, `exact` for none. Raises UserError if it is no source of the study."""
    return _named(deviations(config), _sources(), "source")


def _named(keys: dict[str, Any], known: Mapping[str, dict[str, Any]], what: str) -> str:
    for name, theirs in known.items():
        if theirs == keys:
            return name
    said = ", ".join(f"{key}={value}" for key, value in keys.items())
    raise UserError(f"{said}: no {what} of the study of the verdict (experiments/conf/regime); give a sweep of that study")


def _bed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("model.name", "loss.name", "task.length", "actor.lr", "actor.num_minibatches")
    flat = flatten(config)
    return {key: flat[key] for key in keys}


@cache
def _beds() -> dict[str, dict[str, Any]]:
    return {bed: _bed_keys(compose(f"+regime/bed={bed}", "+regime/source=exact")) for bed in BEDS}


@cache
def _sources() -> dict[str, dict[str, Any]]:
    return {name: deviations(compose("+regime/bed=moe", f"+regime/source={name}")) for name in ("exact", *PLANNED)}


def starts(seeds: Collection[int], beds: Collection[str] = STARTS, file: Path | None = None) -> pd.DataFrame:
    """Make the warm starts of `seeds`, and record each in `file`. After an unfit start a seed's other beds are skipped.

    Returns the record, a row per seed and bed: seed, bed, rate (share of solved prompts), kept (number of usable prompts), fit
    (rate ≥ SOLVED and kept ≥ KEPT). file: None for STARTS_FILE, the record of the study of the verdict.
    """
    file = STARTS_FILE if file is None else file
    table = pd.read_csv(file) if file.is_file() else pd.DataFrame()
    for seed in seeds:
        for bed in beds:
            config = parse(compose(f"+regime/bed={bed}", "+regime/source=exact", f"seed={seed}"))
            warm = warm_start(config, build_task(config))
            kept = len(warm.train) + len(warm.held_out)
            row = {"seed": seed, "bed": bed, "rate": warm.solve_rate, "kept": kept}
            row["fit"] = warm.solve_rate >= SOLVED and kept >= KEPT
            table = pd.concat([table, pd.DataFrame([row])]).drop_duplicates(["seed", "bed"], keep="last")
            file.parent.mkdir(parents=True, exist_ok=True)
            table.to_csv(file, index=False)
            if not row["fit"]:  # one unfit start decides
                break
    return table


def controls(results: Results) -> pd.DataFrame:
    """Table with a row per finished exact control (run without mismatch): bed, seed, start, end, train, entropy.

    bed: model with task, learning rate and loss. start: first held-out reward. end: mean of the last LAST held-out evaluations.
    train: mean of as many evaluations on training prompts. entropy: mean over the last TAIL steps, in nats per token.
    """
    rows = []
    for run, about in results.runs[results.runs.state.isin(FINISHED)].iterrows():
        steps = results.steps[results.steps.run == run]
        judged = steps.dropna(subset=["eval/reward"])
        rows.append(
            {
                "bed": bed_of(results.configs[str(run)]),
                "seed": about.seed,
                "start": judged["eval/reward"].iloc[0],
                "end": judged["eval/reward"].tail(LAST).mean(),
                "train": judged["eval/train_reward"].tail(LAST).mean(),
                "entropy": steps["actor/entropy"].dropna().tail(TAIL).mean(),
            }
        )
    return pd.DataFrame(rows, columns=["bed", "seed", "start", "end", "train", "entropy"]).sort_values(["bed", "seed"])


def admission(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per bed (model with a task) with all SEEDS: means of start, end, gain, gap and entropy, least gain, and admitted.

    gain: rise of held-out reward. gap: reward on training prompts less that on held-out ones. admitted: whether the means are
    within the bounds GAIN, GAP and ENTROPY.
    """
    rows = []
    for bed, part in runs.groupby("bed", sort=False):
        if set(part.seed) >= set(SEEDS):
            gain, gap = part.end - part.start, part.train - part.end
            row = {"bed": bed, "start": part.start.mean(), "end": part.end.mean(), "gain": gain.mean(), "least gain": gain.min()}
            row |= {"gap": gap.mean(), "entropy": part.entropy.mean()}
            rows.append(row | {"admitted": row["gain"] >= GAIN and row["gap"] <= GAP and row["entropy"] >= ENTROPY})
    return pd.DataFrame(rows)


def admitted(folder: Path = FOLDER) -> list[str]:
    """The beds (models with a task) that `admit` found healthy, ordered as BEDS. Raises UserError if `admit` has not run."""
    file = folder / "table.csv"
    if not file.is_file():
        raise UserError(f"{file}: not there; python -m experiments.regimes admit")
    table = pd.read_csv(file).set_index("bed")
    return [bed for bed in BEDS if bed in table.index and table.admitted[bed]]


def admit(root: Path = Path("runs")) -> None:
    """Train a run without mismatch on every bed (model with a task), and record the admitted beds. root: folder of the runs."""
    words = admission_command().split()
    subprocess.run([sys.executable, *words[1:], f"run.root={root}"], check=True, env=os.environ)
    runs = controls(load(root / SWEEP, SEEDS))
    table = admission(runs)
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs.to_csv(FOLDER / "controls.csv", index=False)
    table.to_csv(FOLDER / "table.csv", index=False)
    publish(FOLDER, table.round(3))


def main(words: list[str]) -> None:
    match words:
        case ["list"]:
            for name, part in regimes()._asdict().items():
                print(f"{name} ({len(part)}):", *part, sep="\n  ")
        case ["starts", *seeds] if seeds and all(seed.isdecimal() for seed in seeds):
            print(starts([int(seed) for seed in seeds]).to_string(index=False))
        case ["admit"]:
            admit()
        case _:
            raise UserError("give list, starts with seeds, or admit: python -m experiments.regimes list")


if __name__ == "__main__":
    with command("interrupted; the same command goes on from there"):
        main(sys.argv[1:])
