"""The trainer's policy: DeepSpeed ZeRO around the model. The only file that imports deepspeed."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from harness.config import ActorConfig
from harness.errors import UserError
from harness.memory import GATHERED
from harness.models import DTYPES, device
from harness.rollouts.architecture import expert_count
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes, no_route
from harness.tasks import PAD
from harness.train.distinct import Index, distinct
from harness.train.head import ScoringModel
from harness.train.ranks import join
from harness.train.routing import ARGUMENT, RoutingHooks
from harness.train.straight_through import cast_linear_layers

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported
import deepspeed
import deepspeed.ops
from deepspeed.checkpoint import ds_to_universal
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

SAVED = (fragment_address, ZeroStageEnum, LossScaler, DynamicLossScaler)
"""The classes of DeepSpeed whose instances its checkpoints hold beside tensors and plain values. They only keep values."""


class Actor(Protocol):
    """The trainer's policy and its optimizer.

    Life cycle: for each optimizer step `logp` and `backward` once per micro-batch, then `step`. Between steps the weights can be
    read, saved and loaded. Every rank makes the same calls in the same order, each with its own rows.
    """

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        """(log π_θ of the tokens, entropy of π_θ at each of them), both [B, T] in fp32 nats, with gradient.

        Equal rows are computed once. Prompts [B, P] may be padded with PAD on the left, tokens [B, T] on the right; there both
        results are 0.
        replay: the experts that a mixture is to take, [B, P + T − 1, layers, k], and the tokens over which both are renormalised,
        [B, T, ⌈V/8⌉]. The backward pass may come later.
        """

    def route(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes]:
        """(`logp` without gradient, routes that its forward took). Of a mixture of experts alone."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of `loss` to that of the coming step. last: whether this is the step's last micro-batch."""

    def step(self, lr: float | None = None) -> float | None:
        """One optimizer step along the gradient, which is summed over micro-batches and ranks. lr: None is that of the config.

        Returns the global norm before clipping; None if the step was skipped, as a loss scaler does when fp16 gradients overflow.
        """

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under their transformers names, in the actor's dtype."""

    def save(self, folder: Path) -> None:
        """Write model and optimizer under `folder`, which every rank sees."""

    def load(self, folder: Path, ranks: int) -> None:
        """Read what `save` wrote on `ranks` ranks: to the bit on as many ranks, up to rounding on another number."""


class DeepSpeedActor:
    """ZeRO stage 0 to 3 on all ranks of the run; AdamW, clipped by global norm. temperature: divides the logits."""

    def __init__(self, model: PreTrainedModel, config: ActorConfig, *, temperature: float = 1.0):
        self.ranks = join()
        deepspeed.logger.setLevel("ERROR")
        # Compiled at run time, for inference_all_reduce only; a killed compile would leave a lock on which later starts hang.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self.config = config
        # Before a GPU holds it: a whole model in fp32 may not fit. DeepSpeed's own cast, which comes next, finds nothing to do.
        model = model.train().to(device=device(), dtype=DTYPES[config.dtype])  # type: ignore[call-arg]
        self.routing = RoutingHooks(model)
        if config.precision is not None:
            cast_linear_layers(model, config.precision)
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        scoring = ScoringModel(model, temperature)
        optimizer = torch.optim.AdamW(
            scoring.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )
        settings = {
            "train_micro_batch_size_per_gpu": 1,  # a label only: batches are handed over as they come
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.max_grad_norm,
            "zero_optimization": {"stage": config.zero_stage},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
        }
        if config.dtype != "fp32":
            settings[config.dtype] = {"enabled": True}
        self.engine, *_ = deepspeed.initialize(model=scoring, optimizer=optimizer, config=settings)

    def logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Tensor]:
        prompts, tokens, replay, place = self._distinct(prompts, tokens, replay)
        logp, entropy = self._logp(prompts, tokens, replay)
        return logp[place], entropy[place]

    def _distinct(
        self, prompts: Tensor, tokens: Tensor, replay: Recorded | None
    ) -> tuple[Tensor, Tensor, Recorded | None, Index]:
        """(prompts, responses and what to replay of one of each group of equal rows, the group of each row)."""
        here = self.engine.device
        prompts, tokens = prompts.to(here), tokens.to(here)
        replay = None if replay is None else replay.map(lambda part: part.to(here))
        first, place = distinct(prompts, tokens, replay)
        return prompts[first], tokens[first], None if replay is None else replay.of(first), place

    def _logp(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None) -> tuple[Tensor, Tensor]:
        """`logp` of rows that are on the device, each computed."""
        full = tokens.shape[1]
        asked, answered = ((part != PAD).any(0) for part in (prompts, tokens))
        prompts, tokens = prompts[:, asked], tokens[:, answered]
        ids, length = torch.cat([prompts, tokens], dim=1), tokens.shape[1]
        present = ids != PAD
        padded = not present.all()
        positions = (present.cumsum(-1) - 1).clamp(min=0)
        places: dict[str, Any] = {"attention_mask": present[:, :-1], "position_ids": positions[:, :-1]} if padded else {}
        if replay is not None and replay.routes is not None:
            places[ARGUMENT] = replay.routes.of(slice(None), torch.cat([asked, answered]).nonzero()[:-1, 0])
        if replay is not None and replay.support is not None:
            places["support"] = replay.support[:, answered]
        ids = ids.clamp(min=0)
        chosen, entropy = self.engine(input_ids=ids[:, :-1], targets=ids[:, -length:], **places)
        if not padded and length == full:
            return chosen, entropy
        here = tokens != PAD
        chosen, entropy = (torch.where(here, values, 0.0) for values in (chosen, entropy))
        return torch.nn.functional.pad(chosen, (0, full - length)), torch.nn.functional.pad(entropy, (0, full - length))

    @torch.no_grad()
    def route(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes]:
        prompts, tokens, replay, place = self._distinct(prompts, tokens, replay)
        with self.routing.record() as layers:
            logp, _ = self._logp(prompts, tokens, replay)
        present = torch.cat([part != PAD for part in (prompts, tokens)], 1)
        columns = present.any(0).nonzero()[:-1, 0]
        shape = self.engine.module.config
        routes = Routes.unrouted(
            len(tokens), present.shape[1] - 1, len(layers), shape.num_experts_per_tok, expert_count(shape), logp.device
        )
        routes.put(slice(None), columns, Routes.stack(layers, len(tokens)))
        computed = present[:, :-1] & present[:, 1:]  # as in an engine, which computes no last token
        routes.ids.masked_fill_(~computed[..., None, None], no_route(routes.ids.dtype))
        return logp[place], routes.of(place)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.ranks.size)  # DeepSpeed averages over the ranks

    def step(self, lr: float | None = None) -> float | None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.config.lr if lr is None else lr
        # DeepSpeed reports no norm for stage 0 in fp32, so it is taken from the gradients before they are clipped.
        norm = self._grad_norm() if self.config.zero_stage == 0 and self.config.dtype == "fp32" else None
        self.engine.step()
        if not self.engine.was_step_applied():
            return None
        return float(self.engine.get_global_grad_norm() if norm is None else norm)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for group in _groups(self.engine.module.named_parameters()):
            with deepspeed.zero.GatheredParameters([p for _, p in group], enabled=self.config.zero_stage == 3):
                yield from group

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag="actor")

    def load(self, folder: Path, ranks: int) -> None:
        with _without_code(folder):
            self._load(folder, ranks)

    def _load(self, folder: Path, ranks: int) -> None:
        resharded = ranks != self.ranks.size and self.config.zero_stage > 0  # stage 0 has no shards
        if resharded and self.ranks.rank == 0:
            _reshard(folder)
        self.ranks.barrier()
        self.engine._config.load_universal_checkpoint = resharded
        path, _ = self.engine.load_checkpoint(str(folder), tag=RESHARDED if resharded else "actor")
        self.engine._config.load_universal_checkpoint = False
        if path is None:
            raise UserError(f"{folder}: DeepSpeed found no checkpoint in it; move it away to use the one before it")
        # A checkpoint brings the settings of the run that wrote it, which may be another: see `faultline branch`.
        c = self.config
        for group in self.engine.optimizer.param_groups:
            group |= {"lr": c.lr, "betas": tuple(c.betas), "eps": c.eps, "weight_decay": c.weight_decay}
        self.ranks.barrier()
        if resharded and self.ranks.rank == 0:
            shutil.rmtree(folder / RESHARDED)

    def _grad_norm(self) -> Tensor:
        gradients = (p.grad for p in self.engine.module.parameters() if p.grad is not None)
        return torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))


def _groups(parameters: Iterable[tuple[str, nn.Parameter]]) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """The parameters in order, in groups of at most GATHERED numbers, or of a single one that has more."""
    group: list[tuple[str, nn.Parameter]] = []
    numbers = 0
    for name, parameter in parameters:
        size = getattr(parameter, "ds_numel", parameter.numel())  # ZeRO-3 leaves an empty tensor in its place
        if group and numbers + size > GATHERED:
            yield group
            group, numbers = [], 0
        group.append((name, parameter))
        numbers += size
    yield group


@contextmanager
def _without_code(folder: Path) -> Iterator[None]:
    """Within the body every torch.load takes tensors, plain values and SAVED alone, though DeepSpeed asks for any pickle.

    Raises UserError on a file in `folder` that holds anything else.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name, "0")
    os.environ[name] = "1"
    try:
        with torch.serialization.safe_globals(list(SAVED)):
            yield
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"names {named[1]}" if named else "is a pickle of another kind"
        raise UserError(f"{folder}: refused, since a file of it {what}, as no checkpoint of a run does") from None
    finally:
        os.environ[name] = before


RESHARDED = "resharded"
"""Name of a checkpoint in DeepSpeed's universal format, which any number of ranks can load."""


def _reshard(folder: Path) -> None:
    """Turn the shards of `save` into a universal checkpoint beside them."""
    shutil.rmtree(folder / RESHARDED, ignore_errors=True)
    settings = argparse.Namespace(
        input_folder=str(folder / "actor"),
        output_folder=str(folder / RESHARDED),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        ds_to_universal.main(settings)
