"""The config of one run: its sections, and the constraints between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from harness.config.actor import ActorConfig, RoutingConfig
from harness.config.base import Count, PluginConfig, Seed, Strict
from harness.config.critic import CriticConfig
from harness.config.digest import digest
from harness.config.evaluation import CollapseConfig, DiagnosticsConfig, EvaluationConfig
from harness.config.model import HubConfig, PolicyConfig
from harness.config.objective import CorrectionConfig, KlConfig, OverlongConfig, ReduceConfig
from harness.config.operation import OPERATION, CheckpointConfig, DumpConfig, RunConfig, TrackingConfig
from harness.config.rollout import RolloutConfig
from harness.config.task import TEXT, ChainConfig, TaskConfig
from harness.config.warmstart import WarmStartConfig
from harness.precisions import MULTIPLES


class Config(Strict):
    """The config of one run. All sections except run, tracking, checkpoint and dump decide the result."""

    model_config = ConfigDict(strict=False)  # a section is strict by itself; pydantic cannot make a dataclass so from a dict

    seed: Seed
    """Seed of all randomness except that of the warm start."""
    steps: Count
    """Number of RL steps."""
    task: TaskConfig
    model: PolicyConfig
    warmstart: WarmStartConfig | None
    """Supervised training before RL. null: none, as for a pretrained model."""
    rollout: RolloutConfig
    advantage: PluginConfig
    """The advantage estimator and its parameters; see algos/advantages.py."""
    loss: PluginConfig
    """The loss and its parameters; see algos/losses."""
    proximal: Literal["old", "rollout"]
    """Proximal policy π_prox of the loss, in its ratio π_θ/π_prox. old: π_old, a third policy beside π_θ and μ. rollout: μ."""
    segments: Literal["turn", "version"] = "turn"
    """Parts of a response that share a ratio, where the correction has level=segment or segment_geometric. turn: a turn of the
    task. version: consecutive tokens that one version of the weights sampled."""
    correction: CorrectionConfig
    reduce: ReduceConfig
    kl: KlConfig = KlConfig()
    entropy_coeff: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    """Weight of the entropy bonus. The entropy of π_θ, reduced like the token losses, is subtracted from the loss with this
    weight."""
    overlong: OverlongConfig = OverlongConfig()
    actor: ActorConfig
    critic: CriticConfig = CriticConfig()
    routing: RoutingConfig = RoutingConfig()
    evaluation: EvaluationConfig
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    collapse: CollapseConfig
    checkpoint: CheckpointConfig
    dump: DumpConfig = DumpConfig()
    tracking: TrackingConfig
    run: RunConfig

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        self._check_policy()
        rows = self.rollout.prompts * self.rollout.group_size
        if rows % self.actor.num_minibatches:
            raise ValueError(
                f"actor.num_minibatches={self.actor.num_minibatches} does not divide the {rows} responses of a step "
                "(rollout.prompts x rollout.group_size)"
            )
        if self.rollout.group_size == 1 and self.correction.weight.level == "group":
            raise ValueError(
                "correction.weight.level=group with rollout.group_size=1: of a group of one it is level=geometric; use that, or "
                "larger groups"
            )
        if self.actor.lora is not None and self.actor.lora.sync == "apart" and self.rollout.engine.name != "local":
            raise ValueError(
                f"actor.lora.sync=apart with rollout.engine={self.rollout.engine.name}: only rollout.engine=local takes adapters "
                "apart; set actor.lora.sync=merged"
            )
        if self.critic.warmup_steps >= self.steps:
            raise ValueError(
                f"critic.warmup_steps={self.critic.warmup_steps}: the policy would never learn in a run of {self.steps} steps; "
                "give fewer"
            )
        if self.actor.schedule.warmup_steps >= self.updates:
            raise ValueError(
                f"actor.schedule.warmup_steps={self.actor.schedule.warmup_steps}: the run has {self.updates} optimizer steps "
                "of the policy (steps x actor.epochs x actor.num_minibatches); "
                "give fewer, for a short look actor.schedule.warmup_steps=0"
            )
        return self

    @property
    def updates(self) -> int:
        """Number of optimizer steps of the policy in the whole run."""
        return (self.steps - self.critic.warmup_steps) * self.actor.epochs * self.actor.num_minibatches

    def _check_policy(self) -> None:
        """Raise ValueError unless model, warm start, task and precision are compatible."""
        if isinstance(self.model, HubConfig):
            if self.warmstart is not None:
                raise ValueError("warmstart has no effect with model=hub, which is trained already; set warmstart=none")
            if isinstance(self.task, ChainConfig):
                raise ValueError("task.name=chain: has tokens of its own; model=hub needs a task of text")
            return
        if self.warmstart is None:
            raise ValueError(f"warmstart is missing: model={self.model.name} has random weights")
        if isinstance(self.task, TEXT):
            raise ValueError(f"task.name={self.task.name}: is text, which needs model=hub")
        for name, precision in {"rollout": self.rollout.precision, "actor": self.actor.precision}.items():
            weights = None if precision is None else precision.weights
            block = MULTIPLES.get(weights or "", 1)
            for key, width in self.model.widths.items():
                if width % block:
                    raise ValueError(
                        f"{name}.precision.weights={weights} needs rows of a multiple of {block} values; model.{key} is {width}"
                    )

    @property
    def digest(self) -> str:
        """Name of the run folder: 12 hex digits of a hash of all keys that decide the result, the seed included."""
        return digest(self, exclude=OPERATION)

    @property
    def path(self) -> Path:
        """The run folder: root/sweep/digest."""
        return Path(self.run.root) / self.run.sweep / self.digest

    @property
    def warmstart_digest(self) -> str:
        """Name of the warm start's cache: 12 hex digits of a hash of all keys that decide the warm start."""
        return digest(self, include=("task", "model", "warmstart"))
