"""The config of a run, typed and checked before anything heavy is imported (no torch here).

Hydra composes `experiments/conf`; `parse` turns the result into `Config` or raises UserError naming the key. The constraint
of each field stands in the field.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from algos.corrections.spec import REDUCTIONS, Correction, check_baseline
from harness.errors import UserError
from harness.run.metrics import PROBED

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Strict(BaseModel):
    """Unknown keys are errors; a config never changes after it was parsed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SizesConfig(Strict):
    """What a model with random weights is built from, dense or a mixture. num_attention_heads must be a multiple of
    num_key_value_heads."""

    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Annotated[int, Field(gt=0, multiple_of=2)]

    @model_validator(mode="after")
    def _grouped(self) -> SizesConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self

    @property
    def widths(self) -> dict[str, int]:
        """Of the rows of its weights."""
        return {
            "hidden_size": self.hidden_size,
            "num_attention_heads x head_dim": self.num_attention_heads * self.head_dim,
        }


class ModelConfig(SizesConfig):
    """A Qwen3."""

    name: Literal["qwen3"]
    intermediate_size: Count

    @property
    def widths(self) -> dict[str, int]:
        return super().widths | {"intermediate_size": self.intermediate_size}


class MixtureConfig(SizesConfig):
    """A Qwen3-MoE: in every layer num_experts MLPs of moe_intermediate_size each, of which a router picks num_experts_per_tok for
    each token. It has no expert that all tokens share.

    norm_topk_prob: whether the weights of the experts that were picked are scaled to sum to 1. router_aux_loss_coef: of the load
    balancing loss, in the warm start only; RL has none.
    """

    name: Literal["qwen3_moe"]
    num_experts: Annotated[int, Field(ge=2)]
    num_experts_per_tok: Count
    moe_intermediate_size: Count
    norm_topk_prob: bool
    router_aux_loss_coef: Annotated[float, Field(ge=0)]

    @model_validator(mode="after")
    def _routed(self) -> MixtureConfig:
        if self.num_experts_per_tok >= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} must be below num_experts={self.num_experts}: "
                "else there is nothing to route"
            )
        if self.num_experts_per_tok == 1 and self.norm_topk_prob:
            raise ValueError(
                "norm_topk_prob=true with num_experts_per_tok=1: every weight is 1, the router gets no gradient; set it to false"
            )
        return self

    @property
    def widths(self) -> dict[str, int]:
        return super().widths | {"moe_intermediate_size": self.moe_intermediate_size}


class ChainConfig(Strict):
    """The chain task, see harness/tasks/chain.py. length: values in the answer; slip: probability, in the warm start only."""

    name: Literal["chain"]
    length: Count
    choices: Count
    modulus: Annotated[int, Field(ge=2)]
    slip: Probability

    @model_validator(mode="after")
    def _reachable(self) -> ChainConfig:
        if self.choices > self.modulus:
            raise ValueError(f"choices={self.choices} exceeds modulus={self.modulus}: moves would coincide")
        return self


class HubConfig(Strict):
    """A causal language model with its tokenizer: path is a name on the Hugging Face hub or a local folder."""

    name: Literal["hub"]
    path: Annotated[str, Field(min_length=1)]


class TextConfig(Strict):
    """A task of text, see harness/tasks/text.py. path, held_out_path: JSON lines; without the latter the last `held_out` prompts.

    max_prompt, answer_length: tokens; long_prompts: what to do with a longer prompt. instruction is put after each prompt.
    """

    name: Literal["gsm8k", "jsonl"]
    path: str | None
    held_out_path: str | None
    held_out: Count | None
    prompt: str
    verifier: str
    instruction: str
    chat: bool
    max_prompt: Count
    long_prompts: Literal["drop", "cut"]
    answer_length: Count

    @model_validator(mode="after")
    def _sources(self) -> TextConfig:
        if self.path is None and self.name == "jsonl":
            raise ValueError("path is missing: name a file of JSON lines")
        if self.path is None and (self.held_out_path or self.held_out):
            raise ValueError("held_out has no effect on gsm8k from the hub, which is evaluated on its test split; set it to null")
        if self.path is not None and (self.held_out_path is None) == (self.held_out is None):
            raise ValueError("held_out_path and task.held_out: give one of them, a file or a number of prompts")
        return self


class ArithmeticConfig(Strict):
    """A task of generated sums in the chat template, see harness/tasks/arithmetic.py; it needs no file.

    operators: drawn from, between `terms` numbers of up to `digits` digits. train, held_out: numbers of prompts, all different,
    the same for every seed of a run. instruction is put after each prompt. max_prompt, answer_length: tokens.
    """

    name: Literal["arithmetic"]
    operators: Annotated[str, Field(pattern=r"^[-+*]+$")]
    digits: Count
    terms: Annotated[int, Field(ge=2)]
    train: Count
    held_out: Count
    instruction: str
    max_prompt: Count
    answer_length: Count

    prompt: ClassVar[str] = "prompt"  # these four are what Text leaves to its user
    verifier: ClassVar[str] = "arithmetic"
    chat: ClassVar[bool] = True
    long_prompts: ClassVar[str] = "drop"

    @model_validator(mode="after")
    def _enough(self) -> ArithmeticConfig:
        operators = len(set(self.operators))
        there = 10 ** (self.digits * self.terms) * operators ** (self.terms - 1)
        if (wanted := self.train + self.held_out) > there // 2:
            raise ValueError(
                f"train and task.held_out: {wanted} different prompts are more than half of the {there} there are; "
                "lower them, or raise task.digits or task.terms"
            )
        return self


class WarmStartConfig(Strict):
    """Supervised training on slipping answers, then a filter: prompts solved with a rate in [keep_low, keep_high] stay."""

    seed: int
    steps: Count
    batch: Count
    lr: Positive
    filter_samples: Count
    keep_low: Probability
    keep_high: Probability

    @model_validator(mode="after")
    def _ordered(self) -> WarmStartConfig:
        if self.keep_low >= self.keep_high:
            raise ValueError(f"keep_low={self.keep_low} must be below keep_high={self.keep_high}, else no prompt is kept")
        return self


class PrecisionConfig(Strict):
    """What a rollout computes in. compute: dtype of what is stored, of norms, embeddings and head; weights, activations: formats
    of the linear layers, null for the compute dtype."""

    name: str
    compute: Literal["fp32", "bf16", "fp16"]
    weights: Literal["fp8_tensor", "fp8_channel", "fp8_block", "int8_channel", "nvfp4"] | None
    activations: Literal["fp8_token", "fp8_group", "int8_token", "nvfp4_token"] | None

    @model_validator(mode="after")
    def _matched(self) -> PrecisionConfig:
        if self.activations and (self.weights or "")[:3] != self.activations[:3]:
            raise ValueError(f"activations={self.activations} need weights of the same format, not {self.weights}")
        return self


class PluginConfig(Strict):
    """A plug-in by its name in the registry; its parameters stand beside it and are checked against its signature."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _task_tag(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return {"chain": "<chain>", "gsm8k": "<text>", "jsonl": "<text>", "arithmetic": "<arithmetic>"}.get(name, "<plugin>")


def _model_tag(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return {"hub": "<hub>", "qwen3_moe": "<qwen3_moe>"}.get(name, "<qwen3>")


class RolloutConfig(Strict):
    """prompts x group_size responses per step, sampled at `temperature` by `engine` in `precision`.

    top_p, top_k: sample from the most probable tokens of so much mass, or so many; 1 and 0 for all.
    staleness: the rollout of a step is sampled by the weights of so many steps before. overlap: sample while the trainer trains.
    """

    engine: PluginConfig
    precision: PrecisionConfig
    kv_cache: Literal["compute", "fp8_e4m3", "fp8_e5m2"]
    temperature: Positive
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=0)]
    prompts: Count
    group_size: Annotated[int, Field(ge=2)]
    staleness: Annotated[int, Field(ge=0)]
    overlap: bool

    @model_validator(mode="after")
    def _overlapped(self) -> RolloutConfig:
        if self.overlap and not self.staleness:
            raise ValueError("overlap=true needs staleness of at least 1: what is sampled meanwhile is used at a later step")
        if self.overlap and self.engine.params.get("tensor_parallel", 1) > 1:
            raise ValueError("overlap=true with engine.tensor_parallel above 1: two threads would exchange between ranks at once")
        if self.overlap and self.engine.params.get("sleep"):
            raise ValueError("engine.sleep=true has no effect with overlap=true: the engine never rests; set one to false")
        return self


class ActorConfig(Strict):
    """DeepSpeed ZeRO around the model, AdamW. max_grad_norm: of the global gradient norm. num_minibatches: optimizer steps
    per epoch; epochs: passes over a rollout; micro_tokens: prompt and response tokens, padding included, of one forward,
    null for no limit;
    gradient_checkpointing: recompute activations in the backward pass instead of keeping them.

    scoring `exact`: π_old is scored along the sampling path, so that a rollout in the actor's own dtype has ratio exactly 1;
    `forward`: by the training forward; `none`: not at all, where nothing reads it: the mismatch is then that of π_θ.
    """

    zero_stage: Annotated[int, Field(ge=0, le=3)]
    dtype: Literal["fp32", "bf16", "fp16"]
    lr: Positive
    betas: tuple[Momentum, Momentum]
    eps: Positive
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Positive
    num_minibatches: Count
    epochs: Count
    micro_tokens: Count | None
    gradient_checkpointing: bool
    scoring: Literal["exact", "forward", "none"]


class ReduceConfig(Strict):
    """How token losses become a scalar. norm: tokens, for seq_mean_token_sum_norm only."""

    mode: Literal[REDUCTIONS]
    norm: Count | None

    @model_validator(mode="after")
    def _norm(self) -> ReduceConfig:
        needed = self.mode == "seq_mean_token_sum_norm"
        if needed and self.norm is None:
            raise ValueError("norm is missing: seq_mean_token_sum_norm divides by it; give the maximum length in tokens")
        if not needed and self.norm is not None:
            raise ValueError(f"norm={self.norm} has no effect with mode={self.mode}")
        return self


class KlConfig(Strict):
    """A KL term of the loss: coef times the estimator, an entry of `algos.kl`.

    reference: `start`, the policy that the run started from, or `rollout`, the one that sampled, as the engine reported it.
    """

    name: str | None
    coef: Annotated[float, Field(ge=0)]
    reference: Literal["start", "rollout"] = "start"  # of a run recorded before there was a choice

    @model_validator(mode="after")
    def _both(self) -> KlConfig:
        if (self.name is None) != (self.coef == 0):
            raise ValueError(f"coef={self.coef} with name={self.name}: a KL term needs both an estimator and a positive coef")
        if self.name is None and self.reference != "start":
            raise ValueError(f"reference={self.reference} has no effect with name=null; choose an estimator, as kl=k2")
        return self


class DiagnosticsConfig(Strict):
    """Every `every` steps also the diagnostics that no collapse detector reads; null for never."""

    every: Count | None

    def due(self, step: int) -> bool:
        """Whether this step is one of them."""
        return bool(self.every) and step % self.every == 0


class RoutingConfig(Strict):
    """replay: whose choice of experts the training forwards take, see `harness.routing.REPLAYS` and docs/moe.md."""

    replay: Literal["none", "r2", "r3", "r3_weights"] = "none"


class EvaluationConfig(Strict):
    """Held-out evaluation every `every` steps: prompts x samples responses, the same random numbers each time.

    policy `own`: sampled from the trainer's own policy in its own dtype, for models of the local engine; `rollout`: by the
    rollout engine.
    probe: precisions whose mismatch is measured then too, though they do not sample for the training.
    """

    every: Count
    prompts: Annotated[int, Field(ge=2)]  # the standard error is taken over prompts
    samples: Count
    probe: dict[Literal[PROBED], PrecisionConfig]
    policy: Literal["own", "rollout"]


class CollapseConfig(Strict):
    """Detectors by name with their parameters; stop: end the run at the first event."""

    detectors: dict[str, dict[str, Any]]
    stop: bool


class CheckpointConfig(Strict):
    """A checkpoint every `every` steps and on SIGTERM/SIGUSR2; the last `keep` stay."""

    every: Count
    keep: Annotated[int, Field(ge=2)]


class DumpConfig(Strict):
    """The batch of every `every`-th step as parquet under dumps/, see docs/dumps.md; null: none."""

    every: Count | None


class TrackingConfig(Strict):
    """W&B as a mirror of the run folder. auto: online when a key is present, else offline."""

    mode: Literal["auto", "online", "offline", "disabled"]
    project: str


class RunConfig(Strict):
    """Where the run folder lies: root/sweep/hash."""

    root: str
    sweep: Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")]


class Config(Strict):
    """One run. Everything but run, tracking, checkpoint and dump decides the result, and so the hash."""

    seed: Annotated[int, Field(ge=0)]
    steps: Count
    task: Annotated[
        Annotated[ChainConfig, Tag("<chain>")]
        | Annotated[TextConfig, Tag("<text>")]
        | Annotated[ArithmeticConfig, Tag("<arithmetic>")]
        | Annotated[PluginConfig, Tag("<plugin>")],
        Discriminator(_task_tag),
    ]
    model: Annotated[
        Annotated[ModelConfig, Tag("<qwen3>")]
        | Annotated[MixtureConfig, Tag("<qwen3_moe>")]
        | Annotated[HubConfig, Tag("<hub>")],
        Discriminator(_model_tag),
    ]
    warmstart: WarmStartConfig | None
    rollout: RolloutConfig
    advantage: PluginConfig
    loss: PluginConfig
    proximal: Literal["old", "rollout"]
    baseline: Literal["all", "kept"]
    correction: Correction
    reduce: ReduceConfig
    kl: KlConfig
    actor: ActorConfig
    routing: RoutingConfig = RoutingConfig()
    evaluation: EvaluationConfig
    diagnostics: DiagnosticsConfig
    collapse: CollapseConfig
    checkpoint: CheckpointConfig
    dump: DumpConfig
    tracking: TrackingConfig
    run: RunConfig

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        check_baseline(self.correction, self.baseline)
        pretrained = isinstance(self.model, HubConfig)
        if pretrained != (self.warmstart is None):
            raise ValueError(
                "warmstart has no effect with model=hub, which is trained already; set warmstart=none"
                if pretrained
                else f"warmstart is missing: model={self.model.name} has random weights"
            )
        if isinstance(self.task, ChainConfig if pretrained else (TextConfig, ArithmeticConfig)):
            raise ValueError(
                f"task.name={self.task.name}: "
                + ("has tokens of its own; model=hub needs a task of text" if pretrained else "is text, which needs model=hub")
            )
        for key, width in ({} if pretrained else self.model.widths).items():
            if self.rollout.precision.weights == "nvfp4" and width % 16:
                raise ValueError(f"rollout.precision.weights=nvfp4 needs rows of a multiple of 16 values; model.{key} is {width}")
        rows = self.rollout.prompts * self.rollout.group_size
        if rows % self.actor.num_minibatches:
            raise ValueError(
                f"actor.num_minibatches={self.actor.num_minibatches} does not divide the {rows} responses of a step "
                "(rollout.prompts x rollout.group_size)"
            )
        return self

    @property
    def digest(self) -> str:
        """12 hex digits of the SHA-256 of what decides the result, seed included; the name of the run folder."""
        return _digest(self.model_dump(mode="json", exclude={"run", "tracking", "checkpoint", "dump"}))

    @property
    def path(self) -> Path:
        """The run folder, root/sweep/digest."""
        return Path(self.run.root) / self.run.sweep / self.digest

    @property
    def warmstart_digest(self) -> str:
        """Likewise of what decides the warm start; the name of its cache."""
        return _digest(self.model_dump(mode="json", include={"task", "model", "warmstart"}))


def parse(composed: dict[str, Any]) -> Config:
    """The config that Hydra composed, checked. Raises UserError naming each key that is wrong and why."""
    try:
        return Config.model_validate(composed)
    except ValidationError as error:
        raise UserError("\n".join(explained(error, composed))) from None


def explained(error: ValidationError, composed: dict[str, Any]) -> list[str]:
    """A line per error that `composed` has, without those of a filter read as what it was not meant to be."""
    return [explain(problem) for problem in error.errors() if _meant(problem["loc"], composed)]


def _meant(place: tuple, composed: dict[str, Any]) -> bool:
    """A filter is tried as a Reject and as a Plugin; only the errors of what it was meant to be are of use."""
    if place[:2] != ("correction", "reject") or len(place) < 4:
        return True
    return place[3] == ("Plugin" if "function" in composed["correction"]["reject"][place[2]] else "Reject")


def explain(problem: dict[str, Any]) -> str:
    """One of the errors of a ValidationError in a line: key, value and what is wrong with it."""
    key = ".".join(str(part) for part in problem["loc"] if part not in ("Reject", "Plugin") and str(part)[0] != "<")
    if problem["type"] == "missing":
        return f"{key}: missing"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key}: unknown key; remove it"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}.{message}" if key else message
    return f"{key}={problem['input']!r}: {message[0].lower()}{message[1:]}"


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
