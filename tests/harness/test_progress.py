"""The line of a long command, by a clock that the test moves."""

import pytest

from harness import progress
from harness.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """now: a list of the time."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_that_of_the_parts_after_the_first(clock, capsys):
    """The first part ends at 100, of no pace. Three parts in 6 s, 6 of 10 left: 12 s. 2 s later is too soon."""
    shown = Progress(10)
    for at, parts in ((100, 1), (102, 1), (106, 2), (108, 1), (116, 3)):
        clock[0] = float(at)
        shown.show(f"at {at}", parts)
    # At 116: 7 parts in 16 s, 2 left.
    assert capsys.readouterr() == ("", "at 106  about 12 s left\nat 116  about 5 s left\n")


def test_a_short_command_prints_nothing(clock, capsys):
    shown = Progress(3)
    for at in (100, 102, 104):
        clock[0] = float(at)
        shown.show("part")
    assert capsys.readouterr() == ("", "")


def test_what_need_not_be_done_is_not_waited_for(clock, capsys):
    """Two of four are skipped: nothing is left after two."""
    shown = Progress(4)
    shown.skip(2)
    for at in (100, 106):
        clock[0] = float(at)
        shown.show("part")
    assert capsys.readouterr().err == "part  about 0 s left\n"


def test_parts_of_no_size_have_no_pace(clock, capsys):
    """Batches of one file, whose bytes count once it has been read."""
    shown = Progress(1000)
    for at in (100, 110):
        clock[0] = float(at)
        shown.show("batch", 0)
    assert capsys.readouterr().err == ""
