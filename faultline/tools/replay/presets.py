"""Load corrections by preset name from experiments/conf/correction, or from other YAML files. No torch is needed."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from algos.corrections.spec import Proximal
from harness.conf import CONF
from harness.config import explained
from harness.config.objective import CorrectionConfig
from harness.errors import UserError
from harness.yaml_file import read_yaml

FOLDER = CONF / "correction"


class Preset(BaseModel):
    """A named correction. proximal: policy that anchors the loss, old (π_old) or rollout (μ). ppo: parameters of PPO."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    correction: CorrectionConfig
    proximal: Proximal = "old"
    ppo: dict[str, float] = {}


def presets(names: list[str] | None = None) -> dict[str, Preset]:
    """Load all presets, or those named. NAME.yaml is a file of a preset's keys. Raises UserError on a wrong name or file."""
    shipped = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")]
    for name in names or []:
        if name not in shipped and not name.endswith(".yaml"):
            raise UserError(f"correction {name}: unknown; known are {', '.join(sorted(shipped))}, and FILE.yaml of your own")
    chosen = names or sorted(shipped, key=lambda name: (name.count("/"), name))
    return {name: _load(Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml") for name in chosen}


def _load(path: Path) -> Preset:
    content = read_yaml(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: holds no keys; write a correction like the files in experiments/conf/correction")
    # A file that sets other groups too has its correction under that key.
    fields = {
        "correction": content.get("correction", content),
        "proximal": content.get("proximal", "old"),
        "ppo": content.get("loss", {}),  # the presets that set a parameter of a loss all choose PPO
    }
    try:
        return Preset.model_validate(fields)
    except ValidationError as error:
        raise UserError(f"{path}: {'; '.join(explained(error, fields))}") from None
