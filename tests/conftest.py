"""`--forbid-skips`: a test that did not run has not passed. Only tests marked `gpu` may be skipped, on a machine without one.

Under xdist (`-n 2 --dist loadgroup`, what `make test` does) a file is one group, so that its fixtures are made once; all of
tests/sweeps is one, with one Slurm, and comes first, since it takes longest.
"""

import pytest


def pytest_addoption(parser):
    parser.addoption("--forbid-skips", action="store_true", help="fail if any test was skipped, other than those marked gpu")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.pluginmanager.register(Skips(), "skips")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(items):
    for item in items:
        sweeps = item.path.parent.name == "sweeps"
        item.add_marker(pytest.mark.xdist_group("sweeps" if sweeps else item.path.name))
    items.sort(key=lambda item: item.path.parent.name != "sweeps")


class Skips:
    """Counts them where all reports arrive, which under xdist is not where the tests run."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_logreport(self, report):
        if report.skipped and "gpu" not in report.keywords and not hasattr(report, "wasxfail"):
            self.seen.append(report.nodeid)

    def pytest_sessionfinish(self, session, exitstatus):
        if session.config.getoption("--forbid-skips") and self.seen and exitstatus == 0:
            session.exitstatus = 1
            print(f"\nskipped, which counts as failed: {', '.join(self.seen)}")
