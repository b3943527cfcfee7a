"""`faultline import-config FILE`: a verl, SkyRL or TRL config as an experiment file of this project. It imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faultline.tools.import_config import skyrl, trl, verl
from faultline.tools.import_config.translation import Source, Translation
from harness.arms import flatten
from harness.errors import UserError
from harness.yaml_file import read_yaml

FORMATS: dict[str, Any] = {"SkyRL": skyrl, "verl": verl, "TRL": trl}
"""Name → module with `recognises(keys)`, `shorten(key)` and `translate(source, translation)`; the first that recognises it."""


def import_config(path: Path) -> str:
    """The text of an experiment file equivalent to the config at `path` (YAML or JSON, nested or dotted keys).

    Raises UserError when the file cannot be read, is of no known format, or holds a value that is not what its key takes.
    """
    flat = flatten(_read(path))
    name = next((name for name, module in FORMATS.items() if module.recognises(flat)), None)
    if name is None:
        raise UserError(
            f"{path}: no key of a verl, SkyRL or TRL config; known are algorithm.rollout_correction, "
            "trainer.algorithm.off_policy_correction, vllm_importance_sampling_correction and their neighbours"
        )
    source, translation = Source(flat, FORMATS[name].shorten), Translation()
    FORMATS[name].translate(source, translation)
    return translation.render(f"{name} config {path.name}", source.left())


def _read(path: Path) -> dict[str, Any]:
    loaded = read_yaml(path) or {}
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: must hold keys and values, not a {type(loaded).__name__}")
    return {str(key): value for key, value in loaded.items()}
