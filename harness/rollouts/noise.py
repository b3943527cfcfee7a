"""Synthetic noise on an engine's weights: a mismatch with the trainer of chosen size and persistence, to measure their effects.

A weight w becomes w·(1 + size·ε), ε ~ N(0, 1) for each value. Over versions of the weights ε is a stationary AR(1) process:

    ε_0 = ξ_0,    ε_v = φ·ε_(v−1) + √(1 − φ²)·ξ_v,    ξ ~ N(0, 1) independent

The size of ε is the same at every version, and its correlation over d versions is φᵈ. φ = 0 is fresh noise, φ = 1 fixed noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from harness.errors import UserError
from harness.seeding import generator

Size = Annotated[float, Interval(ge=0, le=10)]
Persistence = Annotated[float, Interval(ge=0, le=1)]


class Noise:
    """Synthetic noise w·(1 + size·ε) on weights.

    size: standard deviation relative to the weight; 0 for no noise. persistence: correlation φ in [0, 1] of ε from one version
    of the weights to the next. seed: seed of the random draws.

    ε is a function of (seed, name, version) alone, so a resumed run has the same noise. Each version that the
    object has not seen costs one draw: one at a sync, all versions so far at a resume if 0 < φ < 1.
    """

    def __init__(self, size: float, persistence: float, seed: int | None):
        if seed is None:
            raise ValueError("noise_seed=None stands for the run's seed; harness.build.build_engine resolves it")
        self.size, self.persistence, self.seed = size, persistence, seed
        self._last: dict[str, tuple[int, Tensor]] = {}

    def __call__(self, name: str, weight: Tensor, version: int) -> Tensor:
        """Return `weight`·(1 + size·ε), where ε is the synthetic noise of the weight's name and version."""
        return weight * (1 + self.size * self.draw(name, weight.shape, version).to(weight.device))

    def on_linear(self, weights: Iterable[tuple[str, Tensor]], version: int) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the weights of a state dict by name, with noise on those of the linear layers."""
        for name, weight in weights:
            linear = name.endswith(("_proj.weight", "_proj"))  # "_proj" alone: stacked experts
            yield name, self(name.removeprefix("model."), weight.detach(), version) if self.size and linear else weight

    def draw(self, name: str, shape: torch.Size, version: int) -> Tensor:
        """Noise ε of a weight's name and version, as a tensor of `shape` on the CPU."""
        phi = self.persistence
        if phi == 1:
            version = 0
        known = self._last.get(name)
        if known is None or known[0] > version or phi == 0:
            at = version if phi in (0, 1) else 0
            known = at, self._fresh(name, shape, at)
        at, value = known
        for v in range(at + 1, version + 1):
            value = phi * value + (1 - phi**2) ** 0.5 * self._fresh(name, shape, v)
        if phi:
            self._last[name] = version, value
        return value

    def _fresh(self, name: str, shape: torch.Size, version: int) -> Tensor:
        return torch.randn(shape, generator=generator(self.seed, f"noise {name}", version))


def check_noise(params: Mapping[str, Any], *sizes: str) -> None:
    """Raise UserError if `params` set the persistence or seed of a noise of size 0. sizes: names of the size parameters."""
    for key in sizes:
        if (value := params.get(f"{key}_persistence", 0.0)) and not params.get(key, 0.0):
            raise UserError(f"rollout.engine.{key}_persistence={value} has no effect with {key}=0; set one or the other")
    if (seed := params.get("noise_seed", 0)) and not any(params.get(key, 0.0) for key in sizes):
        raise UserError(f"rollout.engine.noise_seed={seed} has no effect without noise; set {' or '.join(sizes)}, or 0")
