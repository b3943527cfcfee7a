"""The gradients of K1, K2 and K3 against what follows on paper."""

import pytest

from experiments.kl_gradients import table


@pytest.fixture(scope="module")
def rows():
    return table(seed=3)


def column(rows, estimator, place, name):
    """Values at the three distances."""
    return rows.loc[(rows["estimator"] == estimator) & (rows["as"] == place), name].to_list()


def test_expected_gradients_are_those_of_the_derivation(rows):
    # E[∇log π] = 0, so that K1 as a loss misses the whole gradient: a bias of its own norm
    assert column(rows, "K1", "loss", "bias") == pytest.approx([1, 1, 1], abs=1e-9)
    # the policy gradient of the reward −k1 is that of −KL, and ∇k2 = −x·∇log π is the part at fixed prefixes
    assert column(rows, "K1", "reward", "bias") == pytest.approx([0, 0, 0], abs=1e-9)
    assert column(rows, "K2", "loss", "bias at fixed prefixes") == pytest.approx([0, 0, 0], abs=1e-9)


def test_a_single_token_has_no_later_prefix():
    single = table(seed=3, length=1)
    assert column(single, "K2", "loss", "bias") == pytest.approx([0, 0, 0], abs=1e-9)
    biases = column(single, "K3", "loss", "bias")  # 1 − eˣ is −x at a small distance only
    assert biases[0] < 0.2 < biases[2]


def test_the_spread_of_k2_is_that_of_its_coefficient(rows):
    near = {name: column(rows, name, "loss", "sd")[0] for name in ("K1", "K2", "K3")}  # coefficients 1, −x and 1 − eˣ, x near 0.1
    assert near["K2"] == pytest.approx(near["K3"], rel=0.1) and near["K1"] > 5 * near["K2"]
