"""Linear layers that a precision leaves in the compute dtype: those in the first and last decoder layers, and named ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.rollouts.architecture import FUSED

EXPERTS = {"gate_up": ("mlp.experts.gate_up_proj",), "down": ("mlp.experts.down_proj",)}
"""Module of each matrix of a mixture's experts, by the matrix's name. Either all experts of a layer are quantised or none."""


def matrices(has_experts: bool) -> dict[str, tuple[str, ...]]:
    """Modules of a decoder layer whose weights form one matrix of an engine, by the matrix's name, such as qkv."""
    return FUSED | EXPERTS if has_experts else FUSED


def is_cast(precision: PrecisionConfig, layer: int, layers: int, modules: Sequence[str]) -> bool:
    """Whether a precision's casts apply to the `modules` that form one matrix in decoder layer number `layer` of `layers`.

    `precision.ignore` names modules to leave out. A pattern `re:...` matches the beginning of a name, as in
    `compressed_tensors.utils.match_name`. Raises UserError if `ignore` names some modules of a matrix but not all.
    """
    if layer < precision.first_layers or layer >= layers - precision.last_layers:
        return False
    names = [f"model.layers.{layer}.{module}" for module in modules]
    named = [any(_matches(name, pattern) for pattern in precision.ignore) for name in names]
    if any(named) and not all(named):
        left = ", ".join(name for name, found in zip(names, named, strict=True) if not found)
        raise UserError(f"rollout.precision.ignore: {left} too; an engine multiplies by {', '.join(modules)} as one matrix")
    return not any(named)


def check_left_out(precision: PrecisionConfig, layers: int, has_experts: bool) -> None:
    """Raise UserError if `ignore` names an unknown layer or a part of a cast matrix, or if no layer is left to quantise."""
    groups = matrices(has_experts).values()
    names = [f"model.layers.{i}.{module}" for i in range(layers) for modules in groups for module in modules]
    for pattern in precision.ignore:
        if not any(_matches(name, pattern) for name in names):
            raise UserError(f"rollout.precision.ignore={pattern}: names no linear layer; the first are {', '.join(names[:4])}")
    if precision.weights and not any(is_cast(precision, i, layers, modules) for i in range(layers) for modules in groups):
        keys = f"first_layers={precision.first_layers}, last_layers={precision.last_layers} and ignore"
        raise UserError(f"rollout.precision: {keys} leave none of {layers} layers to quantise; set rollout/precision=bf16")


def _matches(name: str, pattern: str) -> bool:
    return bool(re.match(pattern[3:], name)) if pattern.startswith("re:") else name == pattern
