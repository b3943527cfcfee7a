"""`python -m analysis.notebook SWEEP OUT`: the notebooks of analysis/notebooks, executed on a sweep, as .ipynb with outputs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "notebooks"


def execute(source: Path, sweep: str, out: Path) -> Path:
    """Execute one notebook in the working folder with its kernel told of `sweep`; returns the .ipynb file. Raises
    CellExecutionError with the cell and its traceback when a cell fails."""
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    environment = os.environ | {"FAULTLINE_SWEEP": sweep}
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": os.getcwd()}}).execute(env=environment)
    target = out / f"{source.stem}.ipynb"
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return target


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        print(execute(path, sys.argv[1], Path(sys.argv[2])), flush=True)
