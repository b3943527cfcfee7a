"""The snapshot of the code that jobs run."""

import json
import subprocess
import sys

import pytest

from harness.errors import UserError
from sweeps.snapshot import snapshot


def test_other_code_wants_a_choice(sweep):
    own = snapshot(sweep, None)
    assert snapshot(sweep, None) == own and (own / "harness" / "train" / "model" / "actor.py").exists()
    assert json.loads((own / "snapshot.json").read_text())["snapshot"] == own.name
    own = own.rename(own.with_name("0123456789ab"))
    with pytest.raises(UserError, match=r"have code 0123456789ab, the files here are .*code=sweep.*code=new"):
        snapshot(sweep, None)
    assert snapshot(sweep, "sweep") == own
    assert snapshot(sweep, "new") != own
    assert snapshot(sweep, "sweep") != own  # the latest choice


def test_a_full_disk_leaves_no_half_snapshot(sweep, tmp_path):
    """A limit on the size of a file, in a process of its own; the largest source file is above 8 KB."""
    code = "import resource, sys; from sweeps.ledger import Sweep; from sweeps.snapshot import snapshot\n"
    code += (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}snapshot(Sweep({str(sweep.path)!r}), None)"], capture_output=True, text=True
    )
    assert "code: cannot write ([Errno 27] File too large" in done.stderr
    assert list((sweep.home / "code").iterdir()) == []
