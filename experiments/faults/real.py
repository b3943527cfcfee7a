"""Real faults in a model: the sampler or the trainer computes wrongly on purpose.

The sampler is in a low precision, so that every fault comes on top of ordinary rounding. The trainer is the fp32 engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from harness.build import build_task
from harness.compose import compose
from harness.config import Config, HubConfig, parse
from harness.models import device
from harness.rollouts import Rollout, Sampling
from harness.rollouts.local import Cache, LocalEngine
from harness.rollouts.noise import Noise
from harness.seeding import generator
from harness.tasks import PAD
from harness.train.warmstart import start

FRESH = 0.02
"""Standard deviation of the weights of a layer that was never loaded: transformers' initializer_range."""
HOT = 1.5
"""Sampling temperature of the other policy in the draft fault."""

SIZES: dict[str, tuple[float, ...]] = {
    "temperature": (0.9, 0.8, 0.6),
    "raw_logprobs": (0.9, 0.8, 0.6),
    "top_p": (0.98, 0.95, 0.9),
    "top_k": (50, 20, 5),
    "bos": (1,),
    "template": (1,),
    "layer": (1, 2, 3),
    "prefix": (0.05, 0.1, 0.2),
    "swapped": (0.05, 0.1, 0.2),
    "eos": (1,),
    "prompt_in_mask": (4, 8, 16),
    "rope": (1.5, 3, 10),
    "penalty": (0.3, 1.0, 2.0),
    "draft": (0.1, 0.3, 1.0),
}
"""Fault -> its sizes, from small to large.

temperature, raw_logprobs: sampling temperature.
top_p, top_k: the limit.
layer: 1 one matrix, 2 an MLP, 3 a whole layer.
prefix: relative noise on the older weights.
swapped: relative noise on the sampler's weights, which sets the mismatch.
prompt_in_mask: number of prompt tokens.
rope: factor of the rotary base.
penalty: nats subtracted from a token that was drawn before.
draft: share of tokens drawn by another policy."""


class OldPrefix(LocalEngine):
    """An engine whose cache of the prompt, except the last token, is computed by older weights, as if it outlived a sync."""

    older: LocalEngine

    def _forward(self, tokens: Tensor, at: int, cache: Cache, padding: Tensor | None, replay: Any) -> Any:
        if at == 0 and tokens.shape[1] > 1:
            self.older._cos, self.older._sin = self._cos, self._sin
            self.older._forward(tokens[:, :-1], 0, cache, padding, replay)
            tokens, at = tokens[:, -1:], tokens.shape[1] - 1
        return super()._forward(tokens, at, cache, padding, replay)


class LoggedTokens(NamedTuple):
    """Sampled tokens, with their log-probabilities by the sampler and by the trainer in nats; each [B, T]."""

    tokens: Tensor
    logp_rollout: Tensor
    logp_old: Tensor


class Bed:
    """Setting for injected faults: a policy, the prompts of a seed in groups of four, and engines for the sampler and the
    trainer.
    """

    def __init__(self, config: Config, responses: int, seed: int):
        self.config, self.task = config, build_task(config)
        begun = start(config, self.task)
        self.net = begun.net.to(device())
        self.length = self.task.answer_length
        self.group = torch.arange(responses) // 4
        pool = begun.train[torch.randperm(len(begun.train), generator=generator(seed, "fault prompts"))]
        self.prompts = pool[self.group % len(pool)]
        self.seed, self.uniforms = seed, torch.rand(responses, self.length, generator=generator(seed, "fault uniforms"))
        self.stop = self.task.stop
        self.trainer = self.engine("fp32")
        self.rollouts: dict[str, Rollout] = {}

    def engine(
        self, precision: str, kind: type[LocalEngine] = LocalEngine, weights: Any = None, rope: float = 1, **sampling: Any
    ) -> Any:
        """Build a local engine with the policy's weights, or with `weights`. rope: factor of the rotary base."""
        shape = copy.deepcopy(self.net.config)
        shape.rope_parameters["rope_theta"] *= rope
        chosen = parse(compose(f"rollout/precision={precision}")).rollout.precision
        engine = kind(shape, chosen, Sampling(stop=self.stop, **sampling))
        engine.load_weights((weights or dict(self.net.named_parameters())).items(), 0)
        return engine

    def batch(self, drawn: LoggedTokens) -> Batch:
        """Return sampled tokens as the batch that a dump would hold."""
        mask = drawn.tokens != PAD
        return Batch(drawn.logp_rollout, mask, drawn.logp_old, prompt=self.group)

    def case(self, fault: str, size: float, precision: str) -> LoggedTokens:
        """Return the tokens sampled with a fault of this size, or without one for "clean"."""
        return CASES[fault](self, size, precision)

    def honest(self, precision: str) -> Rollout:
        """Return the responses of the sampler without a fault. All faults of the trainer share them."""
        if precision not in self.rollouts:
            self.rollouts[precision] = self.engine(precision).generate(self.prompts, self.uniforms)
        return self.rollouts[precision]

    def sampled(self, engine: LocalEngine) -> LoggedTokens:
        """Sample from an engine, and score the tokens by the trainer."""
        return self.scored(engine.generate(self.prompts, self.uniforms))

    def scored(self, rollout: Rollout, old: LocalEngine | None = None, prompts: Tensor | None = None) -> LoggedTokens:
        """Return responses with the log-probabilities of an engine.

        old: the engine that scores; None for the trainer. prompts: the prompts before the scored responses; None for the
        sampler's.
        """
        score = (old or self.trainer).score(self.prompts if prompts is None else prompts, rollout.tokens)
        return LoggedTokens(rollout.tokens, rollout.logp, score)


def _clean(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.scored(bed.honest(precision))


def _temperature(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `temperature`: the sampler has temperature `size` and logs its own probabilities, the trainer temperature 1."""
    return bed.sampled(bed.engine(precision, temperature=size))


def _raw(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `raw_logprobs`: both sides have temperature `size`, but the sampler logs the probabilities without it."""
    rollout = bed.engine(precision, temperature=size).generate(bed.prompts, bed.uniforms)
    drawn = bed.scored(rollout, bed.engine("fp32", temperature=size))
    return drawn._replace(logp_rollout=bed.engine(precision).score(bed.prompts, drawn.tokens))


def _top_p(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.sampled(bed.engine(precision, top_p=size))


def _top_k(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.sampled(bed.engine(precision, top_k=int(size)))


def _bos(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `bos`: the trainer's prompts lack their first token."""
    without = bed.prompts.clone()
    without[torch.arange(len(without)), (without != PAD).long().argmax(1)] = PAD
    return bed.scored(bed.honest(precision), prompts=without)


def _template(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `template`: the trainer's prompts lack the system's turn.

    A turn begins with the first token of the prompt, so everything before the second occurrence of that token is removed.
    """
    opens = bed.prompts == bed.prompts.gather(1, (bed.prompts != PAD).long().argmax(1)[:, None])
    kept = opens.cumsum(1) >= 2
    return bed.scored(bed.honest(precision), prompts=torch.where(kept, bed.prompts, PAD))


def _layer(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `layer`: matrices of the sampler's middle layer have random values, as before loading."""
    parts = {1: ("mlp.down_proj",), 2: ("mlp.",), 3: ("mlp.", "self_attn.")}[int(size)]
    layer = f"model.layers.{bed.net.config.num_hidden_layers // 2}."
    draws = generator(bed.seed, "fault layer")
    weights = {
        name: torch.randn(weight.shape, generator=draws) * FRESH
        if name.startswith(layer) and name.removeprefix(layer).startswith(parts) and weight.ndim > 1
        else weight.detach()
        for name, weight in bed.net.named_parameters()
    }
    return bed.sampled(bed.engine(precision, weights=weights))


def _prefix(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `prefix`: the sampler's cache of the prompt comes from weights with noise of relative size `size`."""
    engine = bed.engine(precision, OldPrefix)
    engine.older = bed.engine(precision, weights=_noisy(bed, size))
    return bed.sampled(engine)


def _noisy(bed: Bed, size: float) -> dict[str, Tensor]:
    """Return the policy's weights with noise of relative size `size`."""
    named = {name.removeprefix("model."): weight.detach() for name, weight in bed.net.named_parameters()}
    return dict(Noise(size, 0.0, bed.seed).on_linear(named.items(), 0))


def _swapped(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `swapped`: the log-probabilities of sampler and trainer are exchanged. `size` sets the mismatch between them."""
    tokens, rollout, old = bed.sampled(bed.engine(precision, weights=_noisy(bed, size)))
    return LoggedTokens(tokens, old, rollout)


def _eos(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `eos`: the trainer scores token 0 where the sampler drew an end of sequence."""
    rollout = bed.honest(precision)
    swapped = torch.where(torch.isin(rollout.tokens, torch.tensor(bed.stop)), 0, rollout.tokens)
    return LoggedTokens(rollout.tokens, rollout.logp, bed.trainer.score(bed.prompts, swapped))


def _prompt_in_mask(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `prompt_in_mask`: the last tokens of the prompt count as response, and both sides score them."""
    n, engine, rollout = int(size), bed.engine(precision), bed.honest(precision)
    whole = torch.cat([bed.prompts[:, -n:], rollout.tokens], 1)
    return LoggedTokens(whole, engine.score(bed.prompts[:, :-n], whole), bed.trainer.score(bed.prompts[:, :-n], whole))


def _rope(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.scored(bed.honest(precision), bed.engine("fp32", rope=size))


def _penalty(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `penalty`: tokens already in the response lose `size` in their logits, but not in the logged values."""
    seen: Tensor | None = None

    def odds(t: int, rows: Tensor, logp: Tensor) -> Tensor:
        nonlocal seen
        seen = torch.zeros(len(bed.prompts), logp.shape[-1], dtype=torch.bool) if seen is None else seen
        return logp - size * seen[rows]

    def drew(rows: Tensor, tokens: Tensor) -> None:
        assert seen is not None
        seen[rows, tokens] = True

    return _drawn_by(bed, precision, odds, drew)


def _draft(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `draft`: a share of the tokens is drawn at temperature HOT, but logged with the sampler's probabilities."""
    foreign = torch.rand(bed.uniforms.shape, generator=generator(bed.seed, "fault draft")) < size

    def odds(t: int, rows: Tensor, logp: Tensor) -> Tensor:
        return torch.where(foreign[rows, t, None], logp / HOT, logp)

    return _drawn_by(bed, precision, odds, lambda rows, tokens: None)


def _drawn_by(
    bed: Bed, precision: str, odds: Callable[[int, Tensor, Tensor], Tensor], drew: Callable[[Tensor, Tensor], None]
) -> LoggedTokens:
    """Draw tokens by other odds than the engine's own, and log the engine's own probabilities."""
    engine = bed.engine(precision)

    def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        cumulative = odds(t, rows, logp[node]).double().softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(cumulative, bed.uniforms[rows, t, None].double()).clamp(max=logp.shape[-1] - 1)[:, 0]
        drew(rows, drawn)
        return drawn, engine._unstopped(drawn)

    tokens, logp, _ = engine._walk(bed.prompts, bed.length, pick)
    return LoggedTokens(tokens, logp, bed.trainer.score(bed.prompts, tokens))


CASES: dict[str, Callable[[Bed, float, str], LoggedTokens]] = {
    "clean": _clean,
    "temperature": _temperature,
    "raw_logprobs": _raw,
    "top_p": _top_p,
    "top_k": _top_k,
    "bos": _bos,
    "template": _template,
    "layer": _layer,
    "prefix": _prefix,
    "swapped": _swapped,
    "eos": _eos,
    "prompt_in_mask": _prompt_in_mask,
    "rope": _rope,
    "penalty": _penalty,
    "draft": _draft,
}


def possible(fault: str, size: float, config: Config) -> bool:
    """Whether a policy can have the fault. Only a language model has a template and an end of sequence."""
    if isinstance(config.model, HubConfig):
        return True
    return fault not in ("bos", "template", "eos", "prompt_in_mask") and not (fault == "top_k" and size >= 20)
