"""Proposed bounds against the quantiles of known distributions, and the dumps for which no bound is to be trusted."""

import numpy as np
import pytest

from faultline.tools.replay.advice import ADVISED, Advisor, Target, _binned, _curve
from faultline.tools.replay.family import Family
from faultline.tools.replay.thresholds import DEFAULT
from tests.faultline.tools.replay.cases import all_thresholds, as_responses, random_columns

TARGET = Target(kept=0.99, ess=0.9)


def dump(rows, length, draw, seed=0):
    """One batch of full responses whose log ratios are `draw(rng, shape)`."""
    rollout = np.full((rows, length), -30.0)
    ratio = draw(np.random.default_rng(seed), (rows, length))
    return as_responses({"mask": np.ones((rows, length), bool), "logp_rollout": rollout, "logp_old": rollout + ratio})


def gaussian(sigma):
    return lambda rng, shape: sigma * rng.standard_normal(shape)


def proposed(batch, null=None, target=TARGET):
    advisor = Advisor(target)
    advisor.add(batch)
    return advisor.propose(null).bounds.set_index("family")


@pytest.mark.slow
def test_bounds_are_the_quantiles_of_a_known_distribution():
    """l ~ N(0, .1²) per token, 50 tokens: |l| stays within 2.5758 σ with 99 %, at token level σ = .1, over the product .1·√50,
    over the geometric mean .1/√50. The grid is 1.7 % apart in log C."""
    table = proposed(dump(4000, 50, gaussian(0.1)))
    for family, sigma, tolerance in (
        ("mask-token", 0.1, 0.03),
        ("mask-sequence", 0.1 * 50**0.5, 0.08),
        ("reject-geometric", 0.1 / 50**0.5, 0.08),
    ):
        row = table.loc[family]
        assert np.log(row.C) == pytest.approx(2.5758 * sigma, rel=tolerance)
        assert row.low <= row.C <= row.high and row.verdict == "ok"
        assert row["tokens kept"] >= 0.99 and row.upper == row.C and row.lower == pytest.approx(1 / row.C)


@pytest.mark.slow
def test_a_truncation_is_the_largest_that_has_the_ess():
    """Sequence weights are lognormal with σ = .1·√50 = .707: ESS e^−σ² = .61 untruncated, so a bound is needed; token weights
    have e^−.01 = .99, so none is."""
    table = proposed(dump(4000, 50, gaussian(0.1)))
    row = table.loc["truncate-sequence"]
    assert pytest.approx(0.9, abs=0.01) == row.ESS and row.ESS >= 0.9 and row.low <= row.C <= row.high
    assert table.loc["truncate-token", "verdict"].startswith("enough without a bound: ESS 0.99")


@pytest.mark.parametrize("shape", [(60, 20), (2000, 2)])
def test_a_matched_dump_needs_no_bound(shape):
    """l = 0 everywhere: the smallest bound, C = 1 + 1e-6, keeps all, however small the dump."""
    table = proposed(dump(*shape, gaussian(0.0)))
    assert table.verdict.str.startswith("enough without a bound: ").all(), list(table.verdict)
    assert table.C.isna().all() and table.high.isna().all()
    assert table.loc["mask-token", "verdict"].endswith("the smallest keeps 100.00% of the tokens")


def test_a_truncation_that_never_has_the_ess_is_told_of():
    """ρ = .01 for half of the tokens, and no bound C ≥ 1 lifts it: ESS (.505)²/.50005 = .51 whatever C is."""
    table = proposed(dump(400, 20, lambda rng, shape: np.log(np.where(np.arange(shape[1]) % 2, 0.01, 1.0)) * np.ones(shape)))
    assert table.loc["truncate-token", "verdict"] == "no bound reaches the target"


def test_the_interval_narrows_as_the_dump_grows():
    """Four times the responses, half the width."""
    widths = []
    for rows in (1000, 4000):
        row = proposed(dump(rows, 20, gaussian(0.2))).loc["mask-sequence"]
        widths.append(np.log(row.high) - np.log(row.low))
    assert 1.4 < widths[0] / widths[1] < 2.9


def columns_of(ratio, **more):
    rollout = np.full(ratio.shape, -30.0)
    return {"mask": np.ones(ratio.shape, bool), "logp_rollout": rollout, "logp_old": rollout + ratio} | more


def test_prompts_are_resampled_with_all_their_responses():
    """Eight equal responses to a prompt say no more than one: the same intervals of C and K3. Taken for independent, they make
    them narrower by about √8 = 2.8."""
    once = 0.1 * np.random.default_rng(0).standard_normal((200, 20))
    prompts = np.arange(200)
    batches = {
        "once": columns_of(once),
        "told": columns_of(np.repeat(once, 8, 0), group=np.repeat(prompts, 8)),
        "untold": columns_of(np.repeat(once, 8, 0)),
    }
    found = {}
    for name, columns in batches.items():
        advisor = Advisor(TARGET)
        advisor.add(as_responses(columns))
        found[name] = advisor.propose()
    assert [found[name].samples for name in batches] == [200, 200, 1600]
    assert [found[name].by_prompt for name in batches] == [False, True, False]
    ends = {name: advice.bounds.set_index("family").loc["reject-geometric", ["low", "high"]] for name, advice in found.items()}
    assert list(ends["told"]) == list(ends["once"])
    assert found["told"].intervals["k3"] == pytest.approx(found["once"].intervals["k3"], rel=1e-9)
    widths = {name: advice.intervals["k3"][1] - advice.intervals["k3"][0] for name, advice in found.items()}
    assert 2 < widths["told"] / widths["untold"] < 4


def test_a_prompt_of_another_step_is_another_sample():
    """Numbers of prompts count within a step, in any order and with gaps. A batch without them ends their being known."""
    advisor = Advisor(TARGET)
    for group in ([7, 3, 7, 3], [3, 3, 3, 9]):
        advisor.add(as_responses(columns_of(np.ones((4, 2)), group=np.array(group))))
    assert (advisor.samples, advisor.by_prompt) == (4, True)
    advisor.add(as_responses(columns_of(np.ones((4, 2)))))
    assert (advisor.samples, advisor.by_prompt) == (8, False)


@pytest.mark.slow
def test_intervals_cover_where_responses_to_a_prompt_share_their_scale():
    """32 prompts x 16, the scale of a prompt lognormal: at least 7 of 10 intervals hold the median C.
    Three of them do where responses are resampled."""
    rows = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scale = np.repeat(0.1 * np.exp(0.5 * rng.standard_normal(32)), 16)
        ratio = scale[:, None] * rng.standard_normal((512, 50))
        rows.append(proposed(as_responses(columns_of(ratio, group=np.repeat(np.arange(32), 16)))).loc["mask-token"])
    median = np.median([row.C for row in rows])
    assert sum(row.low <= median <= row.high for row in rows) >= 7


def test_a_small_dump_and_a_heavy_tail_are_told_of():
    assert (
        proposed(dump(60, 20, gaussian(0.1))).loc["mask-sequence", "verdict"].startswith("dump too small: 0 responses lie beyond")
    )


def test_a_heavy_tail_is_told_of_where_a_bound_is_chosen_by_the_ess():
    """l ~ Exp(1.5), one token per response: ρ is Pareto with k = 1.5, whose mean is infinite. 99 % of l still lie below
    1.5·log 100, which 8,000 draws tell with a standard error of √(.01·.99/8000)/.01/log 100 = 2.4 %."""
    table = proposed(dump(8000, 1, lambda rng, shape: rng.exponential(1.5, shape)))
    for family in ("truncate-token", "truncate-sequence"):
        assert table.loc[family, "verdict"].startswith("not to be trusted: Pareto k = 1."), family
    assert table.loc["mask-token", "verdict"] == "ok"
    assert np.log(table.loc["mask-token", "C"]) == pytest.approx(1.5 * np.log(100), rel=0.07)


def test_a_heavy_tail_of_tiny_deviations_needs_no_bound():
    """ρ = 1 + 1e-7·U^−1.09: the excess of ρ over any level is Pareto with k = 1.09 at every scale. Of 80,000 tokens the largest
    is about 1 + 1e-7·80,000^1.09 = 1.02, so the ESS is 1 to within .02²/80,000."""
    tiny = dump(4000, 20, lambda rng, shape: np.log1p(1e-7 * rng.uniform(size=shape) ** -1.09))
    table = proposed(tiny)
    assert table.loc["truncate-token", "verdict"] == "enough without a bound: ESS 1.000 without"
    assert table.loc["truncate-sequence", "verdict"] == "enough without a bound: ESS 1.000 without"
    for family in ("mask-token", "reject-worst_token"):
        assert "Pareto" not in table.loc[family, "verdict"]


@pytest.mark.slow
def test_a_filter_stays_outside_the_band_of_the_null():
    """The null is as wide as the dump and a filter may reject a thousandth of it: 3.29 σ instead of 2.58."""
    batch = dump(4000, 50, gaussian(0.1))
    null = all_thresholds([dump(4000, 50, gaussian(0.1), seed=1)])
    row = proposed(batch, null).loc["mask-token"]
    assert np.log(row.C) == pytest.approx(0.329, rel=0.04) and row["false rejections"] <= 1e-3


@pytest.mark.parametrize("family", ADVISED, ids=lambda family: family.name)
def test_what_is_resampled_is_what_all_thresholds_give(family: Family):
    batches = [as_responses(random_columns(seed=seed)) for seed in (0, 1)]
    advisor = Advisor(TARGET)
    for batch in batches:
        advisor.add(batch)
    curve = _curve(family, _binned(advisor._joined(family), None))
    table = all_thresholds(batches, DEFAULT, [family]).table()
    np.testing.assert_allclose(curve.ess, table.ess, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(curve.kept, table.kept_tokens, rtol=1e-12, atol=1e-12)
