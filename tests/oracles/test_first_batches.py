"""The table of first batches of a trainer."""

import pandas as pd

from tests.oracles.first_batches import table
from tests.oracles.trl_batches import TRL


def rows(setting: str, answers: list[tuple[str, str]]) -> list[dict]:
    return [
        {"setting": setting, "kind": kind, "named": named, "mean_ratio": 1 + 0.1 * place, "z": 2.0 * place, "k3": 10.0**-place}
        for place, (kind, named) in enumerate(answers)
    ]


def test_the_table_by_hand():
    """An alarm of another name, or without one, is not right. Where no fault has a name no answer is."""
    found = [("fault", "truncated_sampling"), ("fault", "swapped"), ("unknown", "")]
    frame = pd.DataFrame(
        rows("top_p 0.9", found) + rows("repetition_penalty 1.2", found[2:]) + rows("temperature 1", [("consistent", "")])
    )
    shown = table(TRL, frame).set_index("TRL's setting")
    assert shown.loc["top_p 0.9"].tolist() == [
        "1.0000 to 1.2000", "0.0 to 4.0", "1.0e-02 to 1.0e+00", "1 truncated_sampling, 1 swapped, 1 unknown", "1 of 3",
    ]  # fmt: skip
    assert shown["right"].tolist() == ["1 of 3", "no name is right", "1 of 1"]
