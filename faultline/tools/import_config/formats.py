"""Translate the keys that decide which log-probabilities an engine logs: its number formats, and vLLM's `logprobs_mode`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from faultline.tools.import_config.source import Source
from faultline.tools.import_config.translation import Translation

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""vLLM's name of a dtype -> option of rollout/precision."""
QUANTIZATION = {
    "fp8": "fp8_tensor",
    "fp8_per_tensor": "fp8_tensor",
    "fp8_per_channel": "fp8_channel",
    "fp8_per_block": "fp8_block",
}
"""vLLM's quantization -> option of rollout/precision."""
CACHES = {"auto": "compute", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
"""vLLM's kv_cache_dtype -> rollout.kv_cache."""
OURS = {"logprobs_mode": "processed_logprobs", "disable_cascade_attn": False}
"""Arguments of vLLM without a key here -> the value that the engine here has. vLLM 0.32 ignores disable_cascade_attn."""

_PRECISION = "Choose rollout/precision yourself, as rollout/precision=fp8_block"
REMEDIES = {
    "quantization": _PRECISION,
    "dtype": _PRECISION,
    "model_dtype": _PRECISION,
    "kv_cache_dtype": "Choose rollout.kv_cache of compute, fp8_e4m3, fp8_e5m2",
    "logprobs_mode": "The engine here logs processed_logprobs",
    "disable_cascade_attn": "vLLM here keeps its default; vLLM 0.32 and the embedded engine have no cascade attention",
}
"""Last name of a key that changes the logged log-probabilities -> what to do if it is not translated."""
ENGINE = re.compile(rf"(?:^|\.)(?:rollout|generator)\.(?:.+\.)?({'|'.join(REMEDIES)})$")
"""Pattern of a key of verl or SkyRL whose last name is in REMEDIES, also below engine_kwargs and engine_init_kwargs."""


def engine(
    source: Source,
    out: Translation,
    place: str,
    own: Mapping[str, str],
    temperature: str,
    quantization: Mapping[str, str] = QUANTIZATION,
    unset: str = "",
) -> None:
    """Translate vLLM's arguments for number formats and log-probabilities below the key `place`, which ends with a dot.

    own: argument of vLLM -> the program's own key for it, read if the argument is not set. temperature: its key of the sampling
    temperature. quantization: value of vLLM's argument quantization -> option of rollout/precision. unset: why vLLM logs raw
    log-probabilities without a key; "" where it does not.
    """

    def key(argument: str) -> str:
        names = [f"{place}{argument}", *([own[argument]] if argument in own else [])]
        source.take(*names)
        return next(filter(source.has, names), names[0])

    out.choose("rollout/precision", source, key("dtype"), DTYPES)
    compute = out.options.get("rollout/precision", "bf16")
    name = key("quantization")
    out.choose("rollout/precision", source, name, quantization)
    if source.take(name) in quantization and compute != "bf16":
        out.set("rollout.precision.compute", compute)
    if source.take(name) == "fp8" and quantization is QUANTIZATION:
        known = "vLLM's, fp8_tensor here; fp8_block if the checkpoint has a weight_block_size"
        out.notes.append(f"{source.key(name)}=fp8: {known}")
    caches = CACHES | {theirs: "compute" for theirs, ours in DTYPES.items() if ours == compute}
    name = key("kv_cache_dtype")
    cache = source.take(name)
    if cache in caches:
        out.set("rollout.kv_cache", caches[cache])
    elif cache is not None:
        out.lost.append(f"{source.key(name)}={cache}: no such rollout.kv_cache here")
    for argument, ours in OURS.items():
        value = source.take(key(argument), default=ours)
        if value != ours:
            out.lost.append(f"{source.key(key(argument))}={value}: the engine here has {ours}")
    _logged(source, out, temperature, key("logprobs_mode"), unset)


def _logged(source: Source, out: Translation, temperature: str, mode: str, unset: str) -> None:
    """Warn that the other program's own ratios are wrong: at a temperature other than 1 raw log-probabilities are from before it.

    mode: its key of vLLM's `logprobs_mode`. temperature, unset: as in `engine`.
    """
    hot = source.number(temperature, default=1.0)
    if source.has(mode):
        value = str(source.take(mode))
        raw, why = value.startswith("raw"), f"with {source.key(mode)}={value}"
    else:
        raw, why = bool(unset), f"without {mode}: {unset}"
    if raw and hot != 1:
        wrong = "so every ratio of that run is wrong. Set processed_logprobs there, and let nothing cut tokens off"
        out.warnings.append(f"{source.key(temperature)}={hot:g} {why}, {wrong}")


def warn(out: Translation, left: list[str]) -> None:
    """Warn of each key in `out.lost` and `left` that changes the log-probabilities of the engine. left: lines KEY=VALUE."""
    for line in out.lost + left:
        setting = line.partition(": ")[0]
        if match := ENGINE.search(setting.partition("=")[0]):
            changes = "NOT TRANSLATED, and it changes the log-probabilities that the engine logs"
            out.warnings.append(f"{setting}: {changes}. {REMEDIES[match[1]]}")
