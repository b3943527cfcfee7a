"""What the sequence weight costs by length: the crossing of two squared errors by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.lengths import SHOWN, compared, letter, pays
from harness.errors import UserError


def row(bias: float, sd: float) -> SimpleNamespace:
    return SimpleNamespace(bias=bias, sd=sd)


def test_a_weight_pays_from_where_both_squared_errors_are_equal():
    """0.5² + 32·1²/n = 0.3² + 32·1.2²/n, so n = 32·(1.44 − 1)/(0.25 − 0.09) = 88. With the roles exchanged up to there."""
    one, other = row(0.5, 1.0), row(0.3, 1.2)
    assert (pays(other, one), pays(one, other)) == ("from 88", "up to 88")
    assert pytest.approx(0.3**2 + 32 * 1.2**2 / 88) == 0.5**2 + 32 / 88


@pytest.mark.parametrize("bias, sd, said", [(0.4, 0.9, "always"), (0.6, 1.1, "never"), (0.5, 1.0, "never"), (0.5, 1.1, "never")])
def test_better_in_both_always_pays(bias, sd, said):
    assert pays(row(bias, sd), row(0.5, 1.0)) == said


def test_the_share_of_a_letter():
    """E and e among T, h, E, n, e: two of five. Digits and spaces are no letters."""
    assert letter("ThE 12 ne", {}) == 0.4 and letter("123", {}) == 0


def test_tables_stand_by_length(tmp_path):
    columns = {f"{name}{part}": 0.5 for name in ("bias", "sd") for part in ("", " low", " high")}
    for name in ("fp8-64", "fp8-16", "fp8-128"):
        pd.DataFrame([{"method": method, **columns} for method in SHOWN]).to_csv(tmp_path / f"{name}.csv", index=False)
    found = compared(tmp_path)
    assert list(dict.fromkeys(found.tokens)) == ["16", "64", "128"] and found.bias[0] == "0.50 (0.50 to 0.50)"
    with pytest.raises(UserError, match="no <precision>-<tokens>"):
        compared(tmp_path / "empty")
