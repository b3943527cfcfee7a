"""What tests of `faultline replay` share."""

import pytest

from analysis.figures.style import Drawing
from faultline.tools.replay import page
from tests.faultline.tools.replay.cases import unwritten


@pytest.fixture
def no_page(monkeypatch):
    """`faultline replay` writes no files."""
    monkeypatch.setattr(page, "write", unwritten)


@pytest.fixture
def undrawn(monkeypatch):
    """The page of `faultline replay` has its words and tables, and no figures."""
    monkeypatch.setattr("analysis.page.draw", lambda figure, name: Drawing("<svg/>", {"panels": [], "curves": []}))
    monkeypatch.setattr(page, "png", lambda figure, dpi: b"")
