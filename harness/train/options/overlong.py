"""overlong.buffer: DAPO's punishment of overlong responses (arXiv 2503.14476 section 3.4), as a part of the reward."""

from __future__ import annotations

from torch import Tensor

from algos.shaping import overlong_punishment
from harness.train.data.responses import Responses
from harness.train.options.greedy import GREEDY, GREEDY_LENGTHS


class Overlong:
    """Adds the punishment of overlong responses (`algos.shaping.overlong_punishment`) to the rewards.

    longest: maximum length in tokens. buffer: tokens below `longest` over which the punishment grows from 0 to `penalty`.
    """

    def __init__(self, longest: int, buffer: int, penalty: float):
        self.longest, self.buffer, self.penalty = longest, buffer, penalty

    def __call__(self, responses: Responses) -> tuple[Responses, dict[str, Tensor]]:
        """Return (responses with punished rewards, metrics). ReMax subtracts greedy rewards, so these are punished too."""
        rewards, of_prompts = responses.rewards, responses.of_prompts
        punishment = self._punishment(responses.rollout.written.sum(1).view_as(rewards))
        if GREEDY in of_prompts:
            greedy = of_prompts[GREEDY]
            of_prompts = {**of_prompts, GREEDY: greedy + self._punishment(of_prompts[GREEDY_LENGTHS]).to(greedy.dtype)}
        shaped = responses._replace(rewards=rewards + punishment.to(rewards.dtype), of_prompts=of_prompts)
        return shaped, {"reward/overlong_penalty": -punishment.mean(), "reward/overlong": (punishment < 0).double().mean()}

    def _punishment(self, lengths: Tensor) -> Tensor:
        return overlong_punishment(lengths, longest=self.longest, buffer=self.buffer, penalty=self.penalty)
