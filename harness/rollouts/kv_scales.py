"""Scales of an FP8 KV cache: 1, or calibrated at each sync of the weights.

A key or value x of a layer is stored as code = round(x/s) in e4m3 or e5m2, and read as code·s. The calibrated scale of a layer's
keys, and that of its values, is

    s = q_p(|x|)/M

where M is the largest value of the cache's dtype, and q_p is the p-th percentile over the first tokens that the layer computes,
padding excluded. Values above q_p saturate. vLLM's scale is 1, unless its `calculate_kv_scales` calibrates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from harness.errors import UserError

KvScale = Literal["one", "sync"]
"""Rule for the scales of an FP8 KV cache. one: always 1. sync: calibrated at each load of weights."""
Percentile = Annotated[float, Interval(gt=0, le=100)]
LARGEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
"""Largest value of each FP8 dtype of a KV cache."""


class KvScales:
    """Scales of each layer's keys and values in an FP8 KV cache, and the cast by these scales.

    cast: rounds fp32 values to the cache's dtype. largest: largest value of the dtype. percentile: a
    number p from 0 to 100. A calibrated scale maps the p-th percentile of |x| to `largest`.
    """

    def __init__(self, cast: Callable[[Tensor], Tensor], largest: float, rule: KvScale, percentile: float):
        self.cast, self.largest, self.rule, self.share = cast, largest, rule, percentile / 100
        self.scales: dict[str, Tensor] = {}

    def sync(self) -> None:
        """Forget the scales after a load of weights, so that they are calibrated anew."""
        self.scales = {}

    def __call__(self, layer: int, keys: Tensor, values: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, n, H, D] as the FP8 cache of a layer gives them back.

        Calibrates their scales if the layer has none. real: mask [B, n] of the tokens that are no padding; None if all are. Keys
        and values of padding alone calibrate nothing, and are stored at the scale 1.
        """
        return self._stored(f"{layer}.k", keys, real), self._stored(f"{layer}.v", values, real)

    def _stored(self, name: str, x: Tensor, real: Tensor | None) -> Tensor:
        if self.rule == "one":
            return self.cast(x)
        if name not in self.scales:
            sizes = (x if real is None else x[real]).abs().flatten()
            if not len(sizes):
                return self.cast(x)
            at = max(1, math.ceil(self.share * sizes.numel()))
            self.scales[name] = (sizes.kthvalue(at).values / self.largest).clamp(min=torch.finfo(torch.float32).tiny * 2**10)
        return self.cast(x / self.scales[name]) * self.scales[name]


def check_kv_scales(kv_cache: str, rule: str, percentile: float) -> None:
    """Raise UserError if the rule for the scales of a KV cache, or the percentile of their calibration, has no effect."""
    if rule != "one" and kv_cache == "compute":
        raise UserError(f"rollout.engine.kv_scale={rule} has no effect with rollout.kv_cache=compute; set fp8_e4m3 or fp8_e5m2")
    if rule == "one" and percentile != 100:
        raise UserError(f"rollout.engine.kv_percentile={percentile:g} has no effect with kv_scale=one; set sync, or 100")
