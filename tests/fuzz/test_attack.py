"""A few of the cases of `tests.fuzz.attack`, which draws as many as one asks for."""

import pytest

from tests.fuzz import attack
from tests.fuzz.attack import SEED, Case, Tally, fuzz


@pytest.mark.slow
def test_no_line_and_no_folder_gives_a_traceback_a_hang_or_a_wrong_success(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fuzz(lines=20, folders=40, seed=SEED, root=tmp_path) == Tally()


def test_the_cases_can_be_run_in_parts(tmp_path, monkeypatch):
    """Cases 0 and 1, then 2 alone, are those of 0 to 2: the same command on the same folder."""
    met: list[Case] = []
    monkeypatch.setattr(attack, "attack", lambda case, place: met.append(case) or (2, "", False))
    parts = [(0, 3), (0, 2), (2, 1)]
    for number, (first, count) in enumerate(parts):
        attack.fuzz(lines=count, folders=count, seed=SEED, root=tmp_path / str(number), first=first)
    lines, folders = met[:3], met[3:6]
    assert met[6:] == [*lines[:2], *folders[:2], lines[2], folders[2]]
    assert lines[0] != lines[2]
