"""Plan, train and read the runs of a benchmark: an entry, such as a correction, in several tasks with a mismatch.

A set of regimes maps a name to config overrides, which choose a bed (model, task, learning rate and loss) and a source of
mismatch. An entry consists of further overrides. In each regime it is compared with the bed without a correction, and with the
exact control: the bed without a source of mismatch.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser

from analysis.load import load
from analysis.sources import EXACT
from analysis.statistics.benchmark import CONTROL, NONE
from analysis.statistics.dose import LAST
from experiments.regimes import STUDIED, Regime
from harness.arms import flatten
from harness.boundary import refusing
from harness.compose import compose
from harness.conf import CONF, MODULE
from harness.config import Config, parse
from harness.config.digest import section
from harness.errors import UserError
from harness.run.folder import FINISHED
from harness.yaml_file import read_yaml

SEEDS = STUDIED[:3]
"""Training seeds of a benchmark: the first three seeds of the study of the verdict (docs/decision.md)."""
UNCORRECTED = ("correction=none", "diagnostics.changed_weights=false")
"""Config overrides of the exact control, a run without mismatch. diagnostics.changed_weights, which some sources of mismatch
turn on, is off, so that all regimes on one bed share one control."""
BED = ("seed", "steps", "task", "model", "warmstart", "rollout", "evaluation", "collapse")
"""Config sections that a regime (model, task, mismatch) fixes. No benchmark entry may change one, because its runs would then
differ from those of other entries in more than the entry."""
PLAIN = {"loss": "pg", "advantage": "reinforce", "correction": "none"}
"""Option, by config group, that is composed first if a benchmark entry gives its own function or YAML file for the group. The
entry then changes keys of this option."""

Regimes = Mapping[str, Sequence[str]]
"""Config overrides that choose each regime (model, task and source of mismatch), by the regime's name."""


class Planned(NamedTuple):
    """A planned run of a benchmark: one entry (such as a correction), regime (model, task and mismatch) and seed.

    The run's folder is `config.path`.
    """

    entry: str
    regime: str
    seed: int
    config: Config


def of_study(regime: Regime) -> list[str]:
    """The config overrides of a regime in docs/decision.md: bed (model, task, learning rate, loss) and source of mismatch."""
    return [f"+regime/bed={regime.bed}", f"+regime/source={regime.source}"]


def read_regimes(file: Path) -> dict[str, list[str]]:
    """Read regimes (tasks with a mismatch) from YAML: name -> list of override words. Raises UserError on other content."""
    content = read_yaml(file)
    if not isinstance(content, dict) or not content:
        raise UserError(f'{file}: holds no regimes; write NAME: "+regime/bed=dense +regime/source=int8", one a line')
    regimes = {}
    for name, given in content.items():
        words = given.split() if isinstance(given, str) else given
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise UserError(f"{file}: {name}: give its overrides as a text, or as a list of texts")
        regimes[str(name)] = words
    return regimes


def overrides(words: Sequence[str]) -> list[str]:
    """Turn the words of a benchmark entry, such as loss=gspo, into Hydra overrides.

    `loss`, `advantage` and `correction` also take `module:function`, or a YAML file with the keys of that group. The function of
    a correction is used as a filter. A word FILE.yaml names a file with keys of the whole config. Raises UserError on a file
    without keys, and on a word with several values.
    """
    found: list[str] = []
    for word in words:
        group, _, value = word.partition("=")
        if word.endswith(".yaml") and not value:
            found += _from_file(Path(word), "", words)
        elif group in PLAIN and value.endswith(".yaml"):
            found += [f"{group}={PLAIN[group]}", *_from_file(Path(value), group, words)]
        elif group in PLAIN and re.fullmatch(r"[\w.]+:\w+", value):
            name = value.partition(":")[2]
            own = f'+correction.reject.{name}={{function: "{value}", params: {{}}}}'
            found += [f"{group}={PLAIN[group]}", own if group == "correction" else f"{group}.name={value}"]
        else:
            if value and OverridesParser.create().parse_override(word).is_sweep_override():
                raise UserError(f"{word}: several values; a benchmark takes one entry a command")
            found += [word, *_brought(group, value, words)]
    return found


def _brought(group: str, value: str, words: Sequence[str]) -> list[str]:
    """Overrides for the groups that the option `group=value` chooses itself, as verl's presets their loss, unless in `words`.

    A regime chooses a loss too, and its choice would win.
    """
    file = CONF / group / f"{value}.yaml"
    return _defaults(read_yaml(file), words) if group in PLAIN and file.is_file() else []


def _defaults(content: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    chosen = [entry for entry in content.get("defaults", []) if isinstance(entry, dict)]
    pairs = [(key.rpartition("/")[2], option) for entry in chosen for key, option in entry.items()]
    return [f"{other}={option}" for other, option in pairs if other not in given]


def _from_file(file: Path, group: str, words: Sequence[str]) -> list[str]:
    content = read_yaml(file)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{file}: holds no keys; write those of {group or 'a config'}")
    brought = _defaults(content, words)
    if group and group not in content:  # a file of the group alone, as those in experiments/conf
        content = {group: content}
    return [*brought, *(f"++{key}={json.dumps(value)}" for key, value in flatten(content).items() if key != "defaults")]


def plan(entry: str, words: Sequence[str], regimes: Regimes, seeds: Collection[int], *settings: str) -> list[Planned]:
    """Plan the runs of a benchmark entry, such as a correction: each regime (task with a mismatch) with each seed.

    words: the entry's overrides; empty for the entries NONE (no correction) and CONTROL (no mismatch). settings: overrides of all
    runs of the benchmark. Raises UserError on wrong overrides, and if `words` change a config section that a regime fixes (BED).
    """
    runs: list[Planned] = []
    own = [*(UNCORRECTED if entry == CONTROL else ()), *overrides(words)]
    for regime, given in regimes.items():
        if words:
            _check_bed(entry, compose(*given, *own), compose(*given))
        for seed in seeds:
            values = compose(*given, *own, *settings, f"seed={seed}")  # a warm start may follow the seed
            if entry == CONTROL:
                _remove_source(values)
            runs.append(Planned(entry, regime, seed, parse(values)))
    return runs


def _remove_source(values: dict[str, Any]) -> None:
    """Change a composed config in place to that of the exact control (no mismatch).

    rollout.engine keeps only noise_seed. Low-rank adapters stay, apart from their weights in both engines.
    """
    engine, lora = values["rollout"]["engine"], values["actor"].get("lora")
    values["rollout"]["engine"] = {key: engine[key] for key in engine if key == "noise_seed"}
    for key, neutral in EXACT.items():
        place, _, name = key.rpartition(".")
        section(values, place)[name] = neutral
    if lora is not None:
        values["actor"]["lora"] = lora | {"sync": "apart"}


def _check_bed(entry: str, composed: Mapping[str, Any], bed: Mapping[str, Any]) -> None:
    changed = [name for name in BED if composed[name] != bed[name]]
    if changed:
        raise UserError(
            f"{entry}: changes {', '.join(changed)}, which belong to a regime, so that no recorded row is comparable; "
            "leave it out, or give regimes of your own with --regimes FILE"
        )


def in_order(runs: Sequence[Planned]) -> list[Planned]:
    """Order the runs so that one run per warm start comes first. That run makes the warm start, and the other runs reuse it."""
    met: dict[str, int] = {}
    places = []
    for run in runs:
        start = run.config.warmstart_digest
        met[start] = met.get(start, -1) + 1
        places.append(met[start])
    return [run for _, run in sorted(zip(places, runs, strict=True), key=lambda pair: pair[0])]


def train(runs: Sequence[Planned], words: Sequence[str]) -> None:
    """Run all planned configs as one sweep, by the launcher that `words` choose, on this machine by default."""
    with refusing(" ".join(words)), hydra.initialize_config_module(MODULE, version_base="1.3"):
        composed = hydra.compose("config", ["hydra/launcher=local", *words], return_hydra_config=True)
        launcher = hydra.utils.instantiate(composed.hydra.launcher)
    distinct = list({run.config.digest: run for run in in_order(runs)}.values())
    starts = len({run.config.warmstart_digest for run in distinct})
    print(f"{len(distinct)} runs on {starts} warm starts; each is made once and kept", file=sys.stderr, flush=True)
    names = [f"{run.entry}, {run.regime}, seed {run.seed}" for run in distinct]
    launcher.train([run.config for run in distinct], names, extend=True)


def ended(runs: Sequence[Planned]) -> pd.DataFrame:
    """Table with a row per ended run, in the columns that `analysis.statistics.benchmark` reads, and the run's digest.

    trainer, sampler: held-out reward of the trainer's and the sampling policy, mean of the last LAST evaluations. start: first
    held-out reward of the trainer's policy. k3: median of the first 20 steps, in nats per token. persistence: first correlation
    of the log ratios over 20 syncs, 0 if unmeasured. tokens: mean length of a response in the first 20 steps.
    """
    columns = ["entry", "regime", "seed", "digest", "outcome", "start", "trainer", "sampler", "k3", "persistence", "tokens"]
    rows = []
    for sweep in {run.config.path.parent for run in runs}:
        results = load(sweep)
        steps = dict(iter(results.steps.groupby("run", observed=True)))
        for run in runs:
            about = results.runs.loc[run.config.digest] if run.config.digest in results.runs.index else None
            if run.config.path.parent != sweep or about is None or about.state not in FINISHED:
                continue
            mine = steps[run.config.digest]
            own, sampler = (mine[f"eval/{prefix}reward"].dropna() for prefix in ("", "rollout_"))
            row = [run.entry, run.regime, run.seed, run.config.digest, about.outcome, own.iloc[0], own.tail(LAST).mean()]
            early = mine[mine.step < 20]
            lasting = mine.get("mismatch/persistence_20", pd.Series(dtype=float)).dropna()
            row += [sampler.tail(LAST).mean(), early["rollout_corr/k3_kl"].median()]
            rows.append([*row, lasting.iloc[0] if len(lasting) else 0.0, early["rollout/response_tokens"].mean()])
    return pd.DataFrame(rows, columns=columns)


def references(regimes: Regimes, seeds: Collection[int], *settings: str) -> list[Planned]:
    """Plan reference runs of each regime: without a correction, and without a mismatch (its exact control, even if shared)."""
    return [run for entry in (NONE, CONTROL) for run in plan(entry, (), regimes, seeds, *settings)]
