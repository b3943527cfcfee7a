"""`--forbid-skips`: a test that did not run has not passed. Only tests marked `gpu` may be skipped, on a machine without one.

With xdist (`-n 2`, as `make test` does) the tests of a file run on one worker, so that its fixtures are made once; the files that
share one Slurm run on one too, and first, since they take longest.
"""

import signal

import pytest

SLURM = ("tests/sweeps/test_search.py", "tests/sweeps/test_slurm.py")


def pytest_addoption(parser):
    parser.addoption("--forbid-skips", action="store_true", help="fail if any test was skipped, other than those marked gpu")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.pluginmanager.register(Skips(), "skips")
    # A shell starts `make test &` with SIGINT ignored, which all processes below inherit: tests of Ctrl-C would wait for nothing.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(SLURM))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return "slurm" if nodeid.startswith(SLURM) else nodeid.split("::")[0]

    config.option.loadscopereorder = False  # else the file with the most tests comes first
    return ByFile(config, log)


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
