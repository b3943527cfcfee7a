"""What replay says of the first batch of another trainer's run: `trl_batches`, `verl_batches` and `skyrl_batches` make them."""

from __future__ import annotations

import json
import os
import re
import shutil
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
    "RAY_prestart_worker_first_driver": "0",  # else it starts a worker for each processor that it is told of
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

    dump(setting, seed, folder) has a process of its own write one into `folder`, which exists. files: pattern of what is there
    then. logged(folder, mean_ratio): further columns of the record, from what the trainer itself printed there.
    """

    name: str
    settings: dict[str, Setting]
    seeds: tuple[int, ...]
    dump: Callable[[Setting, int, Path], None]
    files: str
    logged: Callable[[Path, float], dict[str, float]] = lambda folder, mean_ratio: {}

    @property
    def record(self) -> Path:
        return RECORDS / f"{self.name.lower()}.csv"


def made(trainer: Trainer, root: Path) -> pd.DataFrame:
    """Make the batches that are missing below `root`, and return what replay says of each: a row a batch."""
    rows, progress = [], Progress(len(trainer.settings) * len(trainer.seeds))
    for name, seed in product(trainer.settings, trainer.seeds):
        folder = batch(trainer, name, seed, root)
        found = answer(folder, trainer.files)
        rows.append({"setting": name, "seed": seed} | found | trainer.logged(folder, found["mean_ratio"]))
        progress.show(f"{len(rows)} batches")
    return pd.DataFrame(rows)


def batch(trainer: Trainer, name: str, seed: int, root: Path) -> Path:
    """The folder of a setting's batch below `root`, made if it is missing. Raises UserError where the trainer leaves none."""
    folder = root / f"{re.sub('[^a-z0-9.]+', '_', name)}-{seed}"  # Hydra splits words at commas
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        trainer.dump(trainer.settings[name], seed, unfinished)
        unfinished.rename(folder)
    if (number := len(list(folder.glob(trainer.files)))) != 1:
        raise UserError(f"{folder}: {trainer.name} left {number} files {trainer.files}, not one; remove the folder")
    return folder


def run(module: str, keys: dict[str, Any], variables: dict[str, str], folder: Path) -> None:
    """Run a trainer's module with keys in Hydra's form, its output in log.txt of `folder`.

    Ray, vLLM and SkyRL's router listen on all interfaces. So they get a network of their own, which has loopback alone: Linux
    makes it for a user who may have namespaces. Raises UserError where it fails, or where unshare or ip is missing.
    """
    for program, package in {"unshare": "util-linux", "ip": "iproute2"}.items():
        if shutil.which(program) is None:
            raise UserError(f"{program} is missing, which gives the trainer a network of its own; Debian has it in {package}")
    network = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    words = [sys.executable, "-m", module, *(f"{key}={value}" for key, value in keys.items())]
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(
            [*network, *words], env=os.environ | VARIABLES | variables, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    if done.returncode:
        raise UserError(f"{module} ended with code {done.returncode}; see {folder / 'log.txt'}")


def prompts(folder: Path, columns: dict[str, Any]) -> Path:
    """Write the prompts with further `columns`, the same for each, as a file in `folder`."""
    rows = [{"prompt": [{"role": "user", "content": asked}]} | columns for asked in ASKED]
    pd.DataFrame(rows).to_parquet(folder / "prompts.parquet")
    return folder / "prompts.parquet"


def reward(response: str) -> float:
    """The number of different characters: any reward that varies will do."""
    return float(len(set(response)))


def answer(folder: Path, files: str) -> dict[str, Any]:
    """What `faultline replay` says of a batch."""
    (file,) = folder.glob(files)
    replay = [sys.executable, "-m", "faultline", "replay", str(file), "--precision", "bf16", "--json"]
    done = subprocess.run(replay, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, FAULT):
        raise UserError(f"{file}: replay ended with code {done.returncode}")
    said = json.loads(done.stdout)
    found, statistics = said["diagnosis"], said["diagnosis"]["statistics"]
    numbers = {"responses": int(statistics["size/responses"]), "tokens": int(statistics["size/tokens"])}
    numbers |= {"mean_ratio": found["mean_ratio"], "z": statistics["identity/z"], "k3": statistics["tails/k3"]}
    return {"kind": found["kind"], "named": found["fault"] or ""} | numbers


def told(record: pd.DataFrame) -> pd.Series:
    """The answer to each batch of a record: the name of its fault, or else the kind."""
    return record["named"].where(record["named"] != "", record["kind"])


def table(trainer: Trainer, record: pd.DataFrame) -> pd.DataFrame:
    """Rows for the page: per setting the range of the mean ratio and of K3, the answers, and how many were right."""
    rows = []
    for name, part in record.groupby("setting", sort=False):
        expected = trainer.settings[str(name)].expected
        answers = told(part)
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
    """The trainer's record, and as `expected` the right answer to each batch, "" where no fault has its name."""
    record = pd.read_csv(trainer.record, keep_default_na=False)
    return record.assign(expected=[trainer.settings[name].expected for name in record["setting"]])


def main(trainer: Trainer, words: list[str]) -> None:
    if words:
        RECORDS.mkdir(exist_ok=True)
        made(trainer, Path(words[0])).to_csv(trainer.record, index=False, float_format="%.6g", lineterminator="\n")
    print(markdown(table(trainer, recorded(trainer))))
