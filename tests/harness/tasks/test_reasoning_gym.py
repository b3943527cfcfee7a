"""Tasks of reasoning-gym: their prompts, their verifier, and what they refuse. The answers are the package's own."""

import numpy as np
import pytest

from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.tasks.reasoning_gym import ReasoningGym, verify
from tests.harness.tasks.test_text import model  # noqa: F401  a tokenizer of words, made there

DATASETS = ("basic_arithmetic", "chain_sum", "leg_counting", "spell_backward", "gcd", "number_sorting", "simple_equations")


@pytest.fixture
def task(model):  # noqa: F811
    def make(*overrides: str) -> ReasoningGym:
        hub = ["tracking=disabled", "model=hub", f"model.path={model}", "warmstart=none", "task=reasoning_gym"]
        small = ["task.train=6", "task.held_out=4", "task.max_prompt=2000"]
        return build_task(parse(compose(*hub, *small, *overrides)))

    return make


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_right_answer_has_reward_1_and_another_less(dataset, task):
    made = task(f"task.dataset={dataset}")
    records = list(made.records.values())
    assert len(records) == 10 and len({record["question"] for record in records}) == 10
    for record in records:
        answer = str(record["answer"])
        assert verify(f" {answer}\n", record) == 1.0
        assert verify(f"I think <answer>{answer}</answer>", record) == 1.0
        assert verify("no idea", record) < 0.2 and verify("", record) == 0.0


def test_prompts_follow_the_seed_and_the_keys_of_the_data_set(task):
    made, again, other = task(), task(), task("task.seed=1")
    assert np.array_equal(made.prompts(), again.prompts())
    assert {r["question"] for r in made.records.values()}.isdisjoint(r["question"] for r in other.records.values())
    words = task("task.dataset=spell_backward", "task.params={min_word_len: 3, max_word_len: 3}")
    assert {len(record["answer"]) for record in words.records.values()} == {3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task.dataset=basic_arithmetics",
            r"task\.dataset=basic_arithmetics: no data set .*; use basic_arithmetic",
        ),
        ("task.params={terms: 3}", r"task\.params: basic_arithmetic refuses \{'terms': 3\} \(.*unexpected keyword"),
        ("task.params={min_terms: 0}", r"task\.params: basic_arithmetic refuses \{'min_terms': 0\}"),
        (
            "task.params={min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1, operators: ['+']}",
            r"different prompts are more",
        ),
    ],
)
def test_what_cannot_be_is_refused(task, override, message):
    more = ["task.train=500"] if "operators" in override else []
    with pytest.raises(UserError, match=message):
        task(override, *more)
