"""The embedded task: walk a chain of values modulo m. The reward is 1 if the walk ends where the prompt wants it to.

The state x starts at `start`. One move j in 0..choices−1 leads to x' = (x + step + j) mod m.

- choices = 1: the prompt is [BOS, start, step]. The answer is the `length` values visited. The last one must be right.
- choices > 1: the prompt is [BOS, start, step, target]. The answer is `length` pairs (move, value). Each value must be the one
  its move leads to, and the last must equal target. The moves are free, so a solved policy keeps entropy.

Two dials: `length`, and the entropy that `choices` leaves. In the warm start's demonstrations a value slips with probability
`slip` to another value, uniformly, and the walk goes on from there. Pure numpy.
"""

from __future__ import annotations

import numpy as np

from harness.config import ChainConfig


class Chain:
    """Prompts, verifier and demonstrations of one setting. Tokens: values 0..m−1, moves m..m+choices−1, then BOS."""

    stop: tuple[int, ...] = ()  # every answer has the full length

    def __init__(self, config: ChainConfig, tokenizer: None = None):
        self.config = config
        self.counts: dict[str, int] = {}
        m, c = config.modulus, config.choices
        self.moves = c if c > 1 else 0
        self.bos = m + self.moves
        self.vocab_size = self.bos + 1
        self.answer_length = config.length * (2 if c > 1 else 1)

    def prompts(self) -> np.ndarray:
        """Every prompt that has an answer, [N, 3] or [N, 4] int64, in lexical order."""
        m = self.config.modulus
        columns = [range(m)] * (3 if self.moves else 2)
        body = np.stack([grid.ravel() for grid in np.meshgrid(*columns, indexing="ij")], axis=1)
        if self.moves:
            drift = (body[:, 2] - body[:, 0] - self.config.length * body[:, 1]) % m
            body = body[drift <= self.config.length * (self.moves - 1)]  # the moves must add up to the drift
        return np.concatenate([np.full((len(body), 1), self.bos), body], axis=1)

    def reward(self, prompts: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """float64 [N]: 1.0 where the answer [N, answer_length] is right, else 0.0. An answer may hold any token."""
        m, length = self.config.modulus, self.config.length
        start, step = prompts[:, 1], prompts[:, 2]
        if not self.moves:
            return (answers[:, -1] == (start + length * step) % m).astype(np.float64)
        moves, values = answers[:, 0::2] - m, answers[:, 1::2]
        before = np.concatenate([start[:, None], values[:, :-1]], axis=1)
        walked = (values == (before + step[:, None] + moves) % m) & (moves >= 0) & (moves < self.moves) & (values < m)
        return (walked.all(axis=1) & (values[:, -1] == prompts[:, 3])).astype(np.float64)

    def segments(self, answers: np.ndarray) -> np.ndarray:
        """int64 [N, answer_length]: the step of the walk that each token belongs to. A move and its value are one step."""
        return np.broadcast_to(np.arange(self.answer_length) // (2 if self.moves else 1), answers.shape).copy()

    def demonstrations(self, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Answers [N, answer_length] for the warm start: the walk, with slips.

        With choices the moves are drawn uniformly from the walks that reach the target from the present value.
        """
        m, length = self.config.modulus, self.config.length
        x, step, answer = prompts[:, 1].copy(), prompts[:, 2], []
        ways = self._ways()
        for t in range(length):
            move = np.zeros_like(x)
            if self.moves:
                options = (x[:, None] + step[:, None] + np.arange(self.moves)) % m
                missing = (prompts[:, 3:4] - options - (length - 1 - t) * step[:, None]) % m
                odds = ways[length - 1 - t][missing] + 1e-12  # after a late slip no walk may reach it: then any move
                cumulative = (odds / odds.sum(1, keepdims=True)).cumsum(1)
                move = (rng.random((len(x), 1)) > cumulative[:, :-1]).sum(1)
                answer.append(m + move)
            slips = rng.random(len(x)) < self.config.slip
            x = (x + step + move + np.where(slips, rng.integers(1, m, len(x)), 0)) % m
            answer.append(x)
        return np.stack(answer, axis=1)

    def _ways(self) -> np.ndarray:
        """[length, m]: at (k, s) the share of sequences of k moves whose sum is s mod m."""
        m = self.config.modulus
        ways = np.zeros((self.config.length, m))
        ways[0, 0] = 1
        for k in range(1, self.config.length):
            ways[k] = np.mean([np.roll(ways[k - 1], j) for j in range(self.config.choices)], axis=0)
        return ways
