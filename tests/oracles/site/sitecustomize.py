"""Python imports this as it starts, in each process of Ray and vLLM: PYTHONPATH names its folder. The tests import it too.

The packages of the oracles lie apart and come last, so that the environment's own versions are found first.
"""

import sys
import typing
from pathlib import Path

import typing_extensions

ORACLES = Path(__file__).parents[3] / ".venv/oracles"
sys.path += [str(ORACLES), str(ORACLES / "skyrl-gym")]  # the wheel of skyrl holds skyrl_gym in a folder with a dash
typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses skyrl's typing.TypedDict on Python 3.11
