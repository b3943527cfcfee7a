"""Routing metrics on numbers that can be counted by hand."""

import math

import pytest
import torch

from algos.batch import Batch
from algos.diagnostics.mismatch import mismatch
from algos.diagnostics.routing import expert_load, flipped, routing, split_k3

TRAINER = torch.tensor([[[[0, 1], [2, 3]], [[1, 0], [2, 3]], [[0, 2], [0, 1]]]])  # 1 response, 3 tokens, 2 layers, top 2
ENGINE = torch.tensor([[[[1, 0], [2, 3]], [[1, 2], [2, 1]], [[3, 3], [3, 3]]]])
MASK = torch.tensor([[True, True, False]])


def test_a_flip_is_another_set_and_not_another_order():
    assert flipped(TRAINER, ENGINE).tolist() == [[[False, False], [True, True], [True, True]]]


def test_load_counts_slots():
    """Layer 0: tokens 0 and 1 pick {0, 1} twice; layer 1: {2, 3} twice. The third token is off the mask."""
    assert expert_load(TRAINER, MASK, 4).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]
    assert expert_load(TRAINER, torch.ones_like(MASK), 4).tolist() == [[0.5, 1 / 3, 1 / 6, 0], [1 / 6, 1 / 6, 1 / 3, 1 / 3]]


def test_shares_are_over_the_tokens_of_the_mask():
    margin = torch.tensor([[[0.1, 0.3], [0.2, 0.4], [9.0, 9.0]]])
    metrics = {name: value.item() for name, value in routing(TRAINER, ENGINE, margin, MASK, 5).items()}
    assert metrics == pytest.approx({
        "routing/margin": 0.25,
        "routing/margin_p10": 0.1,
        "routing/load_max": 0.5,
        "routing/load_min": 0.0,
        "routing/dead_experts": 6.0,  # three of five in either layer
        "routing/flip_layer_0": 0.5,
        "routing/flip_layer_1": 0.5,
        "routing/flip_any": 0.5,
    })  # fmt: skip
    assert not any("flip" in name for name in routing(TRAINER, None, margin, MASK, 5))


def test_ids_of_one_byte_count_as_any_other():
    margin = torch.zeros(1, 3, 2)
    small = routing(TRAINER.to(torch.uint8), ENGINE.to(torch.uint8), margin, MASK, 5)
    assert small == routing(TRAINER, ENGINE, margin, MASK, 5)


def test_the_two_parts_of_k3_add_up_to_it():
    generator = torch.Generator().manual_seed(0)
    rollout, live, replayed = -torch.rand(3, 4, 6, generator=generator) * 3
    mask = torch.rand(4, 6, generator=generator) > 0.3
    parts = split_k3(live, replayed, rollout, mask)
    off = [(logp.double() - rollout.double())[mask] for logp in (live, replayed)]
    whole, rest = (sum(math.exp(x) - 1 - x for x in part.tolist()) / len(part) for part in off)
    assert parts["routing/k3_rest"].item() == pytest.approx(rest, rel=1e-12)
    assert (parts["routing/k3_routing"] + parts["routing/k3_rest"]).item() == pytest.approx(whole, rel=1e-12)


def test_what_routing_does_not_explain_has_no_routing_part():
    """Engine and trainer pick the same experts: both scores are one, the routing part is exactly 0, and the rest is K3."""
    generator = torch.Generator().manual_seed(1)
    rollout, live = -torch.rand(2, 4, 6, generator=generator)
    mask = torch.ones(4, 6, dtype=torch.bool)
    parts = split_k3(live, live.clone(), rollout, mask)
    assert parts["routing/k3_routing"].item() == 0.0
    whole = mismatch(Batch(rollout, mask, live))["rollout_corr/k3_kl"].item()
    assert parts["routing/k3_rest"].item() == pytest.approx(whole, rel=1e-5)


def test_a_routing_part_below_zero_is_told():
    """The engine's experts take π_old from μ itself to a nat away: −(e − 2) of routing, e − 2 of rest."""
    rollout = torch.full((1, 1), -2.0)
    parts = split_k3(rollout, rollout + 1, rollout, torch.ones(1, 1, dtype=torch.bool))
    assert parts["routing/k3_routing"].item() == pytest.approx(-(math.e - 2), rel=1e-6)
