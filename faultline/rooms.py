"""The rooms of this package where the working folder has a package of the same name, as `harness` or `analysis`.

Python finds the working folder's package first, and keeps one package of a name. So `harness.dumps` is looked for in theirs, and
then here: both programs import their own modules. Two modules of one name cannot be told apart, and are refused by name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOMS = ("algos", "analysis", "experiments", "harness", "sweeps")
HOME = Path(__file__).parents[1]


class Rooms:
    """Finds modules of ROOMS beside this package, for those that no package before them has."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module `name` below HOME, if it is one of a room."""
        room, _, inside = name.partition(".")
        if room not in ROOMS or not inside:
            return None
        return PathFinder.find_spec(name, [str(HOME.joinpath(*name.split(".")[:-1]))], target)


def beside_others() -> None:
    """Make the rooms importable beside packages of their names.

    Raises ImportError where such a package has a module of a room's name, or is a single file.
    """
    for room in ROOMS:
        spec = find_spec(room)
        if spec is not None and spec.origin and spec.submodule_search_locations is None:
            raise ImportError(f"{spec.origin} hides faultline's own {room}: rename the file, or run elsewhere")
    hidden = {room: place for room in ROOMS if (place := _package(room)) is not None and place != HOME / room}
    for room, place in hidden.items():
        if both := sorted(_modules(place) & _modules(HOME / room)):
            raise ImportError(
                f"{place} hides faultline's own {room}, and both have {', '.join(both)}: rename the folder, or run elsewhere"
            )
    if hidden and Rooms not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Rooms)


def _package(room: str) -> Path | None:
    """The folder of the package that `import ROOM` gives; None where it is a single module, or none."""
    spec = find_spec(room)
    return Path(spec.origin).parent if spec is not None and spec.origin and spec.submodule_search_locations else None


def _modules(folder: Path) -> set[str]:
    """Names of the modules and packages of a folder, but for those of Python's own."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} - {"__init__"}
