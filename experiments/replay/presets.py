"""The corrections under experiments/conf/correction by name, as data: torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf
from pydantic import TypeAdapter

from algos.spec import Correction
from harness.errors import UserError

FOLDER = Path(__file__).parent.parent / "conf" / "correction"


class Preset(NamedTuple):
    """A correction and what the loss is anchored on with it: old (π_old) or rollout (μ)."""

    correction: Correction
    proximal: str


def presets(names: list[str] | None = None) -> dict[str, Preset]:
    """All presets, or those of these names, as verl/decoupled_token_is. Raises UserError on an unknown name."""
    known = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")]
    for name in names or []:
        if name not in known:
            raise UserError(f"correction {name}: unknown; known are {', '.join(sorted(known))}")
    return {name: _load(name) for name in names or sorted(known, key=lambda name: (name.count("/"), name))}


def _load(name: str) -> Preset:
    content = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    # A file that sets other groups too stands at the top of the config, its correction under that key.
    fields = content.get("correction", content)
    return Preset(TypeAdapter(Correction).validate_python(fields), content.get("proximal", "old"))
