"""Choice of the policy that the statistics judge: the trainer's own, or the one that samples the rollouts.

A run with `evaluation.policy=both` has recorded both rewards. To judge the sampling policy, its reward replaces the trainer's,
and the collapse detectors that read the reward run again. So events, tables and tests are those of the judged policy.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.statistics.definitions import of_reward, reread
from analysis.store import Record
from harness.collapse import outcome
from harness.errors import UserError

DEPLOYED = {"trainer": "the trainer's own policy", "rollout": "the rollout engine's policy"}
"""Names of the policies in the report, by the value of `faultline report --deployed` that chooses them."""
ANOTHER = {"eval/reward": "eval/rollout_reward", "eval/stderr": "eval/rollout_stderr"}


def judge(records: dict[str, Record], steps: pd.DataFrame, deployed: str) -> tuple[dict[str, Record], pd.DataFrame]:
    """The records and steps, with eval/reward and its collapse events of the policy `deployed`, a key of DEPLOYED. Raises
    UserError if a run did not record the reward of that policy."""
    lacking = [run for run, record in records.items() if not _recorded(record.config, deployed)]
    if lacking:
        raise UserError(
            f"--deployed {deployed}: {len(lacking)} of {len(records)} runs did not record the reward of {DEPLOYED[deployed]}, "
            f"{lacking[0]} first; evaluation.policy=both records it"
        )
    both = [run for run, record in records.items() if record.config["evaluation"]["policy"] == "both"]
    if deployed == "trainer" or not both:
        return records, steps
    mine = steps.run.isin(both)
    steps = steps.assign(**{name: steps[name].where(~mine, steps.get(other)) for name, other in ANOTHER.items()})
    curves = {run: part for run, part in steps[mine].groupby(steps.run[mine].astype(str), observed=True)}
    return {run: _again(record, curves.get(run)) if run in both else record for run, record in records.items()}, steps


def _recorded(config: dict[str, Any], deployed: str) -> bool:
    return config["evaluation"]["policy"] in ("both", "rollout" if deployed == "rollout" else "own")


def _again(record: Record, rows: pd.DataFrame | None) -> Record:
    evaluated = [] if rows is None else rows[["step", *ANOTHER]].dropna().to_dict("records")
    watched = of_reward(record.config)
    onsets = {name: at for name, at in record.onsets.items() if name not in watched} | reread(evaluated, record.config)
    # A run that the other policy's collapse ended early has no known outcome of this one.
    early = record.state == "collapsed" and record.config["collapse"]["stop"] and outcome(onsets, watched).kind != "collapsed"
    return record._replace(onsets=onsets, state="interrupted" if early else record.state)
