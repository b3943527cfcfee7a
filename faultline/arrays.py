"""Convert torch tensors, numpy arrays or nested lists to a checked `Batch`."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from algos.batch import Batch
from harness.dumps.schema import ROUNDING

Array = Any
"""An array [B, T]: a torch tensor, a numpy array or nested lists. A tensor stays on its device; floats keep their precision."""


class Arrays(TypedDict, total=False):
    """Keyword arguments that make a batch, each an array [B, T]. None counts as not given."""

    logp_old: Array
    """Log π_old of the sampled tokens, from the trainer, in nats."""
    logp_rollout: Array
    """Log μ of the sampled tokens, from the rollout engine, in nats."""
    mask: Array
    """Mask that is true on response tokens; without it all tokens count."""
    advantages: Array
    """Advantage of each token; only filters with when=negative_advantage, and perhaps plug-ins, need it."""
    segments: Array
    """Number of the turn to which each token belongs; only corrections at a segment level need it."""


def as_batch(**arrays: Unpack[Arrays]) -> Batch:
    """Make a `Batch` from arrays. Raises ValueError naming an unusable argument, and TypeError on an unknown argument."""
    if unknown := arrays.keys() - Arrays.__annotations__.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: no such array; accepted are {', '.join(Arrays.__annotations__)}")
    tensors = {name: _tensor(name, array) for name, array in arrays.items() if array is not None}
    if missing := [name for name in ("logp_old", "logp_rollout") if name not in tensors]:
        raise ValueError(f"{' and '.join(missing)} missing: give logp_old and logp_rollout, [B, T], or batch")
    shape = tensors["logp_rollout"].shape
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, logp_rollout {list(shape)}: give both [responses, tokens], padded"
            )
    used = _mask(tensors["mask"]) if "mask" in tensors else torch.ones_like(tensors["logp_rollout"], dtype=torch.bool)
    for name in ("logp_old", "logp_rollout"):
        _check_logp(name, tensors[name], used)
    if "segments" in tensors and tensors["segments"].is_floating_point():
        raise ValueError(f"segments holds {tensors['segments'].dtype}: give integers, the number of each token's turn")
    return Batch(tensors["logp_rollout"], used, tensors["logp_old"], tensors.get("advantages"), tensors.get("segments"))


def _tensor(name: str, array: Array) -> Tensor:
    try:
        return torch.as_tensor(array)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name}: cannot be a tensor ({error}); give [responses, tokens], padded to one length") from None


def _mask(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask holds other numbers than 0 and 1: give booleans, True on response tokens")
    return mask.bool()


def _check_logp(name: str, logp: Tensor, mask: Tensor) -> None:
    if not logp.is_floating_point():
        raise ValueError(f"{name} holds {logp.dtype}: give floats, the log-probability of each token in nats")
    bad = mask & ~(logp.isfinite() & (logp <= ROUNDING))
    if bad.any():
        row, token = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {token}] is {float(logp[row, token]):.4g}: log-probabilities are finite and at most 0; "
            "set mask to False where there is none"
        )
