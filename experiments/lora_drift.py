"""The drift of frozen weights into which adapters are merged at each sync: `python -m experiments.lora_drift` (docs/sources.md).

It reads the checkpoints of the runs of list 5 of `experiments.sources`, and writes experiments/study/sources/later/drift.csv.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from experiments.sources import ADAPTED, ADDED, ROOT, SWEEP, names, seeds
from harness.boundary import command
from harness.config import parse_recorded
from harness.errors import UserError
from harness.run.folder import RunFolder
from harness.run.restore import find, parts_at


def frozen(folder: RunFolder, step: int | None = None) -> Tensor:
    """The frozen weights of all linear layers with an adapter, in one row. step: of a checkpoint; None: the newest."""
    with parts_at(find(folder.path, step)) as parts:
        weights = dict(parts.actor.weights())
        adapted = (name for name in weights if name.replace(".weight", ".lora_A.weight") in weights)
        return torch.cat([weights[name].detach().double().flatten() for name in adapted])


def drifts(source: str = "lora_in_place") -> pd.DataFrame:
    """Table with a row per run of `source` and checkpoint: ‖W − W₀‖/‖W₀‖ of the frozen weights.

    W₀ are those of the run with adapters apart, on the same model and seed, which begins with the same weights. Raises UserError
    without the folder of the runs.
    """
    if not (ROOT / SWEEP).is_dir():
        raise UserError(f"{ROOT / SWEEP}: no such folder; it is made by the runs of: python -m experiments.sources list 5")
    known, runs = names(seeds()), {}
    for path in (ROOT / SWEEP).iterdir():
        folder = RunFolder(path)
        if (path / "config.json").is_file():
            config = parse_recorded(folder.read("config.json"))
            runs[(*known[config.digest], config.seed)] = folder
    found = []
    for (bed, name, seed), folder in sorted(runs.items(), key=lambda one: one[0]):
        if name == source:
            still = frozen(runs[bed, ADAPTED, seed])
            for step in folder.checkpoints:
                drift = (frozen(folder, step) - still).norm() / still.norm()
                found.append({"bed": bed, "seed": seed, "step": step, "drift": float(drift)})
    return pd.DataFrame(found)


if __name__ == "__main__":
    with command(), torch.no_grad():
        table = drifts()
        table.to_csv(ADDED / "drift.csv", index=False)
        print(table.groupby(["bed", "step"]).drift.agg(["median", "min", "max"]).to_string())
