"""A mixture of experts in the real vLLM on this machine, against the embedded engine."""

import functools
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3MoeConfig

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.models import build
from harness.rollouts import vllm_support
from harness.rollouts.local import LocalEngine
from harness.rollouts.vllm import VllmEngine
from harness.rollouts.vllm_outputs import expert_ids
from harness.tasks import PAD
from tests.machines import MACHINES

pytestmark = pytest.mark.vllm
SHAPE = Qwen3MoeConfig(
    vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, moe_intermediate_size=96, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[],
    max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
)  # fmt: skip


@functools.cache
def net(seed: int):
    made = build(SHAPE, seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    return made


def precision(name: str) -> PrecisionConfig:
    formats = {"int8": ("bf16", "int8_channel", "int8_token")}.get(name, (name, None, None))
    return PrecisionConfig(name=name, compute=formats[0], weights=formats[1], activations=formats[2])


@pytest.fixture
def no_groups():
    """A process that made a dense engine before has vLLM's groups of ranks without one for experts."""
    from vllm.distributed.parallel_state import destroy_model_parallel

    destroy_model_parallel()
    yield
    destroy_model_parallel()


@pytest.mark.parametrize(("name", "limits"), [("fp32", (0, 1e-5)), ("bf16", (5e-4, 3e-2))])
def test_it_agrees_with_the_embedded_engine_in_fp32_before_and_after_a_reload(no_groups, name, limits):
    """Mean |Δ log-prob| in nats, with the bounds of test_vllm. A CPU packs experts for its kernel: old ones must not answer."""
    generator = torch.Generator().manual_seed(0)
    prompts, uniforms = torch.randint(0, 32, (12, 5), generator=generator), torch.rand(12, 10, generator=generator)
    sampler = VllmEngine(SHAPE, precision(name), kv_cache_gib=0.25)
    exact = LocalEngine(SHAPE, precision("fp32"))
    for seed in (1, 2, 1):
        for engine in (sampler, exact):
            engine.load_weights(net(seed).named_parameters(), seed)
        rollout = sampler.generate(prompts, uniforms)
        off = (rollout.logp - exact.score(prompts, rollout.tokens)).abs().mean().item()
        assert limits[0] <= off <= limits[1]
        assert rollout.expert_ids is None or torch.cuda.is_available()
    sampler.close()


def test_what_vllm_tells_of_experts_is_put_in_its_places():
    """Its arrays start at the first token of the prompt, and may or may not hold the last token of the response."""
    told = torch.arange(24).view(6, 2, 2) % 8
    samples = [SimpleNamespace(token_ids=[1, 2, 3], routed_experts=told[:5].numpy()),
               SimpleNamespace(token_ids=[4, 5], routed_experts=told[:4].numpy())]  # fmt: skip
    ids = expert_ids(samples, torch.tensor([[3, 4, 5], [PAD, 6, 7]]), 3, SHAPE)
    assert ids.shape == (2, 5, 2, 2) and ids.dtype == torch.uint8
    assert torch.equal(ids[0].long(), told[:5])
    assert torch.equal(ids[1, 1:4].long(), told[:3]) and (ids[1, 0] == 255).all() and (ids[1, 4] == 255).all()
    with pytest.raises(RuntimeError, match="not of 6 tokens"):
        expert_ids([SimpleNamespace(token_ids=[1] * 4, routed_experts=told[:5].numpy())], torch.tensor([[3, 4, 5]]), 4, SHAPE)


def test_a_format_that_it_does_not_give_experts_is_refused(monkeypatch):
    monkeypatch.setattr(vllm_support, "this_machine", lambda: MACHINES["avx512"])  # one that computes int8 in dense layers
    with pytest.raises(UserError, match="vLLM's experts are not quantised so here; use fp32"):
        VllmEngine.check(SHAPE, precision("int8"), "compute")
