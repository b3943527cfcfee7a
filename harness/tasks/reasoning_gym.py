"""Tasks that the package reasoning-gym generates and verifies, such as task=reasoning_gym task.dataset=basic_arithmetic.

Each data set has a config of its own, whose keys are given by `task.params`, and a function that scores an answer from 0 to 1.
Source: Stojanovski et al., "Reasoning Gym", arXiv 2505.24760.
"""

from __future__ import annotations

import difflib
from typing import Any

from harness.config import ReasoningGymConfig
from harness.errors import UserError, first_line
from harness.tasks.text import Text

UNUSABLE = {"composite"}
"""Data sets whose config holds objects of other data sets, which no key gives."""
OURS = {"seed": "task.seed", "size": "task.train and task.held_out"}
"""Key of every data set's config -> the keys that set it here."""
ATTEMPTS = 20
"""Maximum number of items generated per requested prompt. It is above 1 because data sets repeat items."""


class ReasoningGym(Text):
    """Task of a data set of reasoning-gym, configured by harness.config.ReasoningGymConfig."""

    config: ReasoningGymConfig

    def load(self, split: str) -> list[dict[str, Any]]:
        """Records (dicts with a `prompt`) of the items generated for the split `train` or `held_out`."""
        items = different_items(self.config)
        return items[: self.config.train] if split == "train" else items[self.config.train :]


def different_items(config: ReasoningGymConfig) -> list[dict[str, Any]]:
    """The first train + held_out items of the data set with different questions.

    Each item also holds, as `dataset`, the data set that scores answers to it. Raises UserError if ATTEMPTS times as many
    generated items have fewer different questions.
    """
    wanted = config.train + config.held_out
    dataset = _dataset(config, wanted * ATTEMPTS)
    items: dict[str, dict[str, Any]] = {}
    for number in range(wanted * ATTEMPTS):
        item = dataset[number]
        items.setdefault(item["question"], item | {"dataset": dataset})
        if len(items) == wanted:
            return list(items.values())
    raise UserError(
        f"task.train and task.held_out: {wanted} different prompts are more than the {len(items)} found in "
        f"{wanted * ATTEMPTS} of task.dataset={config.dataset}; lower them, or change task.params"
    )


def _dataset(config: ReasoningGymConfig, size: int) -> Any:
    import reasoning_gym  # takes a second, and is an extra

    name, known = config.dataset, sorted(reasoning_gym.factory.DATASETS.keys() - UNUSABLE)
    if name not in known:
        close = difflib.get_close_matches(name, known, 3)
        listing = 'python -c "import reasoning_gym as r; print(*r.factory.DATASETS)"'
        use = ", ".join(close) if close else f"one of these {len(known)}: {listing}"
        whose = "its config holds other data sets" if name in UNUSABLE else "no data set of reasoning-gym"
        raise UserError(f"task.dataset={name}: {whose}; use {use}")
    for key in config.params.keys() & OURS.keys():
        raise UserError(f"task.params.{key}: leave it out, and give {OURS[key]}")
    try:
        return reasoning_gym.create_dataset(name, seed=config.seed, size=size, **config.params)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"task.params: {name} refuses {config.params} ({first_line(error)})") from None


def verify(response: str, record: dict[str, Any]) -> float:
    """Score of a response's answer from 0 to 1, by the record's data set.

    The answer is the text in the response's last <answer> tag, or the whole response if it has none. White space around the
    answer does not count. An answer that the data set cannot read has the score 0.
    """
    from reasoning_gym.utils import extract_answer

    tagged = extract_answer(response)
    try:
        score = float(record["dataset"].score_answer(response.strip() if tagged is None else tagged, record))
    except Exception:  # prime_factorization raises on every answer without whole numbers, others on rarer ones
        return 0.0
    return min(max(score, 0.0), 1.0)  # spell_backward rounds to above 1
