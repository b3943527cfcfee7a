"""Sums in parts, as many as the batch's size says: against BF16's own spacing, and what neighbours in a batch change."""

from functools import partial

import pytest
import torch

from harness.errors import UserError
from harness.models import build
from harness.rollouts.linear import Arithmetic, EngineMatrix, PartialSums, arithmetic
from harness.rollouts.local import LocalEngine
from tests.harness.engines import loaded, precision
from tests.harness.train.model.test_actor import SHAPE

BF16 = precision("bf16")


def test_a_split_sum_rounds_each_part():
    """BF16 has 8 bits: 1 + 2⁻⁸ lies between 1 and 1 + 2⁻⁷, and rounds to the even 1. So do 1 and the second part's 2⁻⁸."""
    x, weight = torch.tensor([[1, 2**-8, 2**-8, 0]]), EngineMatrix(torch.ones(4, 1), None)
    assert Arithmetic(BF16).linear(x, weight).item() == 1 + 2**-7
    assert [PartialSums(BF16, lambda _, n=n: n).linear(x, weight).item() for n in (1, 2)] == [1 + 2**-7, 1]


def test_the_bias_is_added_once():
    x, weight = torch.ones(1, 4), EngineMatrix(torch.ones(4, 1), None, torch.tensor([0.5]))
    assert PartialSums(BF16, lambda _: 4).linear(x, weight).item() == 4.5


def test_the_number_of_rows_chooses_the_number_of_parts():
    split = arithmetic(BF16, 4)
    assert isinstance(split, PartialSums) and [split.parts(rows) for rows in range(4, 9)] == [1, 2, 3, 4, 1]
    assert type(arithmetic(BF16, 1)) is Arithmetic


def test_a_response_depends_on_its_neighbours_only_where_sums_are_split():
    net, prompts = build(SHAPE, 0), torch.arange(8)[:, None].expand(8, 3) % 7 + 1
    uniforms = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
    for split_sums, same in ((1, True), (4, False)):
        engine = loaded(net, "bf16", split_sums=split_sums)
        together = engine.generate(prompts, uniforms)
        assert torch.equal(engine.score(prompts, together.tokens), together.logp)  # the same batch has the same bits
        alone = torch.cat([engine.score(prompts[[i]], together.tokens[[i]]) for i in range(8)])
        assert torch.equal(alone, together.logp) is same
        assert (alone - together.logp).abs().max() < 0.1


def test_a_precision_with_casts_is_refused():
    check = partial(LocalEngine.check, SHAPE, kv_cache="compute", split_sums=2)
    check(precision=BF16)
    with pytest.raises(UserError, match=r"split_sums=2: sums of rollout.precision.name=fp8_tensor"):
        check(precision=precision("fp8_tensor"))
