"""`actor`: how the policy is trained."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.config.base import Count, Positive, PositiveFraction, Strict
from harness.config.rollout import PrecisionConfig

Momentum = Annotated[float, Field(ge=0, lt=1)]


class ScheduleConfig(Strict):
    """Change of the learning rate over the run, see harness/train/schedule.py."""

    name: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"
    """Course of the learning rate after the warm-up. linear: it falls to 0 at the end of the run. cosine: it falls to
    min_lr_ratio · actor.lr. inverse_sqrt: it falls as 1/√step."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Optimizer steps over which the learning rate rises from 0. The first of them has rate 0."""
    min_lr_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Learning rate at the end of a cosine schedule, as a share of actor.lr."""

    @model_validator(mode="after")
    def _used(self) -> ScheduleConfig:
        if self.min_lr_ratio and self.name != "cosine":
            key = f"min_lr_ratio={self.min_lr_ratio:g}"
            raise ValueError(f"{key} has no effect with name={self.name}; use actor.schedule.name=cosine")
        if self.name == "inverse_sqrt" and not self.warmup_steps:
            raise ValueError("warmup_steps=0 with name=inverse_sqrt: its rate falls from the end of a warm-up; give 1 or more")
        return self


class LoraConfig(Strict):
    """Training of low-rank adapters beside frozen weights, see harness/train/model/adapters.py."""

    rank: Annotated[int, Field(ge=1, le=1024)]
    """Rank of the adapters of each linear layer. Their product has the factor 2, as with lora_alpha = 2 · rank in PEFT."""
    sync: Literal["apart", "merged", "merged_in_place"]
    """Weights that a rollout engine gets. apart: frozen weights and adapters, which the embedded engine multiplies apart.
    merged: their sum, rounded to actor.dtype. merged_in_place: the same sum, from which the trainer then subtracts the adapters
    to go on, as PEFT's merge and unmerge do, so that rounding errors stay in its frozen weights. See docs/sources.md."""


class ActorConfig(Strict):
    """Training of the policy: DeepSpeed ZeRO around the model, with AdamW."""

    zero_stage: Annotated[int, Field(ge=0, le=3)]
    """ZeRO stage: 0 divides nothing over the ranks, 1 the optimizer states, 2 the gradients too, 3 the weights too."""
    dtype: Literal["fp32", "bf16", "fp16"]
    """Dtype of weights, activations and gradients; fp16 on a GPU only."""
    masters: Literal["fp32", "none", "kahan", "stochastic"] = "fp32"
    """Weights that the optimizer updates under dtype=bf16. fp32: a copy in fp32. none: the BF16 weights, rounded to nearest.
    kahan: the BF16 weights, with Kahan summation. stochastic: the BF16 weights, rounded stochastically. See docs/sources.md."""
    lora: LoraConfig | None = None
    """Low-rank adapters, which alone are trained. null: none; all weights are trained."""
    precision: PrecisionConfig | None = None
    """Precision to which the training forward pass casts the linear layers, with straight-through gradients. null: no cast."""
    lr: PositiveFraction
    """Learning rate; with a schedule, its highest value."""
    schedule: ScheduleConfig = ScheduleConfig()
    ess_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Factor on the learning rate of each optimizer step, as in VCPO (arXiv 2602.17616). none: 1. sqrt: √e. linear: e. Here e
    is a mini-batch's effective sample size under the responses' ratios π_old/μ, as a share of its responses."""
    betas: Annotated[tuple[Momentum, Momentum], Field(strict=False)]
    """Decay rates of AdamW's two moments."""
    eps: PositiveFraction
    """Number added to the root of AdamW's second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=1)]
    """Decoupled weight decay."""
    max_grad_norm: Positive
    """Bound to which the global gradient norm is clipped."""
    num_minibatches: Count
    """Optimizer steps of an epoch, a divisor of rollout.prompts x rollout.group_size."""
    epochs: Count = 1
    """Passes of training over the responses of a step."""
    micro_tokens: Count | None = None
    """Maximum prompt and response tokens of one forward and backward pass, padding included. Equal responses to one prompt are
    computed once, but each counts towards the maximum. null: no maximum."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    compile: bool = False
    """Compile the decoder by torch.compile. It takes half a minute of CPU time, or half of that from a cache; see
    docs/running.md."""
    scoring: Literal["exact", "forward", "none"]
    """Computation of log π_old. exact: by a local engine in the actor's precision, so that a rollout by that engine and the
    same weights has a ratio π_old/μ of exactly 1. forward: by the training forward pass. none: not at all; π_θ/μ then replaces
    π_old/μ. The reference π_ref of a KL term is scored by such an engine under exact, else by the forward pass."""

    @model_validator(mode="after")
    def _mastered(self) -> ActorConfig:
        if self.masters != "fp32" and self.dtype != "bf16":
            raise ValueError(f"masters={self.masters} is of BF16 weights, and actor.dtype is {self.dtype}; set actor.dtype=bf16")
        return self

    @model_validator(mode="after")
    def _adaptable(self) -> ActorConfig:
        untried = {"zero_stage=3": self.zero_stage == 3, "masters": self.masters != "fp32", "compile=true": self.compile}
        for key in (key for key, used in ({"precision": self.precision is not None} | untried).items() if used and self.lora):
            able = "actor.zero_stage=2, actor.masters=fp32, actor.compile=false and actor.precision=null"
            raise ValueError(f"lora with actor.{key}: adapters are trained without it; set {able}, or actor.lora=null")
        return self

    @model_validator(mode="after")
    def _castable(self) -> ActorConfig:
        if self.precision is None:
            return self
        name, compute = self.precision.name, self.precision.compute
        if self.precision.weights is None:
            raise ValueError(f"precision={name} casts nothing; set actor.dtype={compute} and actor.precision=null")
        if compute != self.dtype:
            raise ValueError(f"precision={name} computes in {compute} and actor.dtype is {self.dtype}; set actor.dtype={compute}")
        if self.zero_stage == 3:
            key = f"precision={name} with actor.zero_stage=3"
            raise ValueError(f"{key}: a cast spans weights that stage 3 gathers apart; set actor.zero_stage=2")
        return self

    @model_validator(mode="after")
    def _compilable(self) -> ActorConfig:
        hooked = {"zero_stage": self.zero_stage == 3, "gradient_checkpointing": self.gradient_checkpointing}
        hooked["precision"] = self.precision is not None
        for key in (key for key, used in hooked.items() if used and self.compile):
            value = "..." if key == "precision" else json.dumps(getattr(self, key))
            raise ValueError(f"compile=true with actor.{key}={value}, whose hooks are not compiled; set actor.compile=false")
        return self


class RoutingConfig(Strict):
    """Routing of a mixture of experts in training."""

    replay: Literal["none", "r2", "r3", "r3_weights"] = "none"
    """Source of the experts that the training uses. none: each pass chooses its own. r2: π_θ takes those that the trainer chose
    for π_old. r3: π_old and π_θ take the rollout engine's. r3_weights: they take its routing weights too. See docs/moe.md."""
