"""The pictures of the second study show the numbers of its records."""

from pathlib import Path

import pandas as pd

from experiments.second_picture import FINDING, persistence

LONG = pd.read_csv(Path(__file__).parents[2] / "experiments/study/second/long.csv")


def test_the_costs_in_the_picture_are_those_of_family_f17():
    """experiments/study/second/table.md: fresh noise ends 0.059 below the control, fixed noise 0.247."""
    (axis,) = persistence(LONG).axes
    assert axis.get_title(loc="left").strip() == FINDING
    assert [text.get_text() for text in axis.texts][:3] == [
        "no error",
        "redrawn at each weight sync\ncosts 0.06 at the end",
        "kept for the whole run\ncosts 0.25 at the end",
    ]


def test_an_error_without_a_cost_is_drawn_as_one():
    same = LONG[LONG.noise == 0]
    arms = [same.assign(noise=noise, persistence=kept) for noise, kept in ((0.0, 0.0), (0.2, 0.0), (0.2, 1.0))]
    (axis,) = persistence(pd.concat(arms)).axes
    assert [text.get_text().partition("\n")[2] for text in axis.texts][:3] == [
        "",
        "costs 0.00 at the end",
        "costs 0.00 at the end",
    ]
