"""Diagnostics against the values of the published packages and against distributions whose tail is known."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.correction import applied, correction_rows, finish_filters, finish_weights
from algos.diagnostics.mismatch import mismatch
from algos.diagnostics.pareto import pareto_k
from algos.diagnostics.positions import bin_of
from algos.diagnostics.probabilities import probabilities
from algos.ratios import Ratio
from tests.algos.algo_cases import f64, of_ratio, shared_batch


def weight_metrics(batch, spec):
    return finish_weights(correction_rows(Ratio(batch), spec), spec)


def filter_metrics(batch, spec):
    return finish_filters(correction_rows(Ratio(batch), spec), spec)


def done_to(batch, spec):
    return applied(correct(batch, spec), batch.mask)


def test_off_policy_metrics_of_verl():
    """l = [.5, −.5, 1 | −1, .5]: kl = −.5/5; k3, chi2 and perplexities as verl 0.9.1 gives them."""
    out = mismatch(shared_batch()[1])
    expected = {
        "training_ppl": 5.053669,  # (e^1 + e^2)/2
        "rollout_ppl": 4.774136,  # (e^(4/3) + e^1.75)/2
        "kl": -0.1,
        "k3_kl": 0.298027,  # (6.990137 − 5 − .5)/5
        "ppl_ratio": 1.000278,  # (e^(−1/3) + e^.25)/2
        "chi2_token": 1.665767,  # (e + e^−1 + e^2 + e^−2 + e)/5 − 1
        "chi2_seq": 2.878468,  # (e^2 + e^−1)/2 − 1
    }
    for name, value in expected.items():
        assert out[f"rollout_corr/{name}"].item() == pytest.approx(value, abs=1e-6), name


def test_weight_metrics_of_verl_beside_the_raw_ones():
    """w = [1.648721, .606531, 2 | .367879, 1.648721]; the raw third is e. high/low: one of five above 2, below ½."""
    spec = Correction(weight=Weight("token", upper=2.0))
    batch = shared_batch()[1]
    out = weight_metrics(batch, spec)
    expected = {
        "rollout_corr/rollout_is_mean": 1.25437,
        "rollout_corr/rollout_is_std": 0.643825,
        "rollout_corr/rollout_is_eff_sample_size": 0.791489,
        "rollout_corr/rollout_is_max": 2.0,
        "rollout_corr/rollout_is_min": 0.367879,
        "rollout_corr/rollout_is_ratio_fraction_high": 0.2,
        "rollout_corr/rollout_is_ratio_fraction_low": 0.2,
        "correction/raw_mean": 1.398027,  # 6.990137/5
        "correction/raw_max": math.e,
        # raw: 6.990137²/(5·13.328835), the second moment from chi2_token above
        "correction/raw_eff_sample_size": 0.733177,
    }
    for name, value in expected.items():
        assert out[name].item() == pytest.approx(value, abs=1e-6), name
    assert "rollout_corr/rollout_is_oob_ratio" not in out
    done = done_to(batch, spec)
    assert done["correction/weight_mean"].item() == pytest.approx(1.25437, abs=1e-6)
    assert done["correction/weight_ess"].item() == pytest.approx(0.791489, abs=1e-6)
    assert done["correction/weight_zero"] == 0 and done["correction/kept_tokens"] == 1


def test_the_factor_of_a_batch_normalisation():
    """verl's on the shared batch: 6.271852/5 over tokens; (2 + .606531)/2 over responses."""
    batch = shared_batch()[1]
    for level, factor in (("token", 1.254370), ("sequence", 1.303265)):
        spec = Correction(weight=Weight(level, upper=2.0), normalize="batch")
        out = weight_metrics(batch, spec)
        assert out["rollout_corr/rollout_is_batch_norm_factor"].item() == pytest.approx(factor, abs=1e-6)
        assert "rollout_corr/rollout_is_batch_norm_factor" not in finish_weights(
            correction_rows(Ratio(batch), spec), Correction(weight=spec.weight)
        )


def test_verl_icepop_metrics():
    """Raw [.4, .8, 6] in [.5, 5] → [0, .8, 0]: out of bounds 2/3, std .377124 = .8·√(1/3·2/3), ESS 1/3."""
    batch = of_ratio(torch.log(f64([[0.4, 0.8, 6]])), torch.ones(1, 3, dtype=torch.bool))
    spec = Correction(weight=Weight("token", "mask", 0.5, 5.0))
    out = weight_metrics(batch, spec)
    assert out["rollout_corr/rollout_is_oob_ratio"].item() == pytest.approx(2 / 3)
    assert out["rollout_corr/rollout_is_std"].item() == pytest.approx(0.3771236, abs=1e-6)
    assert out["rollout_corr/rollout_is_eff_sample_size"].item() == pytest.approx(1 / 3)
    assert done_to(batch, spec)["correction/weight_zero"].item() == pytest.approx(2 / 3)


def test_verl_seq_fraction_high_is_of_raw_weights():
    """Raw rows [1, 6] and [.9, 1.1] have means 3.5 and 1: one of two above 2, though both applied means are below."""
    batch = of_ratio(torch.log(f64([[1, 6], [0.9, 1.1]])), torch.ones(2, 2).bool())
    spec = Correction(weight=Weight("token", upper=2.0))
    out = weight_metrics(batch, spec)
    assert out["rollout_corr/rollout_is_seq_fraction_high"] == 0.5
    assert out["rollout_corr/rollout_is_seq_max"].item() == pytest.approx(1.5)  # (1 + 2)/2


def test_filter_metrics_and_masked_fractions():
    """k2 = [.125, .125, .5 | .5, .125] with upper = .2 drops one token in each row: 2 of 5, and both responses."""
    spec = Correction(reject={"k2": Reject("token", "k2", upper=0.2)})
    batch = shared_batch()[1]
    out = filter_metrics(batch, spec)
    assert out["rollout_corr/rollout_rs_k2_mean"].item() == pytest.approx(0.275)  # 1.375/5
    assert out["rollout_corr/rollout_rs_k2_max"] == 0.5
    assert out["rollout_corr/rollout_rs_k2_fraction_high"].item() == pytest.approx(0.4)
    assert out["rollout_corr/rollout_rs_k2_seq_fraction_high"] == 1.0  # means .25 and .3125
    done = done_to(batch, spec)
    assert done["rollout_corr/rollout_rs_masked_fraction"].item() == pytest.approx(0.4)
    assert done["rollout_corr/rollout_rs_seq_masked_fraction"] == 1.0
    assert done["correction/kept_sequences"] == 1.0
    first = Correction(reject={"k2": Reject("sequence", "k2", upper=0.7)})  # .75 and .625: the first response goes
    done = done_to(batch, first)
    assert done["correction/kept_sequences"] == done["rollout_corr/rollout_rs_seq_masked_fraction"] == 0.5
    assert done["correction/kept_tokens"].item() == pytest.approx(0.4)
    assert (done["correction/used_length"], done["correction/dropped_length"]) == (2, 3)


def test_a_weight_of_zero_drops_a_response_as_a_filter_does():
    """Sequence weights e and e^-0.5, masked above 2: the first response, of 3 tokens, has weight 0 and is kept."""
    batch = shared_batch()[1]
    done = done_to(batch, Correction(weight=Weight("sequence", action="mask", upper=2.0)))
    assert done["correction/kept_sequences"] == 1.0
    assert (done["correction/used_length"], done["correction/dropped_length"]) == (2, 3)
    done = done_to(batch, Correction())
    assert done["correction/used_length"] == 2.5 and done["correction/dropped_length"].isnan()


def test_the_correlation_of_the_probabilities():
    """Over the five tokens as torch.corrcoef has it; π = 1 − μ over any batch is −1."""
    batch = shared_batch()[1]
    both = torch.stack([batch.logp_old[batch.mask], batch.logp_rollout[batch.mask]]).exp()
    torch.testing.assert_close(probabilities(batch)["mismatch/prob_pearson"], torch.corrcoef(both)[0, 1])
    mu = f64([[0.2, 0.5, 0.9]])
    opposite = probabilities(of_ratio(((1 - mu) / mu).log(), torch.ones(1, 3).bool(), mu.log()))["mismatch/prob_pearson"]
    assert opposite.item() == pytest.approx(-1)


def test_padding_and_empty_rows_count_nowhere():
    batch = shared_batch()[1]
    spec = Correction(weight=Weight("token", upper=2.0))
    pad = functools.partial(torch.nn.functional.pad, pad=(2, 3, 0, 4), value=0)
    wide = Batch(pad(batch.logp_rollout), pad(batch.mask), pad(batch.logp_old))
    for a, b in (
        (mismatch(batch), mismatch(wide)),
        (probabilities(batch), probabilities(wide)),
        (weight_metrics(batch, spec), weight_metrics(wide, spec)),
        (done_to(batch, spec), done_to(wide, spec)),
    ):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_no_mismatch():
    mask = torch.ones(50, 4, dtype=torch.bool)
    rollout = torch.full((50, 4), -1.0)
    batch = Batch(rollout, mask, rollout)
    out = mismatch(batch) | probabilities(batch)
    ones = {"ess_token", "ess_sequence", "ratio_mean", "ratio_max", "ratio_min", "mult_prob_error", "ppl_ratio"}
    for name, value in out.items():
        short = name.split("/")[1]
        if short == "pareto_k":
            assert value.isnan()  # equal weights have no tail
        elif not short.startswith(("training", "rollout")):
            one = short in ones or short.startswith("seq_mult_prob_error")
            assert value.item() == pytest.approx(1 if one else 0, abs=1e-12), name


def test_an_empty_batch_is_finite():
    for shape in ((3, 4), (0, 4), (3, 0)):
        mask = torch.zeros(shape, dtype=torch.bool)
        zeros = torch.zeros(shape)
        spec = Correction(weight=Weight("token", upper=2.0))
        batch = Batch(zeros, mask, zeros)
        out = mismatch(batch) | probabilities(batch) | weight_metrics(batch, spec)
        del out["mismatch/pareto_k"]
        assert all(value.isfinite() for value in out.values()), shape


def test_a_heavy_tail_shows_and_stays_finite_where_it_can():
    """One response 800 nats away: its ratio overflows fp64, the effective sample size is 1/N all the same."""
    l = torch.zeros(10, 8, dtype=torch.float64)
    l[3] = 100.0
    out = mismatch(of_ratio(l, torch.ones_like(l).bool()))
    assert out["mismatch/ess_sequence"].item() == pytest.approx(0.1)
    assert out["mismatch/chi2_sequence_normalized"].item() == pytest.approx(9)
    assert out["mismatch/beyond_bound"].item() == pytest.approx(0.1)


def test_fp32_does_not_overflow_in_the_token_statistics():
    """Eight of 80 tokens 100 nats away, whose ρ² no fp32 holds: they carry all the weight, so ESS = 8/80."""
    l = torch.zeros(10, 8)
    l[3] = 100.0
    out = mismatch(of_ratio(l, torch.ones_like(l).bool()))
    assert out["mismatch/ess_token"].item() == pytest.approx(0.1)
    assert out["mismatch/ratio_std"].isfinite() and out["rollout_corr/k3_kl"].isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ratio_beyond_its_bound_does_not_depend_on_the_padded_width(dtype):
    """One token 500 nats off: Σρ² is finite, and the same beside 3 columns of padding as beside 5000."""
    l = torch.tensor([[500.0, 0.1], [0.2, -0.3]], dtype=dtype)
    narrow, wide = (mismatch(of_ratio(pad, pad != 0)) for pad in (torch.nn.functional.pad(l, (0, n)) for n in (3, 5000)))
    for name in ("rollout_corr/k3_kl", "rollout_corr/chi2_token", "mismatch/ratio_mean", "mismatch/ratio_std"):
        assert narrow[name] == wide[name] and narrow[name].isfinite(), name


def test_the_largest_ratio_includes_one_so_that_padding_adds_nothing():
    l = f64([[-0.5, -0.2]])
    for wide in (l, torch.nn.functional.pad(l, (0, 1))):
        out = mismatch(of_ratio(wide, wide != 0))
        assert out["mismatch/ratio_max"] == 1 and out["mismatch/ratio_min"].item() == pytest.approx(math.exp(-0.5))


def test_a_weight_shared_by_a_response_counts_for_each_of_its_tokens():
    """Level sequence keeps one number per response, level segment with one segment one per token: the same statistics.

    Weights e and e^−.5 (capped at 2) over 3 and 2 tokens, and an empty response: the mean is (3·2 + 2·.606531)/5.
    """
    given = shared_batch()[1]
    rollout, mask, old = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in given[:3])
    batch = Batch(rollout, mask, old, segments=torch.zeros_like(mask, dtype=torch.long))
    one, each = (Correction(weight=Weight(level, upper=2.0)) for level in ("sequence", "segment"))
    shared_ = weight_metrics(batch, one)
    torch.testing.assert_close(shared_, weight_metrics(batch, each))
    assert shared_["rollout_corr/rollout_is_mean"].item() == pytest.approx(1.442612, abs=1e-6)
    assert shared_["rollout_corr/rollout_is_ratio_fraction_high"].item() == pytest.approx(0.6)


def test_the_plug_in_chi2_may_be_negative_and_the_self_normalised_one_not():
    """ρ = .9 and 1: mean ρ² − 1 = −.095, while mean ρ²/(mean ρ)² − 1 = .905/.9025 − 1."""
    l = torch.log(f64([[0.9], [1.0]]))
    out = mismatch(of_ratio(l, torch.ones_like(l).bool()))
    assert out["rollout_corr/chi2_token"].item() == pytest.approx(-0.095)
    assert out["mismatch/chi2_token_normalized"].item() == pytest.approx(0.905 / 0.9025 - 1)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9, 1.5])
def test_pareto_k_of_a_pareto(k):
    """Quantiles of a generalised Pareto of shape k: its tail has the shape k at any threshold; shrunk towards 1/2."""
    n = 4000
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    log_weights = torch.log1p((u ** (-k) - 1) / k)
    size = math.ceil(3 * math.sqrt(n))
    assert pareto_k(log_weights).item() == pytest.approx((size * k + 5) / (size + 10), abs=0.025)
    torch.testing.assert_close(pareto_k(log_weights + 1000), pareto_k(log_weights))  # the scale does not matter
    absent = torch.cat([log_weights, torch.full((7,), -math.inf, dtype=torch.float64)])
    torch.testing.assert_close(pareto_k(absent), pareto_k(log_weights))


def test_pareto_k_of_a_light_tail_is_low_and_of_too_few_weights_is_nan():
    uniform = torch.log(torch.linspace(0.5, 1, 2000, dtype=torch.float64))  # a bounded density: shape −1
    assert pareto_k(uniform).item() < -0.5
    assert pareto_k(torch.zeros(10)).isnan() and pareto_k(torch.randn(20)).isnan()


def test_what_each_filter_rejects_on_its_own():
    """ρ = 3, 1 | 3, 3 | 1, the bounds at 2, and A < 0 but for the last token of the second response and the third."""
    l = torch.tensor([[3.0, 1.0], [3.0, 3.0], [1.0, 5.0]]).double().log()
    mask, advantages = torch.tensor([[1, 1], [1, 1], [1, 0]]).bool(), torch.tensor([[-1.0, -1], [-1, 1], [1, 1]]).double()
    spec = Correction(
        reject={
            "token": Reject("token", upper=2.0),  # three tokens of five, in two responses of three
            "veto": Reject("worst_token", upper=2.0),  # both tokens of these two
            "neg": Reject("token", upper=2.0, when="negative_advantage"),  # the first token of each
        }
    )
    out = filter_metrics(of_ratio(l, mask, advantages=advantages), spec)
    for name, tokens in {"token": 3, "veto": 4, "neg": 2}.items():
        assert out[f"rollout_corr/rollout_rs_{name}_masked_fraction"].item() == pytest.approx(tokens / 5)
        assert out[f"rollout_corr/rollout_rs_{name}_seq_masked_fraction"].item() == pytest.approx(2 / 3)


def test_bins_end_at_powers_of_two_and_the_last_one_does_not_end():
    numbers = torch.tensor([1, 2, 3, 4, 5, 8, 9, 2**14, 2**14 + 1, 2**15, 2**15 + 1, 10**6])
    assert bin_of(numbers).tolist() == [0, 1, 2, 2, 3, 3, 4, 14, 15, 15, 15, 15]
