"""Python imports this as it starts, in each process of Ray or vLLM: the folder is on PYTHONPATH. The trainers' folders come last,
so that the environment's own packages are found first.
"""

import sys
import typing
from pathlib import Path

import typing_extensions

_oracles = Path(__file__).parents[3] / ".venv/oracles"
sys.path += [str(_oracles), str(_oracles / "skyrl-gym")]  # the wheel of skyrl holds skyrl_gym in a folder with a dash
typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses skyrl's typing.TypedDict on Python 3.11
