"""`python -m analysis.notebook SWEEP OUT [NAME...]`: execute notebooks of analysis/notebooks on a sweep."""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "notebooks"
COLOURS = 64
"""Number of colours to which a picture is reduced, which makes its file a third as large."""


def execute(source: Path, sweep: str, out: Path) -> Path:
    """Execute the notebook `source` on `sweep`, and write it to the folder `out`. Raises CellExecutionError if a cell fails."""
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    environment = os.environ | {"FAULTLINE_SWEEP": sweep}
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": os.getcwd()}}).execute(env=environment)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _compressed(output.data["image/png"])
    target = out / f"{source.stem}.ipynb"
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    return target


def _compressed(picture: str) -> str:
    """A PNG in base64, reduced to COLOURS colours. picture: the PNG in base64."""
    from PIL import Image

    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


if __name__ == "__main__":
    sweep, out, *names = sys.argv[1:]
    sources = [path for path in sorted(FOLDER.glob("*.py")) if not names or path.stem in names]
    for path in sources:
        print(execute(path, sweep, Path(out)), flush=True)
