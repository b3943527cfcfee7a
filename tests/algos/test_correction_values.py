"""Corrections against hand arithmetic: the cases of the frameworks' own tests, and the limits of the algebra."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct, mean_weight, statistic
from algos.corrections.m2po import m2po
from algos.corrections.spec import Correction, Plugin, Reject, Statistic, Weight, check_combination
from algos.diagnostics.correction import correct_with_diagnostics, finish_weights
from algos.ratios import LEVELS, Ratio, at_level, ess_share
from algos.reductions import Counts, reduce
from tests.algos.algo_cases import correction, f64, of_ratio, shared_batch


def on_shared_batch(spec):
    return correct(shared_batch()[1], spec)


def of_row(logs, spec, mask=None, **inputs):
    logs = f64([logs])
    mask = torch.ones_like(logs, dtype=torch.bool) if mask is None else torch.tensor([mask]).bool()
    return correct(of_ratio(logs, mask, **inputs), spec)


@pytest.mark.parametrize(
    ("weight", "normalize", "expected"),
    [
        # min(ρ, 2) of [1.648721, .606531, 2.718282 | .367879, 1.648721]
        (Weight("token", upper=2.0), "none", [[1.648721, 0.606531, 2], [0.367879, 1.648721, 0]]),
        # divided by their mean 6.271852/5 = 1.254370
        (Weight("token", upper=2.0), "batch", [[1.314381, 0.483534, 1.594425], [0.293278, 1.314381, 0]]),
        # min(e^1, 2) and e^(−1 + .5)
        (Weight("sequence", upper=2.0), "none", [[2, 2, 2], [0.606531, 0.606531, 0]]),
        # divided by (2 + .606531)/2 = 1.303265: each response counts once
        (Weight("sequence", upper=2.0), "batch", [[1.534607] * 3, [0.465393, 0.465393, 0]]),
        # e^(1/3) = 1.395612 and e^(−.5/2) = .778801
        (Weight("geometric", "clip", 0.8, 1.2), "none", [[1.2] * 3, [0.8, 0.8, 0]]),
        # IcePop: .367879 is below .5, the others stay
        (Weight("token", "mask", 0.5, 5.0), "none", [[1.648721, 0.606531, 2.718282], [0, 1.648721, 0]]),
    ],
)
def test_weights_on_the_shared_batch(weight, normalize, expected):
    weights = on_shared_batch(Correction(weight=weight, normalize=normalize)).weights
    torch.testing.assert_close(weights, f64(expected), atol=6e-7, rtol=0)


def test_skyrl_token_and_sequence_truncation():
    # old − μ = [.5, −.5, 1]: e^.5, e^−.5, min(e, 2); the product is e, under a cap of 5
    assert of_row([0.5, -0.5, 1], Correction(weight=Weight("token", upper=2.0))).weights[0].tolist() == pytest.approx(
        [math.exp(0.5), math.exp(-0.5), 2]
    )
    sequence = Correction(weight=Weight("sequence", upper=5.0))
    assert of_row([0.5, -0.5, 1], sequence).weights[0, 0].item() == pytest.approx(math.e)
    # without the second token e^1.5 = 4.4817, and e^3 = 20.1 is capped at 5
    assert of_row([0.5, -0.5, 1], sequence, [1, 0, 1]).weights[0].tolist() == pytest.approx([math.exp(1.5), 0, math.exp(1.5)])
    assert of_row([1, 1, 1], sequence).weights[0, 0].item() == 5


@pytest.mark.parametrize(
    ("logs", "filter_", "kept"),
    [
        ([0.1, -0.1, 0], Reject("geometric", lower=0.9, upper=1.1), True),  # mean 0 → 1
        ([0.5, 0.5, 0.5], Reject("geometric", lower=0.9, upper=1.1), False),  # 1.6487
        ([0.2, 0.1, 0], Reject("sequence", lower=0.5, upper=2.0), True),  # e^.3 = 1.35
        ([1, 1, 1], Reject("sequence", lower=0.5, upper=2.0), False),  # e^3 = 20.09
        ([5, 0, 0], Reject("worst_token", lower=1e-4, upper=100.0), False),  # e^5 = 148.4
        ([-10, 0, 0], Reject("worst_token", lower=1e-4, upper=100.0), False),  # e^−10 = 4.5e-5
        ([-9, 4, 0], Reject("worst_token", lower=1e-4, upper=100.0), True),  # 1.2e-4 and 54.6
        ([0, 1, 0], Reject("geometric", "k2", upper=0.5), True),  # (0 + .5 + 0)/3 = .167
        ([0, 2, 0], Reject("geometric", "k2", upper=0.1), False),  # (0 + 2 + 0)/3 = .667
        ([0, 1, 0], Reject("sequence", "k3", upper=0.72), True),  # e − 2 = .71828
        ([0, 1, 0], Reject("sequence", "k3", upper=0.71), False),
        ([0, 1, 0], Reject("worst_token", "k3", upper=0.71), False),
        ([0.5, 0.5, -0.9], Reject("prefix", upper=2.8), True),  # e^1 = 2.718 after two tokens, e^.1 after three
        ([math.log(2), -math.log(2), 0], Reject("geometric", "mult_error", upper=1.67), True),  # (2 + 2 + 1)/3 = 1.667
        ([math.log(2), -math.log(2), 0], Reject("geometric", "mult_error", upper=1.66), False),
    ],
)
def test_filters_on_one_response(logs, filter_, kept):
    assert of_row(logs, Correction(reject={"f": filter_})).kept.tolist() == [[kept] * 3]


def test_nemo_and_areal_bounds():
    # w = [.1, 1, 3]: capped at 2, then also raised to .5
    logs = [math.log(0.1), 0, math.log(3)]
    assert of_row(logs, Correction(weight=Weight("token", upper=2.0))).weights[0].tolist() == pytest.approx([0.1, 1, 2])
    both = Correction(weight=Weight("token", "clip", 0.5, 2.0))
    assert of_row(logs, both).weights[0].tolist() == pytest.approx([0.5, 1, 2])
    # the geometric ratio of [0, 4, 0] is e^(4/3) = 3.79, capped at 3; of [0, .5, 1] it is e^.5
    geometric = Correction(weight=Weight("geometric", upper=3.0))
    assert of_row([0, 4, 0], geometric).weights[0].tolist() == [3.0] * 3
    assert of_row([0, 0.5, 1], geometric).weights[0].tolist() == pytest.approx([math.exp(0.5)] * 3)
    # π/μ = e^.0005 = 1.0005 in every token is inside [.999, 1.002]
    assert of_row([5e-4] * 3, Correction(reject={"g": Reject("geometric", lower=0.999, upper=1.002)})).kept.all()


def test_verl_mask_mode():
    """Rows at e^−1 = .368 and e^.5 = 1.649: a token filter [.5, 2] drops the first row, half of the tokens."""
    logs = f64([[-1.0] * 5, [0.5] * 5])
    spec = Correction(weight=Weight("token", upper=2.0), reject={"t": Reject("token", lower=0.5, upper=2.0)})
    out = correct(of_ratio(logs, torch.ones(2, 5).bool()), spec)
    assert out.kept.tolist() == [[False] * 5, [True] * 5]
    torch.testing.assert_close(out.weights, logs.exp())


def test_verl_reductions():
    """Kept values 1, 2 | 4, 6: 13 in all, over 4 tokens; rows 3 and 10 over 2 responses, means 1.5 and 5."""
    values, mask = f64([[1, 2, 30], [4, 50, 6]]), torch.tensor([[1, 1, 0], [1, 0, 1]]).bool()
    expected = {"token_mean": 3.25, "token_sum": 13, "seq_mean_token_sum": 6.5, "seq_mean_token_mean": 3.25}
    for mode, value in expected.items():
        assert reduce(values, correction(mask), Counts.of(mask), mode).item() == value
    norm = reduce(values, correction(mask), Counts.of(mask), "seq_mean_token_sum_norm", norm=10)
    assert norm.item() == 0.65
    # one token of the first row rejected: its row's mean still divides by 2
    kept = torch.tensor([[1, 0, 0], [1, 0, 1]]).bool()
    assert reduce(values, correction(kept, mask), Counts.of(mask), "seq_mean_token_mean").item() == 2.75  # (1/2 + 10/2)/2
    assert reduce(values, correction(kept), Counts.of(kept), "seq_mean_token_mean").item() == 3.0  # (1/1 + 10/2)/2
    assert reduce(values, correction(kept), Counts.of(kept), "token_mean").item() == pytest.approx(11 / 3)


def test_a_masked_token_cannot_reject():
    spec = Correction(reject={"veto": Reject("worst_token", lower=1e-4, upper=100.0)})
    assert of_row([0, 50, 0], spec, [1, 0, 1]).kept.tolist() == [[True, False, True]]


def test_bounds_are_inclusive_and_on_the_ratio_itself():
    """ρ = [.18, .25, .5, 1, 1.9, 2.5, 4.9, 5, 6] with [.5, 5]; read as bounds on 1/ρ it would keep [.2, 2] instead."""
    ratios = [0.18, 0.25, 0.5, 1, 1.9, 2.5, 4.9, 5, 6]
    spec = Correction(reject={"token": Reject("token", lower=0.5, upper=5.0)})
    assert of_row([math.log(r) for r in ratios], spec).kept[0].tolist() == [False, False] + [True] * 6 + [False]


def test_prob_diff_is_the_difference_of_probabilities():
    """π − μ = .6 − .5 = .1, .2 − .5 = −.3 and 0, filtered to [−.2, .2]."""
    rollout = torch.log(f64([[0.5, 0.5, 0.5]]))
    logs = [math.log(0.6 / 0.5), math.log(0.2 / 0.5), 0]
    spec = Correction(reject={"diff": Reject("token", "prob_diff", -0.2, 0.2)})
    assert of_row(logs, spec, rollout=rollout).kept.tolist() == [[True, False, True]]
    worst = Correction(reject={"diff": Reject("worst_token", "prob_diff", -0.2, 0.2)})
    assert of_row(logs, worst, rollout=rollout).kept.tolist() == [[False] * 3]


def test_off_policy_sequence_mask():
    """DeepSeek-V3.2: drop where A < 0 and mean(log μ − log π) > δ = 1, i.e. the geometric ratio is below e^−1.

    Rows −2, −.5, −2 against 0 with A = 1, −1, −1: only the last is both negative and far.
    """
    logs = f64([[-2, -2], [-0.5, -0.5], [-2, -2]])
    spec = Correction(reject={"opsm": Reject("geometric", lower=math.exp(-1), when="negative_advantage")})
    kept = correct(of_ratio(logs, torch.ones_like(logs).bool(), advantages=f64([[1, 1], [-1, -1], [-1, -1]])), spec).kept
    assert kept.tolist() == [[True] * 2, [True] * 2, [False] * 2]


def test_segments_are_turns():
    """Two turns with log ratios (.5, .5) and (−1), one masked token between: products e, e^−1; means e^.5, e^−1."""
    logs, mask, turns = [0.5, 0.5, 9, -1], [1, 1, 0, 1], torch.tensor([[0, 0, 7, 2]])
    for level, first in (("segment", math.e), ("segment_geometric", math.exp(0.5))):
        spec = Correction(weight=Weight(level, upper=10.0), reject={"turn": Reject(level, upper=1.5)})
        out = of_row(logs, spec, mask, segments=turns)
        assert out.weights[0].tolist() == pytest.approx([first, first, 0, math.exp(-1)])
        assert out.kept.tolist() == [[False, False, False, True]]


def test_segments_normalise_with_each_turn_counting_once():
    """Turn weights e and e^−1: their mean is 1.543081, whatever their lengths 2 and 1."""
    spec = Correction(weight=Weight("segment", upper=10.0), normalize="batch")
    weights = of_row([0.5, 0.5, -1], spec, segments=torch.tensor([[0, 0, 1]])).weights
    assert weights[0].tolist() == pytest.approx([math.e / 1.5430806, math.e / 1.5430806, math.exp(-1) / 1.5430806])


def test_one_segment_is_the_response_and_one_per_token_is_the_token():
    batch = shared_batch()[1]
    mask = batch.mask
    one, each = torch.zeros_like(mask, dtype=torch.long), torch.arange(3).expand(2, 3)
    for segments, level in ((one, "sequence"), (each, "token")):
        a = correct(batch._replace(segments=segments), Correction(weight=Weight("segment", upper=9.0))).weights
        torch.testing.assert_close(a, correct(batch, Correction(weight=Weight(level, upper=9.0))).weights)
    a = correct(batch._replace(segments=one), Correction(weight=Weight("segment_geometric", upper=9.0))).weights
    torch.testing.assert_close(a, correct(batch, Correction(weight=Weight("geometric", upper=9.0))).weights)


def test_a_response_without_tokens_is_zero_at_every_level():
    empty, ids = torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.long)
    for level in LEVELS:
        assert (at_level(empty, torch.zeros(1, 3).bool(), level, ids) == 0).all(), level


def test_the_worst_token_is_one_of_the_response():
    assert at_level(f64([[-2, -1, 0]]), torch.tensor([[True, True, False]]), "worst_token").item() == -1


def test_filters_commute_and_weights_ignore_them():
    """SkyRL takes the product over tokens that an earlier filter left; here every stage sees the original mask."""
    a, b = Reject("token", lower=0.5, upper=2.0), Reject("sequence", lower=0.5, upper=2.8)
    weight = Weight("sequence", upper=5.0)
    first = on_shared_batch(Correction(weight=weight, reject={"a": a, "b": b}))
    second = on_shared_batch(Correction(weight=weight, reject={"b": b, "a": a}))
    assert torch.equal(first.kept, second.kept)
    assert first.kept.tolist() == [
        [True, True, False],
        [False, True, False],
    ]  # ρ = 2.72 and .37 leave, products e and e^−.5 stay
    assert torch.equal(first.weights, on_shared_batch(Correction(weight=weight)).weights)
    assert torch.equal(first.counted, shared_batch()[1].mask)
    kept = on_shared_batch(Correction(weight=weight, reject={"a": a}, denominator="kept"))
    assert torch.equal(kept.counted, kept.kept)


def drop_low(log_ratio, mask):
    """A plug-in filter that keeps tokens of l > .25."""
    return mask & (log_ratio > 0.25)


def test_plug_in_filters_commute():
    """l = .1, .2, .3, .9, τ = .05: m2po keeps .1 to .3 of the whole mask. Of .3 and .9, which `drop_low` leaves, it would keep
    none, since the smaller l² is .09."""
    low, m2 = Plugin("tests.algos.test_correction_values:drop_low"), Plugin("m2po", {"tau": 0.05})
    for reject in ({"low": low, "m2": m2}, {"m2": m2, "low": low}):
        kept = of_row([0.1, 0.2, 0.3, 0.9], Correction(reject=reject)).kept
        assert kept.tolist() == [[False, False, True, False]]


def test_m2po_by_hand():
    """l² = [.01, .04, .09, .36], τ = .05: means of the smallest 1, 2, 3, 4 are .01, .025, .0467, .125, so .36 goes."""
    logs, mask = f64([[0.1, -0.2], [0.3, -0.6]]), torch.ones(2, 2, dtype=torch.bool)
    assert m2po(logs, mask, tau=0.05).tolist() == [[True, True], [True, False]]
    assert m2po(logs, mask, tau=0.0467).tolist() == [[True, True], [True, False]]
    assert m2po(logs, mask, tau=0.0466).tolist() == [[True, True], [False, False]]
    assert not m2po(logs, mask, tau=0.009).any()
    assert m2po(f64([[1, -1, 2]]), mask[:1, :1].expand(1, 3), tau=1.0).tolist() == [[True, True, False]]  # the mean may be τ
    spec = Correction(reject={"m2": Plugin("m2po", {"tau": 0.05})})
    assert correct(of_ratio(logs, mask), spec).kept.tolist() == [[True, True], [True, False]]


def test_the_weight_of_a_prefix():
    """log ρ = .5, .5, −2: sums .5, 1, −1, of which e^1 = 2.718 is cut at 2. A hole in the mask is no factor."""
    spec = Correction(weight=Weight("prefix", upper=2.0))
    assert of_row([0.5, 0.5, -2], spec).weights[0].tolist() == pytest.approx([math.exp(0.5), 2, math.exp(-1)])
    holed = of_ratio(f64([[0.5, 9, 0.1]]), torch.tensor([[True, False, True]]))
    assert correct(holed, spec).weights[0].tolist() == pytest.approx([math.exp(0.5), 0, math.exp(0.6)])


def test_a_suffix_begins_after_the_first_token_out_of_bounds():
    """ρ = 1, e, 1, e, 1: the second token is the first beyond 2. It stays, as do all of a response with A ≥ 0."""
    logs, mask = f64([[0, 1, 0, 1, 0]] * 2), torch.ones(2, 5).bool()
    batch = of_ratio(logs, mask, advantages=f64([[-1.0] * 5, [1.0] * 5]))
    spec = Correction(reject={"veto": Reject("suffix", upper=2.0, when="negative_advantage")})
    assert correct(batch, spec).kept.tolist() == [[True, True, False, False, False], [True] * 5]
    both = Correction(reject=spec.reject | {"token": Reject("token", upper=2.0, when="negative_advantage")})
    assert correct(batch, both).kept.tolist() == [[True] + [False] * 4, [True] * 5]


def test_a_token_whose_rollout_probability_is_a_fill_value_is_rejected():
    """log μ = −1e9: k3 = e²⁰ − 1 − 20, and not e²⁰ − 1e9 < 0, which any upper bound would keep."""
    batch = Batch(torch.tensor([[-1e9, -1.0]]), torch.ones(1, 2).bool(), torch.tensor([[-1.0, -1.0]]))
    spec = Reject("token", "k3", upper=0.01)
    assert statistic(Ratio(batch), spec)[0].tolist() == pytest.approx([math.expm1(20) - 20, 0], rel=1e-6)
    assert correct(batch, Correction(reject={"k3": spec})).kept.tolist() == [[False, True]]


def test_kpop_keeps_a_token_of_which_the_engine_was_sure():
    """μ = 1, π = .992: KL(π‖μ) = .992·log .992 + .008·log(.008/1e-6) = .0639, below KPop's .1; π = .98 gives .178.

    Probabilities are bounded to [1e-6, 1 − 1e-6] as in prime-rl's KPop: at 1e-9 the first would be .119, and rejected.
    A probability of 1e-9 counts as 1e-6 too, so against μ = 1e-6 its statistic is 0.
    """
    old, rollout = torch.tensor([[0.992, 0.98, 1e-9]]).log(), torch.tensor([[1.0, 1.0, 1e-6]]).log()
    batch, kpop = Batch(rollout, torch.ones(1, 3).bool(), old), Reject("token", "binary_kl", upper=0.1)
    assert statistic(Ratio(batch), kpop)[0].tolist() == pytest.approx([0.0639, 0.178, 0], abs=3e-4)
    assert correct(batch, Correction(reject={"kpop": kpop})).kept.tolist() == [[True, False, True]]


@pytest.mark.parametrize("name", get_args(Statistic))
def test_a_filter_takes_a_batch_without_a_column(name):
    batch = Batch(torch.zeros(2, 0), torch.ones(2, 0).bool(), torch.zeros(2, 0))
    spec = Correction(reject={"f": Reject("worst_token", name, upper=0.9 if name == "prob_diff" else 2.0)})
    corrected, _ = correct_with_diagnostics(batch, spec)
    assert corrected.kept.shape == corrected.weights.shape == (2, 0)


def test_binary_kl_by_hand():
    """π = ½, μ = ¼: KL(π‖μ) = ½·log 2 + ½·log ⅔ = .143841, KL(μ‖π) = ¼·log ½ + ¾·log 1.5 = .130812. The other way alike.

    π = ½, μ = 1: KL(μ‖π) = log 2, KL(π‖μ) = ½·log ½ + ½·log(½/1e-6) = 6.215, the 1e-6 being the least that 1 − μ counts.
    """
    rollout, old = f64([[0.25, 0.5, 1.0, 0.3]]).log(), f64([[0.5, 0.25, 0.5, 0.3]]).log()
    ratio = Ratio(Batch(rollout, torch.ones(1, 4).bool(), old))
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3)] * 2 + [0.5 * math.log(0.5) + 0.5 * math.log(0.5e6), 0]
    assert statistic(ratio, Reject("token", "binary_kl", upper=1.0))[0].tolist() == pytest.approx(expected, rel=1e-7, abs=1e-15)
    assert expected[0] == pytest.approx(0.143841, abs=1e-6) and expected[2] == pytest.approx(6.215, abs=1e-3)
    single = Ratio(Batch(rollout.float(), torch.ones(1, 4).bool(), old.float()))
    assert statistic(single, Reject("token", "binary_kl", upper=1.0))[0].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_ess_share_by_hand():
    """w = 2, 1 and ½ of three responses: (3.5)²/(3·5.25) = .777778. An empty row is none; e^±800 and e^0 leave one of three."""
    mask = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    batch = of_ratio(f64([[0.5, math.log(2) - 0.5], [0, 9], [-math.log(2), 0], [3, 3]]), mask)
    assert ess_share(batch).item() == pytest.approx(12.25 / 15.75, rel=1e-12)
    assert ess_share(of_ratio(f64([[800.0], [-800.0], [0.0]]), torch.ones(3, 1).bool())).item() == pytest.approx(1 / 3)
    assert ess_share(of_ratio(f64([[3.0]]), torch.zeros(1, 1).bool())).item() == 1


def test_m2po_judges_equal_moments_together():
    """l² = [0, .09, .09]: with one of the two the mean is .045 ≤ .05, with both .06: both leave."""
    logs = f64([[0, 0.3, -0.3]])
    assert m2po(logs, torch.ones_like(logs).bool(), tau=0.05).tolist() == [[True, False, False]]


EVERYTHING = [
    Correction(weight=Weight(level, action, None if action == "truncate" else 0.5, 2.0), normalize=normalize)
    for level in ("token", "prefix", "sequence", "geometric", "segment", "segment_geometric")
    for action in ("truncate", "clip", "mask")
    for normalize in ("none", "batch")
] + [
    Correction(reject={"f": Reject(level, lower=0.999, upper=1.001)})
    for level in ("token", "sequence", "geometric", "segment", "segment_geometric", "worst_token", "suffix")
]


@pytest.mark.parametrize("spec", EVERYTHING, ids=str)
def test_no_mismatch_no_correction(spec):
    """π = μ: weights exactly 1 and nothing rejected, so gradients are bit-identical with and without correction."""
    mask = shared_batch()[1].mask
    segments = torch.tensor([[0, 1, 1], [0, 0, 0]])
    out = correct(of_ratio(torch.zeros(2, 3), mask, segments=segments), spec)
    assert torch.equal(out.weights, mask.float()) and torch.equal(out.kept, mask)


@pytest.mark.parametrize("action", ["truncate", "clip", "mask"])
def test_a_weight_for_its_metrics_alone(action):
    """The loss has weights of 1 and the same filters, and verl's metrics are those of the weight that is not applied."""
    batch, lower = shared_batch()[1], None if action == "truncate" else 0.5
    reject = {"f": Reject("token", upper=2.0)}
    applied, observed = (Correction(weight=Weight("token", action, lower, 2.0, on), reject=reject) for on in (True, False))
    (weighed, rows), (left, other) = (correct_with_diagnostics(batch, spec) for spec in (applied, observed))
    assert torch.equal(left.weights, batch.mask.double()) and not torch.equal(weighed.weights, left.weights)
    assert torch.equal(left.kept, weighed.kept) and not torch.equal(left.kept, batch.mask)
    assert finish_weights(rows, applied) == finish_weights(other, observed)
    check_combination(observed, "rollout", anchored=True)  # no ratio counts twice where none is applied
    with pytest.raises(ValueError, match="counts the mismatch twice"):
        check_combination(applied, "rollout", anchored=True)


def test_limits_of_the_bounds():
    """Bounds that no ratio of the batch reaches are none."""
    batch = shared_batch()[1]
    rho = torch.where(batch.mask, Ratio(batch).l.exp(), 0.0)
    for weight in (
        Weight("token", upper=math.inf),
        Weight("token", "clip", 1e-9, 1e9),
        Weight("token", "mask", 1e-9, 1e9),
    ):
        assert torch.equal(correct(batch, Correction(weight=weight)).weights, rho)
    for filter_ in (Reject("geometric", lower=1e-9, upper=1e9), Reject("worst_token", lower=1e-9)):
        assert torch.equal(correct(batch, Correction(reject={"f": filter_})).kept, batch.mask)
    icepop = correct(batch, Correction(weight=Weight("token", "mask", 0.5, 2.0))).weights
    clip = correct(batch, Correction(weight=Weight("token", "clip", 0.5, 2.0))).weights
    assert not torch.equal(icepop, clip)


def test_extreme_log_ratios_stay_finite():
    """log ρ is taken to be within ±20, whatever its level."""
    logs = f64([[1e4, -1e4, 0], [400, 400, 400]])
    mask = torch.ones_like(logs).bool()
    unbounded = correct(of_ratio(logs, mask), Correction(weight=Weight("token", upper=math.inf))).weights
    torch.testing.assert_close(unbounded, f64([[20, -20, 0], [20, 20, 20]]).exp())
    for level in ("token", "sequence", "geometric"):
        weights = correct(of_ratio(logs, mask), Correction(weight=Weight(level, upper=math.inf), normalize="batch")).weights
        assert weights.isfinite().all() and (weights >= 0).all()


def test_everything_out_of_bounds_normalises_by_one():
    spec = Correction(weight=Weight("token", "mask", 0.9, 1.1), normalize="batch")
    assert (of_row([1, 2, 3], spec).weights == 0).all()
    empty = of_ratio(torch.zeros(1, 3), torch.zeros(1, 3).bool())
    assert mean_weight(torch.zeros(1, 3), empty, "token") == 1
