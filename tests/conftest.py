"""`--forbid-skips`: a test that did not run has not passed. Only tests marked `gpu` may be skipped, on a machine without one."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--forbid-skips", action="store_true", help="fail if any test was skipped, other than those marked gpu")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.stash[SKIPPED] = []


SKIPPED = pytest.StashKey[list]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.skipped and "gpu" not in item.keywords and not hasattr(report, "wasxfail"):
        item.config.stash[SKIPPED].append(item.nodeid)


def pytest_sessionfinish(session, exitstatus):
    skipped = session.config.stash[SKIPPED]
    if session.config.getoption("--forbid-skips") and skipped and exitstatus == 0:
        session.exitstatus = 1
        print(f"\nskipped, which counts as failed: {', '.join(skipped)}")
