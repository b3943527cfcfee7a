"""Translate the keys of verl and SkyRL that operate a run (checkpoints, engine, logging) or divide its batch into passes."""

from __future__ import annotations

from collections.abc import Mapping

from faultline.tools.import_config import formats
from faultline.tools.import_config.source import Source
from faultline.tools.import_config.translation import Translation

VERL = {
    "trainer.test_freq": "evaluation.every",
    "trainer.save_freq": "checkpoint.every",
    "trainer.max_actor_ckpt_to_keep": "checkpoint.keep",
    "rollout.val_kwargs.n": "evaluation.samples",
}
SKYRL = {
    "trainer.eval_interval": "evaluation.every",
    "trainer.ckpt_interval": "checkpoint.every",
    "trainer.max_ckpts_to_keep": "checkpoint.keep",
    "generator.eval_n_samples_per_prompt": "evaluation.samples",
}
SKYRL_ENGINE = "generator.inference_engine."
SKYRL_INIT = f"{SKYRL_ENGINE}engine_init_kwargs."
"""Beginning of SkyRL's keys for arguments of vLLM."""
BETAS = {"verl": "actor.optim.betas", "SkyRL": "trainer.policy.optimizer_config.adam_betas"}
CHECKPOINTING = {"verl": "model.enable_gradient_checkpointing", "SkyRL": "trainer.gradient_checkpointing"}
LORA = {"verl": "model.lora_", "SkyRL": "trainer.policy.model.lora."}
"""Program -> beginning of its keys for the rank and the alpha of low-rank adapters. Without the key its alpha is 16."""
DTYPES = formats.DTYPES | {name: name for name in formats.DTYPES.values()}
"""Name of a dtype in verl or SkyRL -> its name here."""
VERL_DEFAULTS = {
    "actor.optim.lr": 1e-6,
    "actor.optim.weight_decay": 0.01,
    "actor.optim.betas": [0.9, 0.999],
    "actor.optim.override_optimizer_config.eps": 1e-8,
    "actor.fsdp_config.dtype": "bfloat16",
    "model.enable_gradient_checkpointing": True,
}
"""Keys of verl 0.9.1's trainer whose default differs from the one here -> verl's default. eps is that of torch's AdamW."""
SKYRL_DEFAULTS = {
    "trainer.policy.optimizer_config.lr": 1e-6,
    "trainer.policy.optimizer_config.weight_decay": 0.01,
    "trainer.policy.optimizer_config.adam_betas": [0.9, 0.999],
    "trainer.policy.fsdp_config.mixed_precision.param_dtype": "bf16",
    "trainer.gradient_checkpointing": True,
}
"""Keys of SkyRL 0.3.0's trainer whose default differs from the one here -> SkyRL's default."""
REPLAYS = {"disabled": None, "R2": "r2", "R3": "r3"}
VLLM = {"vllm": "vllm", True: "vllm"}
"""Value of another program's key for the engine -> option of rollout/engine. TRL's key is use_vllm, which is true or false."""
ROUTER = tuple(f"actor.{place}router_replay.mode" for place in ("", "megatron.", "veomni."))


def of_skyrl(source: Source, out: Translation) -> None:
    """Translate SkyRL's keys of rollout engine and precision, evaluation, checkpoints, W&B, AdamW and the trainer's dtype."""
    own, temperature = {"dtype": f"{SKYRL_ENGINE}model_dtype"}, "generator.sampling_params.temperature"
    formats.engine(source, out, SKYRL_INIT, own, temperature, unset="SkyRL leaves vLLM's raw_logprobs")
    engine(source, out, f"{SKYRL_ENGINE}backend", f"{SKYRL_ENGINE}tensor_parallel_size")
    operate(source, out, "SkyRL", SKYRL)
    dtype(source, out, "SkyRL", "trainer.policy.fsdp_config.mixed_precision.param_dtype")
    if (tokens := source.number("trainer.max_tokens_per_microbatch")) is not None and tokens > 0:
        out.set("actor.micro_tokens", int(tokens))  # SkyRL then ignores the number of responses
    else:
        lengths = {"trainer.max_prompt_length": 512, "generator.sampling_params.max_generate_length": 1024}
        passes(source, out, "trainer.micro_train_batch_size_per_gpu", 1, lengths)
    if out.ready:
        out.set("actor.eps", 1e-8)
        out.notes.append("actor.eps=1e-8: that of SkyRL's AdamW, for which it has no key")


def operate(source: Source, out: Translation, program: str, numbers: Mapping[str, str]) -> None:
    """Translate evaluation, checkpoints, W&B's project, AdamW's betas, recomputation, adapters, and how weights are divided.

    numbers: key of `program` -> key here.
    """
    for theirs, ours in numbers.items():
        value, least = source.number(theirs), 2 if ours == "checkpoint.keep" else 1
        if value is not None and value >= least:
            out.set(ours, int(value))
        elif value is not None:
            out.notes.append(f"{source.key(theirs)}={value:g}: {ours} is at least {least} here, and stays as it is")
    if source.resolved("trainer.project_name"):
        project = source.text("trainer.project_name")
        if out.ready:
            out.set("tracking.project", project)
        else:
            out.notes.append(
                f"trainer.project_name={project}: the look on the small model goes to no W&B project. --launch writes it"
            )
    out.set("actor.betas", source.numbers(BETAS[program]))
    if source.has(CHECKPOINTING[program]):
        out.set("actor.gradient_checkpointing", source.flag(CHECKPOINTING[program]))
    adapters(source, out, LORA[program])
    if out.ready:  # as by FSDP in both; adapters are trained without divided weights
        out.set("actor.zero_stage", 2 if "lora" in out.values.get("actor", {}) else 3)


def passes(source: Source, out: Translation, name: str, rows: int | None, lengths: Mapping[str, int]) -> None:
    """Set the tokens of a pass of the recipe's own model: responses of a GPU, times the lengths of prompt and response.

    name: the other program's key of these responses. rows: its default; None for all. lengths: its keys of the lengths, with
    their defaults.
    """
    if out.ready and (responses := source.number(name) if source.has(name) else rows):
        tokens = sum(source.number(key, default=length) for key, length in lengths.items())
        out.set("actor.micro_tokens", int(responses * tokens))


def adapters(source: Source, out: Translation, keys: str) -> None:
    """Translate low-rank adapters, for the recipe's own model alone. keys: beginning of the keys for their rank and alpha."""
    rank, alpha = source.number(f"{keys}rank"), source.number(f"{keys}alpha", default=16)
    if not rank:
        return
    given = f"{source.key(f'{keys}rank')}={rank:g}"
    if not out.ready:
        out.notes.append(f"{given}: all weights of the small model are trained. --launch DIR writes adapters, actor.lora")
        return
    if rank > 1024:
        out.lost.append(f"{given}: a rank here is at most 1024")
        return
    sync = "merged" if "rollout/engine" in out.options else "apart"
    if sync == "merged":
        out.notes.append(f"{given}: vLLM gets merged weights here; there it may multiply adapters apart, without that rounding")
    out.set("actor.lora.rank", int(rank))
    out.set("actor.lora.sync", sync)
    if alpha != 2 * rank:
        out.warnings.append(f"{given} with alpha {alpha:g}: adapters have the factor {alpha / rank:g} there and 2 here")


def dtype(source: Source, out: Translation, program: str, name: str, bf16_weights: bool = False) -> None:
    """Translate the dtype in which the trainer computes, whose key is `name`. bf16_weights: keep no fp32 copy of the weights."""
    value = source.take(name)
    if value in DTYPES:
        out.compute(DTYPES[value], program, f"{source.key(name)}={value}", bf16_weights)
    elif value is not None:
        out.lost.append(f"{source.key(name)}={value}: accepted are {', '.join(DTYPES)}")


def engine(source: Source, out: Translation, name: str, parallel: str, sleep: str | None = None) -> None:
    """Translate the rollout engine (key `name`) and, for vLLM alone, its tensor parallelism and its sleep mode.

    name: key whose value is vllm, or true in TRL. parallel, sleep: keys of the tensor parallelism and of the sleep mode.

    Without the recipe's model the embedded engine samples, so that the experiment runs on a machine without vLLM. With it vLLM
    evaluates, and a forward pass scores, so that no embedded engine in fp32 shares the GPU.
    """
    if not out.ready and source.take(name) in VLLM:
        remedy = "rollout/engine=vllm, after `make vllm`, samples with vLLM"
        out.notes.append(f"{source.key(name)}={source.take(name)}: the embedded engine samples here; {remedy}")
        return
    out.choose("rollout/engine", source, name, VLLM)
    if "rollout/engine" in out.options:
        out.set("rollout.engine.tensor_parallel", source.number(parallel))
        out.set("actor.scoring", "forward")
        out.set("evaluation.policy", "rollout")
        out.notes.append("actor.scoring=forward, evaluation.policy=rollout: no embedded engine in fp32 shares the GPU")
        if sleep is not None and source.has(sleep):
            out.set("rollout.engine.sleep", source.flag(sleep))


def of_verl(source: Source, out: Translation) -> None:
    """Translate verl's keys of rollout engine, evaluation, checkpoints, W&B, AdamW, dtype, micro-batches and router replay."""
    engine(source, out, "rollout.name", "rollout.tensor_model_parallel_size", "rollout.free_cache_engine")
    operate(source, out, "verl", VERL)
    out.set("actor.eps", source.number("actor.optim.override_optimizer_config.eps"))
    weights = source.take("actor.fsdp_config.model_dtype", default="fp32")
    dtype(source, out, "verl", "actor.fsdp_config.dtype", bf16_weights=DTYPES.get(weights) == "bf16")
    if source.flag("actor.use_dynamic_bsz"):
        out.set("actor.micro_tokens", source.number("actor.ppo_max_token_len_per_gpu", default=16384))
    else:
        lengths = {"data.max_prompt_length": 512, "data.max_response_length": 512}
        passes(source, out, "actor.ppo_micro_batch_size_per_gpu", None, lengths)
    mode = source.take(*ROUTER)
    if mode in REPLAYS:
        out.set("routing.replay", REPLAYS[mode])
    elif mode is not None:
        out.lost.append(f"{source.key(*ROUTER)}={mode}: accepted are {', '.join(REPLAYS)}")
    if mode == "R3":
        source.take("rollout.enable_rollout_routing_replay")
