"""A sweep's folder of a stranger holds links: no file of the sweep is written through one."""

import pytest

from harness.errors import Unavailable, UserError
from sweeps.launch import plan
from sweeps.launchers.pool import _train
from sweeps.ledger import Sweep
from sweeps.search.study import journal
from sweeps.snapshot import snapshot
from tests.sweeps.conftest import planned


@pytest.fixture
def mine(tmp_path):
    """A folder of the user, with one file, that a stranger's links lead to."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    yield tmp_path / "mine"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert (tmp_path / "mine" / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["launcher.json", "search.json", "search-spec.json", "cancelled"])
def test_a_link_in_the_place_of_a_replaced_file_is_replaced(sweep, mine, name):
    sweep.home.mkdir(parents=True)
    (sweep.home / name).symlink_to(mine / "file")
    sweep.lock.mark_cancelled() if name == "cancelled" else sweep.write(name, {})
    assert not (sweep.home / name).is_symlink() and (sweep.home / name).stat().st_size


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("lock", lambda sweep: sweep.lock.hold().__enter__()),
        ("ledger.jsonl", lambda sweep: planned(sweep, "a")),
        ("search.journal", journal),
        ("../log.txt", lambda sweep: _train("{}", str(sweep.path / "log.txt"))),
    ],
)
def test_a_link_in_the_place_of_a_file_that_grows_is_refused(sweep, mine, name, write):
    sweep.home.mkdir(parents=True)
    (sweep.home / name).symlink_to(mine / "file")
    with pytest.raises((Unavailable, OSError, SystemExit)):
        write(sweep)


@pytest.mark.parametrize(
    ("folder", "write"),
    [
        (".sweep", lambda sweep: planned(sweep, "a")),
        (".sweep", lambda sweep: sweep.lock.hold().__enter__()),
        (".sweep", lambda sweep: sweep.lock.mark_cancelled()),
        (".sweep", journal),
        (".sweep/batches", lambda sweep: sweep.write("batches/1.json", [])),
        (".sweep/code", lambda sweep: snapshot(sweep, None)),
    ],
)
def test_a_linked_folder_is_refused(sweep, mine, folder, write):
    (sweep.path / folder).parent.mkdir(parents=True)
    (sweep.path / folder).symlink_to(mine)
    with pytest.raises(UserError, match=f"{folder}: a link, and nothing is written through it; remove it"):
        write(sweep)


def test_a_linked_run_folder_is_refused(tiny, mine):
    config = tiny("seed=0")
    config.path.parent.mkdir(parents=True)
    config.path.symlink_to(mine)
    with pytest.raises(UserError, match=f"{config.digest}: a link"):
        plan(Sweep(config.path.parent), {config.digest: config}, {})
