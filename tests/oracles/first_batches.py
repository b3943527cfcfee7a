"""What replay says of the first batch of another trainer's run: `trl_batches`, `verl_batches` and `skyrl_batches` make them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.frames import markdown
from faultline.cli.replay import FAULT
from harness.errors import UserError
from harness.progress import Progress

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "experiments/study/trainers"
ORACLES = ROOT / ".venv/oracles"
"""Where the trainers are installed: apart, since they would bring other versions of packages into the environment."""
MODEL = ROOT / "models/smollm2"
RESPONSES, SAMPLES, TOKENS = 128, 4, 24
"""Number of responses in a batch, of responses to a prompt, and maximum number of tokens in a response."""
VARIABLES = {
    "PYTHONPATH": f"{Path(__file__).parent / 'site'}:{ROOT}",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # a worker for each of the 16 processors that it is told of
    "RAY_enable_worker_prestart": "0",
}
"""Environment of a trainer that Ray runs on a machine without a GPU."""
ASKED = [
    f"Name {number} {things}."
    for number in ("three", "four", "five", "six")
    for things in (
        "animals", "cities", "fruits", "colours", "tools", "rivers", "sports", "jobs", "birds", "trees", "games", "songs",
        "countries", "flowers", "dishes", "drinks", "planets", "metals", "languages", "hobbies", "fish", "clothes", "toys",
        "spices",
    )
]  # fmt: skip
"""The prompts, of which a batch has a third, chosen by its seed."""


class Setting(NamedTuple):
    """The trainer's keys, and the right answer. expected: "" where no fault has this name."""

    keys: dict[str, Any]
    expected: str


class Trainer(NamedTuple):
    """A trainer whose first batches are asked about.

    dump(setting, seed, folder) has a process of its own write one into `folder`. files: pattern of what it leaves there.
    """

    name: str
    settings: dict[str, Setting]
    seeds: tuple[int, ...]
    dump: Callable[[Setting, int, Path], None]
    files: str = "step-*.parquet"

    @property
    def record(self) -> Path:
        return RECORDS / f"{self.name.lower()}.csv"


def made(trainer: Trainer, root: Path) -> pd.DataFrame:
    """Make the batches that are missing below `root`, and return what replay says of each: a row a batch."""
    rows, progress = [], Progress(len(trainer.settings) * len(trainer.seeds))
    for name, seed in product(trainer.settings, trainer.seeds):
        folder = root / f"{re.sub('[^a-z0-9.]+', '_', name)}-{seed}"  # Hydra splits words at commas
        if not list(folder.glob(trainer.files)):
            trainer.dump(trainer.settings[name], seed, folder)
        written = list(folder.glob(trainer.files))
        if not written:
            raise UserError(f"{name}, seed {seed}: {trainer.name}'s trainer left no batch in {folder}")
        rows.append({"setting": name, "seed": seed} | answer(written[0].parent))
        progress.show(f"{len(rows)} batches")
    return pd.DataFrame(rows)


def answer(folder: Path) -> dict[str, Any]:
    """What `faultline replay` says of a batch."""
    replay = [sys.executable, "-m", "faultline", "replay", str(folder), "--precision", "bf16", "--json"]
    done = subprocess.run(replay, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, FAULT):
        raise UserError(f"{folder}: replay ended with code {done.returncode}")
    said = json.loads(done.stdout)
    found, statistics = said["diagnosis"], said["diagnosis"]["statistics"]
    numbers = {"responses": int(statistics["size/responses"]), "tokens": int(statistics["size/tokens"])}
    numbers |= {"mean_ratio": found["mean_ratio"], "z": statistics["identity/z"], "k3": statistics["tails/k3"]}
    return {"kind": found["kind"], "named": found["fault"] or ""} | numbers


def table(trainer: Trainer, record: pd.DataFrame) -> pd.DataFrame:
    """Rows for the page: per setting the range of the mean ratio and of K3, the answers, and how many were right."""
    rows = []
    for name, part in record.groupby("setting", sort=False):
        expected = trainer.settings[str(name)].expected
        answers = part["named"].where(part["named"] != "", part["kind"])
        right = f"{(answers == expected).sum()} of {len(part)}" if expected else "no name is right"
        rows.append(
            {
                f"{trainer.name}'s setting": name,
                "mean ratio": f"{part['mean_ratio'].min():.4f} to {part['mean_ratio'].max():.4f}",
                "z": f"{part['z'].min():.1f} to {part['z'].max():.1f}",
                "K3": f"{part['k3'].min():.1e} to {part['k3'].max():.1e}",
                "answers": ", ".join(f"{count} {answer}" for answer, count in answers.value_counts(sort=False).items()),
                "right": right,
            }
        )
    return pd.DataFrame(rows)


def recorded(trainer: Trainer) -> pd.DataFrame:
    return pd.read_csv(trainer.record, keep_default_na=False)


def main(trainer: Trainer, words: list[str]) -> None:
    if words:
        RECORDS.mkdir(exist_ok=True)
        made(trainer, Path(words[0])).to_csv(trainer.record, index=False, float_format="%.6g", lineterminator="\n")
    print(markdown(table(trainer, recorded(trainer))))
