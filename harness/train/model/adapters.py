"""Low-rank adapters (LoRA) beside frozen weights, by PEFT's own layers, and how a rollout engine gets them at a sync.

With W a frozen weight [N, K], A [r, K] and B [N, r] the adapter, of which alone the optimizer updates, s = SCALE, and R the
rounding to actor.dtype, the trainer computes y = W·x + s·B·(A·x). At a sync

    apart             the engine gets W, A and s·B, and multiplies them apart, as the trainer does
    merged            the engine gets R(W + R(s·B·A)); the trainer keeps W
    merged_in_place   the same, and the trainer goes on with W ← R(R(W + R(s·B·A)) − R(s·B·A)), by PEFT's merge and unmerge

Sources: LoRA, arXiv 2106.09685; `peft.tuners.lora.Linear.merge` and `unmerge`; TRL issue 6688 on their drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.config import LoraConfig
from harness.rollouts.architecture import FUSED
from harness.seeding import derive

NAME = "default"
"""PEFT's name of the adapter."""
SCALE = 2
"""Factor s of the adapter's product, lora_alpha over rank in PEFT: a power of two, so that a rounded s·B is s times B's."""


def add_adapters(model: PreTrainedModel, config: LoraConfig, seed: int) -> None:
    """Freeze a model's weights, and put an adapter beside each linear layer of its decoder, in place.

    Experts and router of a mixture get none. A is drawn by `seed`; B is 0, so that the model's outputs do not change.
    """
    import peft  # a second of imports, which only such a run needs

    parts = tuple(part for parts in FUSED.values() for part in parts)
    modules = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.endswith(parts)]
    wanted = peft.LoraConfig(r=config.rank, lora_alpha=SCALE * config.rank, target_modules=modules)
    with torch.random.fork_rng():
        torch.manual_seed(derive(seed, "lora"))
        peft.inject_adapter_in_model(wanted, model, NAME)


def apart(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the parameters of a model with adapters: frozen ones under transformers' names, adapters as lora_A, lora_B.

    lora_B is s·B.
    """
    for name, weight in weights:
        plain = name.replace(".base_layer", "").replace(f".{NAME}", "")
        yield plain, weight * SCALE if plain.endswith("lora_B.weight") else weight


@torch.no_grad()
def merged(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the weights of a model whose adapters are merged into copies of its frozen weights: R(W + R(s·B·A))."""
    layers = _layers(module)
    for name, weight in module.named_parameters():
        place, _, base = name.partition(".base_layer.")
        if place in layers and base:
            yield f"{place}.{base}", weight + layers[place].get_delta_weight(NAME) if base == "weight" else weight
        elif ".lora_" not in name:
            yield name, weight


def merged_in_place(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the weights of a model whose adapters PEFT merges into its frozen weights, and then subtracts from them."""
    layers = _layers(module).values()
    try:
        for layer in layers:
            layer.merge()
        yield from ((name, weight) for name, weight in apart(module.named_parameters()) if ".lora_" not in name)
    finally:
        for layer in layers:
            if layer.merged:
                layer.unmerge()


def _layers(module: nn.Module) -> dict[str, Any]:
    """PEFT's layers with adapters, by their names in `module`."""
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}
