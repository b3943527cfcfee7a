"""The picture of docs/report.md is of the page as it is."""

from itertools import pairwise

import pytest
from PIL import Image

from analysis.page.annotated import CALLOUTS, WIDTH, annotate
from analysis.report import report
from harness.errors import UserError
from tests.analysis.synthetic import write


def near(pixel):
    """Whether it has the colour of a mark, #c2185b."""
    return sum(abs(a - b) for a, b in zip(pixel, (194, 24, 91), strict=True)) < 30


@pytest.mark.chromium
@pytest.mark.slow
def test_each_part_has_its_number(tmp_path):
    for precision in ("fp32", "fp8_tensor"):
        write(tmp_path / "sweep", f"rollout/precision={precision}", seed=0, steps=20)
    page = report(tmp_path / "sweep")
    image = Image.open(annotate(page, tmp_path / "shot.png")).convert("RGB")
    assert image.width == WIDTH
    pixels = image.crop((0, 0, WIDTH // 2, image.height)).resize((WIDTH // 8, image.height // 4), Image.Resampling.NEAREST)
    marked = [y for y in range(pixels.height) if sum(near(pixels.getpixel((x, y))) for x in range(pixels.width)) >= 3]
    assert sum(below - above > 10 for above, below in pairwise(marked)) + 1 == len(CALLOUTS)  # circles, 32 pixels high
    page.write_text(page.read_text().replace("<h2>Outcomes</h2>", "<h2>Other</h2>"))
    with pytest.raises(UserError, match="missing: Outcomes"):
        annotate(page, tmp_path / "shot.png")
