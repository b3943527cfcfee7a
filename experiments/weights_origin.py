"""Does the mismatch of SmolLM2 depend on the 4-bit file that its weights came from (docs/smollm2.md)?

    python -m experiments.weights_origin

The file holds each block of 32 weights as w = least + step·q, with q from 0 to 15. Four sets of weights of one shape are
compared: `4-bit grid`, as the file has them; `off the grid`, each moved by up to half a step, as weights were before the file
was made; `trained`, after 200 steps of supervised training; and `random`, as they are before any training. For each the script
measures the relative rounding error of the weight matrices, and K3 between the local engine in that precision and in fp32.

Expected before the first run: the errors of FP8 and INT8 on and off the grid differ by less than a tenth of their size, because
their scales belong to a tensor or a channel, and the grid's to 32 weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from experiments.gpu_check.model import Policy, Size
from experiments.plan import publish
from harness.boundary import command
from harness.rollouts.linear import Arithmetic
from harness.seeding import generator
from harness.tasks import PAD
from harness.tasks.text import Text

FOLDER = Path("experiments/study/weights_origin")
BLOCK, LEVELS = 32, 16
"""Weights that share a grid in the file, and the number of values on a grid."""
FORMATS = ("fp8_tensor", "fp8_channel", "int8", "nvfp4")
"""Options of rollout/precision that are compared. FP8 by block is refused, as 576 is no multiple of 128."""
STEPS, BATCH, RATE = 200, 8, 1e-5
"""Optimizer steps, sums of a step, and learning rate of the supervised training."""
SIZE = Size(responses=128, answer=32)


class WeightGrid(NamedTuple):
    """The grid of each weight [N, K]: its points are least + step·q for whole q."""

    least: Tensor
    step: Tensor

    def distance(self, weight: Tensor) -> float:
        """Root mean square distance of weights [N, K] from their nearest points, in steps. Uniform places have 1/√12 = 0.289."""
        places = (weight - self.least) / self.step.clamp_min(1e-30)
        return float((places - places.round()).square().mean().sqrt())


def matrices(net: torch.nn.Module) -> dict[str, Tensor]:
    """The weight matrices of a model's linear layers that a rollout engine rounds: all but the head, which is the embedding."""
    return {name: weight.detach() for name, weight in net.named_parameters() if name.endswith("proj.weight")}


def grid(weight: Tensor) -> WeightGrid:
    """The grid of a weight matrix that lies on one: step = (largest − least)/15 of a block, as its ends lie on the grid."""
    blocks = weight.unflatten(-1, (-1, BLOCK))
    least, largest = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    return WeightGrid(*(part.expand_as(blocks).flatten(-2) for part in (least, (largest - least) / (LEVELS - 1))))


def rounding_error(net: torch.nn.Module, arithmetic: Arithmetic) -> float:
    """The relative error ‖cast(w) − w‖/‖w‖ of all weight matrices of `net` together, with the casts of `arithmetic`."""
    wrong = whole = 0.0
    for weight in matrices(net).values():
        wrong += float((arithmetic.weight(weight).values().t() - weight).double().square().sum())
        whole += float(weight.double().square().sum())
    return (wrong / whole) ** 0.5


def dither(net: torch.nn.Module) -> None:
    """Move each weight of `net` in place by a uniform part, from −½ to ½, of its grid's step."""
    draws = generator(0, "off the grid")
    for weight in matrices(net).values():
        weight += (torch.rand(weight.shape, generator=draws) - 0.5) * grid(weight).step


@torch.enable_grad()
def train(policy: Policy) -> None:
    """Train the policy's model on right answers to its sums, in place: STEPS steps of AdamW, BATCH sums each."""
    net, task = policy.net, policy.task
    assert isinstance(task, Text)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.0)
    order = torch.randperm(len(task.train), generator=generator(0, "order"))
    for step in range(STEPS):
        rows = [task.train[int(i)] for i in order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]]
        answers = [task.tokenizer(str(task.records[row.tobytes()]["value"]))["input_ids"] + list(task.stop) for row in rows]
        width = max(map(len, answers))
        answer = torch.tensor([[*one, *[PAD] * (width - len(one))] for one in answers])
        ids = torch.cat([torch.from_numpy(np.stack(rows)), answer], 1)
        there = ids != PAD
        logits = net(ids.where(there, torch.zeros_like(ids)), attention_mask=there.long()).logits[:, -width - 1 : -1]
        optimizer.zero_grad()
        cross_entropy(logits.flatten(0, 1), answer.flatten(), ignore_index=PAD).backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"supervised training: step {step + 1} of {STEPS}", flush=True)


def measured(name: str, policy: Policy, grids: dict[str, WeightGrid]) -> list[dict[str, Any]]:
    """A table row per format: rounding error, mean −log μ, and K3 with its standard error over prompts, in nats per token."""
    policy.own = policy.engine("local", "fp32")
    away = [grids[key].distance(weight) for key, weight in matrices(policy.net).items()]
    rows = []
    for form in FORMATS:
        arithmetic = Arithmetic(policy.size.config(f"rollout/precision={form}").rollout.precision)
        scored = policy.scored("local", form)
        k3 = (torch.expm1(scored.log_ratio) - scored.log_ratio).unflatten(0, (-1, 4)).sum((1, 2))
        share = scored.mask.unflatten(0, (-1, 4)).sum((1, 2))
        mean = float(k3.sum() / share.sum())
        error = float(((k3 - mean * share) ** 2).sum().sqrt() / share.sum())
        surprise = float(-scored.rollout.logp[scored.mask].mean())
        row = {"weights": name, "off grid": sum(away) / len(away), "precision": form}
        rows.append(
            row | {"rounding error": rounding_error(policy.net, arithmetic), "−log μ": surprise, "K3": mean, "K3 s.e.": error}
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure the four sets of weights, and write the table."""
    policy = Policy(SIZE)
    shipped = {key: value.clone() for key, value in policy.net.state_dict().items()}
    grids = {key: grid(weight) for key, weight in matrices(policy.net).items()}
    rows = measured("4-bit grid", policy, grids)
    dither(policy.net)
    rows += measured("off the grid", policy, grids)
    policy.net.load_state_dict(shipped)
    train(policy)
    rows += measured("trained", policy, grids)
    torch.manual_seed(0)
    policy.net = AutoModelForCausalLM.from_config(policy.net.config, attn_implementation="sdpa")
    rows += measured("random", policy, {key: grid(weight) for key, weight in matrices(policy.net).items()})
    FOLDER.mkdir(parents=True, exist_ok=True)
    publish(FOLDER, pd.DataFrame(rows))


if __name__ == "__main__":
    with command(), torch.no_grad():
        main()
