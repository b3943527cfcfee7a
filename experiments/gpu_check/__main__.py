"""`python -m experiments.gpu_check`: run the checks, print their tables, write them as one Markdown section."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from experiments.gpu_check.anatomy import check_anatomy
from experiments.gpu_check.formats import check_casts, check_products
from experiments.gpu_check.model import ARMS, Size
from experiments.gpu_check.section import CheckFailed, Table, markdown, section
from experiments.gpu_check.training import check_training
from harness import boundary
from harness.errors import UserError

CHECKS: dict[str, Callable[[Size, Path], Table | list[Table]]] = {
    "casts": lambda size, out: check_casts(),
    "products": lambda size, out: check_products(),
    "anatomy": lambda size, out: check_anatomy(size, out / "dumps"),
    "training": lambda size, out: check_training(size),
}
"""Functions of the checks by name, in the order of running. Quick checks, which other checks rely on, come first."""
WITHOUT_MODEL = {"casts", "products"}


def main(arguments: list[str]) -> int:
    """Run all checks, even after one that fails, and write their tables. Returns exit code 0 if all passed, else 1."""
    options = _parser().parse_args(arguments)
    if set(options.checks) - WITHOUT_MODEL and not Path(options.model).exists():
        raise UserError(f"--model {options.model}: there is no such folder here; `make llm` makes models/smollm2")
    size = Size(options.model, options.responses, options.answer, options.steps, tuple(options.arms), tuple(options.overrides))
    options.out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m experiments.gpu_check", *arguments])
    tables, failures = [], {}
    for name in options.checks:
        print(f"\n{name}:", flush=True)
        try:
            made = CHECKS[name](size, options.out)
        except Exception as error:  # on a borrowed machine the other checks should still run
            traceback.print_exc()
            failures[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
            made = error.tables if isinstance(error, CheckFailed) else []
        made = made if isinstance(made, list) else [made]
        print(*map(markdown, made), sep="\n", flush=True)
        tables += made
        (options.out / "section.md").write_text(section(tables, failures, command))  # so that a lost machine leaves what it found
    print(f"{options.out / 'section.md'}: {len(tables)} tables, {len(failures)} checks failed", *failures, sep="\n  ")
    return int(bool(failures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu_check", description=main.__doc__)
    parser.add_argument("overrides", nargs="*", help="of the config, as rollout.prompts=8; they come first")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS), help="all by default")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), help="folder of section.md and the dumps")
    parser.add_argument("--model", default=Size().model, help="folder of the model (models/smollm2, which `make llm` makes)")
    parser.add_argument("--responses", type=int, default=Size().responses, help="of each arm, a multiple of 4 (512)")
    parser.add_argument("--answer", type=int, default=Size().answer, help="most tokens of a response (64)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="of the anatomy, all by default")
    parser.add_argument("--steps", type=int, default=Size().steps, help="RL steps of each arm (3)")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with boundary.command():
        raise SystemExit(main(sys.argv[1:]))
