"""The embedded rollout engine: Llama and Qwen models, computed in the config's precision with a static KV cache.

Linear layers round as in `linear.py`; a mixture of experts is in `moe.py`. As in vLLM, q/k/v and gate/up are one matrix each,
so a per-tensor scale spans them. The router, the head, the embedding and the norms stay in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from algos.parameters import Seed
from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.models import device
from harness.rollouts import UNTRUNCATED, ReportedRoutes, Rollout, RolloutEngine, Sampling, casts
from harness.rollouts.architecture import FUSED, IN_ATTENTION, architecture_of
from harness.rollouts.kv_scales import LARGEST, KvScale, KvScales, Percentile, check_kv_scales
from harness.rollouts.linear import ACTIVATION_CASTS, WEIGHT_CASTS, Arithmetic
from harness.rollouts.moe import Mixture, Router
from harness.rollouts.noise import Noise, Persistence, Size, check_noise
from harness.rollouts.prefix import Cache, History, KvAtSync, PrefixCache, put, put_row
from harness.rollouts.recorded import Recorded, pack, unpack
from harness.rollouts.routes import Routes, no_route
from harness.rollouts.tree import children, differs
from harness.tasks import PAD

Pick = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""Function that chooses the token at position t of each response (row) that has not ended.

Rows with equal tokens so far share a node of a tree. Arguments: (t, log-probabilities [N, V] at the nodes, node of each row,
numbers of the rows). Returns (token of each row, mask of the rows that continue after their token, or None if all do)."""

SHARED = 16
"""Minimum length, in tokens, of a common beginning of all prompts, such as a system prompt, that is computed only once."""
KV_CASTS = {"compute": None, "fp8_e4m3": casts.e4m3, "fp8_e5m2": casts.e5m2}


class _Nodes(NamedTuple):
    """Nodes of a tree of samples at one token position. Rows (responses) with equal tokens so far share a node."""

    logits: Tensor
    """Logits [N, V] of the token that follows each node of the samples' tree."""
    routes: Routes | None
    """Experts that computed the token of each tree node, or a root's whole prompt; None for a dense model."""
    cache: Cache
    padding: Tensor | None
    """Number of padding tokens to the left of the prompt that each node continues, [N]; None if there is no padding."""

    def routes_of(self, node: Tensor) -> Routes:
        """Routes (chosen experts) of each row, by the number `node` [B] of its tree node. Only for a mixture of experts."""
        assert self.routes is not None
        return self.routes.of(node)


class LocalEngine(RolloutEngine):
    """Embedded engine: batched sampling from a transformers model. `score` repeats the computation of sampling for given tokens.

    router_dtype: "fp32" keeps the router of a mixture in fp32, whatever the precision's compute dtype.
    head_dtype: "fp32" keeps the output head in fp32.
    noise: size of synthetic noise on the weights of the linear layers, before their cast (`noise.py`).
    noise_persistence: correlation φ of `noise` from one version of the weights to the next.
    router_noise: size of synthetic noise on the choice of experts. The experts' weights come from the router without noise.
    router_noise_persistence: correlation φ of `router_noise` from one version of the weights to the next.
    noise_seed: seed of `noise` and `router_noise`. In a config, null stands for the seed of the run.
    kv_at_sync: rule for the KV that was written before a sync of the weights (`prefix.py`).
    kv_scale, kv_percentile: scales of an FP8 cache, and the percentile that they are calibrated at (`kv_scales.py`).
    """

    def __init__(
        self,
        config: PretrainedConfig,
        precision: PrecisionConfig,
        sampling: Sampling = UNTRUNCATED,
        *,
        router_dtype: Literal["compute", "fp32"] = "compute",
        head_dtype: Literal["compute", "fp32"] = "compute",
        noise: Size = 0.0,
        noise_persistence: Persistence = 0.0,
        router_noise: Size = 0.0,
        router_noise_persistence: Persistence = 0.0,
        noise_seed: Seed | None = 0,
        kv_at_sync: KvAtSync = "recompute",
        kv_scale: KvScale = "one",
        kv_percentile: Percentile = 100.0,
    ):
        self.config, self.sampling = config, sampling
        self.stop = torch.tensor(sampling.stop, dtype=torch.int64, device=device())
        self.noise = Noise(noise, noise_persistence, noise_seed)
        self.router_noise = Noise(router_noise, router_noise_persistence, noise_seed)
        self.exact_router, self.exact_head = router_dtype == "fp32", head_dtype == "fp32"
        self.precision, self.arithmetic = precision, Arithmetic(precision)
        self._round, self._linear = self.arithmetic.round, self.arithmetic.linear
        cast = KV_CASTS[sampling.kv_cache]
        self.kv_scales = None if cast is None else KvScales(cast, LARGEST[sampling.kv_cache], kv_scale, kv_percentile)
        self.prefixes = None if kv_at_sync == "recompute" else PrefixCache(kv_at_sync)
        self.version: int | None = None
        self.device = device()
        self.shape = architecture_of(config)
        self.heads, self.kv_heads, self.head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        self._eps = torch.tensor(self.shape.eps, device=self.device)

    @classmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str, **params: Any) -> None:
        has_experts = bool(architecture_of(shape).experts)
        for key, default in (("router_dtype", "compute"), ("router_noise", 0.0)):
            if not has_experts and (value := params.get(key, default)) != default:
                raise UserError(f"rollout.engine.{key}={value} has no effect: {shape.model_type} has no router; set {default}")
        check_noise(params, "noise", "router_noise")
        check_kv_scales(kv_cache, params.get("kv_scale", "one"), params.get("kv_percentile", 100.0))
        for key in ("router_dtype", "head_dtype"):
            if params.get(key) == precision.compute == "fp32":
                raise UserError(f"rollout.engine.{key}=fp32 has no effect: the precision computes in fp32; set compute")
        for key, known in (("weights", WEIGHT_CASTS), ("activations", ACTIVATION_CASTS)):
            if (asked := getattr(precision, key)) not in known:
                names = ", ".join(name or "null" for name in known)
                raise UserError(f"rollout.precision.{key}={asked}: not computed by rollout.engine=local, which has {names}")

    @classmethod
    def reports_routes(cls) -> ReportedRoutes:
        return "experts and weights"

    @classmethod
    def support_refusal(cls, top_k: int) -> str | None:
        return None

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Cast the trainer's weights. Raises KeyError on a missing weight, and ValueError on one that the model does not have."""
        self.version = None  # until all have been taken: what an exception leaves is of two versions
        # A copy: the trainer goes on changing its own in place, and these are of one version until the next call.
        own = {n.removeprefix("model."): w.detach().to(self.device, torch.float32, copy=True) for n, w in weights}
        given = dict(self.noise.on_linear(own.items(), version))
        self.adapted = any(".lora_" in name for name in given)

        def plain(name: str, exact: bool = False) -> Tensor:
            return given.pop(name) if exact else self._round(given.pop(name))

        embedding, self.norm = given["embed_tokens.weight"], plain("norm.weight")
        self.embedding = plain("embed_tokens.weight")
        if self.shape.tied:
            given["lm_head.weight"] = embedding  # a state dict names it too
        self.head = plain("lm_head.weight", self.exact_head).t().contiguous()
        self.layers = [self._layer(i, plain, version) for i in range(self.shape.layers)]
        if given:
            raise ValueError(f"weights that {self.config.model_type} does not have: {', '.join(sorted(given))}")
        for kept in (self.prefixes, self.kv_scales):
            if kept is not None:
                kept.sync()
        self.version = version

    def _layer(self, number: int, plain: Callable[..., Tensor], version: int) -> dict[str, Any]:
        prefix = f"layers.{number}."
        layer: dict[str, Any] = {"number": number}
        for key in IN_ATTENTION if self.shape.experts else FUSED:
            parts = FUSED[key]
            bias = torch.cat([plain(f"{prefix}{part}.bias") for part in parts]) if key in self.shape.biased else None
            matrix = torch.cat([plain(f"{prefix}{part}.weight") for part in parts])
            adapter = self._adapter([prefix + part for part in parts], plain) if self.adapted else None
            layer[key] = self.arithmetic.weight(matrix, bias)._replace(adapter=adapter)
        if self.shape.experts:
            layer["mixture"] = self._mixture(f"{prefix}mlp.", plain, version)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            layer[norm] = plain(f"{prefix}{norm}.weight")
        if self.shape.qk_norm:  # q and k are normalised in one go: one row of weights per head
            q, k = (plain(f"{prefix}self_attn.{name}_norm.weight") for name in "qk")
            layer["qk_norm"] = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
        return layer

    def _adapter(self, parts: Sequence[str], plain: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        """The adapters of the modules that form one matrix as one pair: [K, r] and, block by block, [r, N]."""
        down, up = ([plain(f"{part}.lora_{key}.weight") for part in parts] for key in "AB")
        return torch.cat(down).t().contiguous(), torch.block_diag(*up).t().contiguous()

    def _mixture(self, prefix: str, plain: Callable[..., Tensor], version: int) -> Mixture:
        name = f"{prefix}gate.weight"
        gate = plain(name, self.exact_router)
        picker = self.router_noise(name, gate, version).t().contiguous() if self.router_noise.size else None
        router = Router(gate.t().contiguous(), picker, self.shape.per_token, self.shape.renormalise, self.exact_router)
        stacked = (plain(f"{prefix}experts.{layer}") for layer in ("gate_up_proj", "down_proj"))
        cast = self.arithmetic.weight
        experts = [(cast(gate_up), cast(down)) for gate_up, down in zip(*stacked, strict=True)]
        return Mixture(self.arithmetic, router, experts)

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """Sample each token by inverting the cumulative distribution at its number in `uniforms`, without hidden random state."""
        nothing = torch.zeros(len(prompts), 0, dtype=torch.int64, device=prompts.device)
        everyone = torch.ones(len(prompts), dtype=torch.bool)
        return self._sample(prompts, Rollout(nothing, nothing.float(), nothing), everyone, uniforms, None)

    def resume(self, prompts: Tensor, begun: Rollout, going: Tensor, uniforms: Tensor) -> Rollout:
        """Sample further tokens of responses `begun` by the computation of `generate`.

        A response generated in parts equals, bit for bit, one generated at once with the same weights. Under a rule of
        `kv_at_sync` that keeps KV, the responses so far are not computed again.
        """
        if self.prefixes is None:
            return self._sample(prompts, begun, going, uniforms, None)
        return self._sample_from_kept(prompts, begun, going, uniforms)

    def _sample(self, prompts: Tensor, begun: Rollout, going: Tensor, uniforms: Tensor, history: History | None) -> Rollout:
        """Sample n more tokens of the responses where `going` [B], by `uniforms` [B, n]. history: as in `_decode`."""
        uniforms = uniforms.to(self.device, torch.float64)
        given, going = begun.tokens.to(self.device), going.to(self.device)
        start = given.shape[1]

        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            if t < start:
                return given[rows, t], given[rows, t + 1] != PAD if t + 1 < start else going[rows]
            cumulative = logp.exp().cumsum(-1, dtype=torch.float64)[node]
            threshold = uniforms[rows, t - start, None] * cumulative[:, -1:]
            drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logp.shape[-1] - 1)
            return drawn, self._unstopped(drawn)

        tokens, logp, (routes, support) = self._walk(prompts, start + uniforms.shape[1], pick, history=history)
        tokens, logp = tokens[going, start:], logp[going, start:]
        ids, weights = (None, None) if routes is None else routes.of(going)[:2]
        support = None if support is None else support[going, start:]
        assert self.version is not None
        return Rollout(tokens, logp, torch.full_like(tokens, self.version), ids, weights, support)

    def _sample_from_kept(self, prompts: Tensor, begun: Rollout, going: Tensor, uniforms: Tensor) -> Rollout:
        """Continue the responses `begun` in the rows `going` [B], with kept KV. Prompt and response so far are the prompt."""
        tokens, version, here = (part.to(self.device) for part in (begun.tokens, begun.version, going))
        history = History.of(prompts.to(self.device), tokens, version).rows(here)
        nothing = torch.zeros(len(history.tokens), 0, dtype=torch.int64, device=self.device)
        everyone = torch.ones(len(history.tokens), dtype=torch.bool)
        own = uniforms[going.to(uniforms.device)]
        return self._sample(history.tokens, Rollout(nothing, nothing.float(), nothing), everyone, own, history)

    def state(self) -> dict[str, Tensor]:
        return {} if self.prefixes is None else self.prefixes.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        if self.prefixes is not None:
            self.prefixes.restore(state)

    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            most = logp.argmax(-1)[node]
            return most, self._unstopped(most)

        return self._walk(prompts, length, pick)[0]

    def score(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> Tensor:
        """Log-probabilities [B, T] of given tokens in nats, 0 on PAD, equal bit for bit to those of `generate`."""
        return self.score_routed(prompts, tokens, replay)[0]

    def score_routed(self, prompts: Tensor, tokens: Tensor, replay: Recorded | None = None) -> tuple[Tensor, Routes | None]:
        """Return (log-probabilities [B, T] in nats, experts or None if dense). replay: experts and sampling masks to use."""
        tokens = tokens.to(self.device)
        present = tokens != PAD
        ragged = not bool(present.all())

        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            going = present[rows, t + 1] if ragged and t + 1 < tokens.shape[1] else None
            return tokens[rows, t].clamp(min=0), going

        _, logp, taken = self._walk(prompts, tokens.shape[1], pick, replay)
        return torch.where(present, logp, 0.0), taken.routes

    def _unstopped(self, tokens: Tensor) -> Tensor | None:
        return ~torch.isin(tokens, self.stop) if len(self.stop) else None

    def _walk(
        self, prompts: Tensor, length: int, pick: Pick, replay: Recorded | None = None, history: History | None = None
    ) -> tuple[Tensor, Tensor, Recorded]:
        if self.version is None:
            raise RuntimeError("the engine holds no whole weights; load_weights comes first")
        with torch.inference_mode():
            replay = Recorded() if replay is None else replay.map(lambda part: part.to(self.device))
            tokens, logp, taken = self._decode(prompts.to(self.device), length, pick, replay.routes, replay.support, history)
        # Ordinary tensors again, which autograd may save.
        return tokens.clone(), logp.clone(), taken.map(Tensor.clone)

    def _decode(
        self,
        prompts: Tensor,
        length: int,
        pick: Pick,
        replay: Routes | None,
        support: Tensor | None,
        history: History | None,
    ) -> tuple[Tensor, Tensor, Recorded]:
        """Return (tokens [B, length], log-probabilities [B, length], experts and sampling masks); PAD and 0 after the end.

        Rows with equal tokens so far are computed once: the samples of a prompt form a tree, and each step computes its nodes.
        replay: routes (experts) to take; only rows with equal routes then share a node. support: tokens to renormalise over
        (`Recorded`), instead of this engine's own truncation. history: tokens and weight versions of prompts that end with an
        unfinished response, whose KV is then cached; None for other prompts.
        """
        width = prompts.shape[1]
        filled = (prompts != PAD).any(0)
        prompts = prompts[:, filled]
        start = prompts.shape[1]
        asked = slice(width - start, width)  # the places of the prompts among those of routes
        first = differs(prompts)
        if replay is not None:
            first |= differs(replay.of(slice(None), asked).groups()[:, None])
        if history is not None:
            history = history.rows((slice(None), filled))
            first |= differs(history.version)
        before = None if history is None else history.rows(first)
        nodes = self._roots(prompts[first], start + length, None if replay is None else replay.of(first, asked), before)
        rows = torch.arange(len(prompts), device=self.device)  # rows that go on
        node = first.cumsum(0) - 1  # the node at which each of these rows stands
        tokens = torch.full((len(prompts), length), PAD, device=self.device)
        chosen = torch.zeros(len(prompts), length, device=self.device)
        routes, s = None, self.shape
        if s.experts:
            routes = Routes.unrouted(len(prompts), width + length - 1, s.layers, s.per_token, s.experts, self.device)
            routes.put(rows, asked, nodes.routes_of(node))
            routes.ids[:, asked].masked_fill_((prompts == PAD)[..., None, None], no_route(routes.ids.dtype))
        vocabulary, recorded = nodes.logits.shape[-1], None
        if self.sampling.record_support:
            recorded = torch.zeros(len(prompts), length, -(-vocabulary // 8), dtype=torch.uint8, device=self.device)
        for t in range(length):
            logits = nodes.logits / self.sampling.temperature
            logp = (logits if support is not None else self._kept(logits)).log_softmax(-1)
            drawn, going = pick(t, logp, node, rows)
            tokens[rows, t] = drawn
            chosen[rows, t] = logp[node, drawn] if support is None else _within(support[rows, t], logits[node], drawn)
            if recorded is not None:
                recorded[rows, t] = pack(logp > -torch.inf)[node]
            if going is not None:
                rows, node, drawn = rows[going], node[going], drawn[going]
            if t + 1 == length or not len(rows):
                break
            place = slice(width + t, width + t + 1)
            given = None if replay is None else replay.of(rows, place)
            keys, node, given = children(node * vocabulary + drawn, given)
            nodes = self._children(nodes, keys // vocabulary, keys % vocabulary, start + t, given)
            if routes is not None:
                routes.put(rows, place, nodes.routes_of(node))
        if history is not None and self.prefixes is not None and self.version is not None:
            self.prefixes.hold(history.rows(rows).followed(tokens[rows], self.version), nodes.cache, node)
        return tokens, chosen, Recorded(routes, recorded)

    def _roots(self, prompts: Tensor, places: int, replay: Routes | None, history: History | None) -> _Nodes:
        """Root nodes of the sample trees of different prompts [N, P], with a KV cache of `places` token positions.

        history: tokens and weight versions of prompts that end with an unfinished response, or None.
        """
        if places > self.config.max_position_embeddings:
            raise ValueError(f"{places} positions exceed the model's {self.config.max_position_embeddings}")
        self._cos, self._sin = (self._round(table.to(self.device)) for table in self.shape.rotary(places))
        missing = (prompts == PAD).sum(1)
        padding = missing if bool(missing.any()) else None
        if self.prefixes is not None and self.prefixes.splits(history) and prompts.shape[1] > 1:
            found = self.prefixes.find(History.of(prompts) if history is None else history)
            return self._roots_from(found, prompts, self._allocate(len(prompts), places), padding, replay)
        shared = 0 if padding is not None or self.shape.experts else _shared_beginning(prompts)
        if shared:
            cache = self._allocate(1, places)
            self._forward(prompts[:1, :shared], 0, cache, None, None)
            cache = self._branch(cache, torch.zeros(len(prompts), dtype=torch.int64, device=self.device), shared)
        else:
            cache = self._allocate(len(prompts), places)
        return _Nodes(*self._forward(prompts.clamp(min=0)[:, shared:], shared, cache, padding, replay), cache, padding)

    def _roots_from(
        self, found: list[Tensor | None], prompts: Tensor, cache: Cache, padding: Tensor | None, replay: Routes | None
    ) -> _Nodes:
        """Root nodes of the sample trees of prompts [N, P]. found: each prompt's cached KV of all tokens but the last, or None.

        Tokens with cached KV have no route (experts). The KV of other prompts is computed, and cached if the rule keeps it.
        """
        assert self.prefixes is not None
        last = prompts.shape[1] - 1
        new = torch.tensor([kv is None for kv in found], device=self.device)
        routes, s = None, self.shape
        if s.experts:
            routes = Routes.unrouted(len(prompts), last + 1, s.layers, s.per_token, s.experts, self.device)
        if bool(new.any()):
            own = self._allocate(int(new.sum()), last)
            gaps = None if padding is None else padding[new]
            given = None if replay is None else replay.of(new, slice(0, last))
            _, taken = self._forward(prompts[new, :last].clamp(min=0), 0, own, gaps, given)
            if routes is not None and taken is not None:
                routes.put(new, slice(0, last), taken)
            put(cache, new, own)
            self.prefixes.hold_prompts(History.of(prompts[new]), own)
        for row, kv in enumerate(found):
            if kv is not None:
                put_row(cache, row, kv, last)
        given = None if replay is None else replay.of(slice(None), slice(last, None))
        logits, taken = self._forward(prompts[:, last:], last, cache, padding, given)
        if routes is not None and taken is not None:
            routes.put(slice(None), slice(last, None), taken)
        return _Nodes(logits, routes, cache, padding)

    def _children(self, nodes: _Nodes, parents: Tensor, tokens: Tensor, at: int, replay: Routes | None) -> _Nodes:
        """Child nodes of `nodes` in the samples' tree: child i follows node parents[i] by token tokens[i] at position `at`."""
        cache, padding = nodes.cache, nodes.padding
        if not torch.equal(parents, torch.arange(len(nodes.logits), device=self.device)):
            cache = self._branch(cache, parents, at)
            padding = None if padding is None else padding[parents]
        return _Nodes(*self._forward(tokens[:, None], at, cache, padding, replay), cache, padding)

    def _kept(self, logits: Tensor) -> Tensor:
        """Logits with −inf outside the top_k tokens, and outside the smallest set of these whose mass reaches top_p."""
        top_k, top_p = self.sampling.top_k, self.sampling.top_p
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(min(top_k, logits.shape[-1])).values[:, -1:], -torch.inf)
        if top_p < 1:
            ranked, places = logits.sort(-1, descending=True)
            probability = ranked.softmax(-1)
            beyond = probability.cumsum(-1) - probability >= top_p  # tests the mass before a token: the first always stays
            logits = logits.masked_fill(beyond.gather(-1, places.argsort(-1)), -torch.inf)
        return logits

    def _branch(self, cache: Cache, parents: Tensor, filled: int) -> Cache:
        """KV cache of child nodes, with the first `filled` tokens of their parents. parents: parent node of each child, [N]."""
        grown = self._allocate(len(parents), cache[0][0].shape[2])
        for old, new in zip(cache, grown, strict=True):
            for source, target in zip(old, new, strict=True):
                torch.index_select(source[:, :, :filled], 0, parents, out=target[:, :, :filled])
        return grown

    def _forward(
        self, tokens: Tensor, at: int, cache: Cache, padding: Tensor | None, replay: Routes | None
    ) -> tuple[Tensor, Routes | None]:
        """Return (logits [B, V] after the last of `tokens` [B, n], experts that the tokens took; None for a dense model).

        The tokens enter the cache at positions at..at+n−1. padding [B]: number of padding tokens before each row; None: no
        padding. Rotary positions count from the end of the padding. replay: experts to take.
        """
        rows, n = tokens.shape
        turn = self._turn(at, n, padding)
        hidden = self._hidden(at, n, padding)
        real = None if padding is None else torch.arange(at, at + n, device=self.device) >= padding[:, None]
        h = self.embedding[tokens.flatten()]  # [B·n, hidden] from here on: matrix products take two dimensions fastest
        taken = []
        for i, (layer, part) in enumerate(zip(self.layers, cache, strict=True)):
            h = self._round(
                h + self._attention(layer, part, self._rms(h, layer["input_layernorm"]), rows, at, turn, hidden, real)
            )
            x = self._rms(h, layer["post_attention_layernorm"])
            if self.shape.experts:
                y, choice = layer["mixture"](x, None if replay is None else replay.layer(i))
                taken.append(choice)
            else:
                gate, up = self._linear(x, layer["gate_up"]).chunk(2, -1)
                y = self._linear(self._round(self._round(F.silu(gate)).mul_(up)), layer["down"])
            h = self._round(h + y)
        logits = self._rms(h.view(rows, n, -1)[:, -1], self.norm) @ self.head
        return logits if self.exact_head else self._round(logits), Routes.stack(taken, rows) if taken else None

    def _turn(self, at: int, n: int, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding at positions at..at+n−1: [n, 1, D], or [B, n, 1, D] with padding."""
        if padding is None:
            return self._cos[at : at + n], self._sin[at : at + n]
        positions = (torch.arange(at, at + n, device=self.device) - padding[:, None]).clamp(min=0)
        return self._cos[positions], self._sin[positions]

    def _hidden(self, at: int, n: int, padding: Tensor | None) -> Tensor | None:
        """Mask of the keys hidden from each query, [1 or B, 1, L, groups·n]: later tokens and padding. None if no key is."""
        groups = self.heads // self.kv_heads
        later = torch.ones(at + n, n, dtype=torch.bool, device=self.device).tril_(-at - 1)
        if padding is None:
            return None if n == 1 else later.repeat(1, groups)[None, None]
        places = torch.arange(at + n, device=self.device)[:, None]
        # A place of padding sees itself, so that its unread result is a number: NaN in the cache would spread.
        empty = (places < padding[:, None, None]) & (places != places[at:, 0])
        return (later | empty).repeat(1, 1, groups)[:, None]

    def _attention(
        self,
        layer: dict,
        cache: tuple[Tensor, Tensor],
        x: Tensor,
        rows: int,
        at: int,
        turn: tuple[Tensor, Tensor],
        hidden: Tensor | None,
        real: Tensor | None,
    ) -> Tensor:
        """Output [B·n, hidden] of a layer's attention, from its input x. real: mask [B, n] of the tokens that are no padding."""
        n, groups = x.shape[0] // rows, self.heads // self.kv_heads
        qkv = self._linear(x, layer["qkv"]).view(rows, n, -1, self.head_dim)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        qk = self._rms(qk, layer["qk_norm"]) if self.shape.qk_norm else qk
        q, k = self._rotate(qk, *turn).split([self.heads, self.kv_heads], dim=2)
        if self.kv_scales is not None:
            k, v = self.kv_scales(layer["number"], k, v, real)
        keys, values = cache
        keys[:, :, at : at + n] = k.transpose(1, 2)
        values[:, :, at : at + n] = v.transpose(1, 2)
        keys, values = (part[:, :, : at + n].flatten(0, 1) for part in cache)  # [B·H, L, D]
        # The queries that share a key head are the columns of one product.
        q = q.mul(self.head_dim**-0.5).view(rows, n, self.kv_heads, groups, self.head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(-1, groups * n, self.head_dim)
        scores = keys.bmm(q.transpose(1, 2))  # [B·H, L, groups·n]
        if hidden is not None:
            scores.view(rows, self.kv_heads, *scores.shape[1:]).masked_fill_(hidden, -torch.inf)
        # As flash attention does: exponentials in the compute dtype meet V, their sum in fp32 divides last.
        weights = scores.sub_(scores.amax(1, keepdim=True)).exp_()
        out = self._round(weights).transpose(1, 2).bmm(values).div_(weights.sum(1)[..., None])
        out = self._round(out)
        out = out.view(rows, self.kv_heads, groups, n, self.head_dim).permute(0, 3, 1, 2, 4)
        return self._linear(out.reshape(rows * n, -1), layer["o"])

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return self._round(self._round(x * inverse).mul_(weight))

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the rotary embedding to x [B, n, H, D] by tables [n, 1, D], or [B, n, 1, D], as `_turn` returns them."""
        half = self.head_dim // 2
        turned = torch.cat((x[..., half:], x[..., :half]), dim=-1)  # the sign is in the sine
        return self._round(torch.addcmul(x * cos, turned, sin))

    def _allocate(self, rows: int, length: int) -> Cache:
        shape = (rows, self.kv_heads, length, self.head_dim)
        return [(torch.empty(shape, device=self.device), torch.empty(shape, device=self.device)) for _ in self.layers]


def _shared_beginning(prompts: Tensor) -> int:
    """Number of tokens that all prompts [N, P] begin with, less than P; 0 if fewer than SHARED or if there is one prompt."""
    same = (prompts[:, :-1] == prompts[0, :-1]).all(0)
    length = int(same.cumprod(0).sum())
    return length if len(prompts) > 1 and length >= SHARED else 0


def _within(support: Tensor, logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities [N] of tokens by logits [N, V]. Each is renormalised over its own token set in `support` [N, ⌈V/8⌉]."""
    logp = logits.masked_fill(~unpack(support, logits.shape[-1]), -torch.inf).log_softmax(-1)
    return logp.gather(-1, tokens[:, None])[:, 0]
