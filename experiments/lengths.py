"""What a sequence weight costs by the length of a response: stories of SmolLM2, rewarded for one letter.

Every token of a story moves the reward, so that the true gradient shows in few responses at any length. See docs/study.md.
"""

from __future__ import annotations

from typing import Any


def letter(response: str, record: dict[str, Any]) -> float:
    """The share of the response's letters that are an e; 0 where there is no letter."""
    letters = [character for character in response.lower() if character.isalpha()]
    return letters.count("e") / len(letters) if letters else 0.0
