"""The diagnosis of a batch's log-probabilities as one line in the output of another training program."""

from __future__ import annotations

from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.evidence import Predicted
from algos.faults.diagnose import diagnose
from harness.errors import UserError, printable


def print_diagnosis(program: str, step: int, batch: Batch, tokens: Tensor | None, entropy: Tensor | None = None) -> None:
    """Print the diagnosis of a batch's logp_old and logp_rollout, and where to look in `program` if there is a fault.

    program: "TRL", "verl" or the like. step: printed in the line. tokens: ids [B, T], or None. entropy: H(π_old) of each token in
    nats, [B, T], or None. Nothing is printed if the mask is empty.
    """
    if not bool(batch.mask.any()):
        return
    found = diagnose(batch, tokens=tokens, predicted=Predicted(entropy))
    if found.copied:
        print(f"faultline: step {step}: NOT TESTED every ratio is exactly 1: is logp_old a copy of logp_rollout?", flush=True)
        return
    check = f"; check {found.check[program]}" if program in found.check else ""
    print(printable(f"faultline: step {step}: {found}{check}"), flush=True)


def check_intervals(**intervals: int | None) -> None:
    """Raise UserError naming an interval that is below 1. intervals: name of an argument -> number of steps; None for never."""
    for name, every in intervals.items():
        if every is not None and every < 1:
            raise UserError(f"{name}={every}: give a whole number of at least 1, as 10 for every tenth step")
