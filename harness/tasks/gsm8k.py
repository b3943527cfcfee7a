"""The GSM8K task (arXiv 2110.14168): grade-school word problems. math-verify compares the final answer with the reference."""

from __future__ import annotations

from typing import Any

import pandas as pd

from harness.errors import UserError, first_line
from harness.tasks.text import Jsonl

SPLITS = {"train": "main/train-00000-of-00001.parquet", "held_out": "main/test-00000-of-00001.parquet"}
"""File of each split in the data set openai/gsm8k on the Hugging Face hub. The split held_out is the data set's test split."""


class Gsm8k(Jsonl):
    """The GSM8K task. Its records, with `question` and `answer`, come from task.path (JSON lines) if set, else from the hub."""

    def load(self, split: str) -> list[dict[str, Any]]:
        if self.config.path is not None:
            return super().load(split)
        from huggingface_hub import hf_hub_download

        try:
            table = pd.read_parquet(hf_hub_download("openai/gsm8k", SPLITS[split], repo_type="dataset"))
            return [{str(key): value for key, value in record.items()} for record in table.to_dict("records")]
        except Exception as error:
            why = first_line(error)
            raise UserError(f"task=gsm8k: openai/gsm8k cannot be loaded from the hub ({why}); set task.path") from None


def verify(response: str, record: dict[str, Any]) -> float:
    """Reward 1 if the response's final answer equals the reference, the part of `answer` after ####; else 0."""
    from math_verify import parse
    from math_verify import verify as equal

    reference = str(record["answer"]).split("####")[-1].strip().replace(",", "")
    # No timeouts: they are alarm signals, which only the main thread of a process can have.
    return float(equal(parse(reference, parsing_timeout=None), parse(response, parsing_timeout=None), timeout_seconds=None))
