"""The warm start: a policy that can do the task but makes errors, and the prompts that it solves sometimes.

Supervised training on demonstrations with errors gives a policy that a healthy RL run can bring to reward 1. A filter keeps
the prompts whose solve rate is in [keep_low, keep_high], so that a failure is the algorithm's and not the task's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from harness.config import Config, HubConfig, PrecisionConfig, WarmStartConfig
from harness.errors import UserError
from harness.files import open_own, refuse_links, write_file, writing
from harness.models import build, device, hub_model, policy_config
from harness.rollouts.architecture import expert_count
from harness.rollouts.local import LocalEngine
from harness.seeding import derive, generator
from harness.tasks import Task, TextTask, TokenTask
from harness.train.routing.hooks import balance_loss

HELD_OUT = 0.25
"""Share of the kept prompts that are held out for evaluation. RL never trains on them; the warm start does."""


class Start(NamedTuple):
    """Starting point of RL: the policy `net`, and the prompts, [N, P] int64 each, for training and for evaluation."""

    net: PreTrainedModel
    train: Tensor
    held_out: Tensor


def most_held_out(task: Task) -> int:
    """Maximum number of held-out prompts: all of a text task, or those that a warm start holds out if it keeps every prompt."""
    return len(task.held_out) if isinstance(task, TextTask) else _held_out_of(len(task.prompts()))


def _held_out_of(prompts: int) -> int:
    return math.ceil(HELD_OUT * prompts)


class WarmStart(NamedTuple):
    """A cached warm start: weights by transformers name, kept prompts [N, P] int64, mean solve rate over all prompts."""

    state: dict[str, Tensor]
    train: Tensor
    held_out: Tensor
    solve_rate: float


def start(config: Config, task: Task) -> Start:
    """Starting policy and prompts of RL: pretrained, or after supervised training. Raises UserError if too few remain."""
    if isinstance(config.model, HubConfig):
        if not isinstance(task, TextTask):
            raise UserError(f"task={config.task.name}: lacks the prompts `train` and `held_out`, which model=hub needs")
        return Start(hub_model(config.model), torch.from_numpy(task.train), torch.from_numpy(task.held_out))
    warm = warm_start(config, task)
    if not len(warm.train):
        w, kept, prompts = config.warmstart, len(warm.held_out), len(task.prompts())
        assert w is not None
        raise UserError(
            f"warmstart: {kept} of {prompts} prompts are solved with a rate in [{w.keep_low}, {w.keep_high}] "
            f"(mean rate {warm.solve_rate:.2f}), too few to train and to evaluate; change warmstart.steps, task.slip or seed"
        )
    net = build(policy_config(config.model, task), config.seed)
    net.load_state_dict(warm.state)
    return Start(net, warm.train, warm.held_out)


def warm_start(config: Config, task: Task) -> WarmStart:
    """Return the cached warm start of a config. One process makes it while others wait. Raises UserError on a bad cache."""
    folder = Path(config.run.root) / ".warmstart" / config.warmstart_digest
    refuse_links(folder.parents[1], f".warmstart/{folder.name}/.lock")
    with ExitStack() as held:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(open_own(folder / ".lock", "a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "prompts.json").exists():
            assert config.warmstart is not None  # Config refuses a model without weights and without a warm start
            _make(config.warmstart, policy_config(config.model, task), task, folder)
        try:
            prompts = json.loads((folder / "prompts.json").read_text())
            content = (folder / "model.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != prompts["sha256"]:
                raise ValueError("model.safetensors differs from its checksum")
            state = load(content)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder}: unreadable warm start ({error}); delete that folder, it is made anew") from None
    return WarmStart(state, torch.tensor(prompts["train"]), torch.tensor(prompts["held_out"]), prompts["solve_rate"])


def _make(w: WarmStartConfig, shape: PretrainedConfig, task: Task, folder: Path) -> None:
    prompts = np.random.default_rng(derive(w.seed, "split")).permutation(task.prompts())
    net = _train(w, shape, task, prompts)
    rates = _solve_rates(w, task, net, prompts)
    kept = prompts[(rates >= w.keep_low) & (rates <= w.keep_high)]
    held_out = _held_out_of(len(kept))
    content = save({name: w.contiguous() for name, w in net.state_dict().items()})
    record = {"held_out": kept[:held_out].tolist(), "train": kept[held_out:].tolist(), "solve_rate": float(rates.mean())}
    record["sha256"] = hashlib.sha256(content).hexdigest()
    print(f"warm start solves {rates.mean():.2f}; {len(kept)} of {len(prompts)} prompts are kept", flush=True)
    with writing(folder):
        write_file(folder, "model.safetensors", content)
        write_file(folder, "prompts.json", json.dumps(record))  # last: its presence means that the warm start is whole


def _train(w: WarmStartConfig, shape: PretrainedConfig, task: Task, prompts: np.ndarray) -> PreTrainedModel:
    """Train a new policy on the task's demonstrations by supervised learning."""
    assert isinstance(task, TokenTask)  # policy_config has refused any other
    net = build(shape, derive(w.seed, "init"))
    net.to(device()).train()  # type: ignore[arg-type]  # transformers hides the signature
    optimizer = torch.optim.AdamW(net.parameters(), lr=w.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    rise = 0.2 if w.steps == 10 else 0.1  # torch divides by the rise's length, which is 0 for a tenth of 10 steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=w.lr, total_steps=w.steps, pct_start=rise)
    rng = np.random.default_rng(derive(w.seed, "demonstrations"))
    has_experts = bool(expert_count(shape))
    routed = {"output_router_logits": True} if has_experts else {}
    for step in range(w.steps):
        batch = prompts[rng.integers(0, len(prompts), w.batch)]
        ids = torch.from_numpy(np.concatenate([batch, task.demonstrations(batch, rng)], axis=1)).to(device())
        out = net(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=task.answer_length, **routed)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), ids[:, -task.answer_length :].flatten())
        if has_experts:
            loss = loss + shape.router_aux_loss_coef * balance_loss(out.router_logits, shape.num_experts_per_tok)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if (step + 1) % 50 == 0:
            print(f"warm start {step + 1}/{w.steps}  cross-entropy {loss.item():.4f}", flush=True)
    return net


def _solve_rates(w: WarmStartConfig, task: Task, net: PreTrainedModel, prompts: np.ndarray) -> np.ndarray:
    """Mean reward of each prompt over warmstart.filter_samples responses, [N]."""
    engine = LocalEngine(net.config, PrecisionConfig(name="fp32", compute="fp32", weights=None, activations=None))
    engine.load_weights(net.named_parameters(), 0)
    rates = []
    for first in range(0, len(prompts), 64):  # in slices, so that the cache stays small
        rows = np.repeat(prompts[first : first + 64], w.filter_samples, axis=0)
        uniforms = torch.rand(len(rows), task.answer_length, generator=generator(w.seed, "filter", first))
        answers = engine.generate(torch.from_numpy(rows), uniforms).tokens.cpu().numpy()
        rates.append(task.reward(rows, answers).reshape(-1, w.filter_samples).mean(1))
    return np.concatenate(rates)
