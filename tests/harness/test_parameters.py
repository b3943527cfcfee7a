"""Parameters of plug-ins are checked by the types of their signatures."""

import pytest

from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.validate import check

FP32 = "rollout/precision=fp32"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.eps_low=nan", r"^loss.eps_low=nan: must be an offset from ratio 1 in \[0, 1\]$"),
        ("loss.eps_low=true", r"^loss.eps_low=True: must be an offset from ratio 1"),
        ("loss.eps_low='0.2'", r"^loss.eps_low='0.2': must be an offset from ratio 1"),
        ("rollout.engine.noise=nan", r"^rollout.engine.noise=nan: must be a number ≥ 0 and ≤ 10$"),
        ("rollout.engine.noise=inf", r"^rollout.engine.noise=inf: must be a number ≥ 0 and ≤ 10$"),
        ("rollout.engine.noise=-1", r"^rollout.engine.noise=-1: must be a number ≥ 0 and ≤ 10$"),
        ("rollout.engine.noise='0.1'", r"^rollout.engine.noise='0.1': must be a number ≥ 0 and ≤ 10$"),
        ("collapse.detectors.drawdown.floor=-1", r"drawdown.floor=-1: must be a number ≥ 0 and ≤ 1$"),
        ("collapse.detectors.drawdown.consecutive=2.5", r"drawdown.consecutive=2.5: must be a whole number ≥ 1"),
        ("collapse.detectors.drawdown.consecutive=true", r"drawdown.consecutive=True: must be a whole number ≥ 1"),
        ("collapse.detectors.learning.solved=nan", r"^collapse.detectors.learning.solved=nan: must be a number ≥ 0 and ≤ 1$"),
        ("collapse.detectors.learning.solved=1e300", r"learning.solved=1e\+300: must be a number ≥ 0 and ≤ 1$"),
        (
            "collapse.detectors.numerical.factor=inf",
            r"^collapse.detectors.numerical.factor=inf: must be a number > 1 and ≤ 1e\+09$",
        ),
        ("collapse.detectors.distribution.null_band=inf", r"null_band=inf: must be a number ≥ 0 and ≤ 1000$"),
    ],
)
def test_what_is_no_value_of_a_parameter_is_refused_by_key(override, message):
    with pytest.raises(UserError, match=message):
        check(parse(compose(FP32, override)))


def test_a_bound_may_be_infinite_and_a_rate_an_integer():
    check(parse(compose(FP32, "loss=cispo", "loss.upper=inf")))
    check(parse(compose(FP32, "loss=ppo", "loss.dual_clip=3")))
