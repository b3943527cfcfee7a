"""`python -m experiments.train`: one run, or with -m a multirun. Heavy libraries are imported once the config is valid."""

from __future__ import annotations

import os
import sys

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from harness.boundary import command
from harness.compose import check_files
from harness.composer import check_choices, plain
from harness.config import parse
from harness.startup import uncollected

INTERRUPTED = "interrupted; the same command goes on from there"


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def _compose_and_run(composed: DictConfig) -> str:
    """Check the composed config, then run it. Returns the state in which the run ended."""
    with command(INTERRUPTED):  # here too, since Hydra puts a line of its own before an error that reaches it
        config = parse(plain(composed))
        with uncollected():
            from harness.run.loop import train
        return train(config)


def main(arguments: list[str]) -> None:
    """Run the command. Raises SystemExit: 2 for refused arguments, 130 after Ctrl-C, otherwise the run's own exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # parallelism comes from runs
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # so that Hydra raises its errors and does not print them
    # The deepspeed launcher adds --local_rank, which its environment variables also give.
    sys.argv = [sys.argv[0], *(word for word in arguments if not word.startswith("--local_rank="))]
    with command(INTERRUPTED, " ".join(arguments)):
        if {"-h", "--help"} & set(arguments):
            from experiments.help import show

            with uncollected():
                show(arguments)
        else:
            given = get_args_parser().parse_args(sys.argv[1:])
            check_files(given.config_dir)
            check_choices(OverridesParser.create().parse_overrides(given.overrides))
            _compose_and_run()


if __name__ == "__main__":
    main(sys.argv[1:])
