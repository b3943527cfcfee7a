"""All thresholds at once against one threshold at a time, which goes through the training step's own correction."""

import numpy as np
import pytest
import torch

from algos.corrections.apply import correct, statistic
from algos.diagnostics.rows import merge
from algos.ratios import Ratio
from faultline.tools.replay.effect import effect_rows, finish_effect, padded
from faultline.tools.replay.family import FlatTokens, families
from tests.faultline.tools.replay.cases import all_thresholds, as_responses, random_columns

BATCHES = [as_responses(random_columns(seed=seed)) for seed in (0, 1)]
C = np.array([1 + 1e-6, 1.003, 1.1, 1.5, 2.0, 7.0, 1e3])


@pytest.fixture(scope="module")
def table():
    return all_thresholds(BATCHES, C).table()


@pytest.mark.parametrize("family", families(segments=True), ids=lambda family: family.name)
def test_all_thresholds_at_once_equal_one_at_a_time(family, table):
    """Every metric of every bound, over two batches; 1e-12, the order of the sums being the only difference."""
    found = table[table.family == family.name].set_index("c")
    for c in C:
        one = finish_effect(merge([effect_rows(b, correct(b, family.at(c))) for b in map(padded, BATCHES)]))
        for metric in ("kept_tokens", "kept_sequences", "weight_mean", "ess", "weight_max", "agreement"):
            assert found.loc[c, metric] == pytest.approx(one[f"effect/{metric}"], rel=1e-12, abs=1e-12), (c, metric)


@pytest.mark.parametrize("family", [f for f in families(segments=True) if f.action == "reject"], ids=lambda family: family.name)
def test_the_values_of_a_family_are_those_that_the_training_step_compares(family):
    """`Family.units` beside `algos`; 1e-12. At worst_token algos keeps the ratio and prob_diff per token."""
    batch, units = padded(BATCHES[0]), family.units(FlatTokens(BATCHES[0]))
    values = statistic(Ratio(batch), family.at(2.0).reject[family.name]).expand_as(batch.mask)
    if family.level == "worst_token":
        largest = {"ratio": torch.maximum(values, 1 / values), "prob_diff": values.abs()}.get(family.statistic, values)
        values = torch.where(batch.mask, largest, 0.0).amax(-1, keepdim=True)[units.row]
    elif family.level == "token":
        values = values[batch.mask]
    elif family.level in ("sequence", "geometric"):
        values = values[units.row, :1]
    else:  # one token of each segment, in the order of the segments
        present = [(row, turn) for row in range(len(values)) for turn in batch.segments[row][batch.mask[row]].unique()]
        values = torch.stack([values[row][batch.mask[row] & (batch.segments[row] == turn)][0] for row, turn in present])
    np.testing.assert_allclose(units.values, values.flatten().numpy(), rtol=1e-12, atol=1e-12)


def test_a_table_does_not_depend_on_how_the_dump_is_cut(table):
    whole = random_columns(seed=0)
    halves = [as_responses({k: v[rows] for k, v in whole.items()}) for rows in (slice(0, 10), slice(10, None))]
    cut = all_thresholds([*halves, BATCHES[1]], C).table()
    for column in ("kept_tokens", "kept_sequences", "ess", "agreement"):
        np.testing.assert_allclose(cut[column], table[column], rtol=1e-12)


def test_hand_arithmetic():
    """Two responses of ratios (1, 4) and (½,): products 4 and ½.

    token truncate at 2: weights 1, 2, ½: mean 3.5/3; ESS 3.5²/(3·5.25) = .7778; with R = (4, 4, ½):
    Σ gR = 12.25, Σg²·ΣR² = 5.25·32.25, agreement .8863. sequence reject at 2, [½, 2]: the first goes: kept ⅓ of tokens, ½.
    """
    columns = {
        "mask": np.array([[True, True], [True, False]]),
        "logp_rollout": np.array([[-2.0, -2.0], [-2.0, -2.0]]),
        "logp_old": np.array([[-2.0, -2.0 + np.log(4)], [-2.0 - np.log(2), 0.0]]),
    }
    table = all_thresholds([as_responses(columns)], np.array([2.0 + 1e-9])).table().set_index("family")
    token = table.loc["truncate-token"]
    assert token.weight_mean == pytest.approx(3.5 / 3)
    assert token.ess == pytest.approx(3.5**2 / (3 * 5.25))
    assert token.agreement == pytest.approx(12.25**2 / (5.25 * 32.25))
    assert table.loc["reject-sequence", "kept_tokens"] == pytest.approx(1 / 3)
    assert table.loc["reject-sequence", "kept_sequences"] == pytest.approx(1 / 2)
    assert table.loc["mask-token", "kept_sequences"] == 1.0  # each response has a token with a weight


def test_statistics_that_the_ratio_does_not_repeat():
    """Responses of ratios (4, ¼) and (1, 2) at μ = ⅛: the first has a geometric ratio of 1 and a mean max(ρ, 1/ρ) of 4, the
    second √2 and 1.5. π − μ: (.375, −.09375), mean .140625, largest .375; (0, .125), mean .0625, largest .125.
    At C = 1.45 ratios stay in [.69, 1.45] and π − μ within .3103."""
    columns = {
        "mask": np.ones((2, 2), dtype=bool),
        "logp_rollout": np.full((2, 2), np.log(0.125)),
        "logp_old": np.log(0.125 * np.array([[4.0, 0.25], [1.0, 2.0]])),
    }
    table = all_thresholds([as_responses(columns)], np.array([1.1, 1.45, 1.55, 4.1])).table()
    kept = table.pivot(index="family", columns="c", values="kept_sequences").loc
    assert list(kept["reject-geometric"]) == [0.5, 1.0, 1.0, 1.0]  # √2 = 1.414
    assert list(kept["reject-geometric-mult_error"]) == [0.0, 0.0, 0.5, 1.0]
    assert list(kept["reject-geometric-prob_diff"]) == [0.5, 1.0, 1.0, 1.0]  # .0909, .3103, .3548, .7561
    assert list(kept["reject-worst_token-prob_diff"]) == [0.0, 0.5, 0.5, 1.0]
