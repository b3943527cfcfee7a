"""Bookkeeping faults, made by editing the batch of a dump without a fault."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from algos.batch import Batch
from harness.seeding import generator

SIZES: dict[str, tuple[float, ...]] = {
    "rollout_zero": (0.02, 0.2, 1.0),
    "rollout_floor": (0.002, 0.02, 0.2),
    "log2": (1,),
    "log10": (1,),
    "swapped": (1,),
    "shift": (0.1, 0.5, 1.0),
    "permuted": (0.1, 0.5, 1.0),
    "duplicates": (0.1, 0.5, 0.875),
    "prompt_fill": (2, 4, 16),
    "padding": (2, 4, 16),
    "eos_trainer": (0.1, 0.5, 1.0),
    "eos_rollout": (0.1, 0.5, 1.0),
}
"""Tested sizes of each edited fault, by the fault's name.

rollout_zero, rollout_floor: share of tokens whose rollout log-probability becomes 0 or -1e9.
log2, log10, swapped: without a size; all tokens are edited.
shift, permuted, eos_*: share of responses that are edited.
duplicates: share of responses that are replaced by copies of others.
prompt_fill: number of tokens put before each response. They count as response, and both their log-probabilities are 0.
padding: number of tokens with log-probability 0 after the longest response; shorter responses are filled up to its length."""
FLOOR = -1e9


def edited(batch: Batch, fault: str, size: float, seed: int) -> Batch:
    """Return the batch of a dump without a fault, edited to have the named fault. size: see `SIZES`. seed: of random choices."""
    return EDITS[fault](batch, size, generator(seed, "fault edit"))


def _chosen(batch: Batch, share: float, draws: torch.Generator) -> Tensor:
    """Choose a random share of the rows of a batch, at least one row. Returns a mask [B]."""
    order = torch.randperm(len(batch.mask), generator=draws)
    chosen = torch.zeros(len(batch.mask), dtype=torch.bool)
    chosen[order[: max(1, round(share * len(order)))]] = True
    return chosen


def _filled(value: float) -> Callable[[Batch, float, torch.Generator], Batch]:
    def edit(batch: Batch, size: float, draws: torch.Generator) -> Batch:
        hit = torch.rand(batch.mask.shape, generator=draws) < size
        return batch._replace(logp_rollout=torch.where(hit, value, batch.logp_rollout))

    return edit


def _in_base(base: float) -> Callable[[Batch, float, torch.Generator], Batch]:
    return lambda batch, size, draws: batch._replace(logp_rollout=batch.logp_rollout / math.log(base))


def _swapped(batch: Batch, size: float, draws: torch.Generator) -> Batch:
    return batch._replace(logp_rollout=batch.logp_old, logp_old=batch.logp_rollout)


def _shift(batch: Batch, size: float, draws: torch.Generator) -> Batch:
    """Move the rollout's log-probabilities one token later in a share `size` of the responses, and the last one to the front."""
    rolled = batch.logp_rollout.clone()
    for row in _chosen(batch, size, draws).nonzero()[:, 0]:
        rolled[row, batch.mask[row]] = batch.logp_rollout[row, batch.mask[row]].roll(1)
    return batch._replace(logp_rollout=rolled)


def _permuted(batch: Batch, size: float, draws: torch.Generator) -> Batch:
    """Exchange the rollout's log-probabilities among responses of equal length, in a share `size` of the responses."""
    rolled, lengths = batch.logp_rollout.clone(), batch.mask.sum(-1)
    chosen = _chosen(batch, size, draws)
    for length in lengths[chosen].unique():
        rows = (chosen & (lengths == length)).nonzero()[:, 0]
        for row, other in zip(rows, rows.roll(1), strict=True):
            rolled[row, batch.mask[row]] = batch.logp_rollout[other, batch.mask[other]]
    return batch._replace(logp_rollout=rolled)


def _duplicates(batch: Batch, size: float, draws: torch.Generator) -> Batch:
    """Replace the last rows, a share `size` of the batch, by copies of the rows before. Each row keeps its prompt number."""
    kept = max(1, round(len(batch.mask) * (1 - size)))
    index = torch.arange(len(batch.mask)) % kept
    prompt = batch.prompt
    return batch.rows(index)._replace(prompt=prompt)


def _prompt_fill(batch: Batch, size: float, draws: torch.Generator) -> Batch:
    n = int(size)

    def longer(part: Tensor | None, value: float | bool) -> Tensor | None:
        return None if part is None else torch.cat([part.new_full((len(part), n), value), part], 1)

    return _mapped(batch, longer)


def _padding(batch: Batch, size: float, draws: torch.Generator) -> Batch:
    n = int(size)

    def longer(part: Tensor | None, value: float | bool) -> Tensor | None:
        if part is None:
            return None
        if part.dtype != torch.bool and part.is_floating_point():
            part = torch.where(batch.mask, part, 0.0)
        part = torch.cat([part, part.new_full((len(part), n), value)], 1)
        return torch.ones_like(part) if part.dtype == torch.bool else part

    return _mapped(batch, longer)


def _mapped(batch: Batch, longer: Callable[[Tensor | None, float | bool], Tensor | None]) -> Batch:
    mask = longer(batch.mask, True)
    assert mask is not None
    rollout = longer(batch.logp_rollout, 0.0)
    assert rollout is not None
    advantages = longer(batch.advantages, 0.0)
    return Batch(rollout, mask, longer(batch.logp_old, 0.0), advantages, prompt=batch.prompt)


def _at_end(column: str) -> Callable[[Batch, float, torch.Generator], Batch]:
    """Return an edit that sets the last log-probability of a share of the responses to 0. column: the edited field of Batch.

    Then logp_rollout looks as if the sampler had not scored the end of the sequence, or logp_old as if the trainer had not.
    """

    def edit(batch: Batch, size: float, draws: torch.Generator) -> Batch:
        last = batch.mask & (batch.mask.flip(-1).cumsum(-1).flip(-1) == 1) & _chosen(batch, size, draws)[:, None]
        return batch._replace(**{column: torch.where(last, 0.0, getattr(batch, column))})

    return edit


EDITS: dict[str, Callable[[Batch, float, torch.Generator], Batch]] = {
    "rollout_zero": _filled(0.0),
    "rollout_floor": _filled(FLOOR),
    "log2": _in_base(2),
    "log10": _in_base(10),
    "swapped": _swapped,
    "shift": _shift,
    "permuted": _permuted,
    "duplicates": _duplicates,
    "prompt_fill": _prompt_fill,
    "padding": _padding,
    "eos_trainer": _at_end("logp_old"),
    "eos_rollout": _at_end("logp_rollout"),
}
