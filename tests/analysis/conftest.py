"""The sweep that most tests of the analysis read."""

from pathlib import Path

import pytest

from analysis.figures.style import Drawing
from analysis.report import report
from tests.analysis.synthetic import study


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Tests of `made` are slow: a worker that has one of them makes that sweep and its report first, in 16 s."""
    for item in items:
        if Path(__file__).parent in item.path.parents and "made" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Rows that are read are cached in a folder of the session, and not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The sweep of synthetic.study with five seeds, and its report."""
    sweep = study(tmp_path_factory.mktemp("sweeps") / "study")
    return sweep, report(sweep)


@pytest.fixture
def undrawn(monkeypatch):
    """A report's figures are made, and not drawn as SVG and PNG, which takes most of its time."""
    monkeypatch.setattr("analysis.page.draw", lambda figure, name: Drawing("<svg/>", {"panels": [], "curves": []}))
    monkeypatch.setattr("analysis.report.png", lambda figure: b"")
