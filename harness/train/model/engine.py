"""A model that outputs numbers for each token of a response, under DeepSpeed ZeRO. The only file that imports deepspeed."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from torch import Tensor, nn

from harness.config import ActorConfig
from harness.errors import UserError
from harness.startup import environment
from harness.train.model.by_token import ByToken
from harness.train.model.masters import keep_in_bf16
from harness.train.ranks import join
from harness.zero import GATHERED

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when deepspeed is imported
import deepspeed
import deepspeed.ops
from deepspeed.checkpoint import ds_to_universal
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

# DeepSpeed imports Muon to see whether an optimizer is one, and Muon would compile a function with torch's compiler. No run has
# that optimizer, and the compiler's import would be a second of every start.
with environment("TORCHDYNAMO_DISABLE", "1"):
    import deepspeed.runtime.zero.muon.muon_optimizer

SAVED = (fragment_address, ZeroStageEnum, LossScaler, DynamicLossScaler)
"""DeepSpeed classes that its checkpoints contain beside tensors and plain values. They only hold values."""

TAG = "actor"
"""DeepSpeed's tag (name of the subfolder) of every saved model, actor or critic."""


class DeepSpeedModel(ByToken):
    """A model under DeepSpeed ZeRO stage 0 to 3 on all ranks of the run, with AdamW and clipping by global gradient norm.

    module, shares: `model` and `shares` of `ByToken`.
    """

    def __init__(self, module: nn.Module, config: ActorConfig, *, shares: bool):
        self.ranks = join()
        deepspeed.logger.setLevel("ERROR")
        # No operation is compiled at run time: the only one asked for serves inference_all_reduce, and a killed compile would
        # leave a lock on which later starts hang. Even listing the compatible ones runs a C compiler.
        deepspeed.ops.__compatible_ops__ = {}
        self.config = config
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )
        if config.masters != "fp32":
            keep_in_bf16(self.optimizer, config.masters)
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
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=self.optimizer, config=settings)
        super().__init__(self.engine, self.engine.device, shares=shares)

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
        self.engine.save_checkpoint(str(folder), tag=TAG)

    def load(self, folder: Path, ranks: int) -> None:
        with _without_code(folder):
            self._load(folder, ranks)

    def _load(self, folder: Path, ranks: int) -> None:
        resharded = ranks != self.ranks.size and self.config.zero_stage > 0  # stage 0 has no shards
        lora, needed = self.config.lora, None
        if self.config.masters == "kahan":
            needed = "actor.masters=kahan needs the compensation of each weight"
        elif lora is not None and lora.sync == "merged_in_place":
            needed = "actor.lora.sync=merged_in_place needs the frozen weights that it moved"
        if resharded and needed:
            number = f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"
            raise UserError(f"{folder}: {needed}, which DeepSpeed does not divide anew; resume on {number}, as it was saved")
        if resharded and self.ranks.rank == 0:
            _reshard(folder)
        self.ranks.barrier()
        self.engine._config.load_universal_checkpoint = resharded
        path, _ = self.engine.load_checkpoint(str(folder), tag=RESHARDED if resharded else TAG)
        self.engine._config.load_universal_checkpoint = False
        if path is None:
            raise UserError(f"{folder}: DeepSpeed found no checkpoint in it; move it away to use the one before it")
        # A checkpoint holds the settings of the run that wrote it, which may be another run: see `faultline branch`.
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
    """Split the parameters, in order, into groups of at most GATHERED elements. A larger parameter is a group by itself."""
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
    """Let torch.load accept only tensors, plain values and SAVED classes in the body. Raises UserError on anything else."""
    try:
        with environment("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1"), torch.serialization.safe_globals(list(SAVED)):
            yield
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"names {named[1]}" if named else "is a pickle of another kind"
        raise UserError(f"{folder}: refused, since a file of it {what}, as no checkpoint of a run does") from None


RESHARDED = "resharded"
"""Name of a checkpoint in DeepSpeed's universal format, which any number of ranks can load."""


def _reshard(folder: Path) -> None:
    """Turn the shards that `save` wrote in `folder` into a universal checkpoint beside them."""
    shutil.rmtree(folder / RESHARDED, ignore_errors=True)
    settings = argparse.Namespace(
        input_folder=str(folder / TAG),
        output_folder=str(folder / RESHARDED),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        ds_to_universal.main(settings)
