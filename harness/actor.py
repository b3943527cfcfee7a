"""The trainer's policy: DeepSpeed ZeRO around the model. The only file that imports deepspeed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from harness.config import Actor as ActorConfig
from harness.errors import UserError
from harness.models import device

# One process needs no launcher: a rank of its own, and gloo on the loopback interface. Read when deepspeed is imported.
os.environ.setdefault("LOCAL_RANK", "0")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import deepspeed.ops


class Actor(Protocol):
    """Life cycle: any number of (`logp` with gradient, `step`), weights readable between steps."""

    def logp(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(log π_θ of the tokens [B, T] in fp32 nats, with gradient; entropy [B, T] of π_θ there, detached)."""

    def step(self, loss: Tensor) -> float | None:
        """One optimizer step along the gradient of `loss`; the global gradient norm before clipping.

        None if the step was skipped, as a loss scaler does when fp16 gradients overflow.
        """

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under their transformers names, in the actor's dtype."""

    def save(self, folder: Path) -> None:
        """Write model and optimizer under `folder`."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, bit for bit."""


class DeepSpeedActor:
    """ZeRO stage 0-3 in one process: no launcher, no port open but gloo's own on loopback. AdamW, clipped by global norm."""

    def __init__(self, model: PreTrainedModel, config: ActorConfig, *, temperature: float = 1.0):
        _join_process_group()
        self.temperature, self.config = temperature, config
        model = model.to(device()).train()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )
        settings = {
            "train_micro_batch_size_per_gpu": 1,  # a label only: batches are handed over as they come
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.clip_norm,
            "zero_optimization": {"stage": config.zero_stage},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
        }
        if config.dtype != "fp32":
            settings[config.dtype] = {"enabled": True}
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)

    def logp(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ids = torch.cat([prompts, tokens], dim=1).to(self.engine.device)
        length = tokens.shape[1]
        # The logits that predict the response: from the last prompt token to the last but one.
        logits = self.engine(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=length).logits
        logp = (logits.float() / self.temperature).log_softmax(-1)
        entropy = -(logp.detach().exp() * logp.detach()).sum(-1)
        return logp.gather(-1, ids[:, -length:, None])[..., 0], entropy

    def step(self, loss: Tensor) -> float | None:
        self.engine.backward(loss)
        # DeepSpeed reports no norm for stage 0 in fp32, so it is taken from the gradients before they are clipped.
        norm = self._grad_norm() if self.config.zero_stage == 0 and self.config.dtype == "fp32" else None
        self.engine.step()
        if not self.engine.was_step_applied():
            return None
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        with self._gathered():
            yield from self.engine.module.named_parameters()

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag="actor")

    def load(self, folder: Path) -> None:
        path, _ = self.engine.load_checkpoint(str(folder), tag="actor")
        if path is None:
            raise UserError(f"{folder}: DeepSpeed found no checkpoint in it; move it away to use the one before it")

    def _gathered(self):
        return deepspeed.zero.GatheredParameters(list(self.engine.module.parameters()), enabled=self.config.zero_stage == 3)

    def _grad_norm(self) -> Tensor:
        gradients = (p.grad for p in self.engine.module.parameters() if p.grad is not None)
        return torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))


def _join_process_group() -> None:
    """A process group of one, whose store is in memory: DeepSpeed's own would open a port on every interface."""
    deepspeed.logger.setLevel("ERROR")
    # Compiled at run time, for inference_all_reduce only; a killed compile would leave a lock on which later starts hang.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        deepspeed.init_distributed(backend, verbose=False)
