"""The generator of docs/options.md: each key of a config and each option of a group, with its purpose.

    python -m experiments.options > docs/options.md

The fate of a key or option is the reason to keep it. Evidence of use comes first: the studies' records, commands in the
documents, searches, GPU recipes and benchmarks. Otherwise a key may serve a planned study, the import of other programs'
configs, a paper's setting, or a plug-in with its own file. A test names the keys and options without a fate.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from experiments.help import CONF, comments_of
from harness.arms import flatten
from harness.compose import choices
from harness.config.describe import ConfigKey, all_keys
from harness.config.names import RENAMED, write
from harness.config.removed import REMOVED

ROOT = Path(__file__).parents[1]
TEXTS = {
    "[studies](study.md)": ["docs/study.md"],
    "[first study](first-study.md)": ["docs/first-study.md"],
    "[results](../experiments/RESULTS.md)": ["experiments/RESULTS.md"],
    "[demo](../README.md)": ["Makefile"],
    "[search](search.md)": ["sweeps/conf/search/*.yaml"],
    "[benchmarks](../experiments/RESULTS.md#speed)": ["benchmarks/*.py"],
    "[GPU recipes](cluster.md)": ["experiments/conf/experiment/gpu/*.yaml"],
    "[papers](../experiments/PAPERS.md)": ["experiments/PAPERS.md"],
}
"""Files whose commands and settings are evidence of use, by the citation of the evidence, strongest first."""
PLANNED = {
    "leaderboard": ["loss.*", "correction.*", "proximal", "loss=*", "correction=*", "reduce=*"],
    "map of sources": [
        "rollout.kv_cache", "rollout.engine.*_dtype", "rollout.engine.*noise*", "rollout.engine.kv_*",
        "rollout.partial_tokens",
        "segments", "actor.precision", "actor.masters", "actor.lora*", "diagnostics.changed_weights", "routing.replay",
        "rollout/precision=*",
    ],
    "study of real text": ["task=*"],
    "study of the verdict": ["task.goal", "evaluation.train_prompts"],
    "diagnosis": [
        "rollout.top_p", "rollout.top_k", "rollout.temperature", "diagnostics.*", "collapse.detectors.weights.*", "collapse=*",
    ],
    "runs on GPUs": [
        "rollout.engine.*", "tracking.*", "tracking=*",
    ],
}  # fmt: skip
"""Patterns of the config keys and options (group=name) that a planned study or use needs, by its name in docs/options.md."""
IMPORTED = ("actor.schedule.*", "advantage.*", "kl.name", "kl.coef", "kl.place", "kl.target", "kl.horizon")
"""Patterns of keys that `faultline import-config` sets without naming them as dotted keys."""
PLUGINS = {
    "actor.compile": "harness/train/model/engine.py",
    "collapse.*": "harness/collapse/detectors.py",
    "critic.*": "harness/train/critic.py",
    "diagnostics.persistence.*": "harness/train/persistence.py",
    "diagnostics.every": "harness/train/options/observers.py",
    "dump.*": "harness/train/options/observers.py",
    "evaluation.probe": "harness/train/probes.py",
    "overlong.*": "harness/train/options/overlong.py",
    "rollout.partial_tokens": "harness/train/options/partial.py",
    "rollout.replay_sampling_mask": "harness/train/options/sampling_masks.py",
}
"""File of the plug-in, or part of a run, that reads config keys, by a pattern of these keys."""
NONE = "**nothing yet**"
"""Text in docs/options.md for a config key or option that has no reason to stay."""
WHOLE = ("actor.precision", "evaluation.probe")
"""Config sections that have a single row in docs/options.md, because an option chooses them as a whole."""
BY_OPTION = ("task.", "model.", "loss.", "advantage.", "rollout.engine.", "rollout.precision.", "collapse.detectors.")
"""Prefixes of the config keys whose values differ from option to option of their group."""
LISTED = (
    "loss", "correction", "advantage", "reduce", "kl", "rollout/precision", "rollout/engine", "task", "model", "collapse",
    "tracking",
)  # fmt: skip
"""Config groups whose options docs/options.md lists: plug-ins and named settings."""
CHOSEN = ("reduce.mode", *(f"{group.replace('/', '.')}.name" for group in LISTED))
"""Config keys whose value is the name of the chosen option of a group."""


class Used(NamedTuple):
    """Config keys with non-default values, and options as group=name, that a text or a table of runs uses."""

    keys: set[str]
    options: set[str]


# --- experiments/conf ---------------------------------------------------------------------------------------------------------


@cache
def options() -> dict[str, dict[str, Any]]:
    """The keys and values that each option sets, by its name (loss=gspo), for all config groups but experiments and regimes."""
    found = {}
    for path in sorted(CONF.rglob("*/*.yaml")):
        place = path.relative_to(CONF).with_suffix("")
        if place.parts[0] in ("experiment", "regime"):
            continue
        group = next(name for name in ("rollout/engine", "rollout/precision", place.parts[0]) if str(place).startswith(name))
        values = {key: value for key, value in (yaml.safe_load(path.read_text()) or {}).items() if key != "defaults"}
        prefix = "" if path.read_text().startswith("# @package _global_") else f"{group.replace('/', '.')}."
        found[f"{group}={place.relative_to(group)}"] = {_named(key): value for key, value in flatten(values, prefix).items()}
    return found


@cache
def known() -> dict[str, ConfigKey]:
    """Descriptions of all keys of the config classes, by dotted key."""
    return all_keys()


@cache
def defaults() -> dict[str, Any]:
    """Values of the config of a run without overrides, by the name that docs/options.md gives their key."""
    return {_named(key): value for key, value in flatten(choices().config).items()}


def _named(key: str) -> str:
    """Name of a key's row in docs/options.md: NAME stands for names that users choose, and a section in WHOLE has one row."""
    key = re.sub(r"^(correction\.reject)\.\w+", r"\1.NAME", key)
    return next((whole for whole in WHOLE if key.startswith(f"{whole}.")), key)


# --- what is used -------------------------------------------------------------------------------------------------------------


def used(text: str) -> Used:
    """Return the keys and options that the commands in a text use.

    Shell variables are replaced by their values. `+experiment=a,b` uses every key and option that these experiments set.
    """
    found = Used(set(), set())
    for word in _words(text):
        key, equals, value = word.lstrip("+~").partition("=")
        if equals and key == "experiment":
            for name in value.split(","):
                _experiment(name, found)
        elif equals and (CONF / key.partition("@")[0]).is_dir() and re.match(r"[a-z]", key):
            for option in value.split(","):
                _choose(key, option, found)
        elif equals:
            _set(key, value, found)
        else:
            for name in re.findall(r"\bdemo(?:_vllm)?/\w+", word):
                _experiment(name, found)
    return found


def _words(text: str) -> Iterator[str]:
    variables: dict[str, str] = {}
    for line in text.splitlines():
        line = re.sub(r"\$(\w+)", lambda match: variables.get(match[1], match[0]), line)
        if assigned := re.match(r'\s*([A-Z]+)="(.*?)"', line):
            variables[assigned[1]] = assigned[2]
        yield from re.split(r"[\s\"'`();|]+|,\s|\\$", line)
    for key, value in re.findall(r"^\s*([a-z_]+(?:\.\w+)+): *([\[{].*)$", text, re.M):  # the space of a search
        yield f"{key}={value}"


def _experiment(name: str, found: Used) -> None:
    if not (CONF / "experiment" / f"{name}.yaml").exists():
        return
    config, chosen = _composed(name)
    found.keys.update(key for key, value in config.items() if _unusual(key, value))
    found.options.update(f"{group}={option}" for group, option in chosen.items() if f"{group}={option}" in options())


@cache
def _composed(experiment: str) -> tuple[dict[str, Any], dict[str, str]]:
    made = choices(f"+experiment={experiment}")
    return {_named(key): value for key, value in flatten(made.config).items()}, made.chosen


def _choose(group: str, option: str, found: Used) -> None:
    group, _, package = group.partition("@")
    if (values := options().get(f"{group}={option}")) is not None:
        found.options.add(f"{group}={option}")
        found.keys.update([_named(f"{package}.name")] if package else (key for key in values if _unusual(key, values[key])))


def _set(key: str, value: str, found: Used) -> None:
    key = _named(write(key) if key in RENAMED else key)
    if key in rows() and any(_unusual(key, one) for one in value.split(",")):
        found.keys.add(key)


def _unusual(key: str, value: Any) -> bool:
    """Whether a value of the key is neither the default nor that of an option of the key's own section."""
    return _text(value) not in _usual(key)


@cache
def _usual(key: str) -> set[str]:
    usual = [defaults()[key]] if key in defaults() else []
    usual += [known()[key].value] if key in known() else []
    usual += [values[key] for values in options().values() if key in values and key.startswith(BY_OPTION)]
    return set(map(_text, usual))


def _text(value: Any) -> str:
    """A config value as text in a normal form, which is the same for a file and for a command line."""
    text = value.strip('"') if isinstance(value, str) else json.dumps(value)
    try:
        return str(float(text))
    except ValueError:
        return text


def recorded() -> dict[str, Used]:
    """Losses, precisions and varied config keys of each recorded table of runs, by its citation `study/NAME`."""
    found: dict[str, Used] = defaultdict(lambda: Used(set(), set()))
    for path in sorted((ROOT / "experiments" / "study").rglob("runs.csv")):
        name = path.parent.relative_to(ROOT / "experiments" / "study")
        for row in csv.DictReader(path.open()):
            if "arm" not in row:
                break  # the controls by which beds were admitted
            here = found[f"`study/{name}`"]
            for key, value in re.findall(r"([a-z_]+(?:\.\w+)+)=(\S+)", row["arm"]):
                _set(key, value, here)
            here.options.update({f"loss={row['loss']}", f"rollout/precision={row['precision']}"})
    return found


@cache
def evidence() -> dict[str, Used]:
    """Keys and options that the evidence uses, by its citation, such as a link to a page. Strongest evidence first."""
    files = {name: [path for pattern in patterns for path in sorted(ROOT.glob(pattern))] for name, patterns in TEXTS.items()}
    files["[GPU recipes](cluster.md)"] = []
    found = {name: used("\n".join(path.read_text() for path in paths)) for name, paths in files.items()}
    for path in sorted((CONF / "experiment" / "gpu").glob("*_*.yaml")):
        _experiment(f"gpu/{path.stem}", found["[GPU recipes](cluster.md)"])
    return recorded() | found


@cache
def importer() -> str:
    """The source code of `faultline import-config`, in which the keys and options that it sets are string literals."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "faultline" / "tools" / "import_config").glob("*.py")))


# --- fates --------------------------------------------------------------------------------------------------------------------


def fate(name: str) -> str:
    """Markdown text that says why the config key or option `name` is kept. An option is written group=name."""
    if name in CHOSEN:
        return "[its options](#options-of-the-groups)"
    cited = [source for source, use in evidence().items() if name in use.keys | use.options]
    found = cited[:2] or [study for study, patterns in PLANNED.items() if _matches(name, patterns)][:1]
    if not found and _imported(name):
        found = ["[import](import.md)"]
    found = found or [f"plug-in `{path}`" for pattern, path in PLUGINS.items() if fnmatch(name, pattern)]
    if not found and _required(name):
        found = ["every run" if name in defaults() else "every run with its option"]
    return ", ".join(found) or NONE


def _required(name: str) -> bool:
    """Whether every run needs the key: the config class gives it no default, or it is a parameter of the default plug-ins."""
    key = known().get(name)
    return "=" not in name and (key.value == "" if key else name in defaults())


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _imported(name: str) -> bool:
    quoted = name.rpartition("=")[2]
    return _matches(name, IMPORTED) or re.search(rf"[\"']{re.escape(quoted)}[\"']", importer()) is not None


# --- the page -----------------------------------------------------------------------------------------------------------------


class KeyRow(NamedTuple):
    """A row of docs/options.md: a key, its displayed default, and the first sentence of its meaning."""

    key: str
    default: str
    meaning: str


@cache
def rows() -> dict[str, KeyRow]:
    """The rows of docs/options.md by key, in the order of the config classes. A section has its plug-ins' parameters too."""
    comments = {_named(key): text for option in options() for key, text in comments_of(*option.split("="))}
    given = (*known(), *defaults(), *(key for values in options().values() for key in values))
    every = list(dict.fromkeys(map(_named, given)))
    names = [name for name in every if name in WHOLE or not any(other.startswith(f"{name}.") for other in every)]
    order = ["", *dict.fromkeys(name.partition(".")[0] for name in known())]
    names.sort(key=lambda name: order.index(_section(name)))
    meanings = comments | {name: key.meaning for name, key in known().items()}
    return {name: KeyRow(name, _default(name), _first(meanings.get(name, ""))) for name in names}


def _section(name: str) -> str:
    return name.partition(".")[0] if "." in name else ""


def _default(name: str) -> str:
    own = defaultdict(list)
    for option, values in options().items():
        if name in values and name.startswith(BY_OPTION):
            own[json.dumps(values[name], ensure_ascii=False)].append(option.partition("=")[2])
    if len(own) > 1 or (own and name not in defaults()):
        shown = [f"`{value}` ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" for value, names in own.items()]
        return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
    value = defaults().get(name, known()[name].value if name in known() else "")
    return f"`{json.dumps(value, ensure_ascii=False)}`" if value != "" else "none"


def _first(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("|", "\\|")


def page() -> str:
    """The whole text of docs/options.md."""
    lines = [
        "# Every key and option, and what it is there for",
        "",
        "`python -m experiments.options > docs/options.md` makes this page from the config classes, `experiments/conf` and the",
        "recorded studies. A fate is what uses a key with another value than its default: a record, a study or a benchmark, the",
        "import of another program's config, a paper's setting, or a plug-in with a file of its own. A name without a link is a",
        "planned study or use. `every run` means that no run can leave the key out.",
        "`faultline train --help` shows what each key accepts.",
    ]
    section = None
    for row in rows().values():
        if (now := _section(row.key)) != section:
            lines += ["", f"## {now or 'the run as a whole'}", "", "| key | default | meaning | used by |", "|---|---|---|---|"]
            section = now
        lines.append(f"| `{row.key}` | {row.default} | {row.meaning} | {fate(row.key)} |")
    lines += ["", "## Options of the groups", "", "| option | used by |", "|---|---|"]
    lines += [f"| `{option}` | {fate(option)} |" for option in options() if option.partition("=")[0] in LISTED]
    lines += ["", "## Removed", "", "A config that uses one of these is refused. A recorded run may have it at its default.", ""]
    lines += ["| key | default | removed in | reason |", "|---|---|---|---|"]
    for place, keys in REMOVED.items():
        where = f"`{place}`: " if place else ""
        lines += [f"| {where}`{key}` | `{json.dumps(r.default)}` | {r.version} | {r.reason} |" for key, r in keys.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
