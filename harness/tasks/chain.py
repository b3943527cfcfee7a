"""The built-in chain task: walk through values modulo m. The reward is 1 if every move is right and the walk meets the goal.

The state x starts at `start`. One move j in 0..choices−1 leads to x' = (x + step + j) mod m.

- choices = 1: the prompt is [BOS, start, step]. The answer is the `length` values visited. Only the last value must be right.
- choices > 1: the prompt is [BOS, start, step, target]. The answer is `length` pairs (move, value). Each value must be the one
  its move leads to. All moves that meet the goal are right, so a policy that solves the task keeps entropy.
  goal = value: the last value must equal target. A policy must foresee how far the steps alone lead.
  goal = total: the moves must add up to target + offset, where the offset centres the m targets in the reachable totals. A
  policy must count its moves. A small model can do that over more tokens than it can plan.

Two settings change the difficulty: `length`, and `choices`, which also sets the entropy. In the warm start's demonstrations a
value slips with probability `slip` to another value, drawn uniformly, and the walk goes on from there. Pure numpy.
"""

from __future__ import annotations

import numpy as np

from harness.config import ChainConfig


class Chain:
    """Prompts, verifier and demonstrations of the chain task, a walk modulo m.

    Token ids: values 0..m−1, moves m..m+choices−1, then BOS.
    """

    stop: tuple[int, ...] = ()  # every answer has the full length

    def __init__(self, config: ChainConfig, tokenizer: None = None):
        self.config = config
        self.counts: dict[str, int] = {}
        m, c = config.modulus, config.choices
        self.moves = c if c > 1 else 0
        self.bos = m + self.moves
        self.vocab_size = self.bos + 1
        self.answer_length = config.length * (2 if c > 1 else 1)
        largest = config.length * (c - 1)
        self.offset = max(0, (largest - (m - 1)) // 2)
        self.cycle = m if config.goal == "value" else largest + 1

    def prompts(self) -> np.ndarray:
        """All prompts of the chain task that have an answer, [N, 3] or [N, 4] int64, in lexical order."""
        m = self.config.modulus
        columns = [range(m)] * (3 if self.moves else 2)
        body = np.stack([grid.ravel() for grid in np.meshgrid(*columns, indexing="ij")], axis=1)
        if self.moves:
            body = body[self._needed(body) <= self.config.length * (self.moves - 1)]
        return np.concatenate([np.full((len(body), 1), self.bos), body], axis=1)

    def _needed(self, body: np.ndarray) -> np.ndarray:
        """Sum, modulo `cycle`, of the moves of a walk that meets its goal, int64 [N]. body: rows (start, step, target)."""
        if self.config.goal == "total":
            return body[:, 2] + self.offset
        return (body[:, 2] - body[:, 0] - self.config.length * body[:, 1]) % self.cycle

    def reward(self, prompts: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Rewards of walks, float64 [N]: 1.0 if every move is right and the goal is met, else 0.0. Answers may hold any token."""
        m, length = self.config.modulus, self.config.length
        start, step = prompts[:, 1], prompts[:, 2]
        if not self.moves:
            return (answers[:, -1] == (start + length * step) % m).astype(np.float64)
        moves, values = answers[:, 0::2] - m, answers[:, 1::2]
        before = np.concatenate([start[:, None], values[:, :-1]], axis=1)
        walked = (values == (before + step[:, None] + moves) % m) & (moves >= 0) & (moves < self.moves) & (values < m)
        reached = values[:, -1] == prompts[:, 3] if self.config.goal == "value" else moves.sum(1) == self._needed(prompts[:, 1:])
        return (walked.all(axis=1) & reached).astype(np.float64)

    def segments(self, answers: np.ndarray) -> np.ndarray:
        """Number of the walk's step that each token belongs to, int64 [N, answer_length]. A move and its value form one step."""
        return np.broadcast_to(np.arange(self.answer_length) // (2 if self.moves else 1), answers.shape).copy()

    def demonstrations(self, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Demonstrations [N, answer_length] for the warm start: right answers in which some values slip to wrong ones.

        With choices > 1, each walk that still reaches the goal is equally likely.
        """
        m, length = self.config.modulus, self.config.length
        x, step, answer = prompts[:, 1].copy(), prompts[:, 2], []
        ways, moved = self._ways(), np.zeros_like(x)
        for t in range(length):
            move = np.zeros_like(x)
            if self.moves:
                if self.config.goal == "total":
                    missing = (self._needed(prompts[:, 1:]) - moved)[:, None] - np.arange(self.moves)
                else:
                    options = (x[:, None] + step[:, None] + np.arange(self.moves)) % m
                    missing = prompts[:, 3:4] - options - (length - 1 - t) * step[:, None]
                missing %= self.cycle
                odds = ways[length - 1 - t][missing] + 1e-12  # after a late slip no walk may reach it: then any move
                cumulative = (odds / odds.sum(1, keepdims=True)).cumsum(1)
                move = (rng.random((len(x), 1)) > cumulative[:, :-1]).sum(1)
                answer.append(m + move)
                moved += move
            slips = rng.random(len(x)) < self.config.slip
            x = (x + step + move + np.where(slips, rng.integers(1, m, len(x)), 0)) % m
            answer.append(x)
        return np.stack(answer, axis=1)

    def _ways(self) -> np.ndarray:
        """Table [length, cycle] that holds, at (k, s), the share of sequences of k moves whose sum is s modulo `cycle`."""
        ways = np.zeros((self.config.length, self.cycle))
        ways[0, 0] = 1
        for k in range(1, self.config.length):
            ways[k] = np.mean([np.roll(ways[k - 1], j) for j in range(self.config.choices)], axis=0)
        return ways
