"""Path of the config files, `experiments/conf`: the one place where algos or harness name a folder of `experiments`."""

from __future__ import annotations

from pathlib import Path

MODULE = "experiments.conf"
CONF = Path(__file__).parents[1].joinpath(*MODULE.split("."))
