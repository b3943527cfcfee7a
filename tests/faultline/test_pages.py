"""The pages of replay and of the gradient laboratory in a real browser, light and dark, from narrow to wide."""

import pyarrow.parquet as pq
import pytest

from analysis.colours import PAPER
from faultline.cli import main
from faultline.tools.gradient.enumerable import exact_table
from faultline.tools.gradient.methods import DEFAULT, methods
from faultline.tools.gradient.page import SHOWN, present
from faultline.tools.replay.example import example
from tests.analysis.test_report import legible


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of the example against BF16, and of three losses with every default correction, many of them in one place."""
    out = tmp_path_factory.mktemp("pages")
    for name in ("fp8", "bf16"):
        pq.write_table(pq.read_table(example(name)).slice(0, 32), out / f"{name}.parquet")
    main(["replay", str(out / "fp8.parquet"), "--null", str(out / "bf16.parquet"), "--out", str(out)])
    table = exact_table(methods(["pg", "ppo", "gspo"], list(DEFAULT), "token_sum"))
    intervals = {f"{name} {end}": by * table[name] for name in SHOWN for end, by in (("low", 0.9), ("high", 1.1))}
    return {"replay": out / "replay.html", "gradient": present(table.assign(**intervals), "Gradients", "A note.", out)}


@pytest.mark.chromium
@pytest.mark.parametrize("width", [420, 800, 1280])
@pytest.mark.parametrize("scheme", list(PAPER))
@pytest.mark.parametrize("kind", ["replay", "gradient"])
def test_a_page_is_legible(pages, tmp_path, kind, width, scheme):
    legible(pages[kind], tmp_path, width, scheme)
