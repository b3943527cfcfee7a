"""`python -m experiments.train`: one run, or with -m a multirun. Nothing heavy is imported until the config was found good."""

from __future__ import annotations

import os
import sys

import hydra
from omegaconf import DictConfig, OmegaConf

from harness.config import parse
from harness.errors import UserError


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> str:
    """Check the composed config, then run it. Returns the state in which the run ended."""
    try:
        config = parse(OmegaConf.to_container(composed, resolve=True))
        from harness.trainer import train

        state = train(config)
        print(f"{state}: {config.path}")
        return state
    except UserError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # parallelism comes from runs
    main()
