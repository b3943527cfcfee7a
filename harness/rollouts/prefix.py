"""KV that is kept over a sync of the weights: the prefix cache of the embedded engine, with the rules of real engines.

Let v(j) be the version of the weights that computed the keys and values (KV) of token j. A token drawn at version v attends to

    k_j, v_j = f_{v(j)}(x_{≤ j}),  where f at token j reads the stored keys and values of the tokens before it

recompute: v(j) = v. Each sync empties the cache, and a response that goes on is computed anew (AReaL, arXiv 2505.24298).
salt: v(j) is the version at which the response reached token j. A running response keeps its KV, and a new one reads only KV of
its own version: vLLM's `cache_salt`, the default of prime-rl (#2266) and torchtitan (#4761).
keep: responses are treated as under salt. For all tokens of a prompt but the last, v(j) is the version that first computed the
prompt, however old. Engines whose prefix cache is not reset do this (NeMo-RL #4018, lmdeploy #4917).

Under all three rules the recorded log μ is that of the distribution that drew the token, so E_μ[π/μ] = 1.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from harness.tasks import PAD

KvAtSync = Literal["recompute", "salt", "keep"]
"""Rule for KV at a weight sync. recompute: drop it. salt: keep that of unfinished responses. keep: also that of prompts."""
PROMPTS = 4096
"""Maximum number of prompts whose KV is cached. The one read least recently is dropped first, as in vLLM and SGLang."""


Cache = list[tuple[Tensor, Tensor]]
"""KV cache: for each layer (keys, values), both [B, H, L, D]: rows, heads, tokens, width of a head. The tokens of a head are
adjacent in memory. With many rows between them, the products of a long context would take up to eight times as long."""


class History(NamedTuple):
    """Tokens [N, L] of prompts and responses, with PAD on the left, and the weight version that drew each; −1 in prompts."""

    tokens: Tensor
    version: Tensor

    @classmethod
    def of(cls, prompts: Tensor, tokens: Tensor | None = None, version: Tensor | None = None) -> History:
        """History of prompts [N, P] and, if given, of their responses so far: tokens and the versions that drew them, [N, t]."""
        own = torch.full_like(prompts, -1)
        if tokens is None or version is None:
            return cls(prompts, own)
        return cls(torch.cat([prompts, tokens], 1), torch.cat([own, version], 1))

    def rows(self, rows: Any) -> History:
        """Tokens and weight versions of the rows `rows`, which may be any index of a tensor [N, L]."""
        return History(self.tokens[rows], self.version[rows])

    def followed(self, tokens: Tensor, version: int) -> History:
        """This history (tokens and weight versions) with `tokens` [N, n], drawn by weights `version`, appended to its rows."""
        return History(*(torch.cat(two, 1) for two in zip(self, (tokens, torch.full_like(tokens, version)), strict=True)))

    @property
    def padding(self) -> list[int]:
        """Number of padding tokens at the beginning of each row."""
        return (self.tokens == PAD).sum(1).tolist()

    def names(self) -> list[bytes]:
        """Cache key of each row. Rows with the same tokens, sampled by the same weight versions, share a key despite padding."""
        both = torch.stack([self.tokens, self.version], 2).cpu()
        return [row[row[:, 0] != PAD].numpy().tobytes() for row in both]


class PrefixCache:
    """Cached KV of prompts and of unfinished responses, for a rule that keeps KV over a sync of the weights.

    An entry is [layers, 2, H, L, D]: keys and values of the first L tokens of a row (a prompt, maybe with a response so far), all
    but its last. Life cycle: `sync` at each load of weights; in between `find` before rows are computed, and `hold` for rows
    that may go on. Ranks share no entry.
    """

    def __init__(self, rule: KvAtSync):
        self.keeps_prompts = rule == "keep"
        self.prompts: dict[bytes, Tensor] = {}
        self.running: dict[bytes, Tensor] = {}
        self.before: dict[bytes, Tensor] = {}

    def sync(self) -> None:
        """Note that new weights were loaded: drop the cached KV of responses that were not continued since the previous load."""
        self.before, self.running = self.running, {}

    def find(self, rows: History) -> list[Tensor | None]:
        """Cached KV of each row (all tokens but the last), a list; None for a row that must be computed."""
        return [self._one(key) for key in rows.names()]

    def splits(self, history: History | None) -> bool:
        """Whether the last token of each row must be computed separately, because the KV of those before it may be cached.

        history: tokens and weight versions of prompts with their responses so far, or None for prompts alone.
        """
        return self.keeps_prompts or (history is not None and bool((history.version >= 0).any()))

    def _one(self, key: bytes) -> Tensor | None:
        for running in (self.running, self.before):
            if key in running:
                return running[key]
        if key in self.prompts:
            self.prompts[key] = self.prompts.pop(key)  # now the one read last
        return self.prompts.get(key)

    def hold(self, rows: History, cache: Cache, node: Tensor) -> None:
        """Cache the KV of unfinished responses `rows`. node: number of the row in `cache` that holds each response, [N]."""
        whole, last = _stacked(cache), rows.tokens.shape[1] - 1
        for key, at, gap in zip(rows.names(), node.tolist(), rows.padding, strict=True):
            self.running[key] = whole[:, :, at, :, gap:last]

    def hold_prompts(self, prompts: History, cache: Cache) -> None:
        """Cache the KV of prompts, if the rule keeps it. cache: keys and values of all tokens of the prompts but the last."""
        if not self.keeps_prompts:
            return
        whole = _stacked(cache)
        for at, (key, gap) in enumerate(zip(prompts.names(), prompts.padding, strict=True)):
            self.prompts[key] = whole[:, :, at, :, gap:].clone()  # a view would keep the whole batch in memory
        for old in list(self.prompts)[:-PROMPTS]:
            del self.prompts[old]

    def state(self) -> dict[str, Tensor]:
        """Tensors by name for a checkpoint: the cached KV of each entry, and its cache key as bytes."""
        entries = [(kind, *entry) for kind in ("prompts", "running") for entry in getattr(self, kind).items()]
        tensors = {}
        for number, (kind, key, kv) in enumerate(entries):
            tensors[f"{kind}.{number}.key"] = torch.frombuffer(bytearray(key), dtype=torch.uint8)
            tensors[f"{kind}.{number}.kv"] = kv.contiguous().clone()  # tensors of a checkpoint share no memory
        return tensors

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the cached entries, in their order, from the tensors of a checkpoint that `state` returned."""
        places = sorted({name.rpartition(".")[0] for name in state}, key=lambda place: int(place.partition(".")[2]))
        for place in places:
            key = state[f"{place}.key"].cpu().numpy().tobytes()
            getattr(self, place.partition(".")[0])[key] = state[f"{place}.kv"]


def put(cache: Cache, rows: Tensor, other: Cache) -> None:
    """Copy keys and values `other`, [n, H, L, D] each, to the first L positions of `cache`, in the n rows of mask `rows`."""
    for mine, theirs in zip(cache, other, strict=True):
        for target, source in zip(mine, theirs, strict=True):
            target[rows, :, : source.shape[2]] = source


def put_row(cache: Cache, row: int, kv: Tensor, last: int) -> None:
    """Copy an entry `kv` of a `PrefixCache` into row number `row` of `cache`, so that it ends just before position `last`."""
    for target, source in zip(cache, kv, strict=True):
        for part, own in zip(target, source, strict=True):
            part[row, :, : last - own.shape[1]] = 0  # padding that nobody reads, but no NaN of fresh memory
            part[row, :, last - own.shape[1] : last] = own


def _stacked(cache: Cache) -> Tensor:
    return torch.stack([torch.stack(layer) for layer in cache])
