"""The packages lie in a folder of their own (`make .venv/oracles/installed`), so that no other test sees what they bring."""

import sys
import typing
from pathlib import Path

import typing_extensions

FOLDER = Path(".venv/oracles")

if not (FOLDER / "installed").exists():
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path += [str(FOLDER), str(FOLDER / "skyrl-gym")]  # the wheel of skyrl holds skyrl_gym in a folder with a dash
    typing.TypedDict = typing_extensions.TypedDict  # pydantic refuses skyrl's typing.TypedDict on Python 3.11
