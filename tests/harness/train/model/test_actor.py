"""The DeepSpeed actor against plain torch, at every ZeRO stage."""

import psutil
import pytest
import torch

from harness.config import ActorConfig
from harness.models import build, qwen3_config, qwen3_sizes
from harness.train.model.actor import DeepSpeedActor

SIZES = qwen3_sizes(hidden=32, layers=2, heads=2, kv_heads=1, head=32, mlp=48)
SHAPE = qwen3_config(SIZES, 11, 32)


def settings(**changes) -> ActorConfig:
    values = {
        "zero_stage": 1, "dtype": "fp32", "lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1,
        "max_grad_norm": 0.5, "num_minibatches": 1, "epochs": 1, "micro_tokens": None,
        "gradient_checkpointing": False, "scoring": "exact",
    }  # fmt: skip
    return ActorConfig(**{**values, **changes})


def data(seed: int):
    generator = torch.Generator().manual_seed(seed)
    prompts, tokens = (torch.randint(0, 11, (6, n), generator=generator) for n in (3, 5))
    return prompts, tokens, torch.randn(6, 5, generator=generator)


def plain(steps: int):
    """The same training written out in torch: norms before clipping, and the final weights."""
    net, config = build(SHAPE, 0), settings()
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    norms = []
    for step in range(steps):
        prompts, tokens, weights = data(step)
        logits = net(torch.cat([prompts, tokens], 1)).logits[:, 2:-1]
        logp = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        (-logp * weights).mean().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), config.max_grad_norm)))
        optimizer.step()
        optimizer.zero_grad()
    return norms, dict(net.named_parameters())


def trained(actor: DeepSpeedActor, steps: range) -> list[float]:
    norms = []
    for step in steps:
        prompts, tokens, weights = data(step)
        logp, _ = actor.logp(prompts, tokens)
        actor.backward((-logp * weights).mean(), last=True)
        norms.append(actor.step())
    return norms


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_stage_trains_as_plain_torch_does(stage):
    """Pre-clip norms and weights after 4 clipped AdamW steps. The norms exceed max_grad_norm, so clipping is in play."""
    norms, weights = plain(4)
    actor = DeepSpeedActor(build(SHAPE, 0), settings(zero_stage=stage))
    assert min(norms) > 0.5
    assert trained(actor, range(4)) == pytest.approx(norms, rel=1e-4)
    ours = {name: w.detach().clone() for name, w in actor.weights()}
    assert ours.keys() == weights.keys()
    for name, w in weights.items():
        assert torch.allclose(ours[name], w, atol=1e-4), name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_checkpoint_continues_to_the_bit(stage, dtype, tmp_path):
    actor = DeepSpeedActor(build(SHAPE, 0), settings(zero_stage=stage, dtype=dtype))
    trained(actor, range(2))
    actor.save(tmp_path)
    expected = trained(actor, range(2, 5))
    other = DeepSpeedActor(build(SHAPE, 123), settings(zero_stage=stage, dtype=dtype))
    other.load(tmp_path, ranks=1)
    assert trained(other, range(2, 5)) == expected
    for (_, a), (_, b) in zip(actor.weights(), other.weights(), strict=True):
        assert torch.equal(a, b)


def test_entropy_and_log_probabilities():
    actor = DeepSpeedActor(build(SHAPE, 0), settings(), temperature=0.7)
    prompts, tokens, _ = data(0)
    logp, entropy = actor.logp(prompts, tokens)
    with torch.no_grad():
        p = (build(SHAPE, 0)(torch.cat([prompts, tokens], 1)).logits[:, 2:-1] / 0.7).softmax(-1)
    assert torch.allclose(logp, p.log().gather(-1, tokens[..., None])[..., 0], atol=1e-5)
    assert torch.allclose(entropy, -(p * p.log()).sum(-1), atol=1e-5)
    assert logp.requires_grad and entropy.requires_grad  # for entropy_coeff


def test_bf16_trains():
    actor = DeepSpeedActor(build(SHAPE, 0), settings(dtype="bf16"))
    norms, _ = plain(2)
    assert trained(actor, range(2)) == pytest.approx(norms, rel=0.1)
    assert {w.dtype for _, w in actor.weights()} == {torch.bfloat16}


def test_nothing_listens_beyond_loopback():
    DeepSpeedActor(build(SHAPE, 0), settings())
    listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
