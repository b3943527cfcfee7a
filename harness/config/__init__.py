"""The config of a run, typed and checked before anything heavy is imported (no torch here).

Hydra composes `experiments/conf`. `parse` turns the result into a `Config`, or raises UserError naming the key. Each section
has a file. The constraint of a field is in its annotation. The string below a field is its meaning.
"""

from harness.config.actor import ActorConfig, LoraConfig, RoutingConfig, ScheduleConfig
from harness.config.base import Count, PluginConfig, Positive, Strict
from harness.config.critic import CriticConfig
from harness.config.errors import explain, explained
from harness.config.evaluation import CollapseConfig, DiagnosticsConfig, EvaluationConfig, PersistenceConfig
from harness.config.model import HubConfig, MixtureConfig, ModelConfig, PolicyConfig, SizesConfig
from harness.config.names import RENAMED
from harness.config.objective import KlConfig, OverlongConfig, ReduceConfig
from harness.config.operation import OPERATION, CheckpointConfig, DumpConfig, RunConfig, TrackingConfig
from harness.config.reading import parse, parse_recorded, recorded
from harness.config.rollout import FilterConfig, PrecisionConfig, RolloutConfig
from harness.config.run import Config
from harness.config.task import (
    REPLY_LENGTH,
    TEXT,
    ArithmeticConfig,
    ChainConfig,
    ReasoningGymConfig,
    TaskConfig,
    TextConfig,
    ToolsConfig,
)
from harness.config.warmstart import WarmStartConfig

__all__ = [
    "OPERATION",
    "RENAMED",
    "REPLY_LENGTH",
    "TEXT",
    "ActorConfig",
    "ArithmeticConfig",
    "ChainConfig",
    "CheckpointConfig",
    "CollapseConfig",
    "Config",
    "Count",
    "CriticConfig",
    "DiagnosticsConfig",
    "DumpConfig",
    "EvaluationConfig",
    "FilterConfig",
    "HubConfig",
    "KlConfig",
    "LoraConfig",
    "MixtureConfig",
    "ModelConfig",
    "OverlongConfig",
    "PersistenceConfig",
    "PluginConfig",
    "PolicyConfig",
    "Positive",
    "PrecisionConfig",
    "ReasoningGymConfig",
    "ReduceConfig",
    "RolloutConfig",
    "RoutingConfig",
    "RunConfig",
    "ScheduleConfig",
    "SizesConfig",
    "Strict",
    "TaskConfig",
    "TextConfig",
    "ToolsConfig",
    "TrackingConfig",
    "WarmStartConfig",
    "explain",
    "explained",
    "parse",
    "parse_recorded",
    "recorded",
]
