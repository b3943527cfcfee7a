"""`python -m tests.oracles.trl_batches [FOLDER]`: print what replay says of first batches of TRL's own trainer, from the record.

With FOLDER the batches are made there first, those that are missing, and recorded. TRL's GRPOTrainer and its own vLLM sample
SmolLM2-135M; `make llm vllm .venv/oracles/installed` installs them. A batch takes a process of two minutes. Start one command at
a time: TRL's rendezvous has one port. A folder keeps what an earlier version of this file made: name a new one after a change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.frames import markdown
from faultline.cli.replay import FAULT
from harness.boundary import command
from harness.errors import UserError
from harness.progress import Progress

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "experiments/study/trl/first.csv"
ORACLES = ROOT / ".venv/oracles"
"""Where TRL is installed: apart, since it would bring other versions of packages into the environment."""
MODEL = ROOT / "models/smollm2"
SEEDS = (1710, 1711, 1712)
RESPONSES, SAMPLES, TOKENS = 128, 4, 24
"""Number of responses in a batch, of responses to a prompt, and maximum number of tokens in a response."""


class Setting(NamedTuple):
    """Keys of GRPOConfig, the right answer, and the mode in which TRL's vLLM logs. expected: "" where no fault has this name."""

    keys: dict[str, Any]
    expected: str
    logprobs_mode: str = "processed_logprobs"


SETTINGS = {
    "temperature 1": Setting({"temperature": 1.0}, "consistent"),
    "temperature 0.7": Setting({"temperature": 0.7}, "consistent"),
    "temperature 0.7, raw log-probabilities": Setting({"temperature": 0.7}, "raw_logprobs", "raw_logprobs"),
    "top_p 0.9": Setting({"top_p": 0.9}, "truncated_sampling"),
    "top_k 20": Setting({"top_k": 20}, "truncated_sampling"),
    "min_p 0.1": Setting({"min_p": 0.1}, "truncated_sampling"),
    "repetition_penalty 1.2": Setting({"repetition_penalty": 1.2}, ""),
}
"""All but the third are keys of a user of TRL 1.16.0, which asks vLLM for processed log-probabilities. The third is what it asked
for before its pull request 4163, and what a vLLM server does that is started without `--logprobs-mode`. In each the seed of
TRL's vLLM and the first sync of weights are replaced (`dump`)."""
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


def dump(setting: Setting, seed: int, folder: Path) -> None:
    """Write the first batch that TRL's trainer makes, before its update, into `folder`. For a process of its own."""
    sys.path.append(str(ORACLES))
    from harness.rollouts import vllm_support  # noqa: F401, sets what vLLM reads when it is imported

    # isort: split
    import torch
    import trl.generation.vllm_generation as engine
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from faultline.integrations.trl import record

    theirs = engine.LLM
    engine.LLM = lambda **options: theirs(**options | {"logprobs_mode": setting.logprobs_mode, "seed": seed})  # TRL's is 0
    # vLLM has the checkpoint's weights already. On a CPU it packs them, and TRL's way to load others finds nothing to load into.
    engine.VLLMGeneration.sync_weights = lambda self: None
    config = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], save_strategy="no", seed=seed,
        per_device_train_batch_size=16, gradient_accumulation_steps=RESPONSES // 16, num_generations=SAMPLES,
        max_completion_length=TOKENS, max_steps=1, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=96, **setting.keys,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": asked}]} for asked in ASKED])
    tokenizer = AutoTokenizer.from_pretrained(MODEL)

    class First(GRPOTrainer):
        def _prepare_inputs(self, batch: Any) -> Any:
            super()._prepare_inputs(batch)
            sys.exit()  # the batch is written, and the update would take minutes

    trainer = First(model, _reward, config, prompts, processing_class=tokenizer)
    record(trainer, folder)
    trainer.train()


def _reward(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(set(one[0]["content"]))) for one in completions]


def made(root: Path) -> pd.DataFrame:
    """Make the batches that are missing below `root`, and return what replay says of each: a row a batch."""
    rows, progress = [], Progress(len(SETTINGS) * len(SEEDS))
    for name, seed in product(SETTINGS, SEEDS):
        folder = root / f"{name.replace(' ', '_')}-{seed}"
        if not list(folder.glob("step-*.parquet")):
            process = get_context("spawn").Process(target=dump, args=(SETTINGS[name], seed, folder))
            process.start()
            process.join()
            if process.exitcode or not list(folder.glob("step-*.parquet")):
                raise UserError(f"{name}, seed {seed}: TRL's trainer left no batch, code {process.exitcode}")
        replay = [sys.executable, "-m", "faultline", "replay", str(folder), "--precision", "bf16", "--json"]
        done = subprocess.run(replay, stdout=subprocess.PIPE, text=True)
        if done.returncode not in (0, FAULT):
            raise UserError(f"{folder}: replay ended with code {done.returncode}")
        said = json.loads(done.stdout)
        found, statistics = said["diagnosis"], said["diagnosis"]["statistics"]
        numbers = {"responses": int(statistics["size/responses"]), "tokens": int(statistics["size/tokens"])}
        numbers |= {"mean_ratio": found["mean_ratio"], "z": statistics["identity/z"], "k3": statistics["tails/k3"]}
        rows.append({"setting": name, "seed": seed, "kind": found["kind"], "named": found["fault"] or ""} | numbers)
        progress.show(f"{len(rows)} batches")
    return pd.DataFrame(rows)


def table(record: pd.DataFrame) -> pd.DataFrame:
    """Rows for the page: per setting the range of the mean ratio and of K3, the answers, and how many were right."""
    rows = []
    for name, part in record.groupby("setting", sort=False):
        expected = SETTINGS[str(name)].expected
        answers = part["named"].where(part["named"] != "", part["kind"])
        right = f"{(answers == expected).sum()} of {len(part)}" if expected else "no name is right"
        rows.append(
            {
                "TRL's setting": name,
                "mean ratio": f"{part['mean_ratio'].min():.4f} to {part['mean_ratio'].max():.4f}",
                "z": f"{part['z'].min():.1f} to {part['z'].max():.1f}",
                "K3": f"{part['k3'].min():.1e} to {part['k3'].max():.1e}",
                "answers": ", ".join(f"{count} {answer}" for answer, count in answers.value_counts(sort=False).items()),
                "right": right,
            }
        )
    return pd.DataFrame(rows)


def main(words: list[str]) -> None:
    if words:
        RECORD.parent.mkdir(exist_ok=True)
        made(Path(words[0])).to_csv(RECORD, index=False, float_format="%.6g", lineterminator="\n")
    print(markdown(table(pd.read_csv(RECORD, keep_default_na=False))))


if __name__ == "__main__":
    with command("interrupted; the same command goes on"):
        main(sys.argv[1:])
