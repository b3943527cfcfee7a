"""The embedded rollout engine: Llama, Qwen2 or Qwen3 really computed in the named precision, with a static KV cache.

Values are held in fp32 and rounded to the compute dtype after each operation that a 16-bit kernel would store: that is what
fp32 accumulation with a 16-bit output gives, and on a CPU without 16-bit matrix units it is several times faster than native
16-bit tensors. Quantised linear layers multiply codes and accumulate in fp32, apply both scales, and round once
(`casts.py`). As in vLLM, q/k/v and gate/up are one matrix each, so a per-tensor scale spans them, and the head, the embedding
and the norms stay in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from transformers import PretrainedConfig

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.models import DTYPES, device
from harness.rollouts import Rollout, RolloutEngine, casts
from harness.rollouts.architecture import FUSED, describe
from harness.seeding import generator
from harness.tasks import PAD

Cache = list[tuple[Tensor, Tensor]]
"""Per layer, keys and values, [L, B, H, D]: what has been filled is one block, so that a branch copies just that."""
Pick = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(t, log-probabilities [N, V] of the nodes, node of each row, rows that go on) -> (token of each of these rows, which of them
go on after it, None if all do)."""

WEIGHTS = (None, "fp8_tensor", "fp8_channel", "int8_channel", "nvfp4")
ACTIVATIONS = (None, "fp8_token", "int8_token")
KV_CASTS = {"compute": None, "fp8_e4m3": casts.e4m3, "fp8_e5m2": casts.e5m2}
INT8_EXACT_WIDTH = 1040
"""127² · 1040 < 2²⁴: up to this width a sum of int8 products is exact in fp32, as it is in a kernel's int32; beyond, fp64."""


class LocalEngine(RolloutEngine):
    """Batched sampling from a transformers model. See RolloutEngine; `score` walks the same path with given tokens.

    noise: synthetic, to tell the size of a mismatch from its structure. Each weight w of the linear layers becomes
    w·(1 + noise·ε) before its cast, ε ~ N(0, 1), anew for each version.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        precision: PrecisionConfig,
        *,
        kv_cache: str = "compute",
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: tuple[int, ...] = (),
        noise: Annotated[float, Field(ge=0, le=10)] = 0.0,
    ):
        self.config, self.precision, self.temperature, self.noise = config, precision, temperature, noise
        self.top_p, self.top_k, self.stop = top_p, top_k, torch.tensor(stop, dtype=torch.int64, device=device())
        self.compute = DTYPES[precision.compute]
        self.kv_cast = KV_CASTS[kv_cache]
        self.version = -1
        self.device = device()
        self.shape = describe(config)
        self.heads, self.kv_heads, self.head_dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        self._eps = torch.tensor(self.shape.eps, device=self.device)

    @classmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str) -> None:
        describe(shape)
        for key, known in (("weights", WEIGHTS), ("activations", ACTIVATIONS)):
            if (asked := getattr(precision, key)) not in known:
                names = ", ".join(name or "null" for name in known)
                raise UserError(f"rollout.precision.{key}={asked}: not computed by rollout.engine=local, which has {names}")

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Cast the trainer's weights. Raises KeyError when one is missing, ValueError on one that is not of this model."""
        # A copy: the trainer goes on changing its own in place, and these are of one version until the next call.
        given = {n.removeprefix("model."): w.detach().to(self.device, torch.float32, copy=True) for n, w in weights}
        if self.noise:
            given = {name: self._disturbed(name, w, version) for name, w in given.items()}

        def plain(name: str) -> Tensor:
            return casts.round_to(given.pop(name), self.compute)

        self.embedding, self.norm = plain("embed_tokens.weight"), plain("norm.weight")
        if self.shape.tied:
            given.pop("lm_head.weight", None)  # a state dict names it too
        self.head = (self.embedding if self.shape.tied else plain("lm_head.weight")).t().contiguous()
        self.layers = [self._layer(f"layers.{i}.", plain) for i in range(self.shape.layers)]
        if given:
            raise ValueError(f"weights that {self.config.model_type} does not have: {', '.join(sorted(given))}")
        self.version = version

    def _layer(self, prefix: str, plain: Callable[[str], Tensor]) -> dict:
        layer = {}
        for key, parts in FUSED.items():
            bias = torch.cat([plain(f"{prefix}{part}.bias") for part in parts]) if key in self.shape.biased else None
            layer[key] = (*self._quantize(torch.cat([plain(f"{prefix}{part}.weight") for part in parts])), bias)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            layer[norm] = plain(f"{prefix}{norm}.weight")
        if self.shape.qk_norm:  # q and k are normalised in one go: one row of weights per head
            q, k = (plain(f"{prefix}self_attn.{name}_norm.weight") for name in "qk")
            layer["qk_norm"] = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
        return layer

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """Sample by inverting the cumulative distribution at `uniforms`: no hidden random state."""
        uniforms = uniforms.to(self.device, torch.float64)

        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            cumulative = logp.exp().cumsum(-1, dtype=torch.float64)[node]
            threshold = uniforms[rows, t, None] * cumulative[:, -1:]
            drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logp.shape[-1] - 1)
            return drawn, self._unstopped(drawn)

        tokens, logp = self._walk(prompts, uniforms.shape[1], pick)
        return Rollout(tokens, logp, torch.full_like(tokens, self.version))

    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            most = logp.argmax(-1)[node]
            return most, self._unstopped(most)

        return self._walk(prompts, length, pick)[0]

    def score(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """log-probabilities [B, T] of given tokens, 0 on PAD, along the path of `generate`: the same tree, so the same bits."""
        tokens = tokens.to(self.device)
        present = tokens != PAD
        ragged = not bool(present.all())

        def pick(t: int, logp: Tensor, node: Tensor, rows: Tensor) -> tuple[Tensor, Tensor | None]:
            going = present[rows, t + 1] if ragged and t + 1 < tokens.shape[1] else None
            return tokens[rows, t].clamp(min=0), going

        return torch.where(present, self._walk(prompts, tokens.shape[1], pick)[1], 0.0)

    def _unstopped(self, tokens: Tensor) -> Tensor | None:
        return ~torch.isin(tokens, self.stop) if len(self.stop) else None

    def _walk(self, prompts: Tensor, length: int, pick: Pick) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            tokens, logp = self._decode(prompts.to(self.device), length, pick)
        return tokens.clone(), logp.clone()  # ordinary tensors again, which autograd may save

    def _decode(self, prompts: Tensor, length: int, pick: Pick) -> tuple[Tensor, Tensor]:
        """(tokens, log-probabilities) [B, length], PAD and 0 after the end of a row.

        Rows with equal tokens so far are computed once: the samples of a prompt are a tree, and each step walks its nodes.
        """
        prompts = prompts[:, (prompts != PAD).any(0)]
        start = prompts.shape[1]
        if start + length > self.config.max_position_embeddings:
            raise ValueError(f"{start + length} positions exceed the model's {self.config.max_position_embeddings}")
        self._cos, self._sin = (self._round(table.to(self.device)) for table in self.shape.rotary(start + length))
        first = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        first[1:] = (prompts[1:] != prompts[:-1]).any(1)
        roots = prompts[first]
        padding = (roots == PAD).sum(1)
        padding = padding if bool(padding.any()) else None
        cache = self._allocate(len(roots), start + length)
        logits = self._forward(roots.clamp(min=0), 0, cache, padding)
        tokens = torch.full((len(prompts), length), PAD, device=self.device)
        chosen = torch.zeros(len(prompts), length, device=self.device)
        rows = torch.arange(len(prompts), device=self.device)  # that go on
        node = first.cumsum(0) - 1  # where in the tree each of them stands
        for t in range(length):
            logp = self._kept(logits / self.temperature).log_softmax(-1)
            drawn, going = pick(t, logp, node, rows)
            tokens[rows, t], chosen[rows, t] = drawn, logp[node, drawn]
            if going is not None:
                rows, node, drawn = rows[going], node[going], drawn[going]
            if t + 1 == length or not len(rows):
                break
            vocabulary = logp.shape[-1]
            children, node = (node * vocabulary + drawn).unique(return_inverse=True)
            parents = children // vocabulary
            if not torch.equal(parents, torch.arange(len(logp), device=self.device)):
                cache = self._branch(cache, parents, start + t)
                padding = None if padding is None else padding[parents]
            logits = self._forward((children % vocabulary)[:, None], start + t, cache, padding)
        return tokens, chosen

    def _kept(self, logits: Tensor) -> Tensor:
        """−inf but for the top_k most probable tokens, and of those the fewest that hold top_p of what the top_k hold."""
        if self.top_k:
            logits = logits.masked_fill(logits < logits.topk(min(self.top_k, logits.shape[-1])).values[:, -1:], -torch.inf)
        if self.top_p < 1:
            ranked, places = logits.sort(-1, descending=True)
            probability = ranked.softmax(-1)
            beyond = probability.cumsum(-1) - probability >= self.top_p  # of the mass before it: the first always stays
            logits = logits.masked_fill(beyond.gather(-1, places.argsort(-1)), -torch.inf)
        return logits

    def _branch(self, cache: Cache, parents: Tensor, filled: int) -> Cache:
        """Every child starts with its parent's keys and values; those of a node without children are given up."""
        grown = self._allocate(len(parents), len(cache[0][0]))
        for old, new in zip(cache, grown, strict=True):
            for source, target in zip(old, new, strict=True):
                torch.index_select(source[:filled], 1, parents, out=target[:filled])
        return grown

    def _forward(self, tokens: Tensor, at: int, cache: Cache, padding: Tensor | None) -> Tensor:
        """Logits [B, V] after the last of `tokens` [B, n], which enter the cache at places at..at+n−1.

        padding [B]: how many of the first places of a row hold nothing; its positions are counted after them. None: none.
        """
        rows, n = tokens.shape
        turn = self._turn(at, n, padding)
        hidden = self._hidden(at, n, padding)
        h = self.embedding[tokens.flatten()]  # [B·n, hidden] from here on: matrix products take two dimensions fastest
        for layer, part in zip(self.layers, cache, strict=True):
            h = self._round(h + self._attention(layer, part, self._rms(h, layer["input_layernorm"]), rows, at, turn, hidden))
            gate, up = self._linear(self._rms(h, layer["post_attention_layernorm"]), layer["gate_up"]).chunk(2, -1)
            h = self._round(h + self._linear(self._round(self._round(F.silu(gate)).mul_(up)), layer["down"]))
        return self._round(self._rms(h.view(rows, n, -1)[:, -1], self.norm) @ self.head)

    def _turn(self, at: int, n: int, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rotary tables of these places: [n, 1, D], or [B, n, 1, D] where rows begin at different places."""
        if padding is None:
            return self._cos[at : at + n], self._sin[at : at + n]
        positions = (torch.arange(at, at + n, device=self.device) - padding[:, None]).clamp(min=0)
        return self._cos[positions], self._sin[positions]

    def _hidden(self, at: int, n: int, padding: Tensor | None) -> Tensor | None:
        """What a query does not see, [1 or B, 1, L, groups·n]: later places, and those before its row begins."""
        groups = self.heads // self.kv_heads
        later = torch.ones(at + n, n, dtype=torch.bool, device=self.device).tril_(-at - 1)
        if padding is None:
            return None if n == 1 else later.repeat(1, groups)[None, None]
        places = torch.arange(at + n, device=self.device)[:, None]
        # A place of padding sees itself, so that its unread result is a number: NaN in the cache would spread.
        empty = (places < padding[:, None, None]) & (places != places[at:, 0])
        return (later | empty).repeat(1, 1, groups)[:, None]

    def _attention(self, layer: dict, cache: tuple[Tensor, Tensor], x: Tensor, rows: int, at: int, turn: tuple[Tensor, Tensor],
                   hidden: Tensor | None) -> Tensor:
        n, groups = x.shape[0] // rows, self.heads // self.kv_heads
        qkv = self._linear(x, layer["qkv"]).view(rows, n, -1, self.head_dim)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        qk = self._rms(qk, layer["qk_norm"]) if self.shape.qk_norm else qk
        q, k = self._rotate(qk, *turn).split([self.heads, self.kv_heads], dim=2)
        if self.kv_cast:  # scale 1, as vLLM stores an uncalibrated FP8 cache
            k, v = self.kv_cast(k), self.kv_cast(v)
        keys, values = cache
        keys[at : at + n] = k.transpose(0, 1)
        values[at : at + n] = v.transpose(0, 1)
        keys, values = (part[: at + n].flatten(1, 2) for part in cache)  # [L, B·H, D]
        # The queries that share a key head are the columns of one product.
        q = q.mul(self.head_dim**-0.5).view(rows, n, self.kv_heads, groups, self.head_dim)
        q = q.permute(0, 2, 3, 1, 4).reshape(-1, groups * n, self.head_dim)
        scores = keys.transpose(0, 1).bmm(q.transpose(1, 2))  # [B·H, L, groups·n]
        if hidden is not None:
            scores.view(rows, self.kv_heads, *scores.shape[1:]).masked_fill_(hidden, -torch.inf)
        # As flash attention does: exponentials in the compute dtype meet V, their sum in fp32 divides last.
        weights = scores.sub_(scores.amax(1, keepdim=True)).exp_()
        out = self._round(weights).transpose(1, 2).bmm(values.transpose(0, 1)).div_(weights.sum(1)[..., None])
        out = self._round(out)
        out = out.view(rows, self.kv_heads, groups, n, self.head_dim).permute(0, 3, 1, 2, 4)
        return self._linear(out.reshape(rows * n, -1), layer["o"])

    def _linear(self, x: Tensor, weight: tuple[Tensor, Tensor | None, Tensor | None]) -> Tensor:
        codes, scale, bias = weight
        if self.precision.activations is None:
            y = x @ codes
        elif self.precision.activations == "fp8_token":
            x, x_scale = casts.quantize_fp8(x, -1)
            y, scale = x @ codes, x_scale * scale
        else:
            x, x_scale = casts.quantize_int8(x, -1)
            exact = torch.float32 if x.shape[-1] <= INT8_EXACT_WIDTH else torch.float64
            y, scale = (x.to(exact) @ codes.to(exact)).float(), x_scale * scale
        y = y if scale is None else y.mul_(scale)
        return self._round(y if bias is None else y.add_(bias))

    def _disturbed(self, name: str, weight: Tensor, version: int) -> Tensor:
        if not name.endswith("_proj.weight"):
            return weight
        drawn = torch.randn(weight.shape, generator=generator(0, f"noise {name}", version)).to(self.device)
        return weight * (1 + self.noise * drawn)

    def _quantize(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """A weight [N, K] as (codes [K, N], scale of the output: scalar or [N])."""
        match self.precision.weights:
            case None:
                codes, scale = weight, None
            case "fp8_tensor":
                codes, scale = casts.quantize_fp8(weight, None)
            case "fp8_channel":
                codes, scale = casts.quantize_fp8(weight, -1)
            case "int8_channel":
                codes, scale = casts.quantize_int8(weight, -1)
            case "nvfp4":
                codes, scale = casts.quantize_nvfp4(weight)
        return codes.t().contiguous(), None if scale is None else scale.flatten()

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return self._round(self._round(x * inverse).mul_(weight))

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary embedding of x [B, n, H, D] by tables [n, 1, D]."""
        half = self.head_dim // 2
        turned = torch.cat((x[..., half:], x[..., :half]), dim=-1)  # its sign is in the sine
        return self._round(torch.addcmul(x * cos, turned, sin))

    def _allocate(self, rows: int, length: int) -> Cache:
        shape = (length, rows, self.kv_heads, self.head_dim)
        return [(torch.empty(shape, device=self.device), torch.empty(shape, device=self.device)) for _ in self.layers]

    def _round(self, x: Tensor) -> Tensor:
        return casts.round_to(x, self.compute)
