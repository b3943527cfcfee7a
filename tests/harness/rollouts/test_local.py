"""The embedded engine against transformers, and its own invariants."""

import numpy as np
import pytest
import torch

from harness.models import build, qwen3_config, qwen3_sizes
from harness.precisions import PRECISIONS
from harness.rollouts.local import LocalEngine
from harness.tasks import PAD
from tests.harness.engines import loaded, precision


@pytest.fixture(scope="module")
def net():
    sizes = qwen3_sizes(hidden=64, layers=2, heads=4, kv_heads=2, head=32, mlp=96)
    net = build(qwen3_config(sizes, 13, 40), seed=1)
    with torch.no_grad():
        for parameter in net.parameters():  # gains off 1 and sharp logits, so that no term can be missing unnoticed
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
            else:
                parameter.mul_(4)
    return net


@pytest.fixture(scope="module")
def asked():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 13, (24, 5), generator=generator), torch.rand(24, 12, generator=generator)


def engine(net, name, **more) -> LocalEngine:
    return loaded(net, name, 3, **more)


def reference(net, prompts, tokens, temperature=1.0):
    with torch.no_grad():
        logits = net(torch.cat([prompts, tokens], 1)).logits[:, prompts.shape[1] - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_fp32_agrees_with_transformers(net, asked, temperature):
    out = engine(net, "fp32", temperature=temperature).generate(*asked)
    assert (out.version == 3).all() and out.logp.dtype == torch.float32
    assert (out.logp - reference(net, asked[0], out.tokens, temperature)).abs().max() < 2e-5


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("kv_cache", ["compute", "fp8_e4m3", "fp8_e5m2"])
def test_scoring_along_the_sampling_path_gives_the_same_bits(net, asked, name, kv_cache):
    made = engine(net, name, kv_cache=kv_cache)
    out = made.generate(*asked)
    assert torch.equal(made.score(asked[0], out.tokens), out.logp)


def test_a_beginning_that_all_prompts_share_is_computed_once(net, asked, monkeypatch):
    """Of 24 prompts with 20 tokens, whose first 17 are equal, 17 + 24·3 tokens are computed, and then those of the responses."""
    prompts = torch.cat([torch.arange(17)[None].expand(24, -1) % 13, asked[0][:, :3]], 1)
    prompts[:, 17] = torch.arange(24) % 13  # the next tokens differ
    made, computed = engine(net, "fp32"), []
    forward = made._forward
    monkeypatch.setattr(made, "_forward", lambda tokens, *more: computed.append(tokens.numel()) or forward(tokens, *more))
    out = made.generate(prompts, asked[1])
    assert computed[:2] == [17, 24 * 3]
    assert torch.equal(made.score(prompts, out.tokens), out.logp)
    assert (out.logp - reference(net, prompts, out.tokens)).abs().max() < 2e-5
    monkeypatch.setattr("harness.rollouts.local.SHARED", 18)
    computed.clear()
    alone = made.generate(prompts, asked[1])
    assert computed[0] == 24 * 20 and torch.equal(alone.tokens, out.tokens)


def test_each_precision_is_further_from_fp32_than_the_last(net, asked):
    """Significand bits: fp32 24, fp16 11, bf16 8, e4m3 4, and an fp8 cache on top. K3 on the same tokens must be ordered so."""
    tokens = engine(net, "fp32").generate(*asked).tokens
    exact = reference(net, asked[0], tokens).double()

    def k3(name, **more):
        ratio = exact - engine(net, name, **more).score(asked[0], tokens).double()
        return (torch.expm1(ratio) - ratio).mean().item()

    values = [k3("fp32"), k3("fp16"), k3("bf16"), k3("fp8_channel")]
    assert values == sorted(values) and values[0] < 1e-10
    assert k3("fp8_tensor", kv_cache="fp8_e4m3") > k3("bf16", kv_cache="fp8_e4m3") > k3("bf16")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_16_bits_agree_with_transformers_in_16_bits(net, asked, name, dtype):
    """Native kernels round at the same places, so the two differ by far less than either does from fp32."""
    tokens = engine(net, "fp32").generate(*asked).tokens
    ours = engine(net, name).score(asked[0], tokens)
    exact = reference(net, asked[0], tokens)
    native = build(net.config, 0).to(dtype)
    native.load_state_dict(net.state_dict())
    with torch.no_grad():
        logits = native(torch.cat([asked[0], tokens], 1)).logits[:, 4:-1]
    theirs = logits.float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    assert (ours - theirs).abs().mean() < (ours - exact).abs().mean()


def test_fp8_linear_against_fp64(net):
    """One quantised layer: codes and scales by an independent fp64 computation of round(x/s_x)·round(w/s_w)·s_x·s_w."""
    made = engine(net, "fp8_tensor")
    weight = torch.cat([net.model.layers[0].mlp.gate_proj.weight, net.model.layers[0].mlp.up_proj.weight]).detach()
    weight = weight.bfloat16().float()
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0)).bfloat16().float()

    def codes(v, amax):
        scale = (amax / 448).float()
        return (v / scale).to(torch.float8_e4m3fn).double(), scale.double()

    xq, xs = codes(x, x.abs().amax(-1, keepdim=True))
    wq, ws = codes(weight, weight.abs().amax())
    expected = (xq @ wq.T * xs * ws).float().bfloat16().float()
    ours = made._linear(x, made.layers[0]["gate_up"])
    wrong = (ours != expected).float().mean()  # fp32 accumulation may tip a bf16 rounding: by one last place, rarely
    assert wrong < 0.01 and torch.allclose(ours, expected, rtol=2**-7)


def test_sampling_inverts_the_distribution(net):
    """Uniform numbers on a fine grid must give each first token with its probability, to the grid's resolution."""
    n = 4000
    prompts = torch.full((n, 5), 2)
    uniforms = ((torch.arange(n) + 0.5) / n)[:, None]
    out = engine(net, "fp32").generate(prompts, uniforms)
    with torch.no_grad():
        p = net(prompts[:1]).logits[0, -1].softmax(-1)
    share = torch.bincount(out.tokens[:, 0], minlength=13) / n
    assert (share - p).abs().max() <= 1.5 / n
    assert torch.allclose(out.logp[:, 0], p.log()[out.tokens[:, 0]], atol=1e-5)


def test_greedy_is_the_most_probable_token_each_time_up_to_a_stop(net, asked):
    prompts = torch.cat([asked[0], asked[0][:3]])
    prompts[3, :2] = PAD  # a shorter prompt
    tokens = engine(net, "fp32", temperature=0.3, top_k=2).greedy(prompts, 6)
    for prompt, row in zip(prompts, tokens, strict=True):
        ids = prompt[prompt != PAD]
        for token in row:
            with torch.no_grad():
                assert token == net(ids[None]).logits[0, -1].argmax()
            ids = torch.cat([ids, token[None]])
    stop = int(tokens[0, 2])
    stopped = engine(net, "fp32", stop=(stop,)).greedy(prompts, 6)
    place = int((tokens[0] == stop).nonzero()[0, 0])
    assert torch.equal(stopped[0, : place + 1], tokens[0, : place + 1]) and (stopped[0, place + 1 :] == PAD).all()


def test_a_response_does_not_depend_on_its_neighbours(net, asked):
    """Nor on the weights loaded before, nor on a cache left by another shape."""
    prompts, uniforms = asked
    made = engine(net, "fp8_tensor")
    whole = made.generate(prompts, uniforms)
    made.generate(prompts[:3, :2], uniforms[:3, :4])
    part = made.generate(prompts[5:9], uniforms[5:9])
    assert torch.equal(part.tokens, whole.tokens[5:9])
    assert torch.allclose(part.logp, whole.logp[5:9], atol=1e-5)


def test_new_weights_count_at_once(net, asked):
    made = engine(net, "bf16")
    before = made.generate(*asked)
    other = build(net.config, seed=9)
    made.load_weights(other.named_parameters(), version=4)
    after = made.generate(*asked)
    fresh = LocalEngine(net.config, precision("bf16"))
    fresh.load_weights(other.named_parameters(), version=4)
    assert (after.version == 4).all() and not torch.equal(before.logp, after.logp)
    assert torch.equal(after.logp, fresh.generate(*asked).logp)


@pytest.mark.parametrize("name", ["fp32", "fp8_tensor"])
def test_weights_that_the_trainer_changes_in_place_do_not_leak_in(net, asked, name):
    weights = {key: w.detach().clone() for key, w in net.named_parameters()}
    made = LocalEngine(net.config, precision(name))
    made.load_weights(weights.items(), version=0)
    before = made.generate(*asked)
    for w in weights.values():
        w.add_(0.1)
    assert torch.equal(made.generate(*asked).logp, before.logp)


def test_nan_weights_give_nan_log_probabilities_not_an_exception(net, asked):
    broken = {name: w.detach().clone() for name, w in net.named_parameters()}
    broken["model.layers.0.mlp.down_proj.weight"][0, 0] = float("nan")
    for name in PRECISIONS:
        made = LocalEngine(net.config, precision(name))
        made.load_weights(broken.items(), version=0)
        assert not made.generate(*asked).logp.isfinite().any()


def test_int8_products_are_exact(net):
    """fp32 holds every partial sum up to the documented width: compare with int64."""
    rng = np.random.default_rng(0)
    width = 1040
    x, w = rng.integers(-127, 128, (8, width)), rng.integers(-127, 128, (width, 8))
    x[0], w[:, 0] = 127, 127  # the largest sum there is
    out = torch.from_numpy(x).float() @ torch.from_numpy(w).float()
    assert np.array_equal(out.numpy().astype(np.int64), x @ w)


@pytest.mark.parametrize("name", ["fp32", "fp8_tensor"])
def test_samples_of_a_prompt_share_what_they_have_in_common(net, name, monkeypatch):
    """8 samples of 3 prompts: every different prefix is computed once, and each row is what it would be by itself."""
    prompts = torch.tensor([[1, 2], [3, 4], [1, 2]]).repeat_interleave(8, dim=0)
    uniforms = torch.rand(24, 6, generator=torch.Generator().manual_seed(2))
    made, computed = engine(net, name, temperature=0.5), []
    forward = made._forward
    monkeypatch.setattr(made, "_forward", lambda tokens, *rest: computed.append(len(tokens)) or forward(tokens, *rest))
    together = made.generate(prompts, uniforms)
    places = torch.arange(3).repeat_interleave(8)  # prompts that are equal but apart are different roots
    prefixes = [torch.column_stack([places, together.tokens[:, :t]]).unique(dim=0) for t in range(6)]
    assert computed == [len(p) for p in prefixes] and computed[0] == 3 < computed[1] < computed[-1]
    for row in range(24):
        alone = made.generate(prompts[row : row + 1], uniforms[row : row + 1])
        assert torch.equal(alone.tokens[0], together.tokens[row])
        torch.testing.assert_close(alone.logp[0], together.logp[row], atol=2e-5 if name == "fp32" else 0.05, rtol=0)


def test_noise_is_of_the_stated_size_on_linear_weights_alone_and_anew_for_each_version(net):
    noisy, plain = engine(net, "fp32", noise=0.05), engine(net, "fp32")
    off = {
        (i, key): (layer[key][0] / plain.layers[i][key][0] - 1).flatten()
        for i, layer in enumerate(noisy.layers)
        for key in ("qkv", "o", "gate_up", "down")
    }
    drawn = torch.cat(list(off.values()))  # 2 x 30,720 of them: the error of their std is 0.05/√(2·61,440) = 1.4e-4
    assert drawn.std().item() == pytest.approx(0.05, abs=6e-4) and drawn.mean().abs() < 8e-4
    assert torch.equal(noisy.head, plain.head) and torch.equal(noisy.layers[0]["qk_norm"], plain.layers[0]["qk_norm"])
    again = engine(net, "fp32", noise=0.05)
    assert torch.equal(again.layers[1]["down"][0], noisy.layers[1]["down"][0])
    again.load_weights(net.named_parameters(), version=4)
    assert not torch.equal(again.layers[1]["down"][0], noisy.layers[1]["down"][0])
