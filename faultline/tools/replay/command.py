"""The command `faultline replay DUMP`. It imports torch and matplotlib once all is checked: a refusal does without."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algos.diagnostics import rounding
from faultline.tools.replay.example import example
from faultline.tools.replay.gate import parse
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.errors import UserError, printable
from harness.startup import uncollected

if TYPE_CHECKING:
    from faultline.tools.replay.verdict import Verdict

FP8 = (
    "fp8 names no format. Take fp8_tensor for vLLM's quantization=fp8 and fp8_per_tensor, fp8_channel for its fp8_per_channel, "
    "fp8_block for its fp8_per_block and for verl's quantization=fp8"
)
"""Answer to --precision fp8. vLLM 0.32 takes fp8 for FP8 checkpoints only. verl's fp8 has blocks of 128 x 128 weights."""


def replay_command(
    dump: Path | None,
    *,
    example_name: str | None = None,
    corrections: list[str] | None = None,
    gates: list[str] | None = None,
    null: Path | None = None,
    skip_bad: bool = False,
    precision: str | None = None,
    baseline: Path | None = None,
    **options: Any,
) -> Verdict:
    """Check what is asked of a dump, print the verdict on it, write the page and CSV files, and return the verdict.

    dump: a file, a folder or a run folder. example_name: a shipped dump instead. corrections: names of presets or YAML files,
    all presets if None. gates: bounds of metrics, as k3<2e-3. null: a dump without mismatch, for false rejections.
    precision: the coarser of the sampler's and the trainer's precisions, a name of `rounding.K3`; by default that of the run's
    config or of the example.
    baseline: a dump of the same model without a fault, whose K3 counts instead of the precision's.
    options: the other parameters of `answer`.
    Raises UserError unless exactly one of dump and example_name is given, on an unknown precision and on a wrong gate.
    """
    if (dump is None) == (example_name is None):
        raise UserError(f"give a dump, or --example for the one that ships with the package{'; not both' if dump else ''}")
    bounded = [parse(gate) for gate in gates or []]
    path = example(example_name) if example_name else Path(dump or "")
    specs = {name: preset.correction for name, preset in presets(corrections).items()}
    print(printable(f"reading {path}"), file=sys.stderr, flush=True)
    if precision == "fp8":
        raise UserError(f"--precision fp8: {FP8}")
    if precision is not None and precision not in rounding.K3:
        raise UserError(f"--precision {precision}: its rounding was not measured; accepted are {', '.join(rounding.K3)}")
    for one, lenient in ((baseline, False), (path, skip_bad), (null, skip_bad)):
        if one is not None:
            Dump(one, skip_bad=lenient).check()
    with uncollected():
        from faultline.tools.replay.answer import answer
    return answer(
        path,
        specs,
        bounded,
        example_name=example_name,
        chosen=bool(corrections),
        null=null,
        skip_bad=skip_bad,
        precision=precision,
        baseline=baseline,
        **options,
    )
