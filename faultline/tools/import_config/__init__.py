"""`faultline import-config FILE`: translate a verl, SkyRL or TRL config or recipe to an experiment file, without torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from faultline.tools.import_config import formats, shell, skyrl, trl, verl
from faultline.tools.import_config.source import Source
from faultline.tools.import_config.translation import Gpus, Translation, check_bounds
from harness.arms import flatten
from harness.errors import UserError, printable
from harness.files import output_folder, write_file
from harness.yaml_file import read_yaml

if TYPE_CHECKING:
    from harness.config import Config

FORMATS: dict[str, Any] = {"SkyRL": skyrl, "verl": verl, "TRL": trl}
"""Name of a program -> module that imports its configs. The first module that recognises a config's keys imports it.

Each module has `recognises(keys)`, `shorten(key)` and `translate(source, translation)`. A module's `POLICY` has the keys of
the model and its data, and `CORRECTION` is a pattern of the keys that belong to a correction."""
OWN = {"task.path": "questions.jsonl", "task.verifier": "module:function"}
"""Key of a text task that no other program's config has -> an example of its value."""
YAML = (".yaml", ".yml", ".json")
"""File suffixes of configs. Any other file is read as a shell recipe or as a list of overrides."""

LARGEST = 141
"""Memory of an H200 in GB (NVIDIA, H200 data sheet)."""


class Translated(NamedTuple):
    """The `text` of an experiment file, the GPUs of its recipe, and the keys of the recipe without a counterpart in it."""

    text: str
    gpus: Gpus | None
    lost: list[str]


def import_config(path: Path, *, ready: bool = False) -> str:
    """Return the text of the experiment file that `translate` makes of the config or recipe at `path`."""
    return translate(path, ready=ready).text


def translate(path: Path, *, ready: bool, folder: Path = Path("conf"), name: str = "mine") -> Translated:
    """Translate the config or recipe at `path` to an equivalent experiment file.

    path: YAML or JSON with nested or dotted keys, a YAML list of Hydra's overrides, or a shell script, which is not executed.
    ready: whether to include the model, the task and a name of the sweep. folder, name: its comments say how to run it as
    folder/experiment/name.yaml. Raises UserError if the file cannot be read, its format is unknown, a value does not fit its
    key, a key of a correction is not translated, or the model is missing but required by `ready`.
    """
    flat = flatten(_read(path))
    program = next((program for program, module in FORMATS.items() if module.recognises(flat)), None)
    if program is None:
        raise UserError(
            f"{path}: no key of a verl, SkyRL or TRL config; known are algorithm.rollout_correction, "
            "trainer.algorithm.off_policy_correction, vllm_importance_sampling_correction and their neighbours"
        )
    source, translation = Source(flat, FORMATS[program].shorten), Translation(ready)
    FORMATS[program].translate(source, translation)

    if corrections := [line for line in source.left() if FORMATS[program].CORRECTION.search(line.partition("=")[0])]:
        raise UserError(f"{path}: {', '.join(corrections)}: a correction's key that is not translated; remove or mend it")
    formats.warn(translation, source.left())
    if ready:
        translation.policy(source, FORMATS[program].POLICY)
        translation.set("run.sweep", experiment_name(path))
    else:
        translation.small_model(source, FORMATS[program].POLICY.model)
    lost = [re.split("[=:]", line)[0] for line in translation.lost + source.left()]
    text = translation.render(f"{program} config {path.name}", source.left(), folder, name)
    return Translated(text, translation.gpus, lost)


class Launched(NamedTuple):
    """A written experiment: the command that runs it, the text of its file, and remarks for the user, a line each."""

    command: str
    text: str
    remarks: list[str]


def launch(path: Path, folder: Path, overrides: Sequence[str] = ()) -> Launched:
    """Translate the config at `path`, check it as a whole, and write it as folder/experiment/NAME.yaml.

    overrides: keys that the command gets too. Raises UserError like `translate`, and if the file exists already, a key that a
    run needs or a file of the task is missing, the verifier cannot be imported, or the recipe's GPUs cannot share its batches.
    """
    from harness.compose import compose
    from harness.config import parse
    from harness.train.ranks import check_ranks

    name = experiment_name(path)
    text, gpus, lost = translate(path, ready=True, folder=folder, name=name)
    file = folder / "experiment" / f"{name}.yaml"
    if file.exists() or file.is_symlink():
        raise UserError(f"{file}: is there already; remove it, or give --launch another folder")
    with TemporaryDirectory() as trial:
        (Path(trial) / "experiment").mkdir()
        (Path(trial) / "experiment" / f"{name}.yaml").write_text(text)
        composed = compose(f"+experiment={name}", *overrides, config_dir=Path(trial))
    if missing := [key for key, value in flatten(composed).items() if value == "???"]:
        what = "your data and reward" if OWN.keys() >= set(missing) else "the missing keys"
        words = " ".join(f"{key}={OWN.get(key, 'VALUE')}" for key in missing)
        raise UserError(f"{path.name} does not say {', '.join(missing)}; give {what}: append after --launch {folder}: {words}")
    config, known = parse(composed), gpus or Gpus(1, 1)
    _check_task(config.task)
    check_ranks(config, known.ranks)
    write_file(output_folder(file.parent), file.name, text)
    run = ["--config-dir", str(folder), f"+experiment={name}", *overrides]
    remarks = [f"written: {file}", *_untranslated(lost)]
    if gpus is None:
        remarks.append(
            f"{path.name} does not say on how many GPUs it runs, and this command takes one: for 8 on one node write "
            f"{shlex.join(Gpus(8, 1).start())} in place of {shlex.join(known.start())}"
        )
    asked = shlex.join(["faultline", "memory", "--ranks", str(known.ranks), *run])
    remarks.append(f"its memory: {_most(config, known.ranks)}{asked}")
    return Launched(shlex.join([*known.start(), *run]), text, remarks)


def _most(config: Config, ranks: int) -> str:
    """Say how much memory a GPU needs at most; nothing for a model whose sizes are not known."""
    from harness.memory import MOMENTS, memory

    with suppress(UserError):
        needed = memory(config, ranks)
        most = max(needed.total(moment) for moment in MOMENTS) / 1e9
        return f"{most:.0f} GB a GPU{', more than an H200 has' * (most > LARGEST)}, by "
    return ""


def _untranslated(lost: list[str]) -> list[str]:
    """Say how many keys of a recipe were not translated, and name each on a line of its own."""
    if not lost:
        return ["every key was translated, or is a note in the file"]
    counted = "1 key was" if len(lost) == 1 else f"{len(lost)} keys were"
    return [f"{counted} not translated; comments of the file have their values:", *(f"  {printable(key)}" for key in lost)]


def _check_task(task: Any) -> None:
    """Raise UserError if a file of a text task does not exist, or if its verifier cannot be imported."""
    from algos.registry import RegistryError
    from harness.config import TextConfig
    from harness.tasks.text import VERIFIERS

    if not isinstance(task, TextConfig):
        return
    for key in ("path", "held_out_path"):
        if (path := getattr(task, key)) is not None and not Path(path).is_file():
            raise UserError(f"task.{key}={path}: no such file; append task.{key}=FILE.jsonl after --launch DIR")
    try:
        VERIFIERS[task.verifier]
    except RegistryError as error:
        raise UserError(f"task.verifier: {error}") from None


def experiment_name(path: Path) -> str:
    """Name of the experiment made from a file: the file's name, with - for characters that Hydra's option names cannot have."""
    return re.sub(r"[^\w-]+", "-", path.stem).strip("-") or "imported"


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: no regular file; give a YAML or JSON file, or a script")
    if path.suffix == ".py":
        raise UserError(f"{path}: Python is not read; {trl.GIVE}")
    if path.suffix not in YAML:
        return shell.read_script(path, _script(path))
    loaded = read_yaml(path) or {}
    for key, value in _unquoted(path.read_text(encoding="utf-8")):
        check_bounds(key, value)
    if isinstance(loaded, list) and all(isinstance(line, str) and shell.LISTED.match(line) for line in loaded):
        return shell.parse_overrides(path, loaded)
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: must hold keys and values, not a {type(loaded).__name__}")
    return {str(key): value for key, value in loaded.items()}


def _unquoted(text: str) -> Iterator[tuple[str, str]]:
    """The keys of YAML whose value is a scalar without quotes and tag, with the value as written: 0.5_2 where YAML reads 0.52."""
    tokens = list(yaml.scan(text))
    for before, key, between, value in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        pair = isinstance(before, yaml.KeyToken) and isinstance(between, yaml.ValueToken)
        if pair and isinstance(key, yaml.ScalarToken) and isinstance(value, yaml.ScalarToken) and value.plain:
            yield key.value, value.value


def _script(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(shell.LARGEST_SCRIPT + 1)
        text = content.decode()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a file that can be") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read (not a text file); give one in UTF-8") from None
    if len(content) > shell.LARGEST_SCRIPT:
        raise UserError(f"{path}: larger than {shell.LARGEST_SCRIPT} bytes; that is no recipe")
    return text
