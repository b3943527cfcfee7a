"""Scales of an FP8 cache: by hand, at one to the bit, stale over a sync and over a checkpoint."""

from fractions import Fraction

import pytest
import torch

from harness.errors import UserError
from harness.models import build
from harness.rollouts import casts
from harness.rollouts.kv_scales import KvScales
from harness.tasks import PAD
from harness.validate import check
from tests.harness.engines import loaded
from tests.harness.rollouts.test_casts import e4m3_values, nearest
from tests.harness.train.model.test_actor import SHAPE


def scales(rule="sync", percentile=100.0):
    return KvScales(casts.e4m3, 448.0, rule, percentile)


def test_a_calibrated_scale_in_exact_arithmetic():
    """The largest value has the code 448. The others are the nearest code times the scale."""
    keys, values = (torch.randn(4, 6, 2, 8, generator=torch.Generator().manual_seed(n)) * 5.0**n for n in (1, 2))
    for x, out in zip((keys, values), scales()(0, keys, values), strict=True):
        scale = Fraction(float(x.abs().max() / 448))
        for given, stored in zip(x.flatten().tolist(), out.flatten().tolist(), strict=True):
            quotient = float(torch.tensor(given) / torch.tensor(float(scale)))
            assert Fraction(stored) == Fraction(float(torch.tensor(float(Fraction(nearest(quotient, e4m3_values())) * scale))))


def test_values_beyond_the_percentile_saturate_there():
    """Of 1 to 100 the 99th percentile is 99, the scale 99/448: 100 is stored as 99, and 99 as itself."""
    x = torch.arange(1.0, 101.0).view(1, 1, 1, 100)
    out, _ = scales(percentile=99.0)(0, x, x)
    assert out[..., -2:].flatten().tolist() == [99.0, 99.0]
    assert scales()(0, x, x)[0].max() == 100


def test_a_scale_is_of_the_first_tokens_until_the_next_sync():
    small, large = torch.full((1, 1, 1, 4), 1.0), torch.full((1, 1, 1, 4), 4.0)
    made = scales()
    made(0, small, small)
    assert made(0, large, large)[0].max() == 1  # calibrated already: saturates
    made.sync()
    assert made(0, large, large)[0].max() == 4


def test_padding_does_not_calibrate():
    """Padding of 8 beside tokens of 1: the scale is 1/448. Padding alone leaves the calibration to the next tokens."""
    x = torch.tensor([8.0, 8.0, 1.0]).view(1, 3, 1, 1).expand(2, 3, 1, 4)
    real = torch.tensor([[False, False, True], [False, False, False]])
    made = scales()
    assert torch.equal(made(0, x[1:], x[1:], real[1:])[0], x[1:]) and not made.scales
    made(0, x, x, real)
    assert made.scales["0.k"] == made.scales["0.v"] == torch.tensor(1 / 448)


def test_scales_do_not_depend_on_padding():
    """A prompt alone, and beside its own first half, which is padded on the left: the keys and values are the same.

    Padding is computed as token 0, whose embedding is turned here towards the first layer's largest value.
    """
    net = build(SHAPE, 0)
    with torch.no_grad():
        rows = net.model.layers[0].self_attn.v_proj.weight
        net.model.embed_tokens.weight[0] = rows[rows.norm(dim=1).argmax()]
    prompt = torch.randint(1, 11, (1, 6), generator=torch.Generator().manual_seed(0))
    short = torch.full_like(prompt, PAD)
    short[:, 3:] = prompt[:, :3]
    nothing = torch.zeros(1, 1, dtype=torch.int64)
    alone, padded = (loaded(net, kv_cache="fp8_e4m3", kv_scale="sync") for _ in range(2))
    alone.score(prompt, nothing)
    padded.score(torch.cat((prompt, short)), nothing.expand(2, 1))
    assert padded.kv_scales.scales.keys() == alone.kv_scales.scales.keys()
    for name, scale in alone.kv_scales.scales.items():
        torch.testing.assert_close(padded.kv_scales.scales[name], scale, rtol=1e-5, atol=0)


def test_rows_of_zeros_are_stored_as_zeros():
    nothing = torch.zeros(1, 1, 1, 4)
    assert torch.equal(scales()(0, nothing, nothing)[0], nothing)


def test_calibration_lowers_the_error_of_keys_that_one_saturates():
    """Keys of several hundred: with the scale 1 those above 448 saturate. K3 from an exact cache falls by calibration."""
    net = build(SHAPE, 0)
    with torch.no_grad():
        for layer in net.model.layers:
            layer.self_attn.k_norm.weight.mul_(300)
            layer.self_attn.q_norm.weight.div_(300)
    prompts, tokens = (torch.randint(0, 11, (8, n), generator=torch.Generator().manual_seed(0)) for n in (4, 8))
    exact = loaded(net).score(prompts, tokens).double()

    def k3(**settings):
        ratio = exact - loaded(net, kv_cache="fp8_e4m3", **settings).score(prompts, tokens).double()
        return (torch.expm1(ratio) - ratio).mean().item()

    assert k3() > 3 * k3(kv_scale="sync") > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.engine.kv_scale=sync"], r"kv_scale=sync has no effect with rollout\.kv_cache=compute; set fp8_e4m3"),
        (
            ["rollout.engine.kv_percentile=99.9"],
            r"kv_percentile=99\.9 has no effect with kv_scale=one; set sync",
        ),
        (["rollout.kv_cache=fp8_e4m3", "rollout.engine.kv_scale=never"], r"rollout\.engine\.kv_scale='never': must be"),
    ],
)
def test_what_has_no_effect_is_refused(tiny, overrides, message):
    with pytest.raises(UserError, match=message):
        check(tiny(*overrides))
