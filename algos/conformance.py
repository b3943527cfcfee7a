"""The rules that a plug-in loss, filter or advantage estimator must keep, as checks that its author calls from a test.

    def test_my_loss_conforms():
        check_loss(my_loss, {"temperature": 1.0})

Each check raises an AssertionError that names the broken rule. The built-in plug-ins pass the same checks. Losses and filters
are tried on small ragged batches with an empty response, most of them in fp64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e30)
"""Values that padding may hold: engines leave NaN, −inf and uninitialised memory there."""


def check_loss(loss: Callable, params: dict[str, Any]) -> None:
    """Check a loss: parameters, shapes, masking, gradient, finiteness, and that order, padding and splitting have no effect."""
    assert isinstance(getattr(loss, "anchored", None), bool), "a loss says whether it is `anchored`: use @loss(anchored=…)"
    keywords = [p for p in inspect.signature(loss).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert {p.name for p in keywords} == set(params), f"keyword-only parameters {[p.name for p in keywords]} ≠ {list(params)}"
    assert all(p.default is p.empty for p in keywords), "parameters have no defaults: those live in a config"
    _loss_shapes(loss, params)
    _loss_masking(loss, params)
    _loss_gradient(loss, params)
    _loss_invariance(loss, params)
    _loss_extremes(loss, params)


def check_filter(filter_: Callable, params: dict[str, Any]) -> None:
    """Check a plug-in filter of tokens, `(log_ratio [B, T], mask [B, T], **params) -> kept [B, T] bool`.

    It must keep all tokens if every log ratio is 0, and depend neither on the order of the responses nor on padding.
    """
    logp, prox, _, mask = example(torch.float64)
    log_ratio = torch.where(mask, logp - prox, 0.0)
    before = log_ratio.clone()
    kept = filter_(log_ratio, mask, **params)
    assert kept.shape == mask.shape and kept.dtype == torch.bool, "a filter returns [B, T] bool"
    assert torch.equal(log_ratio, before), "a filter leaves its input as it was"
    assert (filter_(torch.zeros_like(log_ratio), mask, **params) | ~mask).all(), "equal policies: nothing is rejected"
    order = torch.tensor([2, 0, 3, 1])
    assert torch.equal(filter_(log_ratio[order], mask[order], **params), kept[order]), "the order of responses matters"
    wide = _pad(log_ratio, 3, 0.0), _pad(mask, 3, False)
    assert torch.equal(filter_(*wide, **params)[:, : mask.shape[1]], kept), "padding matters"
    nothing = torch.zeros_like(mask)
    assert filter_(torch.zeros_like(log_ratio), nothing, **params).shape == mask.shape, "a batch without tokens fails"


def check_advantage(estimator: Callable, params: dict[str, Any], inputs: dict[str, Tensor]) -> None:
    """Check an advantage estimator `(rewards [P, G], **inputs) -> [P, G]` on P = 3 prompts with G = 4 responses each.

    The advantages must be finite, and move with the rewards if a prompt's responses are reordered. inputs: a tensor
    [3, 4] or [3] by name, for each name in the estimator's attribute `needs`.
    """
    rewards = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0], [1, 0.5, 2, 0]], dtype=torch.float64)
    needs = getattr(estimator, "needs", ())
    assert set(needs) == set(inputs), f"`needs` says {needs}, given {list(inputs)}"
    values = estimator(rewards, **inputs, **params)
    assert values.shape == rewards.shape and values.isfinite().all(), "finite advantages, one per response"
    order = torch.tensor([3, 1, 0, 2])
    moved = {name: value[:, order] if value.ndim > 1 else value for name, value in inputs.items()}
    _close(estimator(rewards[:, order], **moved, **params), values[:, order], "the order in a group matters")


def example(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A ragged batch (logp, logp_prox, advantages, mask), each [4, 6]. One response is empty and one has a hole in its mask."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, 6)
    logp = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    prox = (logp + 0.7 * torch.randn(shape, generator=generator, dtype=torch.float64)).clamp(max=0)
    advantages = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0]]).bool()
    return logp.to(dtype), prox.to(dtype), advantages.to(dtype), mask


def run(loss: Callable, batch: tuple[Tensor, ...], params: dict[str, Any], selected: Tensor | None = None):
    """Return a loss's TokenLoss on `batch` = (logp, logp_prox, advantages, mask), and the gradient of its sum in logp, [B, T].

    selected: the fifth argument of a loss that selects tokens.
    """
    logp = batch[0].detach().clone().requires_grad_()
    extra = () if selected is None else (selected,)
    result = loss(logp, *batch[1:], *extra, **params)
    return result, torch.autograd.grad(result.loss.sum(), logp)[0]


def _loss_shapes(loss: Callable, params: dict[str, Any]) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        batch = example(dtype)
        before = [t.clone() for t in batch]
        result, gradient = run(loss, batch, params)
        expected = torch.promote_types(dtype, torch.float32)
        assert result.loss.shape == batch[0].shape, "the loss is unreduced, [B, T]"
        assert result.loss.dtype == expected, f"{dtype} inputs give {result.loss.dtype}, not {expected}"
        assert gradient.dtype == dtype, "the gradient has the dtype of logp"
        if result.clipped is not None:
            assert result.clipped.dtype == torch.bool and result.clipped.shape == batch[0].shape, "clipped is [B, T] bool"
        assert all(torch.equal(a, b) for a, b in zip(batch, before, strict=True)), "a loss leaves its inputs as they were"


def _loss_masking(loss: Callable, params: dict[str, Any]) -> None:
    *tensors, mask = example(torch.float64)
    clean, clean_gradient = run(loss, (*tensors, mask), params)
    assert clean.loss[mask].isfinite().all(), "the loss is NaN or infinite on response tokens"
    assert clean_gradient[mask].isfinite().all(), "the gradient is NaN or infinite on response tokens"
    assert (clean.loss[~mask] == 0).all(), "the loss is 0 off the mask"
    assert (clean_gradient[~mask] == 0).all(), "the gradient is 0 off the mask"
    if clean.clipped is not None:
        assert not clean.clipped[~mask].any(), "nothing is clipped off the mask"
    for garbage in GARBAGE:
        dirty, gradient = run(loss, (*(torch.where(mask, t, garbage) for t in tensors), mask), params)
        same = torch.equal(dirty.loss, clean.loss) and torch.equal(gradient, clean_gradient)
        assert same, f"{garbage} in the padding changes the loss or its gradient"
    nothing, gradient = run(loss, (*tensors, torch.zeros_like(mask)), params)
    assert (nothing.loss == 0).all() and (gradient == 0).all(), "a batch without tokens has loss 0 with gradient 0"


def _loss_gradient(loss: Callable, params: dict[str, Any]) -> None:
    logp, prox, advantages, mask = example(torch.float64)
    leaves = [t.requires_grad_() for t in (logp, prox, advantages)]
    value = loss(*leaves, mask, **params).loss.sum()
    _, *others = torch.autograd.grad(value, leaves, allow_unused=True)
    assert all(g is None or (g == 0).all() for g in others), "gradient flows through logp only"
    if not getattr(loss, "anchored", True):
        alone = loss(logp, None, advantages, mask, **params).loss
        assert torch.equal(alone, loss(logp, prox, advantages, mask, **params).loss), "anchored=False but logp_prox matters"


def _loss_invariance(loss: Callable, params: dict[str, Any]) -> None:
    batch = example(torch.float64)
    _, prox, advantages, mask = batch
    select = getattr(loss, "select", None)
    selected = None if select is None else select(prox, advantages, mask, **params)
    whole, gradient = run(loss, batch, params)
    order = torch.tensor([2, 0, 3, 1])
    moved, moved_gradient = run(loss, tuple(t[order] for t in batch), params)
    _close(moved.loss, whole.loss[order], "the order of responses matters")
    _close(moved_gradient, gradient[order], "the order of responses matters to the gradient")
    wide = tuple(_pad(t, 3, False if t.dtype == torch.bool else float("nan")) for t in batch)
    padded, padded_gradient = run(loss, wide, params)
    _close(padded.loss[:, : mask.shape[1]], whole.loss, "padding matters")
    _close(padded_gradient[:, : mask.shape[1]], gradient, "padding matters to the gradient")
    for rows in (slice(0, 1), slice(1, 4)):
        part, part_gradient = run(loss, tuple(t[rows] for t in batch), params, None if selected is None else selected[rows])
        _close(part.loss, whole.loss[rows], "splitting the batch matters")
        _close(part_gradient, gradient[rows], "splitting the batch matters to the gradient")


def _loss_extremes(loss: Callable, params: dict[str, Any]) -> None:
    values = torch.tensor([0.0, -1e-8, -1.0, -50.0, -1e4])
    logp, prox = (t.reshape(1, -1) for t in torch.meshgrid(values, values, indexing="ij"))
    mask = torch.ones_like(logp, dtype=torch.bool)
    for advantage in (-100.0, 0.0, 100.0):
        one_by_one = tuple(t.reshape(-1, 1) for t in (logp, prox, torch.full_like(logp, advantage), mask))
        for batch in ((logp, prox, torch.full_like(logp, advantage), mask), one_by_one):
            result, gradient = run(loss, batch, params)
            assert result.loss.isfinite().all(), f"not finite for log-probabilities down to −1e4, advantage {advantage}"
            assert gradient.isfinite().all(), f"gradient not finite down to −1e4, advantage {advantage}"


def _pad(tensor: Tensor, columns: int, value: float | bool) -> Tensor:
    return torch.cat([tensor, tensor.new_full((tensor.shape[0], columns), value)], -1)


def _close(actual: Tensor, expected: Tensor, rule: str) -> None:
    assert torch.allclose(actual, expected, rtol=1e-12, atol=1e-12), rule
