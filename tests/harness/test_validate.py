"""The checks of a config, and the plan that they give."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from harness.run.folder import RunFolder
from harness.run.loop import train
from harness.train.options import Option
from harness.train.sampler import Sampler
from harness.train.trainer import Trainer
from harness.validate import check
from tests.harness.tasks.test_text import model, questions, text  # noqa: F401

pytestmark = pytest.mark.slow

MASKS = ["rollout.top_k=2", "rollout.replay_sampling_mask=true"]


def test_a_start_tokenises_a_text_task_once(text, questions, monkeypatch):  # noqa: F811
    """The tokenizer is called once for each line of the data, whose prompts are encoded one by one."""
    encoded, call = [], PreTrainedTokenizerBase.__call__
    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", lambda self, *a, **k: (encoded.append(a[0]), call(self, *a, **k))[1])
    config = text("steps=1")
    assert train(config) == "done"
    lines = [json.loads(line)["prompt"] for line in Path(questions).read_text().splitlines()]
    assert len(encoded) == len(lines) == 42 and all(line in shown for line, shown in zip(lines, encoded, strict=True))


def test_the_trainer_takes_what_the_checks_have_built(tiny):
    plan = check(tiny())
    with RunFolder(plan.config.path).claim() as folder:
        trainer = Trainer(plan, folder)
    assert trainer.sampler.task is plan.task and trainer.learner.objective is plan.objective
    assert trainer.assemble.estimate.estimator is plan.advantage
    assert trainer.sampler.engine.config is plan.shape


def test_a_sampler_is_wrapped_by_the_options_of_its_config_alone(tiny):
    """The layers from outside to inside; without an option there is none."""
    cases = {
        (): [],
        ("rollout.staleness=1",): ["SampledAhead"],
        ("rollout.partial_tokens=2", "advantage=remax"): ["GreedyBaseline", "PartialRollouts"],
        ("rollout.filter.max_rounds=2", "rollout.top_k=2", "rollout.replay_sampling_mask=true"): [
            "SamplingMasks",
            "DynamicSampling",
        ],
    }
    for overrides, expected in cases.items():
        config = tiny(*overrides)
        with RunFolder(config.path).claim() as folder:
            sampler, layers = Trainer(check(config), folder).sampler, []
        while isinstance(sampler, Option):
            layers.append(type(sampler).__name__)
            sampler = sampler.inner
        assert layers == expected and type(sampler) is Sampler
