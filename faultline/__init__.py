"""Corrections, losses and diagnostics for reinforcement learning of language models under rollout mismatch.

    import faultline

    correction = faultline.Correction(weight=faultline.Weight("token", "truncate", upper=2.0))
    corrected = faultline.correct(correction=correction, logp_old=..., logp_rollout=..., mask=...)
    loss = (loss_per_token * corrected.weights * corrected.kept).sum() / corrected.counted.sum()

| name | what it is |
|---|---|
| `Correction`, `Weight`, `Reject` | the settings of a correction |
| `correct` | the weights and the mask that a correction gives a batch |
| `mismatch`, `diagnostics` | statistics of the mismatch, and of a correction, as a dictionary of floats |
| `load`, `replay` | the batches of a dump; the effect of corrections on a dump, as data frames |
| `losses` | the registry of the losses: `losses.names()`, `losses["ppo"]` |
| `Batch` | the tensors of a batch, which `correct`, `mismatch` and `diagnostics` take instead of single arrays |

Importing this package does not import torch. A name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faultline.rooms import beside_others

if TYPE_CHECKING:
    from algos.batch import Batch
    from algos.corrections.spec import Correction, Reject, Weight
    from algos.registry import LOSSES as losses
    from faultline.api import correct, diagnostics, load, mismatch, replay

    __version__: str

beside_others()

__all__ = ["Batch", "Correction", "Reject", "Weight", "correct", "diagnostics", "load", "losses", "mismatch", "replay"]

_SOURCES = {
    "Batch": ("algos.batch", "Batch"),
    "losses": ("algos.registry", "LOSSES"),
    **{name: ("algos.corrections.spec", name) for name in ("Correction", "Reject", "Weight")},
    **{name: ("faultline.api", name) for name in ("correct", "diagnostics", "load", "mismatch", "replay")},
}
"""Public name → (module, name) where it is defined."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("faultline")
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _SOURCES[name]
    globals()[name] = getattr(import_module(module), attribute)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
