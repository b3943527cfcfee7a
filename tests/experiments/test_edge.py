"""The table of the runs at the edge, from endpoints by hand."""

from pathlib import Path
from shutil import copy

import pandas as pd
import pytest

from experiments.edge import PLAN, endpoints, main, table
from harness.errors import UserError
from tests.analysis.synthetic import FP8, FP32, write

W4A4 = "nvfp4_w4a4 pg"
STUDY = Path(__file__).parents[2] / "experiments/study"


def runs(**arms: list[float]) -> pd.DataFrame:
    rows = [
        {"arm": arm, "seed": 30 + i, "reward": reward, "best": 0.9, "training_reward": 0.8, "outcome": "survived", "k3": 0.0}
        for arm, rewards in arms.items()
        for i, reward in enumerate(rewards)
    ]
    return pd.DataFrame(rows)


def test_arms_that_lie_fully_apart_have_the_least_p_and_families_are_adjusted_by_themselves():
    """Five against five, fully apart: 2 of 252 subsets are as extreme. Four comparisons of the precision were planned, so Holm
    takes four times the least p. Three of the remedies were, whether or not they have runs."""
    high, low = [0.80, 0.81, 0.82, 0.83, 0.84], [0.10, 0.11, 0.12, 0.13, 0.14]
    found = PLAN.compared(runs(**{"fp32 pg": high, "bf16 pg": high, W4A4: low, f"{W4A4} r3": high})).set_index("arm")
    assert found.p[W4A4] == pytest.approx(2 / 252) and found.holm_p[W4A4] == pytest.approx(8 / 252)
    assert found.p["bf16 pg"] == found.holm_p["bf16 pg"] == 1.0
    assert found.difference[W4A4] == pytest.approx(-0.70) and found.reference[W4A4] == "fp32 pg"
    assert found.family[f"{W4A4} r3"] == "the demo's remedies" and found.holm_p[f"{W4A4} r3"] == pytest.approx(6 / 252)
    assert len(found) == 3


def test_the_endpoint_is_the_mean_of_the_last_three_evaluations(tmp_path):
    """A second sweep's arms get its name. An arm that lacks one of the plan's seeds is left out, as are other seeds."""
    for seed in (29, *PLAN.seeds):
        folder = write(tmp_path / "moe", FP32, "loss=pg", seed=seed)
        write(tmp_path / "moe_dense", FP32, "loss=pg", seed=seed, collapse=50)
        if seed < 34:
            write(tmp_path / "moe", FP8, "loss=pg", seed=seed)
    found = endpoints([tmp_path / "moe", tmp_path / "moe_dense"]).set_index(["arm", "seed"])
    assert list(found.index) == [(arm, seed) for arm in ("dense, fp32 pg", "fp32 pg") for seed in PLAN.seeds]
    evaluated = [row["eval/reward"] for row in folder.metrics() if "eval/reward" in row]
    assert len(evaluated) > 3 and found.reward["fp32 pg", 34] == pytest.approx(sum(evaluated[-3:]) / 3)
    assert found.reward["dense, fp32 pg", 34] < 0.1 and found.outcome["dense, fp32 pg", 34] == "collapsed"
    assert "fp32 pg" in set(table(found.reset_index()).arm)


def test_no_sweep_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="name the sweeps of the study"):
        main(tmp_path / "new", [])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("folder", ["moe", "moe_below"])
def test_the_recorded_table(folder, tmp_path, capsys):
    """Both tables of the study, from the endpoints that are recorded beside them."""
    copy(STUDY / folder / "endpoints.csv", tmp_path)
    main(tmp_path, [])
    assert (tmp_path / "table.md").read_text() == (STUDY / folder / "table.md").read_text() == capsys.readouterr().out
