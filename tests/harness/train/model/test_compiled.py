"""actor.compile=true: the numbers of the plain forward and backward to rounding, and what is refused."""

import pytest
import torch

from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.models import build
from harness.train.model.actor import DeepSpeedActor
from harness.validate import check
from tests.harness.train.model.test_actor import SHAPE, settings
from tests.harness.train.model.test_equal_rows import COPIES, error, sampled
from tests.harness.train.test_moe_runs import MIXTURE


@pytest.fixture(autouse=True)
def _default_stance():
    yield
    torch.compiler.set_stance("default")


@pytest.mark.slow  # the compiler takes half a minute of CPU
def test_a_compiled_actor_has_the_numbers_of_a_plain_one():
    """To 1e-6 nats, and gradients to 1e-6 of their norm: fused operations round elsewhere.

    Another number of rows compiles nothing anew.
    """
    plain, compiled = (DeepSpeedActor(build(SHAPE, 0), settings(zero_stage=0, compile=chosen)) for chosen in (False, True))
    for rows, stance in ((COPIES, "default"), (COPIES[:3], "fail_on_recompile"), (COPIES[:8], "fail_on_recompile")):
        torch.compiler.set_stance(stance)
        prompts, tokens, weights = sampled(rows)
        gradients = []
        for actor in (plain, compiled):
            actor.engine.zero_grad()
            logp, entropy = actor.logp(prompts, tokens)
            actor.backward((weights * logp).sum(), last=True)
            gradients.append([parameter.grad.clone() for parameter in actor.engine.module.parameters()])
        expected, expected_entropy = plain.logp(prompts, tokens)
        torch.testing.assert_close(logp, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(entropy, expected_entropy, atol=1e-6, rtol=0)
        assert error(gradients[1], gradients[0]) < 1e-6
        with torch.no_grad():
            torch.testing.assert_close(compiled.logp(prompts, tokens)[0], logp, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["actor.zero_stage=3"], "actor.zero_stage=3, whose hooks are not compiled; set actor.compile=false"),
        (["actor.gradient_checkpointing=true"], "actor.gradient_checkpointing=true, whose hooks"),
        (["rollout/precision@actor.precision=fp8_tensor", "actor.dtype=bf16"], "actor.precision=..., whose hooks"),
        (MIXTURE, "routes of a mixture of experts are recorded between its operations; set false"),
    ],
    ids=["stage 3", "checkpointing", "cast", "mixture"],
)
def test_what_works_by_hooks_is_refused(overrides, reason):
    with pytest.raises(UserError, match=reason):
        check(parse(compose("actor.compile=true", *overrides)))


def test_a_machine_without_a_compiler_is_told_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="the C\\+\\+ compiler no-such-compiler was not found; install it, set CXX, or set false"):
        check(parse(compose("actor.compile=true")))
