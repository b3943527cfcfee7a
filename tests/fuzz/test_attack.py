"""A few of the cases of `tests.fuzz.attack`, which draws as many as one asks for."""

import pytest

from tests.fuzz.attack import SEED, Tally, fuzz


@pytest.mark.slow
def test_no_line_and_no_folder_gives_a_traceback_a_hang_or_a_wrong_success(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fuzz(lines=40, folders=40, seed=SEED, root=tmp_path) == Tally()
