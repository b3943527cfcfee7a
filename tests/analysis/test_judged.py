"""Which policy is judged: the trainer's own or the one that samples."""

import pytest

from analysis.load import load
from analysis.report import report
from analysis.tables import equivalence
from harness.errors import UserError
from tests.analysis.synthetic import FP8, FP32, write


@pytest.fixture
def sweep(tmp_path):
    """Two policies: the trainer's own lives, the sampling one falls, as the rows say that are put in its place."""
    folder = tmp_path / "sweep"
    for precision in (FP32, FP8):
        for seed in (0, 1):
            collapse = 50 if precision == FP8 else None
            write(folder, precision, "evaluation.policy=both", seed=seed, collapse=collapse)
    return folder


def test_each_policy_has_its_own_events_and_rewards(sweep):
    """The FP8 runs fall to 0.05 by their own reward from step 50; the other reward is 0.3 throughout."""
    own, sampling = load(sweep, deployed="trainer"), load(sweep, deployed="rollout")
    falls = own.runs.precision == "fp8_tensor"
    assert list(own.runs.outcome[falls]) == ["collapsed"] * 2
    assert list(sampling.runs.outcome[falls]) == ["never learned"] * 2
    assert (sampling.rewards.final == 0.3).all() and (sampling.rewards.best == 0.3).all()
    assert own.judged == "the trainer's own policy" and sampling.judged == "the rollout engine's policy"


def test_a_run_that_recorded_one_policy_has_no_other(made):
    with pytest.raises(UserError, match=r"--deployed rollout: \d+ of \d+ runs did not .*; evaluation.policy=both records it"):
        load(made[0], deployed="rollout")


def test_a_run_that_the_other_policy_ended_is_unfinished(tmp_path):
    """The trainer's policy falls and collapse.stop ends the run: of the sampling policy nothing is known."""
    for seed in (0, 1):
        write(tmp_path, FP32, "evaluation.policy=both", seed=seed)
    write(tmp_path, FP8, "evaluation.policy=both", "collapse.stop=true", seed=0, collapse=50, until=80)
    assert load(tmp_path, deployed="trainer").runs.outcome["fp8_tensor-both-true-0"] == "collapsed"
    assert load(tmp_path, deployed="rollout").runs.outcome["fp8_tensor-both-true-0"] == "unfinished"


def test_the_report_names_the_policy_and_the_margin(sweep, tmp_path, capsys):
    page = report(sweep, tmp_path / "out", deployed="rollout", margin=0.05)
    text = (page.parent / "report.md").read_text()
    assert "Deployed as: the rollout engine's policy." in text and "Claims of equivalence" in text
    with pytest.raises(UserError, match="--margin 2"):
        report(sweep, tmp_path / "out", margin=2)


def test_equivalence_of_equal_arms(sweep):
    """0.3 in every run: with margin 0.05 both shifts separate 2 from 2, so each p is 1/C(4, 2) = 1/6."""
    table = equivalence(load(sweep, deployed="rollout"), 0.05)
    assert list(table["equivalent: p, Holm-adjusted p"]) == ["0.17, 0.17"]
    assert list(table["difference"]) == [0.0]
    assert list(table["collapses up to"]) == ["84%"]  # Clopper and Pearson of 0 in 2: 1 − 0.025^(1/2)
