"""The arithmetic task: its prompts, its dials, its verifier."""

import re

import numpy as np
import pytest

from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.tasks import PAD
from harness.tasks.arithmetic import Sums, value, verify
from tests.harness.tasks.test_text import model  # noqa: F401  a tokenizer of words, made there


@pytest.fixture
def task(model):  # noqa: F811
    def make(*overrides: str) -> Sums:
        hub = ["tracking=disabled", "model=hub", f"model.path={model}", "warmstart=none", "task=arithmetic"]
        return build_task(parse(compose(*hub, *overrides)))

    return make


def test_prompts_are_different_sums_of_the_size_asked_for_and_the_same_each_time(task):
    made, again = task(), task()
    records = list(made.records.values())
    assert made.counts == {"kept": 96, "dropped": 0, "cut": 0, "repeated": 0}
    assert made.train.shape == (64, 64) and made.held_out.shape == (32, 64)
    assert len({record["prompt"] for record in records}) == 96
    assert all(re.fullmatch(r"What is \d [+-] \d\?", record["prompt"]) for record in records)
    assert np.array_equal(made.prompts(), again.prompts())
    assert {record["prompt"].split()[3] for record in records} == {"+", "-"}


def test_every_dial_makes_other_sums(task):
    harder = task("task.terms=4", "task.operators='+*'", "task.train=10", "task.held_out=5")
    prompts = [record["prompt"] for record in harder.records.values()]
    assert len(prompts) == 15 and all(re.fullmatch(r"What is \d( [+*] \d){3}\?", prompt) for prompt in prompts)
    harder.config = harder.config.model_copy(update={"digits": 3})  # the tokenizer here has words for single digits only
    numbers = [int(n) for record in harder.load("train") for n in re.findall(r"\d+", record["prompt"])]
    assert len(numbers) == 40 and 99 < max(numbers) < 1000


@pytest.mark.parametrize(
    ("written", "right"),
    [("3 + 4", 7), ("3 - 12", -9), ("3 + 4 * 5", 23), ("2 * 3 - 4 * 5 + 1", 2 * 3 - 4 * 5 + 1), ("10 - 4 - 3", 3), ("0 * 9", 0)],
)
def test_multiplication_binds_first_and_subtraction_goes_from_the_left(written, right):
    assert value(written) == right


@pytest.mark.parametrize(
    ("response", "right", "reward"),
    [
        ("54", 54, 1), ("26 + 28 = 54.", 54, 1), ("It is 54 or 55", 54, 0), ("-5", -5, 1), ("7 - 12 = -5", -5, 1), ("5", -5, 0),
        ("12-7", 7, 1), ("1,234", 1234, 1), ("fifty-four", 54, 0), ("", 0, 0), ("0.54", 54, 0), ("540", 54, 0),
    ],
)  # fmt: skip
def test_the_last_whole_number_of_a_response_counts(response, right, reward):
    assert verify(response, {"value": right}) == reward


def test_a_right_answer_is_rewarded_through_the_tokenizer(task):
    made = task()
    digits = [made.tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    singles = [row for row in made.train if 0 <= made.records[row.tobytes()]["value"] <= 9]
    right = np.array([[digits[made.records[row.tobytes()]["value"]], made.stop[0], PAD] for row in singles])
    wrong = np.roll(right[:, :1], 1, 0) != right[:, :1]
    assert made.reward(np.stack(singles), right).tolist() == [1.0] * len(singles)
    assert made.reward(np.stack(singles), np.roll(right, 1, 0)).tolist() == (1.0 - wrong[:, 0]).tolist()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.train=169", r"task\.train and task\.held_out: 201 different prompts are more than the 200"),
        ("task.operators='+/'", r"task\.operators='\+/'"),
        ("task.terms=1", r"task\.terms=1"),
        ("task.max_prompt=3", r"no prompts are left"),
    ],
)
def test_what_cannot_be_is_refused(task, override, message):
    with pytest.raises(UserError, match=message):
        task(override)
