"""A gate for continuous integration: a bound that a metric of the verdict must keep, decided by the metric's interval."""

from __future__ import annotations

import operator
import re
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from faultline.tools.replay.intervals import STATISTICS, Interval
from harness.errors import UserError

METRICS = (*STATISTICS, "largest_log_ratio")
"""Metrics of a verdict that a gate can bound: those with an interval."""
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
FORM = re.compile(r"\s*(?P<metric>\w+)\s*(?P<sign>[<>]=?)\s*(?P<bound>\S+)\s*")

Outcome = Literal["pass", "fail", "undecided"]


class GateResult(BaseModel):
    """A gate (a bound on a metric of the verdict), and whether a dump passes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    gate: str = Field(description="as it was given")
    value: float | None = Field(description="value of its metric on this dump")
    interval: Interval | None = Field(description="95 % interval of the metric, over resampled prompts; null of one sample")
    outcome: Outcome = Field(description="pass: the whole interval keeps the bound. fail: none of it does. undecided: a part")


class Gate(NamedTuple):
    """A bound on a metric. text: the user's words. metric: a name of `METRICS`. sign: <, <=, > or >=."""

    text: str
    metric: str
    sign: str
    bound: float

    def result(self, value: float | None, interval: Interval | None) -> GateResult:
        """Decide the gate by both ends of the interval. Without a value or an interval the gate is undecided."""
        outcome: Outcome = "undecided"
        if value is not None and interval is not None:
            keeps = {COMPARE[self.sign](end, self.bound) for end in interval}
            outcome = "undecided" if len(keeps) > 1 else "pass" if True in keeps else "fail"
        return GateResult(gate=self.text, value=value, interval=interval, outcome=outcome)


def parse(text: str) -> Gate:
    """Parse a gate such as k3<2e-3 or ess_token>=0.9. Raises UserError on an unknown metric and on any other form."""
    match = FORM.fullmatch(text)
    if match is None or match["metric"] not in METRICS:
        raise UserError(f"--gate {text}: write a metric and its bound, as k3<2e-3; metrics are {', '.join(METRICS)}")
    try:
        bound = float(match["bound"])
    except ValueError:
        bound = float("nan")
    if not abs(bound) < float("inf"):
        raise UserError(f"--gate {text}: {match['bound']} is no finite number; write a bound, as k3<2e-3")
    return Gate(text.strip(), match["metric"], match["sign"], bound)
