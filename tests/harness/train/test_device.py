"""Errors of a GPU are found on a CPU: first the device that finds them, then the harness on that device."""

import pytest
import torch

from harness.run.folder import RunFolder
from harness.tasks import PAD
from harness.train.trainer import Trainer
from harness.validate import check
from tests.harness.engines import loaded as engine
from tests.harness.rollouts.test_architectures import SHAPES
from tests.harness.tasks.test_text import model, questions, text  # noqa: F401
from tests.harness.train.strict_device import DEVICE, Elsewhere, Mixed, lies_there, put, take


def test_the_device_refuses_what_a_gpu_does():
    near = torch.arange(3.0)
    with Elsewhere():
        far = torch.ones(3, device=DEVICE)
        assert lies_there(far * 2) and lies_there(near.to(DEVICE)) and not lies_there(far.cpu()) and far.device == DEVICE
        assert lies_there(torch.zeros_like(far)) and lies_there(far.new_empty(2)) and lies_there(far[near.long()])
        assert (far + torch.tensor(1.0)).sum() == 6 and near.to(far).device == DEVICE and near.device.type == "cpu"
        far[near.long()] = 2.0
        far[:2] = near[:2]
        for refused in (
            lambda: far + near, lambda: torch.cat([far, near]), lambda: near[far.long()], lambda: far.numpy(),
            lambda: torch.where(near > 1, far, 0.0), lambda: far.__setitem__(near.long(), near),
        ):  # fmt: skip
            with pytest.raises(Mixed):
                refused()


@pytest.fixture
def elsewhere(monkeypatch):
    """The harness computes on DEVICE. The actor is DeepSpeed's, which stays on the CPU, and so does π_ref of forward passes: what
    they are given and give is moved."""
    from harness import models
    from harness.rollouts import local
    from harness.train import parts, sampler, trainer
    from harness.train.model import actor, frozen
    from harness.train.options import greedy

    for module in (models, local, parts, sampler, greedy, trainer):
        monkeypatch.setattr(module, "device", lambda: DEVICE)

    class Scored:
        def logp(self, prompts, tokens, replay=None):
            assert lies_there(prompts) and lies_there(tokens) and replay is None
            with torch._C.DisableTorchFunction():
                out = super().logp(*take((prompts, tokens)))
            return put(out)

    class Moved(Scored, actor.DeepSpeedActor):
        def backward(self, loss, *, last):
            assert lies_there(loss)
            super().backward(take(loss), last=last)

        def weights(self):
            with torch._C.DisableTorchFunction():
                weights = list(super().weights())
            return ((name, put(weight)) for name, weight in weights)

    class Frozen(Scored, frozen.FrozenPolicy):
        pass

    monkeypatch.setattr(parts, "DeepSpeedActor", Moved)
    monkeypatch.setattr(parts, "FrozenPolicy", Frozen)
    with Elsewhere():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp8_channel"])
def test_the_local_engine_on_a_device_of_its_own(elsewhere, name):
    """Uniform numbers come from the CPU, as a run draws them; prompts from either place, ragged."""
    from transformers import AutoModelForCausalLM

    made = engine(AutoModelForCausalLM.from_config(SHAPES["qwen2, tied"]), name, stop=(3, 4, 5, 6), top_k=20, top_p=0.9)
    prompts = torch.tensor([[PAD, 1, 2], [PAD, 1, 2], [7, 8, 9]])
    for asked in (prompts, prompts.to(DEVICE)):
        out = made.generate(asked, torch.rand(3, 8))
        assert all(lies_there(part) for part in out if part is not None) and lies_there(made.greedy(asked, 4))
        for tokens in (out.tokens, out.tokens.cpu()):
            assert lies_there(made.score(asked, tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("rollout/precision=fp8_channel", "correction=token_truncate", "actor.num_minibatches=2", "actor.micro_tokens=30"),
        ("rollout/precision=fp32", "advantage=remax", "kl=k3", "kl.coef=0.01", "correction=sequence_mask"),
        ("rollout/precision=int8", "actor.scoring=none", "loss=pg", "rollout.staleness=1", "task.choices=2",
         "warmstart.keep_low=0", "correction=token_truncate", "correction.ratio=current"),
        ("rollout/precision=fp32", "actor.scoring=forward", "kl=k3", "actor.micro_tokens=30"),
    ],
    ids=["fp8", "control", "unscored", "reference"],
)  # fmt: skip
def test_a_step_of_a_run_on_a_device_of_its_own(elsewhere, tiny, overrides):
    probe = "+evaluation.probe.bf16={name: bf16, compute: bf16, weights: null, activations: null}"
    config = tiny(*overrides, "dump.every=1", "diagnostics.every=1", probe)
    with RunFolder(config.path).claim() as folder:
        trainer = Trainer(check(config), folder)
        for step in range(2):
            metrics = trainer.step(step)
    assert metrics["reward/rollout"] >= 0


@pytest.mark.slow
def test_a_step_on_text_on_a_device_of_its_own(elsewhere, text):  # noqa: F811
    config = text("rollout/precision=bf16", "dump.every=1")
    with RunFolder(config.path).claim() as folder:
        metrics = Trainer(check(config), folder).step(0)
    assert metrics["rollout/response_tokens"] > 0
