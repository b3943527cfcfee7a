"""`python -m experiments.train`: one run, or with -m a multirun. Nothing heavy is imported until the config was found good."""

from __future__ import annotations

import os
import re
import sys

import hydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from algos.registry import ADVANTAGES, CORRECTIONS, KL, LOSSES
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


def refusal(error: Exception) -> str:
    """What Hydra refuses, in one line that names the key and the remedy."""
    if isinstance(error, MissingConfigException) and error.options:
        return _plugged(error.missing_cfg_file) or (
            f"{error.missing_cfg_file}: there is no such option; take one of {', '.join(error.options)}"
        )
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}; run.root must name a folder that can be written"
    if unknown := re.match(r"Could not override '(.+?)'", str(error)):
        return f"{unknown[1]}: unknown key; python -m experiments.train --help lists them all"
    return " ".join(str(error).split())


def _plugged(option: str) -> str | None:
    """How to choose a registered plug-in that has no config file, if `option` (group/name) is one."""
    group, _, name = option.rpartition("/")
    forms = {
        "loss": (LOSSES, f"loss=pg loss.name={name} and +loss.KEY=VALUE for each parameter"),
        "advantage": (ADVANTAGES, f"advantage=reinforce advantage.name={name} and +advantage.KEY=VALUE for each parameter"),
        "kl": (KL, f"kl=k2 kl.name={name}"),
        "correction": (CORRECTIONS, f"'+correction.reject.{name}={{function: {name}, params: {{KEY: VALUE}}}}'"),
    }
    if group not in forms or name not in forms[group][0].names():
        return None
    own = f"write it as DIR/{group}/{name}.yaml and put --config-dir DIR before the overrides"
    return f"{group}={name}: a plug-in without a config file; use {forms[group][1]}, or {own}"


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
