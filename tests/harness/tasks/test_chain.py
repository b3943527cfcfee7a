"""The chain task against a walk written out step by step."""

import numpy as np
import pytest

from harness.config import ChainConfig
from harness.tasks.chain import Chain


def chain(**changes) -> Chain:
    return Chain(ChainConfig(**{"name": "chain", "length": 6, "choices": 1, "modulus": 10, "slip": 0.0, **changes}))


def test_reward_by_hand():
    """start 3, step 4: 7, 1, 5, 9, 3, 7. Only the last value counts, so a slip that heals is right."""
    task, prompt = chain(), np.array([[10, 3, 4]])
    right, healed, wrong = [7, 1, 5, 9, 3, 7], [7, 1, 0, 9, 3, 7], [7, 1, 5, 9, 3, 8]
    assert task.reward(np.repeat(prompt, 3, 0), np.array([right, healed, wrong])).tolist() == [1, 1, 0]


def test_reward_with_choices_by_hand():
    """start 3, step 4, target 9, tokens 10+j are moves: 3 -j0-> 7 -j2-> 3 -j1-> 8 ... each value must follow from its move."""
    task, prompt = chain(length=3, choices=3), np.array([[13, 3, 4, 8]])
    right = [10, 7, 12, 3, 11, 8]
    jumped = [10, 7, 12, 4, 11, 8]  # 7+4+2 is 3, not 4
    elsewhere = [10, 7, 12, 3, 10, 7]  # valid moves to another end
    no_move = [5, 7, 12, 3, 11, 8]  # 5 is a value, not a move
    answers = np.array([right, jumped, elsewhere, no_move])
    assert task.reward(np.repeat(prompt, 4, 0), answers).tolist() == [1, 0, 0, 0]


def test_reward_of_a_total_by_hand():
    """start 3, step 4, two moves of 0..2 each, modulo 4: totals 0 to 4, and the offset (4 − 3)//2 is 0. Target 3 wants 1 + 2.

    Tokens 4+j are moves: 3 -j1-> 0 -j2-> 2. A wrong value, or a right walk of another total, is not right.
    """
    task, prompt = chain(length=2, choices=3, modulus=4, goal="total"), np.array([[7, 3, 0, 3]])
    right, other_way = [5, 0, 6, 2], [6, 1, 5, 2]
    jumped, fewer, more = [5, 0, 6, 3], [5, 0, 5, 1], [6, 1, 6, 3]
    answers = np.array([right, other_way, jumped, fewer, more])
    assert task.reward(np.repeat(prompt, 5, 0), answers).tolist() == [1, 1, 0, 0, 0]


def test_totals_are_centred_and_every_demonstration_has_its_own():
    """Sixteen moves of 0 or 1 reach 0 to 16. The offset (16 − 11)//2 = 2 makes targets 0 to 11 the totals 2 to 13, all of which
    can be reached from each of 144 starts and steps. Slips change values and no total."""
    task = chain(length=16, choices=2, modulus=12, goal="total", slip=0.3)
    prompts = task.prompts()
    answers = task.demonstrations(prompts, np.random.default_rng(0))
    assert len(prompts) == 12**3
    assert ((answers[:, 0::2] - 12).sum(1) == prompts[:, 3] + 2).all()
    sure = chain(length=16, choices=2, modulus=12, goal="total")
    assert sure.reward(prompts, sure.demonstrations(prompts, np.random.default_rng(1))).all()


def test_the_moves_of_a_total_are_uniform_among_those_that_reach_it():
    """Three moves of 0 or 1 that add up to 1 (modulo 4, offset 0): 100, 010 and 001, a third each."""
    task = chain(length=3, choices=2, modulus=4, goal="total")
    prompts = np.repeat([[6, 0, 0, 1]], 6000, 0)
    moves = task.demonstrations(prompts, np.random.default_rng(2))[:, 0::2] - 4
    shares = [(moves == way).all(1).mean() for way in np.eye(3, dtype=int)]
    assert sum(shares) == 1 and np.abs(np.array(shares) - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 6000)


def test_a_total_needs_moves():
    with pytest.raises(ValueError, match="goal=total has no effect with choices=1"):
        chain(goal="total")


@pytest.mark.parametrize("choices", [1, 2, 5, 10])
def test_demonstrations_without_slips_are_right(choices):
    task = chain(choices=choices, length=8)
    prompts = task.prompts()
    answers = task.demonstrations(prompts, np.random.default_rng(0))
    assert answers.shape == (len(prompts), task.answer_length) and answers.max() < task.bos
    assert task.reward(prompts, answers).all()


@pytest.mark.parametrize(("choices", "count"), [(1, 100), (2, 700), (10, 1000)])
def test_every_prompt_has_an_answer(choices, count):
    """Two choices over 6 steps reach 7 of 10 targets for each of 100 (start, step)."""
    assert len(chain(choices=choices).prompts()) == count


def test_slips_are_as_frequent_as_asked_and_the_walk_goes_on_from_them():
    task = chain(slip=0.1, length=50)
    prompts = np.repeat(task.prompts(), 20, 0)
    answers = task.demonstrations(prompts, np.random.default_rng(1))
    before = np.concatenate([prompts[:, 1:2], answers[:, :-1]], axis=1)
    slipped = answers != (before + prompts[:, 2:3]) % 10
    n = slipped.size
    assert abs(slipped.mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / n)


def test_a_free_walk_keeps_entropy():
    """Ten choices: each move but the last is free, so the moves of the demonstrations are near uniform."""
    task = chain(choices=10, length=5)
    prompts = np.repeat(task.prompts(), 5, 0)
    first = task.demonstrations(prompts, np.random.default_rng(0))[:, 0] - 10
    assert np.bincount(first, minlength=10).min() > 0.08 * len(first)


def test_garbage_scores_zero_or_chance():
    task = chain(choices=4)
    prompts = task.prompts()
    garbage = np.random.default_rng(0).integers(0, task.vocab_size, (len(prompts), task.answer_length))
    assert task.reward(prompts, garbage).mean() < 0.01
