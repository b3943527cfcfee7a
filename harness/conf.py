"""Path of the config files, `experiments/conf`. No other module below `experiments` refers to a folder of it.

`harness` composes configs and `faultline` reads single options, both from YAML files of a package above `harness`. So the folder
is named here by its path, and nothing is imported from it.
"""

from __future__ import annotations

from pathlib import Path

MODULE = "experiments.conf"
CONF = Path(__file__).parents[1].joinpath(*MODULE.split("."))
