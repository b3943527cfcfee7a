"""`faultline power` on a sweep."""

import pytest

from analysis.power import plan
from analysis.statistics.planning import least_seeds, power_of_difference, seeds_needed
from faultline.cli import main
from harness.errors import UserError
from tests.analysis.synthetic import study


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return study(tmp_path_factory.mktemp("sweeps") / "study")


@pytest.mark.slow
def test_the_plan_takes_the_control_alone(sweep, capsys):
    table = plan(sweep, difference=0.1, margin=0.05, power=0.8)
    assert list(table.columns) == [
        "control", "seeds", "mean", "spread", "upper limit", "difference of 0.1", "equivalence within 0.05"
    ]  # fmt: skip
    assert len(table) and all(name.startswith("fp32") for name in table.control)
    row = table.iloc[0]
    needs = [seeds_needed(lambda n, s=s: power_of_difference(n, s, 0.1), 0.8, 4) for s in (row["spread"], row["upper limit"])]
    assert row["difference of 0.1"] == f"{needs[0]} to {needs[1]}"
    main(["power", str(sweep), "--difference", "0.2"])
    assert "difference of 0.2" in capsys.readouterr().out


@pytest.mark.slow
def test_a_plan_has_the_seeds_that_an_exact_test_needs(sweep):
    """Two-sided 2/C(8, 4) = 0.029 and one-sided 1/C(6, 3) = 0.05 are the first within 5 %; of four comparisons 1.25 % each:
    2/C(10, 5) = 0.008 and 1/C(10, 5) = 0.004, after 0.029 and 0.014."""
    assert [least_seeds(0.05, 2), least_seeds(0.05, 1), least_seeds(0.0125, 2), least_seeds(0.0125, 1)] == [4, 3, 5, 5]
    huge = plan(sweep, difference=0.9, margin=0.9, power=0.8).iloc[0]
    assert huge["difference of 0.9"].startswith("4 ") and huge["equivalence within 0.9"].startswith("3 ")
    four = plan(sweep, difference=0.9, margin=0.9, power=0.8, comparisons=4).iloc[0]
    assert four["difference of 0.9"].startswith("5 ") and four["equivalence within 0.9"].startswith("5 ")


@pytest.mark.slow
def test_a_plan_that_cannot_be_made(sweep):
    with pytest.raises(UserError, match=r"--margin 0: give a number above 0 and at most 1"):
        plan(sweep, difference=0.1, margin=0, power=0.8)
    with pytest.raises(UserError, match="no control has two ended runs"):
        plan(sweep, difference=0.1, margin=0.05, power=0.8, seeds=[0])
