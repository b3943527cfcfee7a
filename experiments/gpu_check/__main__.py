"""`python -m experiments.gpu_check`: run the checks, print their tables, write them as one Markdown section."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from experiments.gpu_check.anatomy import check_anatomy
from experiments.gpu_check.cache import check_cache
from experiments.gpu_check.formats import check_casts, check_products
from experiments.gpu_check.learning import check_learning
from experiments.gpu_check.model import ARMS, Size
from experiments.gpu_check.parity import check_parity
from experiments.gpu_check.persistence import check_persistence
from experiments.gpu_check.section import Table, markdown, section
from experiments.gpu_check.training import check_training
from harness.errors import UserError

CHECKS: dict[str, Callable[[Size, Path], Table | list[Table]]] = {
    "casts": lambda size, out: check_casts(),
    "products": lambda size, out: check_products(),
    "parity": lambda size, out: check_parity(),
    "anatomy": lambda size, out: check_anatomy(size, out / "dumps"),
    "cache": lambda size, out: check_cache(size),
    "training": lambda size, out: check_training(size),
    "persistence": lambda size, out: check_persistence(size),
}
"""Name of each check -> its function, in the order of running. Quick checks, on which others rest, come first."""
WITHOUT_MODEL = {"casts", "products", "parity"}


def main(arguments: list[str]) -> int:
    """Exit code 0 if every check passed. One that fails is named in the section, and the others still run."""
    options = _parser().parse_args(arguments)
    if set(options.checks) - WITHOUT_MODEL and not Path(options.model).exists():
        raise UserError(f"--model {options.model}: there is no such folder here; `make llm` makes models/smollm2")
    size = Size(options.model, options.responses, options.answer, options.steps, tuple(options.arms), tuple(options.overrides))
    checks = {name: partial(CHECKS[name], size, options.out) for name in options.checks}
    if options.minutes:
        checks["learning"] = partial(check_learning, size, options.minutes, options.out / "runs")
    tables, failures = [], {}
    for name, check in checks.items():
        print(f"\n{name}:", flush=True)
        try:
            made = check()
        except Exception as error:  # on a borrowed machine the other checks should still run
            traceback.print_exc()
            failures[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
            continue
        tables += made if isinstance(made, list) else [made]
        for table in made if isinstance(made, list) else [made]:
            print(markdown(table), flush=True)
        _write(options.out, tables, failures, arguments)
    _write(options.out, tables, failures, arguments)
    print(f"{options.out / 'section.md'}: {len(tables)} tables, {len(failures)} checks failed", *failures, sep="\n  ")
    return int(bool(failures))


def _write(folder: Path, tables: list[Table], failures: dict[str, str], arguments: list[str]) -> None:
    """Write the section. Called after every check, so that a lost machine leaves its measurements."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "section.md").write_text(section(tables, failures, " ".join(["python -m experiments.gpu_check", *arguments])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu_check", description=main.__doc__)
    parser.add_argument("--checks", type=_names("check", CHECKS), default=list(CHECKS), help=f"of {', '.join(CHECKS)}; all")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), help="folder of section.md and the dumps")
    parser.add_argument("--model", default=Size().model, help="folder of the model (models/smollm2, which `make llm` makes)")
    parser.add_argument("--responses", type=int, default=Size().responses, help="of each arm, a multiple of 4 (512)")
    parser.add_argument("--answer", type=int, default=Size().answer, help="most tokens of a response (64)")
    parser.add_argument("--arms", type=_names("arm", ARMS), default=list(ARMS), help=f"of the anatomy, of {', '.join(ARMS)}; all")
    parser.add_argument("--steps", type=int, default=Size().steps, help="RL steps of each arm (3)")
    parser.add_argument("--minutes", type=float, default=0, help="then RL for so long (0)")
    parser.add_argument("overrides", nargs="*", help="of the config, as rollout.prompts=8")
    return parser


def _names(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """Parse a comma-separated list of names, each of which must be known."""

    def names(text: str) -> list[str]:
        if unknown := sorted(set(found := text.split(",")) - set(known)):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there is no such {what}; there are {', '.join(known)}")
        return found

    return names


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        raise SystemExit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
