"""Real faults in a model: the sampler or the trainer computes wrongly on purpose.

The sampler is in a low precision, so that every fault comes on top of ordinary rounding. The trainer is the fp32
engine, or in `MicroBatchBed` a BF16 engine that sums in another order in micro-batches of another size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics.pairs import LogpPairs
from experiments.faults.partial_sums import PartialSums
from harness.build import build_task
from harness.compose import compose
from harness.config import Config, HubConfig, PrecisionConfig, parse
from harness.models import device
from harness.rollouts import Rollout, RolloutEngine, Sampling
from harness.rollouts.local import Cache, LocalEngine
from harness.rollouts.noise import Noise
from harness.seeding import generator
from harness.tasks import PAD
from harness.train.warmstart import start

FRESH = 0.02
"""Standard deviation of the random weights of a layer that was never loaded: transformers' initializer_range."""
LARGEST = 16
"""Largest number of responses in a micro-batch of the BF16 trainer."""
SPLITS = (2, 3, 4)
"""Numbers of parts in which the BF16 trainer sums the inputs of a linear layer, by the remainder of the micro-batch's size."""
HOT = 1.5
"""Temperature at which a part of the tokens is drawn under the fault `draft`."""

SIZES: dict[str, tuple[float, ...]] = {
    "temperature": (0.9, 0.8, 0.6),
    "raw_logprobs": (0.9, 0.8, 0.6),
    "top_p": (0.98, 0.95, 0.9),
    "top_k": (50, 20, 5),
    "bos": (1,),
    "template": (1,),
    "layer": (1, 2, 3),
    "prefix": (0.2, 0.4, 0.8),
    "swapped": (0.1, 0.2, 0.4),
    "eos": (1,),
    "prompt_in_mask": (4, 8, 16),
    "rope": (10, 50, 100),
    "penalty": (0.3, 1.0, 2.0),
    "draft": (0.1, 0.3, 1.0),
    "bias": (0.5, 1.0, 2.0),
    "window": (0.75, 0.5, 0.25),
    "replica": (0.1, 0.25, 0.5),
    "head": (0.1, 0.2, 0.4),
    "adapter": (0.1, 0.2, 0.4),
    "min_p": (0.02, 0.05, 0.1),
}
"""Tested sizes of each fault, by the fault's name, from the weakest fault to the strongest.

bos, template, eos: without a size.
temperature, raw_logprobs: sampling temperature.
top_p, top_k: the limit of that name in the sampler.
layer: which weights are random: 1 one matrix, 2 an MLP, 3 a whole layer.
prefix: relative noise on the older weights that computed the prompt cache.
swapped: relative noise on the sampler's weights, which sets the mismatch.
prompt_in_mask: number of prompt tokens that count as response.
rope: factor of the trainer's rotary base.
penalty: nats subtracted from the logit of a token that the response already has.
draft: share of tokens that are sampled at temperature `HOT`.
bias: nats added to the logits of a tenth of the distinct tokens in responses without a fault.
window: share of prompt and response that the trainer's attention reaches back.
replica: share of the prompts that an engine with older weights answers.
head: relative noise on the older output head that the sampler keeps.
adapter: relative size of the update of rank `RANK` that the sampler did not merge.
min_p: the sampler's limit, as a share of the likeliest token's probability."""
OLDER = 0.2
"""Relative noise on the weights of an engine that missed its syncs."""

RANK = 4
"""Rank of the update that an adapter gives each weight matrix."""


class OldPrefix(LocalEngine):
    """Engine that computes its prompt cache, except for the last token, with older weights, as if the cache outlived a sync."""

    older: LocalEngine

    def _forward(self, tokens: Tensor, at: int, cache: Cache, padding: Tensor | None, replay: Any) -> Any:
        if at == 0 and tokens.shape[1] > 1:
            self.older._cos, self.older._sin = self._cos, self._sin
            self.older._forward(tokens[:, :-1], 0, cache, padding, replay)
            tokens, at = tokens[:, -1:], tokens.shape[1] - 1
        return super()._forward(tokens, at, cache, padding, replay)


class Windowed(LocalEngine):
    """An engine whose attention sees only the last `window` tokens, through a sliding window that the model does not have."""

    window: int

    def _hidden(self, at: int, n: int, padding: Tensor | None) -> Tensor | None:
        place, query = torch.arange(at + n, device=self.device)[:, None], torch.arange(at, at + n, device=self.device)
        far = (query - place >= self.window).repeat(1, self.heads // self.kv_heads)[None, None]
        hidden = super()._hidden(at, n, padding)
        return far if hidden is None else far | hidden


class LoggedTokens(NamedTuple):
    """Sampled tokens, their log-probabilities under sampler and trainer, and the trainer's entropies, in nats.

    Each is [B, T], for B responses of at most T tokens. repeat_prob: the trainer's probability of all tokens that the response
    already has.
    """

    tokens: Tensor
    logp_rollout: Tensor
    logp_old: Tensor
    entropy: Tensor
    repeat_prob: Tensor


Scores = tuple[Tensor, Tensor, Tensor]
"""Log-probabilities and entropies in nats, and probabilities of a repeated token, of sampled tokens: each [B, T]."""


class Bed:
    """Set-up for injecting faults: a policy, prompts chosen by a seed in groups of four, and engines as sampler and trainer."""

    trainer_precision = "fp32"

    def __init__(self, config: Config, responses: int, seed: int):
        self.config, self.task = config, build_task(config)
        begun = start(config, self.task)
        self.net = begun.net.to(device())
        self.length = self.task.answer_length
        self.group = torch.arange(responses) // 4
        pool = begun.train[torch.randperm(len(begun.train), generator=generator(seed, "fault prompts"))]
        self.prompts = pool[self.group % len(pool)]
        self.seed = seed
        self.uniforms = self.draw("honest")
        self.stop = self.task.stop
        self.trainer = self.engine(self.trainer_precision)
        self.rollouts: dict[str, Rollout] = {}
        self.baselines: dict[str, float] = {}

    def draw(self, name: str) -> Tensor:
        """Uniform random numbers [B, T] for sampling a dump. The seed of the prompts and `name` determine them."""
        return torch.rand(len(self.group), self.length, generator=generator(self.seed, f"fault uniforms {name}"))

    def engine(
        self, precision: str, kind: type[LocalEngine] = LocalEngine, weights: Any = None, rope: float = 1, **sampling: Any
    ) -> Any:
        """Build a local engine of class `kind` with the policy's weights, or with `weights`.

        rope: factor of the model's rotary base. sampling: settings such as temperature.
        """
        shape = copy.deepcopy(self.net.config)
        shape.rope_parameters["rope_theta"] *= rope
        engine = kind(shape, formats(precision), Sampling(stop=self.stop, **sampling))
        engine.load_weights((weights or dict(self.net.named_parameters())).items(), 0)
        return engine

    def sampler(self, precision: str, weights: Any = None, **sampling: Any) -> RolloutEngine:
        """Build the engine that samples, with the policy's weights or with `weights`. sampling: settings such as temperature."""
        return self.engine(precision, weights=weights, **sampling)

    def raw(self, precision: str, temperature: float) -> Rollout:
        """Responses sampled at `temperature`, with their log-probabilities at temperature 1."""
        rollout = self.engine(precision, temperature=temperature).generate(self.prompts, self.uniforms)
        return rollout._replace(logp=self.engine(precision).score(self.prompts, rollout.tokens))

    def old_prefix(self, precision: str, older: dict[str, Tensor]) -> Rollout:
        """Responses sampled by the policy's weights, reusing a KV cache of the prompts that the weights `older` computed."""
        engine = self.engine(precision, OldPrefix)
        engine.older = self.engine(precision, weights=older)
        return engine.generate(self.prompts, self.uniforms)

    def penalised(self, precision: str, penalty: float) -> Rollout:
        """Responses in which a token, once sampled, loses `penalty` nats of logit. The log-probabilities ignore the penalty."""
        seen: Tensor | None = None

        def odds(t: int, rows: Tensor, logp: Tensor) -> Tensor:
            nonlocal seen
            seen = torch.zeros(len(self.prompts), logp.shape[-1], dtype=torch.bool) if seen is None else seen
            return logp - penalty * seen[rows]

        def drew(rows: Tensor, tokens: Tensor) -> None:
            assert seen is not None
            seen[rows, tokens] = True

        return self.drawn(precision, odds, drew)

    def cut(self, precision: str, share: float) -> Rollout:
        """Responses sampled without tokens below `share` times the largest probability. The log-probabilities ignore this."""

        def odds(t: int, rows: Tensor, logp: Tensor) -> Tensor:
            return logp.masked_fill(logp < logp.amax(-1, keepdim=True) + math.log(share), -math.inf)

        return self.drawn(precision, odds)

    def old_head(self, precision: str, head: Tensor) -> RolloutEngine:
        """Build the engine that samples with the output head `head` [V, hidden], and otherwise with the policy's weights."""
        engine = self.engine(precision)
        engine.head = head.detach().to(engine.head.dtype).t().contiguous()
        return engine

    def biased(self, precision: str, bias: Tensor) -> Rollout:
        """Responses sampled with `bias` [V] added to the logits. The log-probabilities ignore the bias."""
        return self.drawn(precision, lambda t, rows, logp: logp + bias)

    def drawn(
        self,
        precision: str,
        odds: Callable[[int, Tensor, Tensor], Tensor],
        drew: Callable[[Tensor, Tensor], None] | None = None,
    ) -> Rollout:
        """Responses sampled from changed logits, with the log-probabilities that the engine gives without the change.

        odds: function of (position, indices [n] of the responses, the engine's log-probabilities [n, V]). It returns the
        changed logits [n, V].
        drew: called with the indices of the responses and their sampled tokens, after each sampling.
        """
        engine = self.engine(precision)

        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            cumulative = odds(t, rows, logp[node]).double().softmax(-1).cumsum(-1)
            drawn = torch.searchsorted(cumulative, self.uniforms[rows, t, None].double()).clamp(max=logp.shape[-1] - 1)[:, 0]
            if drew:
                drew(rows, drawn)
            return drawn, engine._unstopped(drawn)

        tokens, logp, _ = engine._walk(self.prompts, self.length, pick)
        return Rollout(tokens, logp, torch.zeros_like(tokens))

    def batch(self, drawn: LoggedTokens) -> Batch:
        """Return sampled tokens as the batch that a dump of them would hold."""
        mask = drawn.tokens != PAD
        return Batch(drawn.logp_rollout, mask, drawn.logp_old, prompt=self.group)

    def case(self, fault: str, size: float, precision: str) -> LoggedTokens:
        """Return tokens sampled with a fault of size `size`. "clean" is no fault; `size` is then the number of the sample."""
        self.uniforms = self.draw(f"{fault} {size:g} {precision}")
        return CASES[fault](self, size, precision)

    def honest(self, precision: str) -> Rollout:
        """Return responses sampled without a fault, the same at each call. Every fault of the trainer is tested on these."""
        if precision not in self.rollouts:
            self.rollouts[precision] = self.sampler(precision).generate(self.prompts, self.draw("honest"))
        return self.rollouts[precision]

    def baseline(self, precision: str) -> float:
        """Mean K3, in nats per token, of responses that are sampled in `precision` without a fault."""
        if precision not in self.baselines:
            self.baselines[precision] = float(LogpPairs(self.batch(self.scored(self.honest(precision)))).k3.mean())
        return self.baselines[precision]

    def sampled(self, engine: RolloutEngine) -> LoggedTokens:
        """Sample from an engine, and score the sampled tokens with the trainer."""
        return self.scored(engine.generate(self.prompts, self.uniforms))

    def scored(self, rollout: Rollout, old: LocalEngine | None = None, prompts: Tensor | None = None) -> LoggedTokens:
        """Return sampled responses with the scores that a scoring engine gives them.

        old: the scoring engine, by default the trainer. prompts: the scoring engine's prompts, by default the sampler's.
        """
        old, prompts = old or self.trainer, self.prompts if prompts is None else prompts
        return LoggedTokens(rollout.tokens, rollout.logp, *self.score(old, prompts, rollout.tokens))

    def score(self, engine: LocalEngine, prompts: Tensor, tokens: Tensor) -> Scores:
        """Return the scores that the trainer's `engine` gives sampled tokens [B, T]."""
        return score(engine, prompts, tokens)


class MicroBatchBed(Bed):
    """Set-up whose trainer computes in BF16, in micro-batches of 1 to `LARGEST` responses that mix the prompts.

    The local engine gives a response the same values in every batch, bit for bit. A GPU's kernels do not: they choose by the
    batch's size in how many parts they sum. So a micro-batch's size sets the number of parts, `SPLITS`.
    """

    trainer_precision = "bf16"

    def score(self, engine: LocalEngine, prompts: Tensor, tokens: Tensor) -> Scores:
        draws = generator(self.seed, "fault micro-batches")
        order = torch.randperm(len(tokens), generator=draws)
        sizes = torch.randint(1, LARGEST + 1, (len(tokens),), generator=draws)
        ends, parts = sizes.cumsum(0), []
        for rows in order.tensor_split(ends[ends < len(tokens)]):
            engine._linear = PartialSums(engine.precision, SPLITS[len(rows) % len(SPLITS)]).linear
            parts.append(score(engine, prompts[rows], tokens[rows]))
        logp, entropy, repeat_prob = (torch.cat(columns)[order.argsort()] for columns in zip(*parts, strict=True))
        return logp, entropy, repeat_prob


def formats(precision: str) -> PrecisionConfig:
    """The config section of `precision`, the name of an option of rollout/precision."""
    return parse(compose(f"rollout/precision={precision}")).rollout.precision


def score(engine: LocalEngine, prompts: Tensor, tokens: Tensor) -> Scores:
    """Return the scores of given tokens [B, T], by one pass of an engine; 0 on PAD."""
    present, entropy, repeat_prob = tokens != PAD, torch.zeros(tokens.shape), torch.zeros(tokens.shape)
    seen = torch.zeros(len(tokens), engine.head.shape[1], dtype=torch.bool)

    def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        probs, chosen = logp.exp(), tokens[rows, t].clamp(min=0)
        entropy[rows, t] = torch.special.entr(probs).sum(-1)[node]
        repeat_prob[rows, t] = torch.where(seen[rows], probs[node], 0.0).sum(-1)
        seen[rows, chosen] = True
        return chosen, present[rows, t + 1] if t + 1 < tokens.shape[1] else None

    _, logp, _ = engine._walk(prompts, tokens.shape[1], pick)
    return torch.where(present, logp, 0.0), entropy, repeat_prob


def _clean(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.sampled(bed.sampler(precision))


def _temperature(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `temperature`: the sampler samples and logs at temperature `size`, and the trainer scores at temperature 1."""
    return bed.sampled(bed.sampler(precision, temperature=size))


def _raw(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `raw_logprobs`: both engines have temperature `size`, but the sampler logs the probabilities of temperature 1."""
    return bed.scored(bed.raw(precision, size), bed.engine(bed.trainer_precision, temperature=size))


def _top_p(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.sampled(bed.sampler(precision, top_p=size))


def _top_k(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.sampled(bed.sampler(precision, top_k=int(size)))


def _bos(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `bos`: the trainer's prompts lack their first token."""
    without = bed.prompts.clone()
    without[torch.arange(len(without)), (without != PAD).long().argmax(1)] = PAD
    return bed.scored(bed.honest(precision), prompts=without)


def _template(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `template`: the trainer's prompts lack the system message.

    Every turn begins with the prompt's first token, so everything before the second occurrence of that token is removed.
    """
    opens = bed.prompts == bed.prompts.gather(1, (bed.prompts != PAD).long().argmax(1)[:, None])
    kept = opens.cumsum(1) >= 2
    return bed.scored(bed.honest(precision), prompts=torch.where(kept, bed.prompts, PAD))


def _layer(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `layer`: weights of the sampler's middle layer are random, as if never loaded. size: which ones, see `SIZES`."""
    parts = {1: ("mlp.down_proj",), 2: ("mlp.",), 3: ("mlp.", "self_attn.")}[int(size)]
    layer = f"model.layers.{bed.net.config.num_hidden_layers // 2}."
    draws = generator(bed.seed, "fault layer")
    weights = {
        name: torch.randn(weight.shape, generator=draws) * FRESH
        if name.startswith(layer) and name.removeprefix(layer).startswith(parts) and weight.ndim > 1
        else weight.detach()
        for name, weight in bed.net.named_parameters()
    }
    return bed.sampled(bed.sampler(precision, weights))


def _prefix(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `prefix`: the sampler's prompt cache comes from the policy's weights with noise of relative size `size`."""
    return bed.scored(bed.old_prefix(precision, _noisy(bed, size)))


def _noisy(bed: Bed, size: float) -> dict[str, Tensor]:
    """Return the policy's weights by name, with noise of relative size `size` on those of the linear layers."""
    names = {name.removeprefix("model."): name for name, _ in bed.net.named_parameters()}
    own = ((name.removeprefix("model."), weight.detach()) for name, weight in bed.net.named_parameters())
    return {names[name]: weight for name, weight in Noise(size, 0.0, bed.seed).on_linear(own, 0)}


def _swapped(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `swapped`: log-probabilities of sampler and trainer are exchanged. size: noise on the sampler's weights."""
    drawn = bed.sampled(bed.sampler(precision, _noisy(bed, size)))
    return drawn._replace(logp_rollout=drawn.logp_old, logp_old=drawn.logp_rollout)


def _eos(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `eos`: the trainer scores token 0 where the sampler drew an end of sequence."""
    rollout = bed.honest(precision)
    swapped = torch.where(torch.isin(rollout.tokens, torch.tensor(bed.stop)), 0, rollout.tokens)
    return LoggedTokens(rollout.tokens, rollout.logp, *bed.score(bed.trainer, bed.prompts, swapped))


def _prompt_in_mask(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `prompt_in_mask`: the last `size` prompt tokens count as response, and both engines score them."""
    n, rollout = int(size), bed.honest(precision)
    before, whole = bed.prompts[:, :-n], torch.cat([bed.prompts[:, -n:], rollout.tokens], 1)
    return LoggedTokens(whole, bed.sampler(precision).score(before, whole), *bed.score(bed.trainer, before, whole))


def _rope(bed: Bed, size: float, precision: str) -> LoggedTokens:
    return bed.scored(bed.honest(precision), bed.engine(bed.trainer_precision, rope=size))


def _penalty(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `penalty`: tokens already in the response lose `size` nats of logit in sampling, but not in the logged values."""
    return bed.scored(bed.penalised(precision, size))


def _draft(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `draft`: a share `size` of the tokens is sampled at temperature HOT, but logged as if at temperature 1."""
    foreign = torch.rand(bed.uniforms.shape, generator=generator(bed.seed, "fault draft")) < size

    def odds(t: int, rows: Tensor, logp: Tensor) -> Tensor:
        return torch.where(foreign[rows, t, None], logp / HOT, logp)

    return bed.scored(bed.drawn(precision, odds))


def _bias(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `bias`: a tenth of the tokens in faultless responses gain `size` nats of logit, ignored by the logged values."""
    used = bed.honest(precision).tokens
    used = used[used != PAD].unique()
    favoured = used[torch.randperm(len(used), generator=generator(bed.seed, "fault bias"))[: math.ceil(len(used) / 10)]]
    return bed.scored(bed.biased(precision, torch.zeros(bed.net.config.vocab_size).index_fill(0, favoured, size)))


def _window(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `window`: the trainer's attention reaches back over only a share `size` of the length of prompt and response."""
    engine = bed.engine(bed.trainer_precision, Windowed)
    engine.window = math.ceil(size * (bed.prompts.shape[1] + bed.length))
    return bed.scored(bed.honest(precision), engine)


def _replica(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `replica`: one of the sampler's engines missed its syncs, and answers a share `size` of the prompts."""
    old = torch.rand(int(bed.group.max()) + 1, generator=generator(bed.seed, "fault replica"))[bed.group] < size
    fresh, late = (bed.sampler(precision, weights).generate(bed.prompts, bed.uniforms) for weights in (None, _noisy(bed, OLDER)))
    parts = (torch.where(old[:, None], theirs, ours) for ours, theirs in zip(fresh[:3], late[:3], strict=True))
    return bed.scored(Rollout(*parts))


def _head(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `head`: the sampler kept an older output head after a sync, the policy's with noise of relative size `size`."""
    head = bed.net.get_output_embeddings().weight
    noise = torch.randn(head.shape, generator=generator(bed.seed, "fault head"))
    return bed.sampled(bed.old_head(precision, head + size * noise * head.detach().square().mean().sqrt()))


def _adapter(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `adapter`: the sampler's linear layers lack an update of rank `RANK` and relative size `size`."""
    draws, weights = generator(bed.seed, "fault adapter"), {}
    for name, parameter in bed.net.named_parameters():
        weight = parameter.detach()
        if name.endswith("_proj.weight"):
            rows, columns = weight.shape
            update = torch.randn(rows, RANK, generator=draws) @ torch.randn(RANK, columns, generator=draws)
            weight = weight - size * weight.norm() / update.norm() * update
        weights[name] = weight
    return bed.sampled(bed.sampler(precision, weights))


def _min_p(bed: Bed, size: float, precision: str) -> LoggedTokens:
    """The fault `min_p`: tokens below `size` times the largest probability are not drawn. The logged values ignore the limit."""
    return bed.scored(bed.cut(precision, size))


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
    "bias": _bias,
    "window": _window,
    "replica": _replica,
    "head": _head,
    "adapter": _adapter,
    "min_p": _min_p,
}


def possible(fault: str, size: float, config: Config) -> bool:
    """Whether a policy can have the fault. Only hub models can have bos, template, eos, prompt_in_mask, or a top_k ≥ 20."""
    if isinstance(config.model, HubConfig):
        return True
    return fault not in ("bos", "template", "eos", "prompt_in_mask") and not (fault == "top_k" and size >= 20)
