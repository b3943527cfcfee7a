"""`--help` of a run: the groups and their options, and each key with its value, its meaning and its accepted values."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

from hydra._internal.utils import get_args_parser

from harness.compose import choices
from harness.config.describe import ConfigKey, keys

CONF = Path(__file__).parent / "conf"
COLUMN = 42
"""Column of the help, in characters, at which the meaning of a config key begins."""
USAGE = """\
faultline train [-m] [GROUP=OPTION | KEY=VALUE] ...

One run. A run that was stopped resumes; one that has finished is skipped. With -m, options and values separated by commas
make a grid of runs: hydra/launcher=local runs them side by side here, hydra/launcher=slurm on a cluster.

  faultline train +experiment=demo/fp8 seed=1
  faultline train -m hydra/launcher=local seed=0,1,2 +experiment=demo/fp8,demo/bf16
  faultline train --help loss=gspo          what follows, with the keys of this choice
  faultline train --hydra-help              options of Hydra, as --cfg job, --config-dir DIR
"""


def show(arguments: list[str]) -> None:
    """Print the help of a run with the overrides in `arguments`. Raises UserError if Hydra refuses them."""
    given = get_args_parser().parse_args(arguments)
    folder = [f"hydra.searchpath=[file://{Path(given.config_dir).resolve()}]"] if given.config_dir else []
    config, chosen, options = choices(*given.overrides, *folder)
    width = min(max(shutil.get_terminal_size((130, 24)).columns, 80), 160)
    print(USAGE)
    print("GROUP=OPTION; +experiment=OPTION. An option of a subfolder is written with it: correction=verl/decoupled_geo_rs\n")
    for group, names in options.items():
        print(_entry(f"  {group}={chosen.get(group, '')}" if group in chosen else f"  {group}", ", ".join(names), width))
    print("\nKEY=VALUE; the value that the run has now, the meaning of the key, and what it accepts")
    comments = {key: text for group, option in chosen.items() for key, text in comments_of(group, option)}
    section = None
    for key in keys(config):
        if (now := key.name.partition(".")[0] if "." in key.name else "") != section:
            print()
            section = now
        print(_entry(f"  {key.name}={_written(key)}", _meaning(key, comments), width))


def _entry(left: str, text: str, width: int) -> str:
    """Return an entry of the help: `left`, then `text` from column COLUMN on, in lines that end by column `width`."""
    margin = " " * COLUMN
    text = textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
    return f"{left:{COLUMN}}{text.lstrip()}".rstrip() if len(left) < COLUMN else f"{left}\n{text}".rstrip()


def _meaning(key: ConfigKey, comments: dict[str, str]) -> str:
    text = key.meaning or comments.get(key.name, "")
    return f"{text} [{key.accepted}]".strip() if key.accepted else text


def _written(key: ConfigKey) -> str:
    """The value of a config key in the syntax of the command line."""
    return key.value if isinstance(key.value, str) and "\n" not in key.value else json.dumps(key.value)


def comments_of(group: str, option: str) -> Iterator[tuple[str, str]]:
    """Generate (dotted key, comment) for each commented key in an option's YAML file. Comments describe plug-in parameters."""
    path, above = CONF / group / f"{option}.yaml", [group.replace("/", ".")]
    for line in path.read_text().splitlines() if path.exists() else ():
        if entry := re.match(r"( *)([\w.]+):[^#]*(?:\s# *(.+))?$", line):
            above = [*above[: 1 + len(entry[1]) // 2], entry[2]]
            if entry[3]:
                yield ".".join(above), entry[3]
