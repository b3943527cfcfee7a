"""The picture of docs/moe.md: share of tokens for which engine and trainer choose different experts, and mismatch due to that.

    python -m experiments.routing_picture docs/moe.png [key=value ...]

The policy is the config's warm start. It samples in each precision, and the trainer's own policy scores the same responses.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from algos.diagnostics.routing import flipped, split_k3
from harness.build import build_task, own_precision
from harness.compose import compose
from harness.config import Config, PrecisionConfig, parse
from harness.models import policy_config
from harness.rollouts import Rollout
from harness.rollouts.local import LocalEngine
from harness.rollouts.moe import Mixture
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes
from harness.seeding import generator
from harness.train.warmstart import start

PRECISIONS = ("bf16", "fp8_tensor", "nvfp4", "nvfp4_w4a4")
LABELS = {"bf16": "BF16", "fp8_tensor": "FP8", "nvfp4": "NVFP4\nW4A16", "nvfp4_w4a4": "NVFP4\nW4A4"}
PROMPTS, SAMPLES = 128, 4
TRAINER, ENGINE, OTHER = "#0072B2", "#D55E00", "#BBBBBB"


class Measured(NamedTuple):
    """The mismatch of one precision with the trainer.

    flips [layers]: share of tokens for which trainer and engine choose different experts. routing, rest: the parts of K3 due to
    routing and to all else, in nats per token. probabilities: for each layer the router's probabilities [N, experts] in the
    trainer and in the engine, at the same N token positions.
    """

    flips: Tensor
    routing: float
    rest: float
    probabilities: list[tuple[Tensor, Tensor]]


def main(path: str, *overrides: str) -> None:
    """Measure the mismatch of each precision, and draw the picture into `path`. overrides: of the config."""
    config = parse(compose("model=moe", "task.modulus=20", "warmstart.steps=500", *overrides))
    results = measure(config)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), width_ratios=(1.5, 1, 1), layout="constrained")
    draw_token(axes[0], *example(results["nvfp4_w4a4"]), config.model.num_experts_per_tok)
    draw_flips(axes[1], results)
    draw_parts(axes[2], results)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    for name, result in results.items():
        share = " ".join(f"{100 * x:.1f}" for x in result.flips.tolist())
        print(f"{name}: flips by layer {share} %, K3 {result.routing + result.rest:.1e}, of it routing {result.routing:.1e}")


def measure(config: Config) -> dict[str, Measured]:
    """Measure the mismatch of each rollout precision at the config's warm start: name of a precision -> its mismatch."""
    task = build_task(config)
    net, prompts, _ = start(config, task)
    shape = policy_config(config.model, task)
    rows = prompts[:PROMPTS].repeat_interleave(SAMPLES, 0)
    uniforms = torch.rand(len(rows), task.answer_length, generator=generator(0, "picture"))
    policy = engine_of(shape, own_precision(config), net)
    return {name: compare(policy, engine_of(shape, precision(name), net), rows, uniforms) for name in PRECISIONS}


def precision(name: str) -> PrecisionConfig:
    """The config section of the rollout precision `name`, an option of rollout/precision."""
    return parse(compose(f"rollout/precision={name}")).rollout.precision


def engine_of(shape, numbers: PrecisionConfig, net) -> LocalEngine:
    """Build a rollout engine in a precision, loaded with the weights of `net`. shape: the model's config."""
    engine = LocalEngine(shape, numbers)
    engine.load_weights(net.named_parameters(), 0)
    return engine


def compare(policy: LocalEngine, engine: LocalEngine, prompts: Tensor, uniforms: Tensor) -> Measured:
    """Measure the mismatch of an engine: the engine samples, and `policy`, the trainer's, scores the same tokens."""
    rollout: Rollout = engine.generate(prompts, uniforms)
    mask = torch.ones_like(rollout.tokens, dtype=torch.bool)
    (own, routes), ours = recorded(policy, prompts, rollout.tokens)
    _, theirs = recorded(engine, prompts, rollout.tokens)
    parts = split_k3(own, policy.score(prompts, rollout.tokens, Recorded(Routes(rollout.expert_ids))), rollout.logp, mask)
    first = prompts.shape[1] - 1
    flips = flipped(routes.ids[:, first:], rollout.expert_ids[:, first:]).double().mean((0, 1))
    routing, rest = (parts[f"routing/k3_{part}"].item() for part in ("routing", "rest"))
    return Measured(flips, routing, rest, list(zip(ours, theirs, strict=True)))


def recorded(engine: LocalEngine, prompts: Tensor, tokens: Tensor) -> tuple[tuple[Tensor, Routes], list[Tensor]]:
    """Score tokens by an engine. Returns (log-probabilities and routes, the routers' probabilities [N, experts] by layer)."""
    asked: list[list[Tensor]] = [[] for _ in engine.layers]

    def listening(mixture: Mixture, layer: int):
        route = type(mixture).route

        def listen(x: Tensor, replay: Routes | None) -> Routes:
            asked[layer].append((x @ mixture.router.gate).softmax(-1).clone())
            return route(mixture, x, replay)

        return listen

    for number, layer in enumerate(engine.layers):
        layer["mixture"].route = listening(layer["mixture"], number)
    scored = engine.score_routed(prompts, tokens)
    for layer in engine.layers:
        del layer["mixture"].route
    return scored, [torch.cat(parts) for parts in asked]


def example(result: Measured) -> tuple[Tensor, Tensor]:
    """Return the last router's probabilities [experts] in trainer and engine at one token for which they pick different experts.

    The token is the median of all such tokens, ordered by their largest change of a probability. A token picks two experts.
    """
    ours, theirs = result.probabilities[-1]
    sets = [p.topk(2, dim=-1).indices.sort(-1).values for p in (ours, theirs)]
    places = (sets[0] != sets[1]).any(-1).nonzero()[:, 0]
    moved = (ours[places] - theirs[places]).abs().amax(-1)
    place = places[moved.argsort()[len(moved) // 2]]
    return ours[place], theirs[place]


def draw_token(axis, ours: Tensor, theirs: Tensor, top_k: int) -> None:
    places = np.arange(len(ours))
    for shift, values, colour, who in ((-0.2, ours, TRAINER, "trainer"), (0.2, theirs, ENGINE, "engine")):
        picked = torch.zeros(len(values), dtype=torch.bool)
        picked[values.topk(top_k).indices] = True
        axis.bar(places[picked] + shift, values[picked], 0.38, color=colour, label=f"picked by the {who}")
        axis.bar(places[~picked] + shift, values[~picked], 0.38, color="none", edgecolor=colour, linewidth=0.8)
    axis.set_xticks(places, [str(place) for place in places])
    axis.set_xlabel("expert")
    axis.set_ylabel("router's probability")
    axis.set_title(f"One token: the probabilities hardly differ, the {top_k} experts do", fontsize=9, loc="left")
    axis.legend(frameon=False, fontsize=8)


def draw_flips(axis, results: dict[str, Measured]) -> None:
    places = np.arange(len(results))
    layers = len(next(iter(results.values())).flips)
    for layer in range(layers):
        heights = [100 * result.flips[layer].item() for result in results.values()]
        shade = plt.get_cmap("Blues")((layer + 1.5) / (layers + 1))
        axis.bar(places + (layer - (layers - 1) / 2) * 0.26, heights, 0.24, color=shade, label=f"layer {layer}")
    axis.set_xticks(places, [LABELS[name] for name in results], fontsize=8)
    axis.set_ylabel("tokens with other experts, %")
    axis.set_title("Flips by precision and layer", fontsize=9, loc="left")
    axis.legend(frameon=False, fontsize=8)


def draw_parts(axis, results: dict[str, Measured]) -> None:
    places = np.arange(len(results))
    whole = np.array([result.routing + result.rest for result in results.values()])
    share = np.array([100 * result.routing for result in results.values()]) / whole
    axis.bar(places, share, 0.6, color=ENGINE, label="routing: gone with the engine's experts")
    axis.bar(places, 100 - share, 0.6, bottom=share, color=OTHER, label="rest")
    for place, value in zip(places, whole, strict=True):
        axis.text(place, 101, f"{value:.0e}", ha="center", va="bottom", fontsize=8)
    axis.set_xticks(places, [LABELS[name] for name in results], fontsize=8)
    axis.set_ylim(0, 135)
    axis.set_yticks([0, 50, 100])
    axis.set_ylabel("share of K3, %")
    axis.set_title("What the choice of experts explains of K3", fontsize=9, loc="left")
    axis.legend(frameon=False, fontsize=7, loc="upper center")


if __name__ == "__main__":
    main(*sys.argv[1:])
