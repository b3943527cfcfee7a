"""TRL's hook as its docstring and the page of the replay show it. With TRL itself: tests/oracles/test_integrations.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from faultline.integrations import trl
from harness.errors import UserError


@pytest.mark.parametrize("text", [trl.__doc__, Path("docs/replay.md").read_text()], ids=["docstring", "page"])
def test_the_import_that_is_shown_has_the_hook(text):
    """The line stands there once, runs without TRL, and gives the function that the next line calls."""
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith("from faultline.integrations.trl")]
    names: dict[str, object] = {}
    exec(line, names)
    assert names["record"] is trl.record and '\n    record(trainer, "dump"' in text.replace("\nrecord", "\n    record")
    with pytest.raises(UserError, match=r"set use_vllm=True in GRPOConfig"):
        names["record"](SimpleNamespace(use_vllm=False), "dump")
