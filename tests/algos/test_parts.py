"""A CPU works on a few responses of like length at a time; nothing depends on it."""

import functools

import pytest
import torch

from algos import chunks
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.correction import applied_rows, examine, finish, weight_rows
from algos.losses import ppo
from algos.objective import Objective
from algos.ratios import log_ratio
from algos.reductions import Counts

SPEC = Correction(
    weight=Weight("token", "truncate", None, 1.2),
    reject={"k3": Reject("geometric", "k3", None, 0.05), "worst": Reject("worst_token", "ratio", 0.3, None)},
    denominator="kept",
)
TURNS = Correction(weight=Weight("segment", "clip", 0.5, 1.5))


def batch():
    """Ragged rows of 40 columns, fp64: one empty, one full, one with a gap of 20 tokens; NaN off the mask."""
    generator = torch.Generator().manual_seed(0)
    old, rollout, logp = (torch.randn(9, 40, generator=generator, dtype=torch.float64) / 5 - 1 for _ in range(3))
    mask = torch.arange(40)[None] < torch.tensor([3, 40, 0, 17, 1, 25, 9, 33, 12])[:, None]
    mask[7, 5:25] = False
    advantages = torch.randn(9, 40, generator=generator, dtype=torch.float64)
    return [torch.where(mask, t, torch.nan) for t in (logp, old, rollout, advantages)], mask


def everything():
    (logp, old, rollout, advantages), mask = batch()
    logp.requires_grad_()
    l = log_ratio(old, rollout, mask)
    corrected, found = examine(l, mask, SPEC, logp_rollout=rollout)
    objective = Objective(functools.partial(ppo, eps_low=0.2, eps_high=0.2, dual_clip=3.0), SPEC, "old", "seq_mean_token_mean")
    loss, metrics = objective(logp, old, rollout, advantages, mask, corrected, Counts.of(corrected.counted))
    loss.backward()
    turns = torch.arange(40).expand(9, 40)[:, torch.randperm(40, generator=torch.Generator().manual_seed(1))].contiguous()
    by_turn = correct(l, mask, TURNS, segments=turns)
    return {
        "loss": loss.detach(),
        "gradient": logp.grad,
        **dict(zip(("weights", "kept"), corrected[:2], strict=True)),
        **dict(zip(("alone weights", "alone kept"), correct(l, mask, SPEC)[:2], strict=True)),
        "turns": by_turn.weights,
        **{f"turns {name}": value for name, value in weight_rows(l, mask, TURNS, turns).items()},
        **metrics,
        **{f"rows {name}": value for name, value in found.items()},
        **{f"applied {name}": value for name, value in applied_rows(corrected, mask).items()},
        **finish(found, SPEC),
    }


@pytest.mark.parametrize("chunk", [1, 100, 160])
def test_in_parts_as_at_once(monkeypatch, chunk):
    at_once = everything()
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    in_parts = everything()
    assert at_once.keys() == in_parts.keys()
    for name, value in at_once.items():
        same = torch.allclose(in_parts[name], value, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert same, (name, in_parts[name], value)


def test_parts_hold_every_token_once(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 100)
    mask = batch()[1]
    seen = torch.zeros_like(mask, dtype=torch.long)
    widths = []
    for part in chunks.parts(mask):
        seen[part.rows, : part.width] += 1
        widths.append(part.width)
    assert (seen[mask] == 1).all() and seen.max() == 1
    assert min(widths) < 40  # padding is left out


def test_a_gradient_is_given_once():
    (logp, old, rollout, advantages), mask = batch()
    logp.requires_grad_()
    objective = Objective(functools.partial(ppo, eps_low=0.2, eps_high=0.2, dual_clip=None), Correction(), "old", "token_sum")
    corrected = objective.corrected(old, rollout, mask, advantages)
    loss, _ = objective(logp, old, rollout, advantages, mask, corrected, Counts.of(corrected.counted))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the loss again"):
        loss.backward()
