"""`python -m tests.oracles.together`: print README.md's table, answers to the dumps of the record and of all first batches."""

from __future__ import annotations

import pandas as pd

from analysis.frames import markdown
from experiments.faults.report import answers, read
from tests.oracles.first_batches import RECORDS, recorded
from tests.oracles.skyrl_batches import SKYRL
from tests.oracles.trl_batches import TRL
from tests.oracles.verl_batches import VERL

RECORD = RECORDS.parent / "faults" / "record-6.csv"
SURE = ("raw_logprobs", "truncated_sampling")
"""Right answers to a batch logged before temperature, and to one logged after a cut of the distribution."""


def together() -> pd.DataFrame:
    """A row per kind of batch and a column per kind of answer. The record's answers are from verl's default columns."""
    table = answers(read(RECORD), "plain_").set_index("what was wrong")
    for trainer in (TRL, VERL, SKYRL):
        for batch in recorded(trainer).itertuples():
            row = table.index[0 if batch.expected in SURE else 3 if batch.expected == "consistent" else 2]
            right = "named" if batch.named == batch.expected else "wrong name"
            column = {"fault": right, "unknown": "`UNKNOWN`", "consistent": "`consistent`"}[batch.kind]
            table.loc[row, ["batches", column]] += 1
    return table.reset_index()


if __name__ == "__main__":
    print(markdown(together()))
