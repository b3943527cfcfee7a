"""The embedded rollout engine: a Qwen3 that really computes in the named precision, with a static KV cache.

Values are held in fp32 and rounded to the compute dtype after each operation that a 16-bit kernel would store: that is what
fp32 accumulation with a 16-bit output gives, and on a CPU without 16-bit matrix units it is several times faster than native
16-bit tensors. Quantised linear layers multiply codes and accumulate in fp32, apply both scales, and round once
(`casts.py`). As in vLLM, q/k/v and gate/up are one matrix each, so a per-tensor scale spans them, and the head, the embedding
and the norms stay in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config

from harness.config import PrecisionConfig
from harness.errors import UserError
from harness.models import DTYPES, device
from harness.rollouts import Rollout, RolloutEngine, casts
from harness.seeding import generator
from harness.tasks import PAD

Cache = list[tuple[Tensor, Tensor]]
"""Per layer, keys and values, [L, B, H, D]: what has been filled is one block, so that a branch copies just that."""

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
WEIGHTS = (None, "fp8_tensor", "fp8_channel", "int8_channel", "nvfp4")
ACTIVATIONS = (None, "fp8_token", "int8_token")
KV_CASTS = {"compute": None, "fp8_e4m3": casts.e4m3, "fp8_e5m2": casts.e5m2}
INT8_EXACT_WIDTH = 1040
"""127² · 1040 < 2²⁴: up to this width a sum of int8 products is exact in fp32, as it is in a kernel's int32; beyond, fp64."""


class LocalEngine(RolloutEngine):
    """Batched sampling from a transformers Qwen3. See RolloutEngine; `score` walks the same path with given tokens.

    noise: synthetic, to tell the size of a mismatch from its structure. Each weight w of the linear layers becomes
    w·(1 + noise·ε) before its cast, ε ~ N(0, 1), anew for each version.
    """

    def __init__(
        self,
        config: Qwen3Config,
        precision: PrecisionConfig,
        *,
        kv_cache: str = "compute",
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: tuple[int, ...] = (),
        noise: float = 0.0,
    ):
        self.config, self.precision, self.temperature, self.noise = config, precision, temperature, noise
        self.top_p, self.top_k, self.stop = top_p, top_k, torch.tensor(stop, dtype=torch.int64, device=device())
        self.compute = DTYPES[precision.compute]
        self.kv_cast = KV_CASTS[kv_cache]
        self.version = -1
        self.device = device()
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self._cos, self._sin = self._rotary(config.max_position_embeddings)
        self._eps = torch.tensor(config.rms_norm_eps, device=self.device)

    @classmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str) -> None:
        if shape.model_type != "qwen3":
            raise UserError(f"rollout.engine=local: computes Qwen3, not {shape.model_type}; use rollout/engine=vllm")
        for key, known in (("weights", WEIGHTS), ("activations", ACTIVATIONS)):
            if (asked := getattr(precision, key)) not in known:
                names = ", ".join(name or "null" for name in known)
                raise UserError(f"rollout.precision.{key}={asked}: not computed by rollout.engine=local, which has {names}")

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Cast the trainer's weights. Raises KeyError when one is missing."""
        # A copy: the trainer goes on changing its own in place, and these are of one version until the next call.
        given = {n.removeprefix("model."): w.detach().to(self.device, torch.float32, copy=True) for n, w in weights}
        if self.noise:
            given = {name: self._disturbed(name, w, version) for name, w in given.items()}
        plain = {name: casts.round_to(w, self.compute) for name, w in given.items()}
        self.embedding, self.norm = plain["embed_tokens.weight"], plain["norm.weight"]
        self.head = plain.get("lm_head.weight", self.embedding).t().contiguous()
        self.layers = []
        for i in range(self.config.num_hidden_layers):
            prefix = f"layers.{i}."
            layer = {}
            for key, parts in FUSED.items():
                layer[key] = self._quantize(torch.cat([plain[f"{prefix}{part}.weight"] for part in parts]))
            for norm in ("input_layernorm", "post_attention_layernorm"):
                layer[norm] = plain[f"{prefix}{norm}.weight"]
            # q and k are normalised and rotated in one go: one row of weights per head.
            q, k = (plain[f"{prefix}self_attn.{name}_norm.weight"] for name in "qk")
            layer["qk_norm"] = torch.cat([q.expand(self.heads, -1), k.expand(self.kv_heads, -1)])
            self.layers.append(layer)
        self.version = version

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        """Sample by inverting the cumulative distribution at `uniforms`: no hidden random state."""

        def sample(prompts: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            def pick(t: int, logp: Tensor, node: Tensor) -> Tensor:
                cumulative = logp.exp().cumsum(-1, dtype=torch.float64)[node]
                threshold = uniforms[:, t, None].to(cumulative) * cumulative[:, -1:]
                return (cumulative <= threshold).sum(-1).clamp(max=logp.shape[-1] - 1)

            return self._walk(prompts, uniforms.shape[1], pick)

        tokens, logp = self._by_length(sample, prompts, uniforms)
        after = self._after_stop(tokens)
        return Rollout(tokens.masked_fill(after, PAD), logp.masked_fill(after, 0.0), torch.full_like(tokens, self.version))

    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        def most(prompts: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            return self._walk(prompts, other.shape[1], lambda t, logp, node: logp.argmax(-1)[node])

        tokens = self._by_length(most, prompts, torch.empty(len(prompts), length))[0]
        return tokens.masked_fill(self._after_stop(tokens), PAD)

    def score(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """log-probabilities [B, T] of given tokens along the path that `generate` takes: the same tree, so the same bits."""

        def given(prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return self._walk(prompts, tokens.shape[1], lambda t, *_: tokens[:, t].clamp(min=0))

        return self._by_length(given, prompts, tokens)[1]

    def _after_stop(self, tokens: Tensor) -> Tensor:
        stopped = torch.isin(tokens, self.stop)
        return stopped.cumsum(-1) > stopped.long()

    def _by_length(self, walk: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], prompts: Tensor, other: Tensor):
        """`walk` on the rows whose prompts are of one length, padding taken off, for each length."""
        lengths = (prompts != PAD).sum(1)
        if bool((lengths == prompts.shape[1]).all()):
            return walk(prompts, other)
        tokens = torch.empty(other.shape, dtype=torch.int64, device=self.device)
        logp = torch.empty(other.shape, device=self.device)
        for length in lengths.unique().tolist():
            rows = lengths == length
            tokens[rows], logp[rows] = walk(prompts[rows, -length:], other[rows])
        return tokens, logp

    def _walk(self, prompts: Tensor, length: int, pick: Callable[[int, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            tokens, logp = self._decode(prompts, length, pick)
        return tokens.clone(), logp.clone()  # ordinary tensors again, which autograd may save

    def _decode(self, prompts: Tensor, length: int, pick: Callable[[int, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Rows with equal tokens so far are computed once: the samples of a prompt are a tree, and each step walks its nodes."""
        start = prompts.shape[1]
        if start + length > self.config.max_position_embeddings:
            raise ValueError(f"{start + length} positions exceed the model's {self.config.max_position_embeddings}")
        prompts = prompts.to(self.device)
        first = torch.ones(len(prompts), dtype=torch.bool, device=self.device)
        first[1:] = (prompts[1:] != prompts[:-1]).any(1)
        roots, node = prompts[first], first.cumsum(0) - 1  # node [B]: where in the tree a row stands
        cache = self._allocate(len(roots), start + length)
        logits = self._forward(roots, 0, cache)
        tokens = torch.empty(len(prompts), length, dtype=torch.int64, device=self.device)
        chosen = torch.empty(len(prompts), length, device=self.device)
        for t in range(length):
            logp = self._kept(logits / self.temperature).log_softmax(-1)
            tokens[:, t] = pick(t, logp, node)
            chosen[:, t] = logp[node, tokens[:, t]]
            if t + 1 < length:
                vocabulary = logp.shape[-1]
                children, node = (node * vocabulary + tokens[:, t]).unique(return_inverse=True)
                if len(children) > len(logp):  # as many children as nodes: one each, and in order
                    cache = self._branch(cache, children // vocabulary, start + t)
                logits = self._forward((children % vocabulary)[:, None], start + t, cache)
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
        """Every child starts with its parent's keys and values."""
        grown = self._allocate(len(parents), len(cache[0][0]))
        for old, new in zip(cache, grown, strict=True):
            for source, target in zip(old, new, strict=True):
                torch.index_select(source[:filled], 1, parents, out=target[:filled])
        return grown

    def _forward(self, tokens: Tensor, at: int, cache: Cache) -> Tensor:
        """Logits [B, V] after the last of `tokens` [B, n], which stand at positions at..at+n−1 and enter the cache."""
        rows, n = tokens.shape
        turn = self._cos[at : at + n], self._sin[at : at + n]
        h = self.embedding[tokens.flatten()]  # [B·n, hidden] from here on: matrix products take two dimensions fastest
        for layer, part in zip(self.layers, cache, strict=True):
            h = self._round(h + self._attention(layer, part, self._rms(h, layer["input_layernorm"]), rows, at, turn))
            gate, up = self._linear(self._rms(h, layer["post_attention_layernorm"]), layer["gate_up"]).chunk(2, -1)
            h = self._round(h + self._linear(self._round(self._round(F.silu(gate)).mul_(up)), layer["down"]))
        return self._round(self._rms(h.view(rows, n, -1)[:, -1], self.norm) @ self.head)

    def _attention(
        self, layer: dict, cache: tuple[Tensor, Tensor], x: Tensor, rows: int, at: int, turn: tuple[Tensor, Tensor]
    ) -> Tensor:
        n, groups = x.shape[0] // rows, self.heads // self.kv_heads
        qkv = self._linear(x, layer["qkv"]).view(rows, n, -1, self.head_dim)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        q, k = self._rotate(self._rms(qk, layer["qk_norm"]), *turn).split([self.heads, self.kv_heads], dim=2)
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
        if n > 1:
            hidden = torch.ones(at + n, n, dtype=torch.bool, device=self.device).tril_(-at - 1).repeat(1, groups)
            scores.masked_fill_(hidden, -torch.inf)
        # As flash attention does: exponentials in the compute dtype meet V, their sum in fp32 divides last.
        weights = scores.sub_(scores.amax(1, keepdim=True)).exp_()
        out = self._round(weights).transpose(1, 2).bmm(values.transpose(0, 1)).div_(weights.sum(1)[..., None])
        out = self._round(out)
        out = out.view(rows, self.kv_heads, groups, n, self.head_dim).permute(0, 3, 1, 2, 4)
        return self._linear(out.reshape(rows * n, -1), layer["o"])

    def _linear(self, x: Tensor, weight: tuple[Tensor, Tensor | None]) -> Tensor:
        codes, scale = weight
        if self.precision.activations is None:
            y = x @ codes
            return self._round(y if scale is None else y * scale)
        if self.precision.activations == "fp8_token":
            x, x_scale = casts.quantize_fp8(x, -1)
            y = x @ codes
        else:
            x, x_scale = casts.quantize_int8(x, -1)
            exact = torch.float32 if x.shape[-1] <= INT8_EXACT_WIDTH else torch.float64
            y = (x.to(exact) @ codes.to(exact)).float()
        return self._round(y.mul_(x_scale * scale))

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

    def _rotary(self, positions: int) -> tuple[Tensor, Tensor]:
        theta = self.config.rope_parameters["rope_theta"]
        inverse = theta ** -(torch.arange(0, self.head_dim, 2, device=self.device, dtype=torch.float32) / self.head_dim)
        angles = torch.arange(positions, device=self.device, dtype=torch.float32)[:, None, None] * inverse
        cos, sin = self._round(angles.cos()), self._round(angles.sin())
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def _allocate(self, rows: int, length: int) -> Cache:
        shape = (length, rows, self.kv_heads, self.head_dim)
        return [(torch.empty(shape, device=self.device), torch.empty(shape, device=self.device)) for _ in self.layers]

    def _round(self, x: Tensor) -> Tensor:
        return casts.round_to(x, self.compute)
