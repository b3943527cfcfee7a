"""`python -m experiments.train`: one run, or with -m a multirun. Nothing heavy is imported until the config was found good."""

from __future__ import annotations

import os
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.compose import refusal
from harness.config import parse
from harness.errors import UserError


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> str:
    """Check the composed config, then run it. Returns the state in which the run ended."""
    try:
        config = parse(OmegaConf.to_container(composed, resolve=True))
        from harness.run.loop import train

        return train(config)
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    # The deepspeed launcher adds it; its environment says it too.
    sys.argv = [word for word in sys.argv if not word.startswith("--local_rank=")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # parallelism comes from runs
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors reach us, not a printer of its own
    try:
        main()
    except (HydraException, OmegaConfBaseException, OSError) as error:
        print(refusal(error), file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from there", file=sys.stderr)
        raise SystemExit(130) from None
