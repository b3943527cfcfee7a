"""Tasks of reasoning-gym: their items, their verifier, and what they refuse. The right answers are the package's own."""

import numpy as np
import pytest

from harness.build import build_task
from harness.compose import compose
from harness.config import ReasoningGymConfig, parse
from harness.errors import UserError
from harness.tasks.reasoning_gym import different_items, verify
from tests.harness.tasks.test_text import model  # noqa: F401  a tokenizer of words, made there

DATASETS = ("basic_arithmetic", "chain_sum", "leg_counting", "spell_backward", "gcd", "number_sorting", "simple_equations")
FEW = tuple(f"+task.params.{key}" for key in ("max_terms=2", "min_digits=1", "max_digits=1", "operators=['+']",
                                              "allow_parentheses=false", "allow_negation=false"))  # fmt: skip
"""The sums of two numbers of one digit."""
HUB = ("tracking=disabled", "model=hub", "warmstart=none", "task=reasoning_gym", "task.train=6", "task.held_out=4")


def section(*overrides: str) -> ReasoningGymConfig:
    return parse(compose(*HUB, "model.path=nowhere", *overrides)).task


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_right_answer_has_reward_1_and_another_less(dataset):
    items = different_items(section(f"task.dataset={dataset}"))
    assert len({item["question"] for item in items}) == len(items) == 10
    for item in items:
        answer = str(item["answer"])
        assert verify(f" {answer}\n", item) == 1.0
        assert verify(f"I think <answer>{answer}</answer>", item) == 1.0
        assert verify("no idea", item) < 0.5 and verify("", item) < 0.2  # some data sets give credit for a part


@pytest.mark.parametrize(("dataset", "answer"), [("prime_factorization", "no idea"), ("boxnet", "7"), ("coin_flip", "1e999")])
def test_an_answer_that_a_data_set_cannot_read_has_reward_0(dataset, answer):
    """The verifiers of these raise on it: a run must go on."""
    item = different_items(section(f"task.dataset={dataset}", "task.train=1", "task.held_out=1"))[0]
    with pytest.raises((ValueError, TypeError, OverflowError)):
        item["dataset"].score_answer(answer, item)
    assert verify(answer, item) == 0.0


def test_a_task_has_prompts_and_rewards_them(model):  # noqa: F811
    """Its tokenizer knows the digits. Item i of a data set depends on seed + i alone, so another seed is another order."""
    overrides = (f"model.path={model}", "task.max_prompt=2000", "+task.params.max_terms=2", "+task.params.max_digits=1")
    made, again = (build_task(parse(compose(*HUB, *overrides))) for _ in range(2))
    assert np.array_equal(made.prompts(), again.prompts())
    assert made.reward(made.train[:1], np.array([[made.stop[0], -1]])).tolist() == [0.0]
    assert different_items(section())[0]["question"] != different_items(section("task.seed=1"))[0]["question"]


def test_keys_of_the_data_set_are_obeyed():
    words = different_items(section("task.dataset=spell_backward", "+task.params.min_word_len=3", "+task.params.max_word_len=3"))
    assert {len(item["answer"]) for item in words} == {3}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.dataset=basic_arithmetics"], r"task\.dataset=basic_arithmetics: no data set .*; use basic_arithmetic"),
        (["task.dataset=nosuchset"], r"nosuchset: no data set of reasoning-gym; use one of these \d+: python -c "),
        (["task.dataset=composite"], r"task\.dataset=composite: its config holds other data sets; use "),
        (["+task.params.seed=3"], r"task\.params\.seed: leave it out, and give task\.seed"),
        (["+task.params.size=3"], r"task\.params\.size: leave it out, and give task\.train and task\.held_out"),
        (["+task.params.terms=3"], r"task\.params: basic_arithmetic refuses \{'terms': 3\} \(.*unexpected keyword"),
        (["+task.params.min_terms=0"], r"task\.params: basic_arithmetic refuses \{'min_terms': 0\}"),
        ([*FEW, "task.train=300"], r"304 different prompts are more than the \d+ found in 6080"),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    with pytest.raises(UserError, match=message):
        different_items(section(*overrides))


def test_a_key_of_the_data_set_without_a_plus_is_told_how_to_write_it():
    with pytest.raises(UserError, match=r"^task\.params\.max_terms: not in the config so far; write \+task\.params\.max_terms"):
        section("task.params.max_terms=2")
