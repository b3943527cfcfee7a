"""`python -m experiments.train`: one run, or with -m a multirun. Nothing heavy is imported until the config was found good."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.compose import plain, refusal
from harness.config import parse
from harness.errors import UserError


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def _compose_and_run(composed: DictConfig) -> str:
    """Check the composed config, then run it. Returns the state in which the run ended."""
    try:
        config = parse(plain(composed))
        from harness.run.loop import train

        return train(config)
    except UserError as error:  # here, since Hydra puts a line of its own before an error that reaches it
        _refuse(str(error))


def _refuse(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(2) from None


def main(arguments: list[str]) -> None:
    """The command with these arguments. Raises SystemExit: 2 for what is refused, 130 after Ctrl-C, a run's own code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # parallelism comes from runs
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors reach us, not a printer of its own
    # The deepspeed launcher adds --local_rank; its environment says it too.
    sys.argv = [sys.argv[0], *(word for word in arguments if not word.startswith("--local_rank="))]
    try:
        if {"-h", "--help"} & set(arguments):
            from experiments.help import show

            show(arguments)
        else:
            _compose_and_run()
    except UserError as error:
        _refuse(str(error))
    except (HydraException, OmegaConfBaseException, OSError) as error:
        _refuse(refusal(error))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from there", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main(sys.argv[1:])
