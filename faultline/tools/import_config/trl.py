"""Import of TRL's GRPOConfig, up to version 1.16; its keys are flat."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from faultline.tools.import_config import operation
from faultline.tools.import_config.source import Source
from faultline.tools.import_config.translation import PolicyKeys, Translation, unusable

MARKS = ("loss_type", "num_generations", "use_vllm", "scale_rewards", "importance_sampling_level", "off_policy_mask_threshold")
POLICY = PolicyKeys("model_name_or_path", "dataset_name", "max_prompt_length", "max_completion_length")
CORRECTION = re.compile(r"vllm_importance_sampling_|off_policy_mask")
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
REDUCTIONS = {
    "grpo": "seq_mean_token_mean",
    "sapo": "seq_mean_token_mean",
    "luspo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
}
"""TRL's loss_type -> reduction of the loss here. dapo, bnpo, cispo and vespo are not listed; they take the mean over tokens."""
LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
SCALES = {True: "grpo", "group": "grpo", False: "dr_grpo", "none": "dr_grpo", "batch": "grpo_batch_std", "mean": "maxrl"}
RENAMED = {
    "num_generations": "rollout.group_size",
    "temperature": "rollout.temperature",
    "learning_rate": "actor.lr",
    "weight_decay": "actor.weight_decay",
    "max_grad_norm": "actor.max_grad_norm",
    "num_iterations": "actor.epochs",
    "seed": "seed",
    "adam_epsilon": "actor.eps",
}
DEFAULTS = {
    "learning_rate": 1e-6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_completion_length": 512,
    "gradient_checkpointing": True,
}
"""Keys whose default in TRL 1.16 differs from the one here -> TRL's default. max_completion_length was 256 in TRL 0.29."""


GIVE = "TRL: give a YAML file of GRPOConfig's keys, as use_vllm: true"
"""Remedy in errors for a file that has no keys of TRL in a form that is read."""


def read_words(words: list[str]) -> dict[str, Any]:
    """Read key -> value from the words of a command, as TRL's scripts do: --key VALUE, --key=VALUE, --key, or --no_key.

    Options of a launcher, which stand before the Python file or module, are read alike. Hyphens in keys become underscores.
    """
    given: dict[str, list[str]] = {}
    values: list[str] = []  # those of the last key; words behind the program that follow no key are collected and dropped
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values = given[name.replace("-", "_")] = [value] if equals else []
        elif word == "-m" or word.endswith(".py"):
            values = []
        else:
            values.append(word)
    keys: dict[str, Any] = {}
    for name, values in given.items():
        if values:
            keys[name] = _value(values[0]) if len(values) == 1 else [_value(value) for value in values]
        else:
            keys[name.removeprefix("no_")] = not name.startswith("no_")
    return keys


def _value(text: str) -> Any:
    """Read a number, true, false, or a list or dictionary in JSON. Any other text stays as it is."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text


def recognises(keys: Mapping[str, Any]) -> bool:
    """Whether one of these keys is of TRL's GRPOConfig: one of MARKS, or one that begins with vllm_importance_sampling_."""
    return any(key in MARKS or key.startswith("vllm_importance_sampling_") for key in keys)


def shorten(key: str) -> str:
    """Return a TRL key unchanged, because TRL's keys are flat."""
    return key


def translate(source: Source, out: Translation) -> None:
    """Translate a GRPOConfig of TRL: fill `out` from `source`."""
    out.values["proximal"] = "old"
    out.defaults(source, "TRL 1.16", DEFAULTS)
    kind = source.take("loss_type", default="dapo")
    level = source.take("importance_sampling_level", default="token")
    _loss(source, out, kind, level)
    out.options["reduce"] = REDUCTIONS.get(kind, "token_mean")
    if kind == "luspo" and level == "token":
        out.options["reduce"] = "seq_mean_token_sum"  # a sum has the factor of length that loss=luspo has in itself
    if kind == "dr_grpo":
        out.set("reduce.norm", source.number("max_completion_length", default=DEFAULTS["max_completion_length"]))
    if kind == "bnpo":
        out.notes.append("bnpo: TRL divides by the tokens of each micro-batch, this by those of the mini-batch")
    _correction(source, out, kind)
    _kl(source, out)
    out.options["advantage"] = "grpo"
    out.choose("advantage", source, "scale_rewards", SCALES)
    out.rename(source, RENAMED)
    out.sampling(source, "top_p", "top_k")
    _steps(source, out)
    _schedule(source, out)
    _trainer(source, out)
    if source.flag("use_vllm"):
        operation.engine(source, out, "use_vllm", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode")
        if source.take("vllm_mode") == "server":
            out.notes.append(
                "vllm_mode=server: vLLM runs in the trainer's process here, as in TRL's colocate. "
                "No option of `trl vllm-serve` is read: choose rollout/precision yourself"
            )
            if (hot := source.number("temperature", default=1.0)) != 1:
                wrong = "logs before temperature by its default, so every ratio of that run is wrong"
                remedy = "Start it with --logprobs-mode processed_logprobs, and let nothing cut tokens off"
                out.warnings.append(f"temperature={hot:g} with vllm_mode=server: a plain `vllm serve` {wrong}. {remedy}")
    if source.flag("use_adaptive_entropy"):
        out.lost.append("use_adaptive_entropy=True: entropy_coeff is fixed here")
    out.entropy(source.number("entropy_coef"), "entropy_coef", "token_mean")
    if out.ready and source.take("num_machines", default=1) == 1:  # accelerate's options; its processes are of all machines
        out.run_on(source, "num_processes", "num_machines")


def _trainer(source: Source, out: Translation) -> None:
    """Translate the settings of AdamW and of the trainer's memory, and the dtype in which the trainer computes.

    bf16 and fp16 of transformers are mixed precision over weights in fp32. With dtype=bfloat16 the weights are BF16 alone.
    """
    if source.has("adam_beta1", "adam_beta2"):
        out.set("actor.betas", [source.number(key, default=DEFAULTS[key]) for key in ("adam_beta1", "adam_beta2")])
    if source.has("gradient_checkpointing"):
        out.set("actor.gradient_checkpointing", source.flag("gradient_checkpointing"))
    names = ("dtype", "torch_dtype", "model_init_kwargs.dtype")
    weights, fp16 = source.take(*names), source.flag("fp16")
    bf16 = source.flag("bf16", default=not fp16)
    if weights not in (None, "float32", "bfloat16"):
        out.lost.append(f"{source.key(*names)}={weights}: the weights are fp32 here; accepted are float32, bfloat16")
    dtype = "fp16" if fp16 else "bf16" if bf16 or weights == "bfloat16" else "fp32"
    explicit = source.has("bf16", "fp16") or weights == "bfloat16"
    given = [f"{key}={source.take(key)}" for key in ("bf16", "fp16", *names) if source.has(key)] if explicit else []
    out.compute(dtype, "TRL", ", ".join(given), bf16_weights=weights == "bfloat16")
    if out.ready and not explicit:
        out.notes.append("bf16 is not set: on in TRL 1.16, where transformers has it off")


def _schedule(source: Source, out: Translation) -> None:
    """Translate TRL's learning-rate schedule. The default is linear, as in transformers."""
    keys = ("lr_scheduler_type", "warmup_steps", "warmup_ratio")
    name = source.take("lr_scheduler_type", default="linear")
    warmup, ratio = source.number("warmup_steps", default=0), source.number("warmup_ratio", default=0)
    steps = source.number("max_steps")
    if 0 < warmup < 1:  # a share in transformers 5
        warmup, ratio = 0, warmup
    if ratio and not warmup and (steps is None or steps < 1):
        out.lost.append(f"{source.key('warmup_ratio', 'warmup_steps')}={ratio}: a share of max_steps, which is not set")
        ratio = 0
    if source.has(*keys, "learning_rate"):
        out.schedule(name, "lr_scheduler_type", warmup or math.ceil(ratio * (steps or 0)))


def _steps(source: Source, out: Translation) -> None:
    """Translate TRL's counts of steps to mini-batches per rollout and rollouts per run. The batch size per device cancels out.

    TRL generates once per steps_per_generation · num_iterations passes, and takes an optimizer step per
    gradient_accumulation_steps passes.
    """
    passes, each = source.number("steps_per_generation"), source.number("gradient_accumulation_steps", default=1)
    size, steps = source.number("generation_batch_size"), source.number("max_steps")
    if steps is not None and steps >= 1:
        out.set("steps", math.ceil(steps))  # in rollouts below
    out.epochs(source, "num_train_epochs", "max_steps")
    _prompts(source, out)
    minibatches = None
    if size is not None:
        out.lost.append(
            f"generation_batch_size={size}: actor.num_minibatches is it over the responses of one optimizer step, "
            "which depend on the number of processes"
        )
    elif passes is not None and passes % each:
        out.lost.append(
            f"steps_per_generation={passes}: no multiple of gradient_accumulation_steps={each}, so that an optimizer "
            "step spans two rollouts in TRL"
        )
    else:
        minibatches = 1 if passes is None else passes // each
    if passes is not None or source.has("gradient_accumulation_steps"):
        out.set("actor.num_minibatches", minibatches)
    if steps is None or steps < 1:
        return
    updates = (minibatches or 1) * source.number("num_iterations", default=1)
    out.set("steps", math.ceil(steps / updates))
    if minibatches is None:
        out.notes.append(f"max_steps={steps}: TRL counts optimizer steps, steps are rollouts; divide it by actor.num_minibatches")
    elif updates > 1:
        out.notes.append(f"max_steps={steps}: TRL counts optimizer steps, of which a rollout has {updates}; steps are rollouts")


def _prompts(source: Source, out: Translation) -> None:
    """Set rollout.prompts to the prompts of a rollout, or warn if they depend on the number of TRL's processes."""
    size, samples = source.number("generation_batch_size"), source.number("num_generations", default=8)
    if size is not None:
        out.set("rollout.prompts", math.ceil(size / samples))
        return
    names = ("per_device_train_batch_size", "steps_per_generation", "gradient_accumulation_steps", "num_generations")
    given = [f"{name}={source.number(name):g}" for name in names if source.has(name)]
    if not any(map(source.has, names[:3])):
        return
    passes = source.number("steps_per_generation", "gradient_accumulation_steps", default=1)
    prompts = source.number("per_device_train_batch_size", default=8) * passes / samples
    out.warnings.append(
        f"{', '.join(given)}: a process of TRL samples {prompts:g} prompts a rollout. "
        f"PROMPTS STAY THOSE OF THE DEFAULTS: set rollout.prompts = {prompts:g} · number of processes"
    )


def _loss(source: Source, out: Translation, kind: str, level: str) -> None:
    low, high, delta = source.number("epsilon", default=0.2), source.number("epsilon_high"), source.number("delta")
    upper = low if high is None else high
    clip = {"eps_low": low, "eps_high": upper}
    if level not in ("token", "sequence"):
        unusable(f"importance_sampling_level={level}", "accepted are token, sequence")
    if kind in ("cispo", "sapo") and level == "sequence":
        unusable(f"loss_type={kind} with importance_sampling_level=sequence", f"no loss here is {kind} of a response's ratio")
    elif kind == "cispo" and upper < 1:
        out.loss("pg")
        unset = "epsilon_high is not set, so " if high is None else ""
        out.notes.append(f"cispo: {unset}TRL caps every ratio at {upper}, absolute: REINFORCE times {upper} where r exceeds it")
        out.lost.append(f"that factor {upper}: loss=cispo takes an upper of 1 or more")
    elif kind == "cispo":
        out.loss("cispo", lower=0.0, upper=upper)
    elif kind == "sapo":
        out.loss(
            "sapo",
            tau_pos=source.number("sapo_temperature_pos", default=1.0),
            tau_neg=source.number("sapo_temperature_neg", default=1.05),
        )
    elif kind == "vespo":
        shape = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
        out.loss("vespo", **{key: source.number(f"vespo_{key}", default=default) for key, default in shape.items()})
        if source.flag("use_vllm"):
            out.notes.append("vespo: TRL multiplies the mismatch ratio into w, this multiplies the loss")
    elif kind in LOSSES and level == "sequence":
        out.loss("luspo" if kind == "luspo" else "gspo", **clip)
    elif kind in LOSSES:
        out.loss("ppo", **clip, dual_clip=delta)
        delta = None
    else:
        out.lost.append(f"loss_type={kind}: no such loss here")
    if delta is not None:
        out.lost.append(f"delta={delta}: caps the ratio in TRL, which loss {out.options.get('loss')} has no parameter for")


def _correction(source: Source, out: Translation, kind: str) -> None:
    on = source.flag("vllm_importance_sampling_correction", default=True)
    mode = source.take("vllm_importance_sampling_mode", default="sequence_mask")
    upper = source.number("vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap", default=3.0)
    lower = source.number("vllm_importance_sampling_clip_min")
    delta = source.number("off_policy_mask_threshold")
    if not source.flag("use_vllm"):
        out.notes.append("use_vllm is not true, so TRL applies no correction, whatever its keys say")
        return
    if on and kind == "vespo" and mode in MODES[2:]:
        accepted = "TRL refuses it with loss_type=vespo; it takes token_truncate, token_mask"
        unusable(f"vllm_importance_sampling_mode={mode}", accepted)
    if on and mode in MODES:
        level, action = mode.split("_")
        action = "clip" if action == "truncate" and lower is not None else action
        out.weigh(f"vllm_importance_sampling_mode={mode}", level, action, lower, upper)
        if not source.has("vllm_importance_sampling_mode"):
            out.notes.append("vllm_importance_sampling_mode is not set: sequence_mask is TRL's default")
        if level == "token" and out.options.get("loss") in ("gspo", "luspo"):
            out.notes.append(
                "importance_sampling_level=sequence: in TRL a token's weight spreads over its response, here it does not"
            )
    elif on:
        unusable(f"vllm_importance_sampling_mode={mode}", f"accepted are {', '.join(MODES)}")
    if delta is not None:
        key = f"off_policy_mask_threshold={delta}"
        out.filter(key, "off_policy", "geometric", "ratio", math.exp(-delta), None, "negative_advantage")
        out.ratio = "old" if out.weight.level else "current"
        if out.weight.level:
            out.notes.append(f"{key}: TRL compares μ with π_θ, this with π_old as the weight does; equal on the first mini-batch")


def _kl(source: Source, out: Translation) -> None:
    """Translate TRL's KL term: beta, and use_bias_correction_kl, which is on by default since 1.16."""
    beta, unbiased = source.number("beta", default=0.0), source.flag("use_bias_correction_kl", default=True)
    out.kl("k3_unbiased" if unbiased else "k3", beta, f"beta={beta}")
    if beta and unbiased:
        if not source.has("use_bias_correction_kl"):
            out.notes.append("use_bias_correction_kl is not set: on in TRL 1.16, off before; kl=k3 is the latter")
        if source.take("importance_sampling_level") == "sequence":
            out.notes.append("kl: TRL multiplies each token's k3 by the ratio of its response, this by the token's own")
    if beta and out.reject:
        out.notes.append("kl: TRL's KL term counts masked tokens too; here they are left out")
