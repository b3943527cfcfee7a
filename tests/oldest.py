"""`python -m tests.oldest FOLDER`: an environment with the base of the wheel alone, at the versions of constraints-oldest.txt.

The package index has old versions of torch for x86-64 Linux as CUDA builds only. Their CUDA libraries, 2.7 GB, are replaced with
empty ones: torch loads them at import and calls none of them on a CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints-oldest.txt"
CUDA = ("nvidia-", "triton")
NO_DEVICE = 100
"""cudaErrorNoDevice."""


def main(folder: Path) -> None:
    """Make it."""
    venv.create(folder, with_pip=True, clear=True, symlinks=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _pip(folder, "--no-deps", *[line for line in project["dependencies"] if line.startswith("torch")])
    code = "from importlib.metadata import requires; print(*requires('torch'), sep='\\n')"
    theirs = subprocess.run([folder / "bin/python", "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    needed = [line for line in theirs if not line.startswith(CUDA) and "extra ==" not in line]
    _pip(folder, *needed, *[line for line in project["dependencies"] if not line.startswith("torch")])
    for library in folder.glob("lib/python*/site-packages/torch/lib/libtorch_cuda.so"):
        replace_cuda(library.parent)


def _pip(folder: Path, *words: str) -> None:
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run([*pip, "-c", CONSTRAINTS, *words], stderr=subprocess.PIPE, text=True)
    if done.returncode:  # of what it prints otherwise, all is that torch's CUDA packages are missing
        raise SystemExit(done.stderr)


def replace_cuda(folder: Path) -> None:
    """Put libraries without content beside torch's, for each that those name and that is not there.

    One of them has all CUDA functions that torch takes the address of. Those that register kernels return 0, others an error.
    """
    torch_libraries = list(folder.glob("lib*.so"))
    needed: set[str] = set()
    functions: set[str] = set()
    for library in torch_libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.+?)\]", _output("readelf", "-dW", library)))
        functions |= set(re.findall(r" U ((?:__)?(?:cu|nccl|nv)\w+)", _output("nm", "-D", library)))
    bodies = (f"long {name}(void) {{ return {0 if name.startswith('__') else NO_DEVICE}; }}" for name in sorted(functions))
    link = ["gcc", "-w", "-shared", "-nostdlib", "-fPIC"]
    one = folder / "libnocuda.so"
    subprocess.run([*link, f"-Wl,-soname,{one.name}", "-x", "c", "-", "-o", one], input="\n".join(bodies), text=True, check=True)
    for name in needed - {library.name for library in torch_libraries}:
        if re.match("lib(cu|nccl|nv)", name):
            options = f"-Wl,-soname,{name},-rpath,$ORIGIN,--no-as-needed"
            subprocess.run([*link, options, one, "-o", folder / name], check=True)


def _output(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
