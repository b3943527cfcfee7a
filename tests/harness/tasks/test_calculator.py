"""The calculator of task=tools, and what its verifier takes for an answer."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import REPLY_LENGTH
from harness.tasks.calculator import LONGEST, calculate
from harness.tasks.tools import reply, verify


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*7", "84"), ("3 + 4 * 5", "23"), ("(3 + 4) * 5", "35"), ("10 - 4 - 3", "3"), ("2*-3", "-6"), ("--2", "2"),
        ("100/8/5", "2.5"), ("1/3", "0.3333333333"), ("0.1 + 0.2", "0.3"), (" .5*4 ", "2"), ("007", "7"), ("6/3", "2"),
        ("1/0", "error: division by 0"), ("1/(2-2)", "error: division by 0"), ("", "error: syntax"), ("1+", "error: syntax"),
        ("(1", "error: syntax"), ("1)", "error: syntax"), ("1 2", "error: syntax"), ("2**3", "error: syntax"),
        ("__import__('os')", "error: syntax"), ("9" * 15, "9" * 15), ("9" * 15 + "+1", "error: too large"),
        ("(" * LONGEST + "1", "error: too long"), ("9" * LONGEST, "error: too large"), ("٣", "error: syntax"),
    ],
)  # fmt: skip
def test_it_is_exact_and_errors_become_text(expression, result):
    assert calculate(expression) == result


@given(st.text(alphabet="0123456789.+-*/() eJ_", max_size=LONGEST + 5))
def test_any_text_has_a_reply_that_fits(text):
    assert len(reply(text)) <= REPLY_LENGTH and reply(text).endswith("\n")


def joined(part):
    return st.tuples(part, st.sampled_from("+-*"), part).map(lambda three: f"({''.join(three)})")


@given(st.recursive(st.integers(0, 99).map(str), joined, max_leaves=6))
def test_it_agrees_with_python(expression):
    value = Fraction(eval(expression))  # of digits, + - * and parentheses alone
    assert calculate(expression) == (str(value) if abs(value) < 10**15 else "error: too large")


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("<<12*7>> = 84\n84", 1),
        ("<<12*7>> = 84\nIt is 84.", 1),
        ("84", 1),
        ("<<12*7>> = 84\n", 0),  # what the calculator wrote is no answer
        ("84 <<1>> = 1\n", 0),  # nor is what stands before its last reply
        ("<<12*7>> = 84\n<<84>>", 0),  # nor a call that nobody answered
        ("84<<5", 0),
        ("<<12*7>>\n = 84\n", 0),  # the same after a token that ended a call and a line
        ("<<12>>. = 12\n84", 1),  # a token that ended a call had more than its end
        ("<<12*7>> = 84\n83", 0),
    ],
)
def test_the_answer_stands_after_the_last_reply(response, reward):
    assert verify(response, {"value": 84}) == reward
