"""The gradient estimators that `faultline gradient` compares: losses x corrections, and kinds of correction by bound."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Weight, check_combination
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import LOSSES
from faultline.tools.replay.family import Family
from faultline.tools.replay.presets import presets
from harness.conf import CONF
from harness.config import PluginConfig
from harness.errors import UserError
from harness.yaml_file import read_yaml

EXACT = "exact sequence weight"
DEFAULT = (
    "none",
    "token_truncate",
    "sequence_truncate",
    "sequence_mask",
    "icepop",
    "skyrl/geometric_mask",
    "skyrl/token_mask",
    "verl/bypass_ppo_clip",
)
ALONG = (Family("truncate", "token"), Family("truncate", "sequence"), Family("mask", "sequence"), Family("reject", "geometric"))
BOUNDS = (1.01, 1.05, 1.2, 1.5, 2.0, 4.0)


class Method(NamedTuple):
    """A gradient estimator: an objective and its name. family, bound: kind of correction and its bound C; None for a preset."""

    name: str
    objective: Objective
    family: str | None = None
    bound: float | None = None


def methods(
    losses: list[str],
    corrections: list[str],
    reduction: str,
    norm: int | None = None,
    own: PluginConfig | None = None,
    along: tuple[Family, ...] = ALONG,
) -> list[Method]:
    """List the gradient estimators: exact sequence weight, every loss with every correction, loss pg with `along` at each bound.

    along: kinds of correction, taken at each of BOUNDS. own: the loss of a run with its parameters. Other losses have the
    parameters of their config files. Raises UserError on an unknown name, and on a loss and correction that count a ratio twice.
    """
    exact = Correction(weight=Weight("sequence", "truncate", upper=float("inf")))
    pg = load_loss("pg")
    made = [Method(EXACT, Objective(pg, exact, "old", reduction, norm))]
    for loss in losses:
        for name, preset in presets(corrections).items():
            correction, proximal = preset.correction, preset.proximal
            shown = "ppo" if proximal == "rollout" and not LOSSES[loss].anchored else loss
            function = functools.partial(load_loss(shown, own), **(preset.ppo if shown == "ppo" else {}))
            try:
                check_combination(correction, proximal, LOSSES[loss].anchored)
            except ValueError as error:
                raise UserError(f"loss {loss} with correction {name}: {error}") from None
            made.append(Method(f"{shown} {name}", Objective(function, correction, proximal, reduction, norm)))
    for family in along:
        for c in BOUNDS:
            objective = Objective(pg, family.at(c), "old", reduction, norm)
            made.append(Method(f"{family.name} C={c:g}", objective, family.name, c))
    return made


def load_loss(name: str, own: PluginConfig | None = None) -> functools.partial:
    """Build the loss `name` with the parameters of `own` if that is its name, else of its config file; UserError if unknown."""
    if own is not None and own.name == name:
        return functools.partial(LOSSES[name], **own.params)
    path = CONF / "loss" / f"{name}.yaml"
    if not path.exists():
        known = sorted(file.stem for file in path.parent.glob("*.yaml"))
        raise UserError(f"loss {name}: unknown; known are {', '.join(known)}")
    return functools.partial(LOSSES[name], **{key: value for key, value in read_yaml(path).items() if key != "name"})


def coefficients(objective: Objective, batch: Batch) -> Tensor:
    """Coefficients c [B, T] in fp64: the objective's gradient at π_θ = π_old is Σ c_it·∇log π_θ(token it).

    Every loss depends on the policy only through log π_θ of the tokens, so c is the whole effect of an objective on a batch.
    """
    assert batch.logp_old is not None and batch.advantages is not None
    old, rollout, advantages = batch.logp_old.double(), batch.logp_rollout.double(), batch.advantages.double()
    batch = batch._replace(logp_old=old, logp_rollout=rollout, advantages=advantages)
    corrected = correct(batch, objective.correction)
    logp = old.clone().requires_grad_()
    value, _ = objective(logp, objective.select(batch, corrected.counted), corrected, Counts.of(corrected.counted, batch.prompt))
    (gradient,) = torch.autograd.grad(value, logp)
    return gradient
