"""Snapshot of the code for a sweep, so that source files may be edited while its jobs wait."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

from harness.errors import UserError
from harness.files import refuse_links, write_file, writing
from harness.run.code_version import HOME, code_version
from sweeps.ledger import Sweep

PACKAGES = ("algos", "harness", "experiments", "sweeps", "analysis", "faultline", "hydra_plugins")
SKIPPED = ("__pycache__", "*.pyc", "*.md")  # notes may be edited while jobs wait


def snapshot(sweep: Sweep, choice: str | None) -> Path:
    """Return the folder with the code that the jobs of `sweep` run.

    choice: value of hydra.launcher.code. "new": a snapshot of the current files. "sweep": the sweep's newest snapshot. None: as
    "new", but raises UserError if the files differ from the sweep's newest snapshot. An identical snapshot is used again.
    """
    refuse_links(sweep.path, ".sweep/code/snapshot")
    home = sweep.home / "code"
    kept = sorted((path for path in home.glob("[0-9a-f]*")), key=lambda path: path.stat().st_mtime)
    digest = _digest()
    if choice == "sweep":
        if not kept:
            raise UserError(f"hydra.launcher.code=sweep: {sweep.path} has no snapshot yet; leave that key out")
        return kept[-1].resolve()
    if kept and kept[-1].name != digest and choice is None:
        raise UserError(
            f"{sweep.path}: its runs have code {kept[-1].name}, the files here are {digest} now; "
            "hydra.launcher.code=sweep keeps the old snapshot, hydra.launcher.code=new takes the current files, "
            "another run.sweep starts a new sweep"
        )
    folder = home / digest
    with writing(home):
        if not folder.exists():
            _copy(folder, digest)
        os.utime(folder)  # the newest snapshot is the sweep's
    return folder.resolve()


def _copy(folder: Path, digest: str) -> None:
    temporary = folder.with_name(f".{digest}.{os.getpid()}")
    try:
        for package in PACKAGES:
            shutil.copytree(HOME / package, temporary / package, ignore=shutil.ignore_patterns(*SKIPPED))
        write_file(temporary, "snapshot.json", json.dumps({**code_version(), "snapshot": digest}))
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, shutil.Error):  # a list of (source, target, reason)
            raise OSError(errno.EIO, error.args[0][0][2]) from None
        raise


def _digest() -> str:
    """Digest of the code: 12 hex digits of the SHA-256 of every file of the packages, but for byte code and Markdown."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((HOME / package).rglob("*")):
            if path.is_file() and not any(path.match(pattern) for pattern in SKIPPED):
                digest.update(str(path.relative_to(HOME)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
