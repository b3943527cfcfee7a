"""The memory that a run needs, computed from its config and the sizes of its model without reading or creating weights.

Symbols: Ψ weights of the model, V vocabulary, h width, m width of the feed-forward layer, l layers; q, k widths of all query
and all key heads; N ranks; b bytes of actor.dtype; T tokens of a micro-batch (actor.micro_tokens), L tokens of a prompt with its
response, C logits of a chunk (`CHUNK` in harness/train/model/head.py), R responses that a rank samples. Memory is in bytes.

The partitioning by stage is that of ZeRO (arXiv 1910.02054, section 5), and the buffers are those of DeepSpeed 0.19. The
activations are those that autograd keeps for the layers of transformers. tests/harness/test_memory.py compares these with the
bytes that a small run allocates, and states the tolerance; engines' caches are not compared. Not counted: working memory of a
prefill, memory of vLLM beside weights and cache, CUDA's context, NCCL's buffers, and fragmentation by the allocator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from harness.build import build_task, has_critic, needs_frozen_policy, needs_own_sampler, samples_as_trainer
from harness.config import Config, HubConfig
from harness.config.task import TextConfig
from harness.errors import UserError
from harness.models import policy_config
from harness.precisions import COMPUTE
from harness.tasks import TextTask
from harness.train.model.head import CHUNK
from harness.train.ranks import check_ranks
from harness.zero import GATHERED, LIVE, REDUCED, UPDATED

Moment = Literal["start", "sync", "sampling", "head", "layers", "step"]
MOMENTS: tuple[Moment, ...] = ("start", "sync", "sampling", "head", "layers", "step")
"""Moments of a run at which memory is computed. start: the model is on the GPU. sync: the engine takes its weights. sampling: the
engine samples. head, layers: backward pass of a micro-batch in the head and in a layer. step: the optimizer step."""
HELD: tuple[Moment, ...] = ("sync", "sampling", "head", "layers", "step")
BACKWARD: tuple[Moment, ...] = ("head", "layers")

MODELS = ("llama", "qwen2", "qwen3")
PUBLISHED = Path(__file__).with_name("published.json")


class Part(NamedTuple):
    """One contributor to GPU memory. equation: its bytes in symbols. at: its bytes at each moment of a run; none if absent."""

    name: str
    equation: str
    at: Mapping[Moment, float]


class Memory(NamedTuple):
    """Memory of a run on one rank, in bytes. gpu: parts of GPU memory. host: host memory, by name. disk: size of a checkpoint."""

    gpu: list[Part]
    host: dict[str, float]
    disk: float

    def total(self, moment: Moment) -> float:
        """Total bytes on one GPU at `moment`, such as the optimizer step."""
        return sum(part.at.get(moment, 0) for part in self.gpu)


class Sizes(NamedTuple):
    """Sizes of a model that determine its memory."""

    numbers: int
    """Number of all weights, Ψ."""
    matrices: int
    """Number of weights in the linear layers, the head excluded."""
    vocabulary: int
    width: int
    mlp: int
    layers: int
    heads: int
    queries: int
    """Total width of the query heads: number of heads x width of a head."""
    keys: int
    """Total width of the key heads: number of heads x width of a head."""
    qk_norm: bool
    tied: bool

    @property
    def head(self) -> int:
        """Number of weights in the output head: vocabulary x hidden width, V·h."""
        return self.vocabulary * self.width


class Load(NamedTuple):
    """Amount of work that one rank holds in memory at a time."""

    tokens: int
    """Number of tokens in a micro-batch, T."""
    answers: int
    """Number of response tokens in a micro-batch."""
    row: int
    """Number of tokens in a row, prompt and response together, L."""
    sampled: int
    """Number of responses that a rank samples at a time, R."""


def memory(config: Config, ranks: int, device: str = "cuda") -> Memory:
    """Memory of a run on `ranks` ranks. device: the actor's, "cuda" or "cpu", which decides the size of a chunk of logits.

    Raises UserError on a model whose sizes are not available locally, or for which the equations do not hold.
    """
    check_ranks(config, ranks)
    if has_critic(config):
        raise UserError("advantage=gae: the memory of a critic is not computed; it is a second model as large as the policy")
    shape = shape_of(config)
    sizes, load = sizes_of(shape), _load(config, ranks, shape)
    engines, host = _engines(config, sizes, load)
    parts = [*_states(config, sizes, ranks), *_activations(config, sizes, load), *_head(config, sizes, load, CHUNK[device])]
    a, psi = config.actor, sizes.numbers
    host = {"the model in fp32 while it is loaded, 4·Ψ": 4 * psi} | host
    copies = 8 + 4 * _has_master(config) + COMPUTE[a.dtype].bytes
    return Memory([part for part in parts + engines if any(part.at.values())], host, copies * psi)


def shape_of(config: Config) -> PretrainedConfig:
    """The transformers config of the policy, from local files only. Raises UserError if it is not on this machine."""
    if not isinstance(config.model, HubConfig):
        return policy_config(config.model, build_task(config))
    path = config.model.path
    published = json.loads(PUBLISHED.read_text())["models"]
    for name in (path, f"{path}-Instruct"):  # a base model has the sizes of its tuned one
        if name in published:
            return AutoConfig.for_model(**published[name])
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError):
        raise UserError(
            f"model.path={path}: its sizes are not known here, and nothing is downloaded; give the folder of a model, one of "
            f"{', '.join(published)}, or model=qwen3 with its sizes"
        ) from None


def sizes_of(shape: PretrainedConfig) -> Sizes:
    """The sizes of a model from its transformers config. Raises UserError if the memory equations do not cover the model."""
    kind = shape.model_type
    if kind not in MODELS:
        raise UserError(f"model: the memory of {kind} is not computed; it is of {', '.join(MODELS)}")
    with torch.device("meta"):
        net = AutoModelForCausalLM.from_config(shape)
    width = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return Sizes(
        numbers=sum(weight.numel() for weight in net.parameters()),
        matrices=sum(weight.numel() for name, weight in net.named_parameters() if name.endswith("_proj.weight")),
        vocabulary=shape.vocab_size,
        width=shape.hidden_size,
        mlp=shape.intermediate_size,
        layers=shape.num_hidden_layers,
        heads=shape.num_attention_heads,
        queries=shape.num_attention_heads * width,
        keys=shape.num_key_value_heads * width,
        qk_norm=kind == "qwen3",
        tied=shape.tie_word_embeddings,
    )


def _load(config: Config, ranks: int, shape: PretrainedConfig) -> Load:
    r, a, t = config.rollout, config.actor, config.task
    if isinstance(t, TextConfig):
        answer, row = t.answer_length, t.max_prompt + t.answer_length
    else:
        task = build_task(config)
        answer = task.answer_length
        row = task.train.shape[1] + answer if isinstance(task, TextTask) else shape.max_position_embeddings
    sampled = r.prompts * r.group_size // ranks
    rows = sampled // a.num_minibatches
    if a.micro_tokens is not None:
        rows = min(rows, max(1, a.micro_tokens // row))
    return Load(rows * row, rows * answer, row, sampled)


def _has_master(config: Config) -> bool:
    """Whether the optimizer keeps separate fp32 weights. DeepSpeed keeps them for 16-bit weights, and under ZeRO for fp32 too."""
    return config.actor.dtype != "fp32" or config.actor.zero_stage > 0


def _states(config: Config, s: Sizes, ranks: int) -> list[Part]:
    """Memory of the weights, the gradients and the optimizer of a model with Ψ numbers of b bytes on N ranks.

    ZeRO-1 divides AdamW's moments, 8·Ψ, and the fp32 weights, 4·Ψ, by N. ZeRO-2 also divides the gradients, b·Ψ, and ZeRO-3
    the weights, b·Ψ. An optimizer step makes fp32 gradients, 4·Ψ, and for 16-bit weights a flat copy, b·Ψ. They are divided
    likewise; ZeRO-3 makes them for UPDATED numbers at a time. ZeRO-3 gathers weights for a pass, and keeps LIVE numbers and
    the largest matrix. While an engine takes the weights, ZeRO-3 keeps GATHERED more numbers (see `harness.zero`).
    """
    stage, psi, b = config.actor.zero_stage, s.numbers, COMPUTE[config.actor.dtype].bytes
    share = psi / ranks if stage else psi
    by_n = "/N" if stage else ""
    weights = share if stage == 3 else psi
    gradients = share if stage >= 2 else psi
    held = HELD if stage == 3 else BACKWARD
    flat = b if stage and b < 4 else 0
    fp32 = 4 + flat if stage or b < 4 else 0
    updated = min(share, UPDATED) if stage == 3 else share
    parts = [
        Part("the whole model, before it is divided", "b·Ψ", {"start": b * psi}),
        Part("weights", f"b·Ψ{by_n if stage == 3 else ''}", dict.fromkeys(HELD, b * weights)),
        Part("gradients", f"b·Ψ{by_n if stage >= 2 else ''}", dict.fromkeys(held, b * gradients) | {"step": b * share}),
        Part("AdamW's moments", f"8·Ψ{by_n}", dict.fromkeys(HELD, 8 * share)),
        Part("fp32 weights of AdamW", f"4·Ψ{by_n}", dict.fromkeys(HELD, 4 * share if _has_master(config) else 0)),
        Part("fp32 gradients of a step", f"{fp32}·{'min(Ψ/N, 1e9)' if stage == 3 else f'Ψ{by_n}'}", {"step": fp32 * updated}),
    ]
    if stage:
        parts.append(Part("DeepSpeed's bucket of gradients", "b·5e8", dict.fromkeys(held, b * REDUCED)))
    if stage == 3 and ranks > 1:
        passing, read = (b * min(psi, numbers + s.head) for numbers in (LIVE, LIVE + GATHERED))
        parts.append(Part("gathered weights", "b·(1e9 + V·h) ≤ b·Ψ", dict.fromkeys(BACKWARD, passing) | {"sync": read}))
    return parts


def _activations(config: Config, s: Sizes, load: Load) -> list[Part]:
    """Memory of the activations that the layers keep for the backward pass, and of the gradients of one layer.

    For each token a layer keeps `a` bytes, the sum of the lines below. Symbols: b bytes of actor.dtype, h width, m width of the
    feed-forward layer, q and k widths of all query and all key heads, L tokens of a prompt with its response.

        tensor                                                                bytes
        input (fp32), normalised and scaled input of each of two RMS norms    2·(4 + 2b)·h
        input and normalised input of norms of queries and keys, if any       (4 + b)·(q + k)
        queries; keys and values, as many as queries; the output              4·b·q
        sums of the softmax                                                   4·heads
        row of the mask                                                       b·L
        gate, its SiLU, the other factor and the product of SwiGLU            4·b·m

    The final norm keeps (4 + 2b)·h. Recomputation keeps b·h for each token and layer, and the activations of one layer at a
    time. The backward pass holds gradients of three tensors of SwiGLU, 3·b·m, and one of the residual stream in fp32, 4·h.
    """
    b, tokens = COMPUTE[config.actor.dtype].bytes, load.tokens
    norm = (4 + 2 * b) * s.width
    layer = 2 * norm + 4 * b * s.queries + 4 * s.heads + b * load.row + 4 * b * s.mlp
    if s.qk_norm:
        layer += (4 + b) * (s.queries + s.keys)
    backward = (3 * b * s.mlp + 4 * s.width) * tokens
    if config.actor.gradient_checkpointing:
        inputs = s.layers * b * s.width * tokens
        return [
            Part("inputs of the layers, kept", "l·b·h·T", dict.fromkeys(BACKWARD, inputs)),
            Part("one layer, recomputed, and its gradients", "(a + 3·b·m + 4·h)·T", {"layers": layer * tokens + backward}),
        ]
    kept = (s.layers * layer + norm) * tokens
    return [
        Part("activations of the layers, kept", "(l·a + (4 + 2b)·h)·T", dict.fromkeys(BACKWARD, kept)),
        Part("gradients in one layer", "(3·b·m + 4·h)·T", {"layers": backward}),
    ]


def _head(config: Config, s: Sizes, load: Load, chunk: int) -> list[Part]:
    """Memory of the logits, and of the gradient of the head's weight: V·h numbers for vocabulary V and hidden width h.

    If all logits fit into one chunk of `chunk` logits, log π and π are kept, 8 bytes for each logit. Their backward pass takes
    as much again.
    Otherwise one chunk exists at a time. It holds each logit in b bytes (actor.dtype) and in fp32, and log π: 8 + b bytes, or 8
    if b is 4. If the loss has an entropy term, the chunk holds log π, π and their product: 12 bytes for each logit. The
    gradients of the chunks add up in fp32, 4·V·h, and are then converted to b bytes, b·V·h.
    """
    b, numbers = COMPUTE[config.actor.dtype].bytes, load.answers * s.vocabulary
    copy = b if b < 4 else 0
    if max(1, chunk // s.vocabulary) >= load.answers:
        gradient = b * s.head
        logits = Part("logits, one chunk", "16·C", {"head": 16 * numbers})
    else:
        each = 12 if config.entropy_coeff else 8 + copy
        gradient = (4 + copy) * s.head
        size = max(1, chunk // s.vocabulary) * s.vocabulary
        logits = Part("a chunk of logits", f"{each}·C", {"head": each * size})
    return [logits, Part("gradient of the head", f"{gradient // s.head}·V·h", {"head": gradient})]


def _engines(config: Config, s: Sizes, load: Load) -> tuple[list[Part], dict[str, float]]:
    """Memory of the rollout engines: their parts on a GPU, and their bytes in host memory.

    The embedded engine holds the model's Ψ numbers in fp32, 4·Ψ, and a head tied to the embedding a second time, 4·V·h. While it
    loads, it also holds a copy of the actor's weights and the previous version: twice as much again. Its cache
    has 4-byte keys and values of every token, doubled while the samples of a prompt branch. vLLM holds the layers'
    matrices in one byte a number if it quantises them, and everything else in the compute dtype. Both are divided by
    tensor_parallel. vLLM's cache has the size that the config gives. The reference of a KL term is an embedded engine under
    actor.scoring=exact, else a frozen model of b·Ψ bytes, which no rank divides.
    """
    r, params = config.rollout, config.rollout.engine.params
    local = 4 * (s.numbers + (s.head if s.tied else 0))
    engines, parts, host = 0, [], {}
    if r.engine.name == "local":
        engines = 1 + (needs_own_sampler(config) and not samples_as_trainer(config))
    elif r.engine.name == "vllm":
        engines = int(needs_own_sampler(config))
        compute, parallel = COMPUTE[r.precision.compute].bytes, params.get("tensor_parallel", 1)
        quantised = 1 if r.precision.weights else compute
        weights = (quantised * s.matrices + compute * (s.numbers - s.matrices)) / parallel
        cache = params.get("kv_cache_gib", 1.0) * 2**30
        held: tuple[Moment, ...] = ("sync", "sampling") if params.get("sleep") else HELD
        equation = f"{quantised}·Ψ" + (f"/{parallel}" if parallel > 1 else "")
        parts += [
            Part("vLLM's weights", equation, dict.fromkeys(held, weights)),
            Part("vLLM's cache", "kv_cache_gib·2^30", dict.fromkeys(held, cache)),
        ]
        if params.get("sleep"):
            host["the engine's weights while it sleeps"] = weights
    else:
        raise UserError(f"rollout.engine.name={r.engine.name}: its memory is not known; local and vllm are")
    frozen = needs_frozen_policy(config)
    if frozen:
        b = COMPUTE[config.actor.dtype].bytes
        parts.append(Part("frozen weights of the KL term", "b·Ψ", dict.fromkeys(MOMENTS, b * s.numbers)))
    kept = config.kl.name is not None and not frozen
    engines += kept
    of_kl = ", one of the KL term" * kept
    if engines:
        cache = 2 * 2 * 4 * s.layers * load.row * load.sampled * s.keys
        parts += [
            Part(f"embedded engines{of_kl}", "4·Ψ each", dict.fromkeys(HELD, engines * local)),
            Part("copies while one loads", "8·Ψ", {"sync": 2 * local}),
            Part("cache of the embedded engine", "16·l·L·R·k", {"sampling": cache}),
            Part("probabilities of the embedded engine", "32·R·V", {"sampling": 32 * load.sampled * s.vocabulary}),
        ]
    return parts, host
