"""Where the options of a config stand. It is the one place below `experiments` that knows a folder of it.

`harness` composes runs and `faultline` reads single options, both from the YAML files of a room above `harness`. So the folder is
named here by its path; nothing of it is imported.
"""

from __future__ import annotations

from pathlib import Path

MODULE = "experiments.conf"
CONF = Path(__file__).parents[1].joinpath(*MODULE.split("."))
