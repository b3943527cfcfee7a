"""Arrangement of prompts and responses as the rows of one forward pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from harness.rollouts.architecture import MODELS, expert_count
from harness.rollouts.recorded import Recorded
from harness.tasks import PAD
from harness.train.routing.hooks import ARGUMENT

SHARED, LONGEST, WORTH = 32, 1024, 0.75
"""Limits for responses that share a row: minimum prompt length, maximum row length, both in tokens, and maximum share of tokens
left to compute. A custom attention mask compares every pair of tokens in a row, so long rows would lose the gain."""


class Layout(NamedTuple):
    """Prompts and responses in the form that a model reads, without columns that hold only padding.

    input_ids: [R, L]. targets: the tokens to predict, [B, T'] by the last T' tokens of each row, or [1, U] by the tokens `at`.
    places: further arguments of the model: attention mask and positions if rows are padded, routes and support if they are
    replayed, `at` if sequences share a row. mask: [B, T'], the tokens of responses that are not padding. length: T. pairs: for
    each response token the index of its target, [B, T']; None if response tokens and targets are the same.
    """

    input_ids: Tensor
    targets: Tensor
    places: dict[str, Any]
    mask: Tensor
    length: int
    pairs: Tensor | None = None

    @classmethod
    def of(cls, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Layout:
        """Lay out each prompt and its response as one row. prompts: [B, P]. tokens: [B, T]. replay: records of the responses."""
        asked, answered = ((part != PAD).any(0) for part in (prompts, tokens))
        prompts, written = prompts[:, asked], tokens[:, answered]
        ids = torch.cat([prompts, written], dim=1)
        present = ids != PAD
        places: dict[str, Any] = {}
        if not present.all():
            positions = (present.cumsum(-1) - 1).clamp(min=0)
            places = {"attention_mask": present[:, :-1], "position_ids": positions[:, :-1]}
        if replay is not None and replay.routes is not None:
            places[ARGUMENT] = replay.routes.of(slice(None), torch.cat([asked, answered]).nonzero()[:-1, 0])
        if replay is not None and replay.support is not None:
            places["support"] = replay.support[:, answered]
        ids = ids.clamp(min=0)
        return cls(ids[:, :-1], ids[:, -written.shape[1] :], places, written != PAD, tokens.shape[1])

    @classmethod
    def shared(cls, prompts: Tensor, tokens: Tensor) -> Layout | None:
        """Lay out sequences (prompt, response) as trees of their tokens, one tree per row [R, L]. None if that saves too little.

        Tokens that several sequences begin with stand once in a tree. A token sees itself and those before it in its sequence,
        at the positions that they would have alone. Each distinct pair of a token in a tree and the response token after it is
        a target. at: indices [1, U], in the flattened rows, of the first tokens of these pairs. Limits: SHARED, LONGEST, WORTH.
        """
        prompts, written = (part[:, (part != PAD).any(0)] for part in (prompts, tokens))
        if prompts.shape[1] < SHARED:
            return None
        mask = written != PAD
        asked, lengths = (prompts != PAD).sum(1), mask.sum(1)
        sequences = _aligned(torch.cat([prompts, written], 1), asked + lengths - 1)
        trees = _trees(sequences)
        if trees is None or trees.ids.numel() > WORTH * prompts.shape[0] * (prompts.shape[1] + written.shape[1] - 1):
            return None
        before = (asked[:, None] - 1 + torch.arange(written.shape[1], device=written.device)).clamp(max=sequences.shape[1] - 1)
        vocabulary = int(written.max()) + 1
        keys = (trees.place.gather(1, before) * vocabulary + written)[mask]
        distinct, pair = keys.unique(return_inverse=True)
        pairs = torch.zeros_like(written).masked_scatter_(mask, pair)
        places = {"attention_mask": trees.visible[:, None], "position_ids": trees.depth, "at": distinct[None] // vocabulary}
        return cls(trees.ids, distinct[None] % vocabulary, places, mask, tokens.shape[1], pairs)

    def whole(self, values: Tensor) -> Tensor:
        """Expand values of the targets to the whole responses [B, T], with 0 on padding."""
        values = values if self.pairs is None else values.flatten()[self.pairs]
        missing = self.length - self.mask.shape[1]
        if not missing and self.mask.all():
            return values
        return torch.nn.functional.pad(torch.where(self.mask, values, 0.0), (0, missing))


def can_share(config: PretrainedConfig) -> bool:
    """Whether responses to one prompt may share a row: the model is dense, of a type in MODELS, without a sliding window."""
    return config.model_type in MODELS and not expert_count(config) and getattr(config, "sliding_window", None) is None


class _Trees(NamedTuple):
    """Sequences as R trees of at most L tokens, which are padded to L.

    ids, depth: tokens and their positions [R, L]. visible: whether a token (second last dimension) sees another, [R, L, L].
    place: index, in the flattened rows, of each token of each sequence [B, S]; arbitrary where a sequence has no token.
    """

    ids: Tensor
    depth: Tensor
    visible: Tensor
    place: Tensor


def _aligned(rows: Tensor, lengths: Tensor) -> Tensor:
    """Move the tokens of each row [B, L] to the left, and keep only the first `lengths` [B] tokens; PAD follows."""
    order = (rows == PAD).to(torch.int8).argsort(dim=1, stable=True)
    kept = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    return torch.where(kept, rows.gather(1, order), PAD)[:, : int(lengths.max())]


def _trees(sequences: Tensor) -> _Trees | None:
    """Arrange sequences [B, S], with PAD after their ends, in trees of at most LONGEST tokens and equal numbers of sequences.

    Sequences are sorted, and neighbours share a tree. A branch begins where a sequence first differs from the one before it.
    There are as few trees as possible. Returns None if a sequence is longer than LONGEST.
    """
    _, rank = sequences.unique(dim=0, return_inverse=True)
    order = rank.argsort(stable=True)
    ordered, there = sequences[order], sequences[order] != PAD
    if ordered.shape[1] > LONGEST:
        return None
    departs = torch.cat([there.new_ones(1, there.shape[1]), (ordered[1:] != ordered[:-1]).cummax(1).values]) & there
    fewest = -(-int(departs.sum()) // LONGEST)
    for number in range(fewest, len(ordered) + 1):
        tree = torch.arange(len(ordered), device=order.device) * number // len(ordered)
        new = departs | ((tree != tree.roll(1))[:, None] & there)  # a tree begins with a whole sequence
        in_tree = torch.zeros(number, dtype=torch.int64, device=order.device).index_add_(0, tree, new.sum(1))
        if int(in_tree.max()) <= LONGEST:
            break
    width = int(in_tree.max())
    # Numbered in order, a token that a sequence shares has the last number before it in its column.
    begins = in_tree.cumsum(0) - in_tree
    number_of = new.flatten().cumsum(0).view_as(new) - 1 - begins[tree][:, None] + tree[:, None] * width
    shared = torch.where(new, number_of, 0).cummax(0).values
    row, depth = new.nonzero(as_tuple=True)
    flat = number_of[new]
    ids = ordered.new_zeros(number * width).index_put_((flat,), ordered[new])
    depths = torch.zeros_like(ids).index_put_((flat,), depth)
    column = torch.arange(ordered.shape[1], device=order.device)
    seen = torch.where(column <= depth[:, None], shared[row] % width, width)
    visible = torch.zeros(number * width, width + 1, dtype=torch.bool, device=order.device)
    visible[flat] = visible[flat].scatter_(1, seen, True)
    visible = visible[:, :width].unflatten(0, (number, width))
    visible |= torch.eye(width, dtype=torch.bool, device=order.device)  # padding sees itself, so that it is a number
    place = torch.empty_like(sequences)
    place[order] = shared
    return _Trees(ids.view(number, width), depths.view(number, width), visible, place)
