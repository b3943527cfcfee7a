"""`rollout`: the engine that samples, and the precision it computes in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from harness.config.base import Count, Name, PluginConfig, PositiveFraction, Strict
from harness.precisions import ActivationFormat, WeightFormat


class PrecisionConfig(Strict):
    """Number formats in which a policy is computed."""

    name: Name
    """Name of the precision in tables and figures."""
    compute: Literal["fp32", "bf16", "fp16"]
    """Dtype of activations, norms, embeddings and head."""
    weights: WeightFormat | None
    """Format of the weights of linear layers. null: the compute dtype."""
    activations: ActivationFormat | None
    """Format of the inputs of linear layers. null: the compute dtype."""

    @model_validator(mode="after")
    def _matched(self) -> PrecisionConfig:
        if self.activations and (self.weights or "")[:3] != self.activations[:3]:
            raise ValueError(f"activations={self.activations} need weights of the same format, not {self.weights}")
        if self.activations and (self.weights == "fp8_block") != (self.activations == "fp8_group"):
            raise ValueError(f"activations={self.activations} with weights={self.weights}: fp8_group goes with fp8_block alone")
        return self


class FilterConfig(Strict):
    """DAPO's dynamic sampling (arXiv 2503.14476 section 3.2), which replaces groups whose rewards are all equal."""

    max_rounds: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Maximum rounds of sampling, each of prompts x group_size responses. If too few groups then have unequal rewards, groups
    of equal rewards fill the batch. null: no filter."""


class RolloutConfig(Strict):
    """Sampling of the prompts x group_size responses of each step."""

    engine: PluginConfig
    """Rollout engine, and its own parameters."""
    precision: PrecisionConfig
    """Number formats of the rollout engine."""
    kv_cache: Literal["compute", "fp8_e4m3", "fp8_e5m2"]
    """Dtype of the KV cache. compute: the precision's compute dtype. fp8_e4m3 and fp8_e5m2: FP8, by default at scale 1."""
    temperature: Annotated[float, Field(ge=1e-3, le=1e3)]
    """Softmax temperature of sampling and of all log-probabilities."""
    top_p: PositiveFraction = 1.0
    """Probability mass of the most probable tokens, from which responses are sampled. 1: all tokens."""
    top_k: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Each token is sampled from this number of most probable ones. 0: from all tokens."""
    replay_sampling_mask: bool = False
    """Renormalise π_old and π_θ over the tokens that top_p and top_k left to the rollout engine. See docs/running.md."""
    prompts: Count
    """Number of prompts in each step."""
    group_size: Annotated[int, Field(ge=1, le=10**6)]
    """Number of responses to each prompt. 1 needs an advantage estimator that does not compare responses, such as gae."""
    staleness: Annotated[int, Field(ge=0, le=10**6)] = 0
    """Age of the weights that sample, in steps behind the weights being trained."""
    partial_tokens: Count | None = None
    """Maximum tokens of a response that are sampled per step. A later step continues the response with its own weights.
    null: no maximum."""
    filter: FilterConfig = FilterConfig()

    @model_validator(mode="after")
    def _together(self) -> RolloutConfig:
        if self.replay_sampling_mask and self.top_p == 1 and not self.top_k:
            raise ValueError(
                "replay_sampling_mask=true has no effect with top_p=1 and top_k=0, which leave every token; set rollout.top_p or "
                "rollout.top_k, or rollout.replay_sampling_mask=false"
            )
        if self.filter.max_rounds is not None and self.group_size == 1:
            raise ValueError(
                f"filter.max_rounds={self.filter.max_rounds} with rollout.group_size=1: a group of one has equal rewards; set "
                "rollout.filter.max_rounds=null, or rollout.group_size to 2 or more"
            )
        if self.filter.max_rounds is not None and self.staleness:
            raise ValueError(
                f"filter.max_rounds={self.filter.max_rounds} with rollout.staleness={self.staleness}: groups are refilled by the "
                "weights of their step; set rollout.staleness=0 or rollout.filter.max_rounds=null"
            )
        self._check_parts()
        return self

    def _check_parts(self) -> None:
        """Raise ValueError if another key forbids `partial_tokens`, or if it is null although kv_at_sync=salt needs it."""
        if self.partial_tokens is None:
            if self.engine.params.get("kv_at_sync") == "salt":
                raise ValueError(
                    "engine.kv_at_sync=salt has no effect: no response runs over a sync; set rollout.partial_tokens, or "
                    "rollout.engine.kv_at_sync=recompute or keep"
                )
            return
        key = f"partial_tokens={self.partial_tokens}"
        if self.filter.max_rounds is not None:
            raise ValueError(
                f"{key} with rollout.filter.max_rounds={self.filter.max_rounds}: groups are refilled by the weights of their "
                "step; set rollout.partial_tokens=null or rollout.filter.max_rounds=null"
            )
        if self.engine.params.get("tensor_parallel", 1) != 1:
            raise ValueError(
                f"{key} with rollout.engine.tensor_parallel above 1: ranks of one engine need equal numbers of responses that go "
                "on; set rollout.engine.tensor_parallel=1"
            )
