"""Every loss, reduction, preset, metric, advantage and KL estimator shared with verl 0.9.1, SkyRL 0.3.0 and TRL 1.16.0."""

import itertools
from fnmatch import fnmatch

import pytest
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry, PolicyLossRegistry
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from tests.oracles import skyrl_cases, trl_cases, verl_cases
from tests.oracles.comparing import shared
from tests.oracles.differences import DIFFERENCES, MISSING, expected

SEEDS = range(6)
CASES = [*verl_cases.cases(), *skyrl_cases.cases(), *trl_cases.cases()]
NAMES = sorted({case.name for case in CASES})


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_listed_differences(name):
    compared, found, missing = set(), set(), set()
    for case, seed in itertools.product((case for case in CASES if case.name == name), SEEDS):
        ours, theirs = case.compare(seed)
        agreement = shared(ours, theirs)
        compared |= agreement.keys()
        found |= {key for key, agrees in agreement.items() if not agrees}
        missing |= theirs.keys() - ours.keys()
    assert found == expected(name, compared)
    if name.startswith("verl/"):
        assert missing == expected(name, missing, MISSING)


def test_every_difference_belongs_to_a_comparison():
    unused = [d for d in DIFFERENCES + MISSING if not any(fnmatch(name, d.comparisons) for name in NAMES)]
    assert not unused


def test_nothing_that_both_have_is_left_out():
    """Everything that the packages register and this comparison lacks is missing in this project."""
    ours = {name.split("/")[-1].split()[0] for name in NAMES}
    assert set(POLICY_LOSS_REGISTRY) - ours == {"bypass_mode"}  # compared as presets
    assert set(PolicyLossRegistry.list_available()) - ours == set()
    estimators = {str(getattr(name, "value", name)) for name in ADV_ESTIMATOR_REGISTRY}
    assert estimators - ours == {"gdpo", "optimal_token_baseline", "tir_optimal_token_baseline"}  # docs/frameworks.md: not here
    assert set(AdvantageEstimatorRegistry.list_available()) - ours == set()
