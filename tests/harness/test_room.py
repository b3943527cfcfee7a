"""Reading takes at most a share of the free memory: the kernel refuses the rest before it is used."""

import resource
import threading

import numpy as np
import psutil
import pytest
import torch

from harness import room
from harness.room import TooLarge, bounded

TOO_MUCH = 4 << 30
"""Bytes, more than what tests before these leave free in the heap: memory that the process has already is no new memory."""


@pytest.fixture
def little(monkeypatch):
    """Room for 64 MiB."""
    monkeypatch.setattr(room, "room", lambda: 64 << 20)


@pytest.mark.parametrize("take", [bytearray, lambda size: np.ones(size // 8), lambda size: torch.ones(size // 4)])
def test_more_than_there_is_room_for_is_refused_before_it_is_used(little, take):
    before = psutil.Process().memory_info().rss
    with (
        pytest.raises(TooLarge, match=r"^dump: takes more than the 0\.1 GiB that may be used here; give a smaller part"),
        bounded("dump"),
    ):
        take(TOO_MUCH)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    with bounded("dump"):
        take(16 << 20)


def test_the_limit_ends_with_the_outermost_body(little):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with bounded("outer"):
        within = resource.getrlimit(resource.RLIMIT_DATA)
        with pytest.raises(TooLarge, match=r"^inner"), bounded("inner"):
            bytearray(TOO_MUCH)
        assert resource.getrlimit(resource.RLIMIT_DATA) == within != before
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_threads_share_one_limit(little):
    """The second body begins within the first and ends after it."""
    before, second, first_left = resource.getrlimit(resource.RLIMIT_DATA), threading.Event(), threading.Event()

    def body():
        with bounded("second"):
            second.set()
            first_left.wait()

    thread = threading.Thread(target=body)
    with bounded("first"):
        thread.start()
        second.wait()
    assert resource.getrlimit(resource.RLIMIT_DATA) != before
    first_left.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_another_error_stays_what_it_is(little):
    with pytest.raises(RuntimeError, match="shape"), bounded("dump"):
        raise RuntimeError("shape")


def test_a_control_group_bounds_the_room(monkeypatch, tmp_path):
    """The limit of a group above counts too. Of its 1000 bytes 400 are in use, but 150 + 50 of them are file cache, which the
    kernel takes back: 800 are left, and half of that is the room."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder, most, present in (("a/b", "max", 100), ("a", "1000", 400)):
        (tmp_path / folder / "memory.max").write_text(f"{most}\n")
        (tmp_path / folder / "memory.current").write_text(f"{present}\n")
        (tmp_path / folder / "memory.stat").write_text("anon 200\nfile 250\nshmem 50\ninactive_file 150\nactive_file 50\n")
    monkeypatch.setattr(room, "GROUPS", tmp_path)
    monkeypatch.setattr(room, "_group", lambda: "a/b")
    assert room.room() == 400
