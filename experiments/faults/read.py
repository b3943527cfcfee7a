"""Reader of a dump file as a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from algos.batch import Batch
from harness.dumps.files import read
from harness.dumps.schema import responses


def batch(path: Path) -> tuple[Batch, torch.Tensor | None, torch.Tensor | None]:
    """Return (batch, weight versions [B, T], token ids [B, T]) of a dump with one row group; None for an absent column."""
    (table,) = read(path)
    flat = responses(table)
    lengths = torch.from_numpy(flat.offsets).diff()
    used = torch.arange(int(lengths.max()))[None] < lengths[:, None]

    def padded(values: np.ndarray | None) -> torch.Tensor | None:
        if values is None:
            return None
        tensor = torch.from_numpy(values.copy())
        out = torch.zeros(used.shape, dtype=tensor.dtype)
        out[used] = tensor
        return out

    prompt = None if flat.group is None else torch.from_numpy(flat.group.copy())
    own = Batch(
        padded(flat.logp_rollout), padded(flat.mask), padded(flat.logp_old), padded(flat.advantages), padded(flat.segments),
        prompt=prompt,
    )  # fmt: skip
    tokens = padded(np.concatenate(table["tokens"].to_pylist())) if "tokens" in table.column_names else None
    return own, padded(flat.version), tokens
