"""The pool, without any process of its own."""

from sweeps.launch import plan
from sweeps.launchers.pool import Pool
from sweeps.ledger import Sweep


def test_a_task_that_starts_late_leaves_a_cancelled_run_alone(tiny):
    config = tiny("seed=0")
    place = Sweep(config.path.parent)
    plan(place, {config.digest: config}, {})
    place.log("submitted", [config.digest], batch="b")
    place.log("cancelled", [config.digest])
    Pool(place, 1, job="7_0").run([config.digest])
    assert place.states()[config.digest].state == "cancelled"
