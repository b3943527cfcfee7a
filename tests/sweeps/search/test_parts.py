"""The parts of a search that need no scheduler: sections, the bound, the pruner, the spec."""

import math
from pathlib import Path

import optuna
import pytest
import yaml

from harness.errors import UserError
from sweeps.launchers.local import Local
from sweeps.ledger import Sweep
from sweeps.search.sections import Point, next_step
from sweeps.search.spec import Range, load
from sweeps.search.study import CollapsePruner, free_seed
from sweeps.search.trial_runs import RETRIES, TrialRuns, lower_bound
from sweeps.states import RunState

SHIPPED = Path(__file__).parents[3] / "sweeps" / "conf" / "search"


def bisect(threshold, k=4, tolerance=1.1, boundary=6, seeds=2, ends=(1.0, 64.0)):
    """Tries until the search is over, when runs collapse beyond `threshold`; (bracket, numbers tried, rounds)."""
    points, rounds = [], 0
    while True:
        step = next_step(points, *ends, k, tolerance, boundary)
        if not step.tries:
            return step.bracket, points, rounds
        rounds += 1
        low, high = sorted(ends)
        assert all(low <= n <= high for n in step.tries)
        beyond = [n > threshold if ends[0] < ends[1] else n < threshold for n in step.tries]
        points += [Point(n, seeds * bad, seeds) for n, bad in zip(step.tries, beyond, strict=True)]


def test_sections_close_in_on_the_threshold():
    """[1, 64] in 4 points: 3 equal ratios of 4. Then each round divides the ratio's logarithm by 5: 4, 4^(1/5) = 1.32,
    4^(1/25) = 1.057 < 1.1. So 3 rounds to the tolerance; then two more of 2 seeds bring both sides to 6."""
    (inner, outer), points, rounds = bisect(7.0)
    assert inner <= 7.0 < outer and outer / inner == pytest.approx(4 ** (1 / 25))
    assert rounds == 5 and len(points) == 4 + 4 + 4 + 2 + 2
    assert {p.number for p in points[-4:]} == {inner, outer}


def test_sections_from_the_other_side_and_without_a_boundary():
    (inner, outer), _, _ = bisect(7.0, ends=(64.0, 1.0))
    assert outer < 7.0 <= inner
    assert bisect(100.0)[0] == (64.0, None)
    assert bisect(0.5)[0] == (None, 1.0)


def test_repeated_seeds_can_move_the_boundary():
    """At 2 one of two runs collapsed: healthy. Four more runs, all collapsed, make 5 of 6: it is not, and 1 is its neighbour."""
    points = [Point(1.0, 0, 6), Point(2.0, 1, 2), Point(2.1, 6, 6)]
    assert next_step(points, 1.0, 4.0, 1, 1.2, 6).bracket == (2.0, 2.1)
    moved = next_step([*points, Point(2.0, 4, 4)], 1.0, 4.0, 1, 1.2, 6)
    assert moved.bracket == (1.0, 2.0) and moved.tries == [pytest.approx(math.sqrt(2))]


def test_no_two_trials_share_seeds():
    """A space of one choice, two seeds a trial: 0, 2 and 4 although none has ended; 2 again once the second has failed."""
    study, choice = optuna.create_study(), {"level": optuna.distributions.CategoricalDistribution(["token"])}

    def begin():
        others, trial = study.get_trials(), study.ask(choice)
        trial.set_user_attr("first_seed", free_seed(others, trial.params, seeds=2))
        return trial

    trials = [begin() for _ in range(3)]
    assert [trial.user_attrs["first_seed"] for trial in trials] == [0, 2, 4]
    study.tell(trials[0], 0.5)
    study.tell(trials[1], state=optuna.trial.TrialState.FAIL)
    assert [begin().user_attrs["first_seed"] for _ in range(2)] == [2, 6]
    assert free_seed(study.get_trials(), {"level": "sequence"}, seeds=2) == 0


def test_the_bound_is_students():
    """0.90 and 0.96: mean 0.93, s = 0.0424264, s/√2 = 0.03; the 0.9 quantile of t with 1 degree of freedom is
    tan(0.4 π) = 3.077684: 0.93 − 0.0923305."""
    score = lower_bound([0.90, 0.96], 0.9)
    assert score.mean == pytest.approx(0.93) and score.seeds == 2
    assert score.bound == pytest.approx(0.93 - 0.03 * math.tan(0.4 * math.pi))


@pytest.mark.parametrize(
    ("reports", "pruned"),
    [
        ([0.4, 0.6, 0.8, 0.3, 0.2, 0.1], True),  # three under half of its best, 0.8
        ([0.4, 0.6, 0.8, 0.3, 0.2, 0.5], False),  # the last recovered
        ([0.4, 0.6, float("nan"), float("nan"), float("nan")], True),
        ([0.1, 0.1, 0.1, 0.1, 0.1], False),  # low from the start: not a collapse
        ([0.3, 0.1, 0.1], False),  # too few
    ],
)
def test_the_pruner_looks_at_its_own_trial_alone(reports, pruned):
    """Beside trials that all do far better, which is what a median pruner would prune it for."""
    study = optuna.create_study(direction="maximize", pruner=CollapsePruner(0.5, 3))
    for _ in range(6):
        better = study.ask()
        for step in range(6):
            better.report(0.99, step)
        study.tell(better, 0.99)
    trial = study.ask()
    for step, value in enumerate(reports):
        trial.report(value, step)
    assert trial.should_prune() is pruned


def test_a_run_that_always_stops_is_submitted_again_three_times(tmp_path, monkeypatch):
    submitted: list[list[str]] = []
    executor = Local(Sweep(tmp_path / "search"))
    monkeypatch.setattr(executor, "submit", submitted.append)
    runs = TrialRuns(executor.sweep, executor)
    runs.states = {"abc": RunState("", 0, 30, "interrupted", error="its node has failed")}
    assert [runs.resubmit(["abc"]) for _ in range(RETRIES)] == [None] * 3
    runs.live = {"abc"}
    assert runs.resubmit(["abc"]) is None
    runs.live = set()
    assert "its node has failed" in (runs.resubmit(["abc"]) or "") and submitted == [["abc"]] * 3


def test_a_range_is_scaled_in_the_distance_from_1():
    above = Range(low=1.1, high=11, scale="distance_from_1")
    below = Range(low=0.2, high=0.9, scale="distance_from_1")
    assert (above.distribution.low, above.distribution.high) == pytest.approx((0.1, 10.0)) and above.distribution.log
    assert (below.distribution.low, below.distribution.high) == pytest.approx((0.1, 0.8))
    assert above.value(1.0) == 2.0 and below.value(0.25) == 0.75
    assert above.value(1.403178577119138) == 2.403 and below.value(0.000123456) == 0.9998765


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_shipped_specs_compose(name):
    spec = load(Path(name), [])
    params = {k: d.choices[0] if hasattr(d, "choices") else d.low for k, d in spec.distributions.items()}
    configs = spec.configs(params, range(2))
    assert [c.seed for c in configs] == [0, 1] and configs[0].run.sweep == name


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("trials=0", "trials: Input should be greater than 0"),
        ("nosuch=1", "nosuch: Extra inputs are not permitted"),
        ("seeds=1", "seeds: Input should be greater than or equal to 2"),
        ("space.actor\\.lr.low=1", "low=1.0 must be below high=0.005"),
        ("space.actor\\.lr.scale=distance_from_1", None),
        ("space.actor\\.lr.scale=linear", "cuts by ratios"),
        ("launcher.nosuch=1", "launcher.nosuch: unknown key"),
    ],
)
def test_a_wrong_spec_is_refused_by_its_key(tmp_path, change, told):
    values = yaml.safe_load((SHIPPED / "learning_rate_edge.yaml").read_text())
    key, value = change.split("=")
    *path, last = [part.replace("\0", ".") for part in key.replace("\\.", "\0").split(".")]
    inner = values
    for part in path:
        inner = inner[part]
    inner[last] = yaml.safe_load(value)
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(values))
    if told is None:
        load(file, [])
        return
    with pytest.raises(UserError) as refused:
        load(file, [])
    assert told in str(refused.value) and "spec.yaml" in str(refused.value)


def test_a_spec_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no search of that name; there are learning_rate_edge, token_upper, upper_edge"):
        load(Path("nosuch"), [])
