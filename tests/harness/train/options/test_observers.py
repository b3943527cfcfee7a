"""Diagnoses in training: they say what replay says of the step's dump, change no result, and name a fault."""

import math

import pytest

from faultline.tools.replay.collect import collect
from faultline.tools.replay.evidence import Evidence, known
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.rollouts.local import LocalEngine
from harness.run.folder import RunFolder
from harness.run.loop import train
from harness.train.options.observers import diagnosis_metrics

DIAGNOSED = ["collapse=alarms", "diagnostics.every=2", "rollout.prompts=16", "evaluation.every=6"]


def rows(config):
    return {row["step"]: row for row in RunFolder(config.path).metrics()}


def replayed(run, step):
    """The metrics of the diagnosis that replay makes of the dump of a step."""
    path = run / "dumps" / f"step-{step:08d}.parquet"
    seen = Evidence(known(path))
    collect(Dump(path), {"icepop": presets(["icepop"])["icepop"].correction}, evidence=seen)
    return diagnosis_metrics(seen.diagnosis()[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [[], ["actor.scoring=none", "proximal=rollout"], ["rollout.staleness=1"]], ids=["exact", "unscored", "stale"]
)
def test_a_diagnosis_is_that_of_the_steps_dump(tiny, more):
    config = tiny(*DIAGNOSED, "dump.every=2", "steps=4", "rollout/precision=bf16", *more)
    train(config)
    seen = rows(config)
    for step in (0, 2):
        recorded = {name: value for name, value in seen[step].items() if name.startswith("diagnosis/")}
        assert recorded == pytest.approx(replayed(config.path, step), rel=1e-6) and recorded["diagnosis/faulty"] == 0
    assert not any(name.startswith("diagnosis/") for name in seen[1])


@pytest.mark.slow
def test_a_diagnosis_changes_no_result(tiny):
    """Six steps with the diagnosis and without: each metric of both runs is equal to the bit."""
    found = []
    for every in ("1", "null"):
        config = tiny("steps=6", f"diagnostics.every={every}", "rollout/precision=bf16")
        train(config)
        found.append(rows(config))
    diagnosed, plain = found
    for step, row in plain.items():
        for name, value in row.items():
            assert name.startswith(("time/", "throughput/")) or diagnosed[step][name] == value, name
    assert "diagnosis/faulty" in diagnosed[5] and not any("diagnosis" in name for row in plain.values() for name in row)


def test_log_probabilities_above_0_are_named(tiny, monkeypatch):
    """An engine that reports −log μ."""
    generate = LocalEngine.generate

    def negated(self, prompts, uniforms):
        rollout = generate(self, prompts, uniforms)
        return rollout._replace(logp=-rollout.logp)

    monkeypatch.setattr(LocalEngine, "generate", negated)
    config = tiny(*DIAGNOSED, "steps=1")
    train(config)
    (named,) = [event for event in RunFolder(config.path).events() if event["kind"] == "diagnosis"]
    assert named["fault"] == "fill" and "of the rollout's log-probabilities are above 0" in named["evidence"]


def test_a_fault_is_named_by_an_event_and_an_alarm(tiny, monkeypatch):
    """An engine that reports logarithms to base 2. The alarm comes with the second diagnosis in a row."""
    generate = LocalEngine.generate

    def in_base_two(self, prompts, uniforms):
        rollout = generate(self, prompts, uniforms)
        return rollout._replace(logp=rollout.logp / math.log(2))

    monkeypatch.setattr(LocalEngine, "generate", in_base_two)
    config = tiny(*DIAGNOSED, "steps=3", "rollout.prompts=64")
    train(config)
    events = list(RunFolder(config.path).events())
    named = [event for event in events if event["kind"] == "diagnosis"]
    assert [(event["step"], event["fault"]) for event in named] == [(0, "log_base"), (2, "log_base")]
    assert "base 2" in named[0]["evidence"] and "vLLM" in named[0]["check"]
    (warning,) = [event for event in events if event.get("detector") == "diagnosis"]
    assert (warning["kind"], warning["step"], warning["onset"]) == ("warning", 2, 0)
    assert warning["cause"] == "fault of the log-probabilities: log_base"
    seen = rows(config)[0]
    assert seen["diagnosis/faulty"] == seen["diagnosis/fault_log_base"] == 1
