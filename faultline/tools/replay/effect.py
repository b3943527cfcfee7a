"""Effect of a correction on dumped batches. Its effective weight g is a token's weight if the token is kept, else 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import Corrected
from algos.corrections.spec import Correction, Plugin
from algos.diagnostics.correction import applied_rows, finish_applied
from algos.diagnostics.positions import BINS, bin_of
from algos.diagnostics.rows import Rows, count, row_sum, share
from algos.ratios import Ratio
from harness.dumps.schema import DumpedResponses

CELLS = 2**22
"""Maximum number of values in a padded block of responses: 16 MB per array in fp32."""
WHOLE = 2**28
"""Maximum number of values in a padded batch, for corrections that need the whole batch: 1 GB per array in fp32."""


def padded(responses: DumpedResponses) -> Batch:
    """Convert flat dumped responses to a padded batch [B, T], in the floating-point precision of the dump."""
    rollout, mask, old = (padded_column(responses, c) for c in (responses.logp_rollout, responses.mask, responses.logp_old))
    advantages, segments = (
        None if c is None else padded_column(responses, c) for c in (responses.advantages, responses.segments)
    )
    prompt = None if responses.group is None else torch.tensor(responses.group)
    return Batch(rollout, mask, old, advantages, segments, prompt=prompt)


def padded_column(responses: DumpedResponses, column: np.ndarray) -> Tensor:
    """Pad `column`, one value per token of the responses, to [B, T], with 0 beyond the end of a response."""
    lengths = np.diff(responses.offsets)
    used = torch.from_numpy(np.arange(lengths.max(initial=0)) < lengths[:, None])
    values = torch.tensor(column)
    return torch.zeros(used.shape, dtype=values.dtype).masked_scatter_(used, values)


def blocks(responses: DumpedResponses, cells: int = CELLS) -> Iterator[DumpedResponses]:
    """Split responses into blocks of similar length that pad to at most `cells` values; a response longer than that is alone."""
    lengths = np.diff(responses.offsets)
    if len(lengths) * lengths.max(initial=0) <= cells:
        yield responses
        return
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        width = lengths[order[start:]]
        fits = (width <= 2 * max(width[0], 1)) & (np.arange(1, len(width) + 1) * width <= cells)
        end = start + max(1, len(fits) if fits.all() else int(fits.argmin()))
        yield responses.rows(order[start:end])
        start = end


def missing(spec: Correction, responses: DumpedResponses) -> str | None:
    """Reason why a correction cannot be replayed on dumped responses (a missing column, or a batch too large); None if it can."""
    filters = [filter_ for filter_ in spec.reject.values() if not isinstance(filter_, Plugin)]
    if responses.advantages is None and any(filter_.when == "negative_advantage" for filter_ in filters):
        return "needs advantages"
    levels = [spec.weight.level, *(filter_.level for filter_ in filters)]
    if responses.segments is None and any((level or "").startswith("segment") for level in levels):
        return "needs segments"
    if responses.group is None and spec.weight.level == "group":
        return "needs group"
    if needs_whole(spec) and len(responses) * np.diff(responses.offsets).max(initial=0) > WHOLE:
        return f"needs a batch that pads to at most {WHOLE:,} values"
    return None


def needs_whole(spec: Correction) -> bool:
    """Whether a correction's weight or mask on a response depends on other responses of the batch."""
    together = spec.normalize == "batch" or spec.weight.level == "group"
    return together or any(isinstance(filter_, Plugin) for filter_ in spec.reject.values())


@torch.no_grad()
def effect_rows(batch: Batch, corrected: Corrected) -> Rows:
    """Sums per response for `finish_effect`: `applied_rows`, Σ g, Σ g² of weights g (0 if rejected), R = exp(Σ log π_old/μ)."""
    g = _effective(batch, corrected)
    return applied_rows(corrected, batch.mask) | {
        "g": row_sum(g),
        "g_sq": row_sum(g.square()),
        "g_max": torch.nn.functional.pad(g, (0, 1)).amax(-1),
        "alive": count(g > 0),
        "exact": Ratio(batch).at_level("sequence").double()[:, 0],
    }


@torch.no_grad()
def finish_effect(rows: Rows) -> dict[str, float]:
    """Metrics of a correction's effect: those of `finish_applied`, and under effect/ those of the effective weight g of n tokens.

    ess = (Σg)²/(n·Σg²). kept_tokens: share with g > 0; a weight of 0 drops a token as a filter does. kept_sequences: share
    of responses with such a token. weight_mean, weight_max: of g. agreement = (Σ g·R)²/(Σ g²·Σ R²) in [0, 1], where R is the
    exact sequence weight Π π_old/μ of the token's response. It is 1 if g ∝ R, and without a correction the ESS of R.
    """
    n, exact = rows["n"], rows["exact"]
    tokens = n.sum().clamp(min=1)
    squares = rows["g_sq"].sum()
    own = {
        "effect/kept_tokens": rows["alive"].sum() / tokens,
        "effect/kept_sequences": (rows["alive"] > 0).double().sum() / (n > 0).sum().clamp(min=1),
        "effect/weight_mean": rows["g"].sum() / tokens,
        "effect/ess": share(rows["g"].sum().square(), squares * tokens),
        "effect/weight_max": rows["g_max"].amax(),
        "effect/agreement": share((rows["g"] * exact).sum().square(), squares * (n * exact.square()).sum()),
    }
    return {name: float(value) for name, value in (finish_applied(rows) | own).items()}


@torch.no_grad()
def profile_sums(batch: Batch, corrected: Corrected) -> Tensor:
    """Sums of the effective weight and numbers of tokens per bin of positions (rows 0, 1) and of lengths (2, 3), [4, BINS]."""
    g, tokens = _effective(batch, corrected), batch.mask.double()
    position = torch.where(batch.mask, bin_of(batch.mask.cumsum(-1)), 0)
    length = bin_of(batch.mask.sum(-1, keepdim=True).clamp(min=1)).expand_as(position)
    sums = [(position, g), (position, tokens), (length, g), (length, tokens)]
    return torch.stack([g.new_zeros(BINS).scatter_add(0, bins.flatten(), values.flatten()) for bins, values in sums])


def _effective(batch: Batch, corrected: Corrected) -> Tensor:
    return torch.where(batch.mask & corrected.kept, corrected.weights, 0.0).double()
