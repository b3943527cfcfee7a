"""Path of the config files, `experiments/conf`. No other module of algos or harness names a folder of `experiments`.

`harness` composes configs and `faultline` reads single options, both from YAML files of a package above `harness`. So this
module names the folder by its path, and imports nothing from it.
"""

from __future__ import annotations

from pathlib import Path

MODULE = "experiments.conf"
CONF = Path(__file__).parents[1].joinpath(*MODULE.split("."))
