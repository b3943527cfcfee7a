"""The embedded engine computes Llama, Qwen2 and Qwen3 as transformers does: ragged prompts, tied heads, biases, stop tokens."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from harness.errors import UserError
from harness.rollouts.architecture import architecture_of
from harness.rollouts.local import LocalEngine
from harness.tasks import PAD
from tests.harness.engines import FP32
from tests.harness.engines import loaded as engine

VOCABULARY = 97
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=128,
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
SHAPES = {
    "llama": LlamaConfig(**SIZES, head_dim=8),
    "llama, tied": LlamaConfig(**SIZES, head_dim=16, tie_word_embeddings=True),
    "llama, biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama, its scaled rope": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3, biases": Qwen3Config(**SIZES, head_dim=8, attention_bias=True),
}


@pytest.fixture(scope="module", params=SHAPES)
def net(request):
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(SHAPES[request.param], attn_implementation="sdpa").eval()
    with torch.no_grad():  # gains off 1, biases off 0 and sharp logits, so that no term can be missing unnoticed
        for name, parameter in net.named_parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(parameter * 3 if parameter.ndim > 1 else (0.0 if name.endswith("bias") else 1.0) + 0.3 * noise)
    return net


@pytest.fixture(scope="module")
def asked():
    """Prompts of 1 to 9 tokens, two samples each, and uniform numbers."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, VOCABULARY, (7, 9), generator=generator)
    for row, length in enumerate((9, 1, 4, 9, 7, 2, 5)):
        prompts[row, : 9 - length] = PAD
    return prompts.repeat_interleave(2, 0), torch.rand(14, 40, generator=generator)


def reference(net, prompts, tokens):
    """log-probabilities by transformers, row by row without padding, in fp64; 0 on PAD."""
    exact = AutoModelForCausalLM.from_config(net.config, attn_implementation="sdpa").double().eval()
    exact.load_state_dict(net.state_dict())
    out = torch.zeros(tokens.shape, dtype=torch.float64)
    for row, (prompt, answer) in enumerate(zip(prompts, tokens, strict=True)):
        prompt, answer = prompt[prompt != PAD], answer[answer != PAD]
        with torch.no_grad():
            logits = exact(torch.cat([prompt, answer])[None]).logits[0, len(prompt) - 1 : -1]
        out[row, : len(answer)] = logits.log_softmax(-1).gather(-1, answer[:, None])[:, 0]
    return out


def test_fp32_agrees_with_transformers(net, asked):
    out = engine(net).generate(*asked)
    assert (out.tokens != PAD).all()
    assert (out.logp - reference(net, asked[0], out.tokens)).abs().max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp8_channel"])
def test_the_control_is_exact_with_ragged_prompts_and_answers(net, asked, name):
    """Scoring takes the path of sampling when rows end at different places: the same bits, so a ratio of exactly 1."""
    made = engine(net, name, stop=(3, 11, 40, 41, 42, 43, 44, 45))
    out = made.generate(*asked)
    lengths = (out.tokens != PAD).sum(1)
    assert lengths.unique().numel() > 4 and lengths.min() < 40
    assert torch.equal(made.score(asked[0], out.tokens), out.logp)
    assert torch.equal(out.logp == 0, out.tokens == PAD)


def test_a_stop_token_ends_its_row_and_changes_no_other(net, asked):
    free, stop = engine(net).generate(*asked), (5, 6, 7, 8)
    ended = engine(net, stop=stop).generate(*asked)
    for whole, row in zip(free.tokens, ended.tokens, strict=True):
        places = torch.isin(whole, torch.tensor(stop)).nonzero()
        end = int(places[0, 0]) + 1 if len(places) else len(whole)
        assert torch.equal(row[:end], whole[:end]) and (row[end:] == PAD).all()
    written = ended.tokens != PAD
    assert not written.all() and torch.allclose(ended.logp[written], free.logp[written], atol=2e-5)


def test_rows_that_have_ended_cost_nothing(net, asked, monkeypatch):
    made, computed = engine(net, stop=tuple(range(0, VOCABULARY, 3))), []
    forward = made._forward
    monkeypatch.setattr(made, "_forward", lambda tokens, *rest: computed.append(len(tokens)) or forward(tokens, *rest))
    tokens = made.generate(*asked).tokens
    going = [(tokens[:, t] != PAD).sum().item() for t in range(tokens.shape[1])]
    assert computed[0] == 7 and all(nodes <= rows for nodes, rows in zip(computed[1:], going[1:], strict=False))
    assert len(computed) == (tokens != PAD).sum(1).max()


@pytest.mark.slow
def test_greedy_agrees_with_transformers(net, asked):
    tokens = engine(net).greedy(asked[0][::2], 12)
    for prompt, row in zip(asked[0][::2], tokens, strict=True):
        ids = prompt[prompt != PAD]
        made = net.generate(
            ids[None],
            attention_mask=torch.ones_like(ids)[None],
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert torch.equal(made[0, len(ids) :], row)


def test_weights_that_a_model_does_not_have_are_refused(net):
    made = LocalEngine(net.config, FP32)
    weights = dict(net.named_parameters())
    with pytest.raises(ValueError, match=r"does not have: layers\.0\.self_attn\.o_proj\.zero"):
        made.load_weights({**weights, "model.layers.0.self_attn.o_proj.zero": torch.zeros(1)}.items(), 0)
    weights.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(KeyError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        made.load_weights(weights.items(), 0)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (GPT2Config(), "llama, qwen2, qwen3, qwen3_moe, not gpt2"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "hidden_act=silu, not gelu"),
        (Qwen2Config(**SIZES, use_sliding_window=True, max_window_layers=1), "full attention, not sliding_attention"),
        (LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "not dynamic"),
    ],
)
def test_what_it_does_not_compute_is_refused_by_name(shape, reason):
    with pytest.raises(UserError, match=rf"^rollout\.engine=local: .*{reason}"):
        architecture_of(shape)
