"""Import of this project's packages if the working folder has a package of the same name, such as `harness` or `analysis`.

Python finds the working folder's package first, and keeps one package per name. The finder here lets such a package also find
this project's modules, after its own. So this project and the other program each import their own modules. Two modules of the
same name raise ImportError.
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
    """Import finder for a working folder whose package, such as `harness`, hides this project's: it finds what theirs lacks."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module `name` in this project's folder HOME if it is inside a package of ROOMS; None otherwise."""
        room, _, inside = name.partition(".")
        if room not in ROOMS or not inside:
            return None
        return PathFinder.find_spec(name, [str(HOME.joinpath(*name.split(".")[:-1]))], target)


def beside_others() -> None:
    """Make the packages of ROOMS importable although other packages may have the same names.

    Raises ImportError if another package and this project's have a module of the same name, as in another clone, or if the other
    is a single file.
    """
    for room in ROOMS:
        spec = find_spec(room)
        if spec is not None and spec.origin and spec.submodule_search_locations is None:
            raise ImportError(f"{spec.origin} hides faultline's own {room}: rename the file, or run elsewhere")
    hidden = {room: place for room in ROOMS if (place := _package(room)) is not None and place != HOME / room}
    for room, place in hidden.items():
        if (place.parent / "faultline" / "rooms.py").is_file():
            raise ImportError(
                f"{place.parent} is another clone of Faultline than the installed {HOME}: run elsewhere, or install it"
            )
        if both := sorted(_modules(place) & _modules(HOME / room)):
            raise ImportError(
                f"{place} hides faultline's own {room}, and both have {', '.join(both)}: rename the folder, or run elsewhere"
            )
    if hidden and Rooms not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, Rooms)


def _package(room: str) -> Path | None:
    """Folder of the package that `import` of the name `room` would load; None if there is none, or only a single module."""
    spec = find_spec(room)
    return Path(spec.origin).parent if spec is not None and spec.origin and spec.submodule_search_locations else None


def _modules(folder: Path) -> set[str]:
    """Names of the modules and packages in a folder, without `__init__`."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} - {"__init__"}
