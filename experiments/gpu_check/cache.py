"""Test of how vLLM rounds values stored in an FP8 cache: the local engine scores vLLM's tokens with each rounding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.gpu_check.model import Policy, Size
from experiments.gpu_check.section import Table, number
from harness.errors import UserError
from harness.rollouts import casts
from harness.tasks import PAD


def toward_zero(cast: Callable[[Tensor], Tensor], bits: int) -> Callable[[Tensor], Tensor]:
    """Return a cast to a format with `bits` bits of mantissa that cuts off further bits, so that it rounds toward zero."""

    def truncated(x: Tensor) -> Tensor:
        kept = (x.view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)
        return cast(kept)

    return truncated


CACHES = {
    "fp8_e4m3": {"to nearest": casts.e4m3, "toward zero": toward_zero(casts.e4m3, 3)},
    "fp8_e5m2": {"to nearest": casts.e5m2, "toward zero": toward_zero(casts.e5m2, 2)},
}


def check_cache(size: Size) -> Table:
    """Tabulate the difference of vLLM and the local engine under each rounding of the cache. vLLM's has the smaller one."""
    policy, rows = Policy(size._replace(responses=32)), []
    local = policy.engine("local", "bf16")
    for kv_cache in ("compute", *CACHES):
        try:
            vllm = policy.engine("vllm", "bf16", kv_cache)
        except UserError as error:
            rows.append({"cache": kv_cache, "rounding": f"not computed: {error}", "mean": "", "largest": ""})
            continue
        rollout = vllm.generate(policy.prompts, policy.uniforms)
        vllm.close()
        for rounding, cast in CACHES.get(kv_cache, {"none": None}).items():
            local.kv_cast = cast
            off = (local.score(policy.prompts, rollout.tokens) - rollout.logp)[rollout.tokens != PAD].abs()
            rows.append(
                {"cache": kv_cache, "rounding": rounding, "mean": number(off.mean().item()), "largest": number(off.max().item())}
            )
    note = "Absolute differences between vLLM and the local engine in BF16, in nats, on the tokens that vLLM sampled."
    return Table("Rounding of the FP8 cache", note, rows)
