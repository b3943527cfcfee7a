"""Rollout engine `vllm`: one vLLM engine in this process. `make vllm` installs vLLM; see docs/vllm.md.

Prompts go in as token ids, one request per response with its own seed. So a response depends on its prompt, its uniform
numbers and the weights, and not on the other responses. The log-probabilities are of the distribution that was sampled from
(`processed_logprobs`), by the forward pass that sampled. The engine starts with dummy weights; each load goes through vLLM's
own reload path.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
from annotated_types import Interval
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from algos.parameters import Count
from harness.config import PrecisionConfig
from harness.errors import UserError, first_line
from harness.models import DTYPES
from harness.precisions import PRECISIONS, vllm_option
from harness.rollouts import UNTRUNCATED, ReportedRoutes, Rollout, RolloutEngine, Sampling, casts
from harness.rollouts.architecture import expert_count
from harness.rollouts.check_weights import QUANTISED, tolerance
from harness.rollouts.lists import padded
from harness.rollouts.vllm_outputs import LARGEST_TOP_K, TIES, expert_ids, support
from harness.rollouts.vllm_support import (
    can_report_routes,
    can_sleep,
    forget_reloading,
    head_sizes,
    kv_cache_refusal,
    package,
    remove_stale_segments,
    slow_formats,
    weight_formats,
)
from harness.tasks import PAD

INT8_CHECKPOINT = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "linear": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
        }
    },
}

MAX_SEQUENCES = 512
"""Maximum number of responses that vLLM decodes side by side; the rest wait."""
PREFILL_TOKENS = 16384
"""Maximum number of prompt tokens in a forward pass; the context if that is longer, so that no prefill is cut into chunks.
On a CPU, chunks would lose the seed (vLLM 0.32)."""


class VllmEngine(RolloutEngine):
    """Samples responses with vLLM. Tensors may be on a GPU; responses are on the device of the prompts.

    Sampling masks (`Sampling.record_support`) are made from the log-probabilities of the most probable tokens. vLLM 0.32
    itself returns them (`return_sampling_mask`) only from its model runner for GPUs.

    kv_cache_gib: memory of the KV cache in GiB.
    context: maximum number of prompt and response tokens; None for the model's limit.
    tensor_parallel: number of neighbouring ranks that hold one engine together; each rank gets the responses to its own prompts.
    sleep: between rollouts the weights wait in host memory and the KV cache is freed, for an actor on the same GPU.
    eager: no torch.compile and no CUDA graphs: the engine starts sooner and samples more slowly. On a CPU it is always so.
    sync_tolerance: tolerated mean |log μ − log π| of engine and actor after loading weights, in nats; None for the
    precision's own.
    """

    def __init__(
        self,
        shape: PretrainedConfig,
        precision: PrecisionConfig,
        sampling: Sampling = UNTRUNCATED,
        *,
        kv_cache_gib: Annotated[float, Interval(ge=1e-3, le=1e6)] = 1.0,
        context: Count | None = None,
        tensor_parallel: Annotated[int, Interval(ge=1, le=2**16)] = 1,
        sleep: bool = False,
        eager: bool = False,
        sync_tolerance: Annotated[float, Interval(gt=0, le=1e3)] | None = None,
    ):
        # top_p and top_k cut probability away that the actor's distribution still has, in any precision.
        usual = QUANTISED if sampling.truncated else tolerance(precision, sampling.kv_cache)
        self.tolerance = sync_tolerance or usual
        self.precision, self.sampling = precision, sampling
        self.ranked = min(sampling.top_k + TIES, shape.vocab_size) if sampling.record_support else 0
        self.context = min(context or shape.max_position_embeddings, shape.max_position_embeddings)
        named = vllm_option(precision.weights, precision.activations)
        self.quantization = PRECISIONS[named].vllm if named in PRECISIONS else None
        self.compute = DTYPES[precision.compute]
        self.version: int | None = None
        self.shape, self.tied = shape, shape.tie_word_embeddings
        self.routed = bool(expert_count(shape)) and can_report_routes()
        self.tensor_parallel = tensor_parallel
        _check_ranks(tensor_parallel)
        self.expected = _parameters(shape)
        package()
        if sleep and not can_sleep():
            raise UserError("rollout.engine.sleep=true: vLLM lends memory on a GPU only; set it to false")
        self.sleeps, self.asleep = sleep, False
        self.eager = eager or not torch.cuda.is_available()
        if self.quantization == "int8":
            _keep_scales_alive()
        with _explained(f"cannot start with a {shape.model_type} model"), tempfile.TemporaryDirectory() as folder:
            _write_config(Path(folder), shape, self.quantization)
            self.llm = package().LLM(model=folder, **self._options(kv_cache_gib))
        # Without this, garbage collection of the engine would destroy the process group that the actor uses.
        if finalizer := getattr(self.llm.llm_engine.engine_core, "_finalizer", None):  # vLLM 0.26 has none
            finalizer.detach()

    def _options(self, kv_cache_gib: float) -> dict[str, Any]:
        """Arguments with which the vLLM engine of this process is started."""
        options = {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": self.compute,
            "quantization": None if self.quantization == "int8" else self.quantization,
            "kv_cache_dtype": "auto" if self.sampling.kv_cache == "compute" else self.sampling.kv_cache,
            "kv_cache_memory_bytes": int(kv_cache_gib * 2**30),
            "max_model_len": self.context,
            "max_num_seqs": MAX_SEQUENCES,
            "max_num_batched_tokens": max(PREFILL_TOKENS, self.context),
            "enable_chunked_prefill": False,
            "max_logprobs": max(self.ranked, 1),
            "logprobs_mode": "processed_logprobs",
            "enforce_eager": self.eager,
            "tensor_parallel_size": self.tensor_parallel,
            "enable_sleep_mode": self.sleeps,
            # With ranks around, vLLM must take their process group instead of making one.
            "distributed_executor_backend": "external_launcher" if _ranks() > 1 else None,
            "seed": 0,  # seed of the dummy weights only: each request brings its own
        }
        return options | _memory(kv_cache_gib) | ({"enable_return_routed_experts": True} if self.routed else {})

    @classmethod
    def check(cls, shape: PretrainedConfig, precision: PrecisionConfig, kv_cache: str, **params: Any) -> None:
        package()
        head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        if (sizes := head_sizes()) and head_dim not in sizes:
            raise UserError(f"model.head_dim={head_dim}: vLLM's attention on a CPU takes {', '.join(map(str, sizes))}")
        refusals = weight_formats()
        formats = vllm_option(precision.weights, precision.activations) or precision.name
        if refusal := refusals.get(formats, "vLLM has no such combination of formats"):
            able = ", ".join(name for name, refused in refusals.items() if not refused)
            raise UserError(f"rollout.precision={precision.name}: vLLM cannot compute in it here ({refusal}); it can in {able}")
        if expert_count(shape) and precision.weights and (precision.weights == "int8_channel" or not torch.cuda.is_available()):
            raise UserError(
                f"rollout.precision={precision.name}: vLLM's experts are not quantised so here; use fp32, bf16 or fp16, or "
                "rollout/engine=local"
            )
        if kv_cache != "compute" and (reason := kv_cache_refusal(kv_cache, head_dim)):
            raise UserError(f"rollout.kv_cache={kv_cache}: vLLM cannot store that here ({reason}); use rollout.kv_cache=compute")
        if slow := slow_formats().get(formats):
            warnings.warn(f"rollout.precision={precision.name}: {slow}", stacklevel=2)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.version = None
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False
        if expert_count(self.shape) and not torch.cuda.is_available():
            self.llm.apply_model(_forget_packed_experts)
        # vLLM reads torch's default dtype while it loads, and sets it only at its own start.
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.compute)
        try:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._complete(weights)})
        finally:
            torch.set_default_dtype(before)
        if self.tied:
            self.llm.apply_model(_pack_tied_heads)
        if not self.llm.reset_prefix_cache():  # else cached keys and values of the old weights would be used
            raise RuntimeError("vLLM did not reset its prefix cache: requests are still under way")
        self.version = version

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        length, version = uniforms.shape[1], self._loaded_version()
        samples = self._ask(prompts, length, uniforms)
        logp = [[chosen[token].logprob for chosen, token in zip(s.logprobs, s.token_ids, strict=True)] for s in samples]
        return Rollout(
            padded([list(sample.token_ids) for sample in samples], length, PAD, torch.int64).to(prompts.device),
            padded(logp, length, 0.0, torch.float32).to(prompts.device),
            torch.full((len(samples), length), version, device=prompts.device),
            expert_ids(samples, prompts, length, self.shape) if self.routed else None,
            support=support(samples, length, self.shape.vocab_size, self.ranked).to(prompts.device) if self.ranked else None,
        )

    @classmethod
    def support_refusal(cls, top_k: int) -> str | None:
        if 0 < top_k <= LARGEST_TOP_K:
            return None
        return f"it lists the tokens that it left one by one; set rollout.top_k to 1 to {LARGEST_TOP_K}, use rollout/engine=local"

    @classmethod
    def reports_routes(cls) -> ReportedRoutes:
        return "experts" if can_report_routes() else "nothing"

    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        samples = self._ask(prompts, length, None)
        return padded([list(sample.token_ids) for sample in samples], length, PAD, torch.int64).to(prompts.device)

    def score(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of `tokens` in nats, by a prefill of prompt and response. vLLM gives them at temperature 1 only."""
        self._loaded_version()
        length = tokens.shape[1]
        if prompts.shape[1] + length + 1 > self.context:  # vLLM samples one token more
            raise UserError(
                f"rollout.engine.context={self.context}: scoring needs {prompts.shape[1] + length + 1} tokens; raise it"
            )
        sampling = package().SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
        answers = self._answers(torch.cat([prompts, tokens], 1), sampling)
        rows = []
        for answer, written in zip(answers, (tokens != PAD).sum(1).tolist(), strict=True):
            places = list(zip(answer.prompt_token_ids, answer.prompt_logprobs, strict=True))[-written:] if written else []
            rows.append([chosen[token].logprob for token, chosen in places])
        return padded(rows, length, 0.0, torch.float32).to(prompts.device)

    def _ask(self, prompts: Tensor, length: int, uniforms: Tensor | None) -> list[Any]:
        """Return vLLM's responses of up to `length` tokens to prompts [B, P]: sampled by `uniforms`, or greedy without them."""
        self._loaded_version()
        if prompts.shape[1] + length > self.context:
            raise UserError(
                f"rollout.engine.context={self.context}: {prompts.shape[1]} prompt tokens and {length} of a response do not fit"
            )
        make = functools.partial(
            package().SamplingParams, max_tokens=length, logprobs=self.ranked, ignore_eos=True, detokenize=False
        )
        own, stop = self.sampling, list(self.sampling.stop)
        if uniforms is None:
            sampling = make(temperature=0.0, stop_token_ids=stop)
        else:
            make = functools.partial(make, temperature=own.temperature, top_p=own.top_p, top_k=own.top_k, stop_token_ids=stop)
            sampling = [make(seed=seed) for seed in _seeds(self._of_group(uniforms))]
        return [answer.outputs[0] for answer in self._answers(prompts, sampling)]

    def _answers(self, rows: Tensor, sampling: Any) -> list[Any]:
        """Return vLLM's answers to this rank's token rows [B, L], sent without PAD. sampling: one setting, or one per row."""
        requests = [{"prompt_token_ids": row[row != PAD].tolist()} for row in self._of_group(rows)]
        with _explained("generation failed"):
            answers = self.llm.generate(requests, sampling, use_tqdm=False)
        own = len(rows)
        first = dist.get_rank() % self.tensor_parallel * own if self.tensor_parallel > 1 else 0
        return answers[first : first + own]

    def _loaded_version(self) -> int:
        if self.version is None:
            raise RuntimeError("the engine holds no whole weights; load_weights comes first")
        return self.version

    def _of_group(self, rows: Tensor) -> Tensor:
        """Gather the rows (such as prompts) of all ranks that hold this engine together: each of them must request all rows."""
        if self.tensor_parallel == 1:
            return rows
        from vllm.distributed import get_tp_group

        parts = [torch.empty_like(rows, device="cpu") for _ in range(self.tensor_parallel)]
        dist.all_gather(parts, rows.cpu().contiguous(), group=get_tp_group().cpu_group)
        return torch.cat(parts)

    def sleep(self) -> None:
        if self.sleeps and not self.asleep:
            self.llm.sleep(level=1)
            self.version, self.asleep = None, True

    def close(self) -> None:
        if self.llm is not None:
            self.llm.apply_model(forget_reloading)
        self.version = self.llm = None
        gc.unfreeze()  # vLLM has frozen what it made at its start
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _complete(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the weights for vLLM's loader, in int8 if asked. Raises ValueError on unknown or missing ones."""
        missing = dict(self.expected)
        for name, weight in weights:
            if missing.pop(name, None) != weight.shape:
                raise ValueError(f"weight {name} {list(weight.shape)} given to vLLM: twice, unknown or of another shape")
            weight = weight.detach()
            if self.quantization == "int8" and name.endswith("_proj.weight"):
                codes, scale = casts.quantize_int8(casts.round_to(weight.float(), self.compute), -1)
                yield name, codes.to(torch.int8)
                yield f"{name}_scale", scale
            else:
                yield name, weight
        if missing:
            raise ValueError(f"weights that vLLM was not given: {', '.join(missing)}")


def _memory(kv_cache_gib: float) -> dict[str, float]:
    """Return vLLM's option for its share of GPU memory; {} on a CPU.

    With a KV cache of a given size vLLM only checks at its start that this share is free. Its default, nearly all of the memory,
    would refuse a GPU that an actor or another run uses.
    """
    if not torch.cuda.is_available():
        return {}
    return {"gpu_memory_utilization": min(1.0, kv_cache_gib * 2**30 / torch.cuda.mem_get_info()[1])}


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _check_ranks(tensor_parallel: int) -> None:
    """Raise UserError unless groups of `tensor_parallel` ranks can hold engines. On a CPU, remove killed ranks' shared memory."""
    if tensor_parallel < 1 or _ranks() % tensor_parallel:
        raise UserError(f"rollout.engine.tensor_parallel={tensor_parallel}: must divide the number of ranks, {_ranks()}")
    if tensor_parallel > 1 and not torch.cuda.is_available():
        remove_stale_segments(dist.get_rank())
        dist.barrier()  # before another rank makes its own


def _seeds(uniforms: Tensor) -> list[int]:
    """Derive a 56-bit seed from each row of uniform numbers."""
    rows = uniforms.cpu().numpy()
    return [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=7).digest(), "little") for row in rows]


def _parameters(shape: PretrainedConfig) -> dict[str, torch.Size]:
    """Names and shapes of the weights of a model with this config, as a trainer has them."""
    with torch.device("meta"):
        return {name: weight.shape for name, weight in AutoModelForCausalLM.from_config(shape).named_parameters()}


def _write_config(folder: Path, shape: PretrainedConfig, quantization: str | None) -> None:
    content = shape.to_dict()
    content["architectures"] = [AutoModelForCausalLM._model_mapping[type(shape)].__name__]  # type: ignore[attr-defined]
    if quantization == "int8":
        content["quantization_config"] = INT8_CHECKPOINT
    (folder / "config.json").write_text(json.dumps(content, default=str))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Context manager that turns errors of vLLM, such as out of memory, into UserErrors with vLLM's own message in one line."""
    try:
        yield
    except UserError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise UserError(
            f"rollout.engine=vllm: out of memory ({first_line(error)}); lower rollout.engine.kv_cache_gib or .context"
        ) from error
    except Exception as error:
        raise UserError(f"rollout.engine=vllm: {what}: {first_line(error)}") from error


def _pack_tied_heads(model: torch.nn.Module) -> None:
    """Pack tied output heads again after a reload.

    vLLM 0.32 on a CPU multiplies by a packed copy of the head. A reload does not renew the copy of a tied head, whose weights
    are loaded as the embedding.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():  # in other layers the packed copy is the only one
            layer.quant_method.process_weights_after_loading(layer)


def _forget_packed_experts(model: torch.nn.Module) -> None:
    """Drop kernels with packed weights of experts. With them, vLLM 0.32 on a CPU would keep the old weights after a reload."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


@functools.cache
def _keep_scales_alive() -> None:
    """Keep the scales of int8 products alive: in vLLM 0.32 on a CPU a reload frees them, although kernels point at them."""
    from vllm import _custom_ops

    ops: Any = _custom_ops
    make = ops.create_onednn_scaled_mm

    def keeping(weight: Tensor, scales: Tensor, *rest: Any) -> Any:
        handle = make(weight, scales, *rest)
        handle.scales = scales
        return handle

    ops.create_onednn_scaled_mm = keeping
