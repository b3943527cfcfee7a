"""Disagreement of rollout engine and trainer on the choice of experts in a mixture of experts, and its part in the mismatch.

Expert ids are [B, T, layers, k]: the k experts used in each layer to predict token t. Their order within the k does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN_QUANTILE = 0.1
"""Reported quantile of the margins, p_k − p_(k+1) of the router's k-th and next expert; low, as choices flip at small margins."""


def flipped(ids: Tensor, other: Tensor) -> Tensor:
    """Whether two choices of experts [B, T, layers, k] differ as sets, [B, T, layers] bool."""
    return (ids.sort(-1).values != other.sort(-1).values).any(-1)


def expert_load(ids: Tensor, mask: Tensor, experts: int) -> Tensor:
    """Each expert's share of its layer's choices at tokens in `mask` [B, T]: [layers, experts] fp64, 1/experts if balanced."""
    slots = ids[mask].transpose(0, 1).flatten(1).long()  # [layers, tokens·k]
    counts = torch.zeros(len(slots), experts, dtype=torch.float64, device=ids.device)
    counts.scatter_add_(1, slots, torch.ones_like(slots, dtype=torch.float64))
    return counts / max(1, slots.shape[1])


@torch.no_grad()
def routing(trainer: Tensor, engine: Tensor | None, margin: Tensor, mask: Tensor, experts: int) -> dict[str, Tensor]:
    """Statistics of the choice of experts at the tokens in `mask` [B, T], at least one, as fp64 scalars by name.

    trainer, engine: expert ids [B, T, layers, k] by π_old's router and by the engine's, None where the engine reports none.
    margin [B, T, layers]: p_k − p_(k+1) of the trainer's router, the lead of the last expert that it picked.
    margin, margin_p10: mean and 10 % quantile of the margins. flip_layer_<i>, flip_any: share of tokens whose set of experts
    differs in layer i, in any layer. load_max, load_min: largest and smallest share of an expert in its layer's choices.
    dead_experts: number of experts, over all layers, that no token picked.
    """
    load, margins = expert_load(trainer, mask, experts), margin[mask].double().flatten()
    metrics = {
        "routing/margin": margins.mean(),
        "routing/margin_p10": margins.kthvalue(1 + int(MARGIN_QUANTILE * (len(margins) - 1))).values,
        "routing/load_max": load.max(),
        "routing/load_min": load.min(),
        "routing/dead_experts": (load == 0).sum().double(),
    }
    if engine is not None:
        flips = flipped(trainer, engine)[mask].double()
        metrics |= {f"routing/flip_layer_{number}": share for number, share in enumerate(flips.mean(0))}
        metrics["routing/flip_any"] = flips.amax(-1).mean()
    return metrics


@torch.no_grad()
def split_k3(live: Tensor, replayed: Tensor, logp_rollout: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Split K3 of the tokens in `mask` [B, T] into the parts by routing and by the rest: fp64 scalars in nats per token.

        k3_rest = K3(π_old with the engine's experts ‖ μ),   k3_routing = K3(π_old ‖ μ) − k3_rest

    with K3(π‖μ) = E[π/μ − 1 − log(π/μ)]. live, replayed: log π_old [B, T] by the trainer's own choice of experts and by the
    engine's. k3_routing is negative if the engine's experts take π_old farther from μ.
    """
    whole, rest = (_k3(logp, logp_rollout, mask) for logp in (live, replayed))
    return {"routing/k3_routing": whole - rest, "routing/k3_rest": rest}


def _k3(logp: Tensor, logp_rollout: Tensor, mask: Tensor) -> Tensor:
    log_ratio = (logp.double() - logp_rollout.double())[mask]
    return (torch.expm1(log_ratio) - log_ratio).mean()
