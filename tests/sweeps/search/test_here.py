"""A search on this machine: real runs of a tiny model, a controller that is killed, stopped and continued, its report."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from analysis.figures import FIGURES
from analysis.load import load as analysed
from analysis.report import report
from faultline.cli import main
from harness.errors import UserError
from sweeps.launch import plan
from sweeps.ledger import Sweep
from sweeps.search.controller import Controller
from sweeps.search.spec import Spec, load
from sweeps.search.study import importance, open_study
from sweeps.states import RunState
from tests.analysis.synthetic import FP8, write
from tests.harness.conftest import TINY
from tests.sweeps.conftest import held, rows, search_spec
from tests.waiting import PATIENCE, until

SHIPPED = Path(__file__).parents[3] / "sweeps" / "conf" / "search"


def specified(root) -> dict:
    bound = {"low": 1.1, "high": 9, "scale": "distance_from_1"}
    return search_spec(
        root,
        name="here",
        overrides=[*TINY, "steps=100", "checkpoint.every=5", "actor.lr=1e-6", "correction=token_truncate"],
        space={"correction.weight.upper": bound, "loss.eps_low": [0.1, 0.2]},
        trials=2,
        parallel=1,
        launcher="local",
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_search_here_survives_a_kill_and_a_stop(tmp_path, capsys):
    """SIGKILL at the first run, SIGTERM later, and the same command to the end: two trials of two seeds, and two fresh ones.

    The last is a command of this process, which has imported all that it needs.
    """
    file = tmp_path / "here.yaml"
    file.write_text(yaml.safe_dump(specified(tmp_path)))
    command = [sys.executable, "-m", "faultline", "search", file]

    def begin():
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    sweep = Sweep(tmp_path / "here")
    first = begin()
    until(lambda: any(rows(sweep.folder(run)) for run in sweep.states()))
    (run,) = held(sweep, [next(run for run in sweep.states() if rows(sweep.folder(run)))])
    first.kill()
    first.wait()
    second = begin()
    run.goes_on()
    until(lambda: len(sweep.states()) > 2)
    (run,) = held(sweep, [list(sweep.states())[2]])  # the second trial's first run
    second.send_signal(signal.SIGTERM)
    run.goes_on()
    assert second.wait(PATIENCE) in (143, -signal.SIGTERM)
    capsys.readouterr()
    main(["search", str(file)])
    printed, told = capsys.readouterr()
    states = sweep.states()
    assert len(states) == 2 * 2 + 2 and {state.state for state in states.values()} == {"done"}
    assert sorted(sweep.config(run).seed for run in states) == [0, 0, 1, 1, 1000, 1001]
    result = json.loads(printed)
    assert result["trials"] == 2 and result["importance"] == {} and result["fresh"]["seeds"] == 2
    assert "trials, about" in told or "2 of 2 trials" in told
    page = report(sweep.path).read_text()
    assert "Healthy against a searched threshold" in page and "correction.weight.upper" in page


def test_runs_that_end_while_they_are_read_are_read_again(tmp_path, monkeypatch):
    """Their last evaluation is recorded after the controller read the others. Optuna gets it before the trial ends."""
    sweep, spec = Sweep(tmp_path / "here"), Spec(**specified(tmp_path))
    controller = Controller(spec, sweep)
    controller.study, controller.began = open_study(sweep, spec), (0.0, 0)
    trial = controller.study.ask(spec.distributions)
    trial.set_user_attr("first_seed", 0)
    runs = controller.runs
    folders = [sweep.folder(config.digest) for config in controller._configs(trial)]
    runs.states = {folder.path.name: RunState("", 0, 30, "running") for folder in folders}
    for folder in folders:
        folder.path.mkdir(parents=True)
        folder.log_metrics(0, {"eval/reward": 0.5})
    read = runs.worst_seed

    def end_after_reading(names):
        found = read(names)
        for folder in folders:
            folder.log_metrics(2, {"eval/reward": 0.7})
            folder.write("status.json", {"state": "done", "time": 0.0})
        return found

    def update():
        controller._update_trial(controller.study.trials[0])
        return controller.study.trials[0]

    monkeypatch.setattr(runs, "worst_seed", end_after_reading)
    assert update().state == TrialState.RUNNING
    monkeypatch.undo()
    told = update()
    assert told.state == TrialState.COMPLETE and told.intermediate_values == {0: 0.5, 2: 0.7}


@pytest.mark.slow
def test_a_search_enters_the_ends_that_a_killed_launcher_left_out(tmp_path):
    """All four runs have finished after the death of the launcher that had started them: the ledger says that they run."""
    spec = Spec(**specified(tmp_path) | {"space": {"loss.eps_low": [0.1]}, "trials": 1})
    sweep = Sweep(tmp_path / "here")
    configs = spec.configs({"loss.eps_low": 0.1}, [0, 1, 1000, 1001])
    plan(sweep, {config.digest: config for config in configs}, {})
    for config in configs:
        sweep.log("submitted", [config.digest], batch="")
        sweep.log("started", [config.digest], job="local", step=0)
        for step in (0, 1, 2):
            sweep.folder(config.digest).log_metrics(step, {"eval/reward": 0.5})
        sweep.folder(config.digest).write("status.json", {"state": "done", "time": 0.0})
    assert Controller(spec, sweep).run()["fresh"]["seeds"] == 2
    assert {state.state for state in sweep.states().values()} == {"done"}


def test_launcher_local_takes_the_same_spec():
    values = yaml.safe_load((SHIPPED / "upper_edge.yaml").read_text())
    assert values["launcher"] == "local"
    assert load(Path("token_upper"), ["launcher=local"]).launcher == "local"
    with pytest.raises(UserError, match="launcher"):
        load(Path("token_upper"), ["launcher=here"])
    # As many runs as the demo has: six trials of two seeds and a winner of two.
    assert values["trials"] * values["seeds"] + values["winner_seeds"] == 14


def test_the_importance_is_that_of_the_parameter_that_decides():
    """The value is x and nothing else. Every second trial has collapsed, whatever its x and y: such a trial is not a good one."""
    axis = FloatDistribution(0, 1)
    trials = []
    for i in range(40):
        x, y = (i * 0.618) % 1, (i * 0.414) % 1
        end = {"state": TrialState.PRUNED} if i % 2 else {"value": x}
        trials.append(optuna.create_trial(params={"x": x, "y": y}, distributions={"x": axis, "y": axis}, **end))
    found = importance(trials)
    assert found["x"] > 0.9 and sum(found.values()) == pytest.approx(1)
    assert importance(trials[:3]) == {} and importance(trials[1::2]) == {}


def searched(sweep, **spec):
    """Runs at two bounds: both seeds at 2 are healthy, one of two at 4 collapses."""
    for upper, collapses in ((2.0, (None, None)), (4.0, (None, 40))):
        for seed, collapse in enumerate(collapses):
            write(sweep, FP8, "correction=token_truncate", f"correction.weight.upper={upper}", seed=seed, collapse=collapse)
    (sweep / ".sweep").mkdir()
    space = {"correction.weight.upper": {"low": 1.1, "high": 9, "scale": "distance_from_1"}}
    (sweep / ".sweep" / "search-spec.json").write_text(json.dumps({"space": space} | spec))


def test_the_report_draws_healthy_against_the_threshold(tmp_path):
    """2 of 2 and 1 of 2. Clopper and Pearson: 1 of 2 is at least 1 - 0.975^(1/2) = 0.0126."""
    searched(tmp_path)
    found = {"importance": {"|correction.weight.upper - 1|": 0.75, "b": 0.25}}
    (tmp_path / ".sweep" / "search.json").write_text(json.dumps(found))
    figure = FIGURES["search"].draw(analysed(tmp_path))
    share, reward, bars = figure.axes
    x, y = share.lines[0].get_data()
    assert list(x) == [2.0, 4.0] and list(y) == [1.0, 0.5]
    lowest = min(point[1] for part in share.collections for segment in part.get_segments() for point in segment)
    assert lowest == pytest.approx(0.0126, abs=1e-4)
    assert len(reward.lines[0].get_xdata()) == 4 and [bar.get_width() for bar in bars.patches] == [0.25, 0.75]


@pytest.mark.parametrize("spec", ["[]", "{", '{"space": {"no.such.key": {"low": 1}, "loss.eps_low": [1]}}', '{"space": 3}'])
def test_a_strangers_search_is_no_obstacle(tmp_path, spec):
    searched(tmp_path)
    (tmp_path / ".sweep" / "search-spec.json").write_text(spec)
    (tmp_path / ".sweep" / "search.json").write_text('{"importance": {"<b>": "x", "c": 1e999, "d": null}}')
    assert isinstance(FIGURES["search"].draw(analysed(tmp_path)), str)
