"""The samples of a prompt as a tree: responses with equal tokens so far share one node, which is computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.rollouts.routes import Routes


def differs(rows: Tensor) -> Tensor:
    """Whether each row of `rows` [B, n] differs from the row before it, [B] bool; always true for the first row."""
    return torch.cat([rows.new_ones(1, dtype=torch.bool), (rows[1:] != rows[:-1]).any(1)])


def children(keys: Tensor, replay: Routes | None) -> tuple[Tensor, Tensor, Routes | None]:
    """Group responses (rows) into tree nodes of the next token. Returns (key of each node, ascending; node of each row; routes).

    keys [B]: for each row, a number that identifies its parent node and its token. replay: routes (chosen experts) of the rows.
    Rows of one node have equal keys and equal routes. The routes returned are those of the nodes; None without `replay`.
    """
    if replay is None:
        return (*keys.unique(return_inverse=True), None)
    group = replay.groups()
    groups = int(group.max()) + 1
    nodes, node = (keys * groups + group).unique(return_inverse=True)
    row = torch.empty_like(nodes)
    row[node] = torch.arange(len(keys), device=keys.device)  # one row of each node
    return nodes // groups, node, replay.of(row)
