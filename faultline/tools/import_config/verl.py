"""Import of verl configs, from tis_imp_ratio_cap (August 2025) to 0.9.1. A key means what it meant in the verl that had it."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from algos.corrections import spec
from faultline.tools.import_config import formats, operation
from faultline.tools.import_config.source import Source, as_number
from faultline.tools.import_config.translation import PolicyKeys, Translation, unusable
from faultline.tools.import_config.verl_presets import expand
from harness.errors import UserError

CAPS = ("actor.behav_imp_weight_cap", "actor.imp_ratio_cap", "actor.tis_imp_ratio_cap")
BYPASS = ("bypass_mode", "bypass_old_logprob_for_rollout")
GRADIENT = ("use_policy_gradient", "use_pure_rollout_correction")
BARE = ("rollout_correction", "rollout_is", "rollout_rs", "rollout_token_veto_threshold", *BYPASS, *GRADIENT)
CORRECTION = re.compile(r"rollout_correction\.|rollout_(is|rs|token_veto)|imp_(ratio|weight)_cap|bypass_")
PREFIXES = ("actor_rollout_ref.", "algorithm.", "actor.policy_loss.rollout_correction.", "rollout_correction.")
LEVELS = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric", "seq_max": "worst_token"}
RATIOS = ("token", "sequence", "geometric")
"""Values of rollout_rs before 2026, whose bounds are of ρ itself."""
GRPO = ("grpo", "grpo_vectorized")
KL_TYPES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
ADVANTAGES = {
    **{name: name for name in ("remax", "gpg")},
    **{name: "rloo" for name in ("rloo", "rloo_vectorized")},
    **{"reinforce_plus_plus": "reinforce_pp", "reinforce_plus_plus_baseline": "reinforce_pp_baseline", "opo": "opo"},
}
ALONE = {**dict.fromkeys((*GRPO, "rloo", "opo"), "reinforce"), "reinforce_plus_plus_baseline": "reinforce_pp"}
"""verl's advantage estimator -> estimator here for one response per prompt, for which verl's baseline is 0."""
REDUCTIONS = {mode.replace("_", "-"): mode for mode in spec.REDUCTIONS if mode != "prompt_mean"}
RENAMED = {
    "rollout.n": "rollout.group_size",
    "data.train_batch_size": "rollout.prompts",
    "rollout.temperature": "rollout.temperature",
    "actor.optim.lr": "actor.lr",
    "actor.optim.weight_decay": "actor.weight_decay",
    "actor.grad_clip": "actor.max_grad_norm",
    "actor.ppo_epochs": "actor.epochs",
    "trainer.total_training_steps": "steps",
}

POLICY = PolicyKeys("model.path", "data.train_files", "data.max_prompt_length", "data.max_response_length")
KWARGS = "reward_kwargs.overlong_buffer_cfg"
OVERLONG = ("reward_model.overlong_buffer", f"reward_model.{KWARGS}", f"reward.{KWARGS}")
"""Keys under which versions of verl have the settings of DAPO's penalty on overlong responses."""


def recognises(keys: Mapping[str, Any]) -> bool:
    """Whether one of these dotted keys is of verl: in one of its sections, or a setting of its rollout correction."""
    caps = tuple(cap.removeprefix("actor.") for cap in CAPS)
    return any(key.startswith((*PREFIXES, "actor.", *BARE)) or key in caps for key in keys)


def shorten(key: str) -> str:
    """Remove from a verl key the sections that differ between verl's versions. A key of CAPS has its section actor."""
    for prefix in PREFIXES:
        key = key.removeprefix(prefix)
    key = key.removeprefix("rollout_correction.")
    return f"actor.{key}" if f"actor.{key}" in CAPS else key


def translate(source: Source, out: Translation) -> None:
    """Translate a verl config: fill `out` from `source`."""
    if out.ready:
        out.defaults(source, "verl 0.9.1", operation.VERL_DEFAULTS)
    if (preset := source.take("rollout_correction")) is not None:
        keys, notes = expand(source.key("rollout_correction"), str(preset))
        source.expand(keys)
        out.notes += notes
    bypass = source.flag(*BYPASS)
    kind = source.take("loss_type", default="reinforce" if source.flag(*GRADIENT) else "ppo_clip")
    out.values["proximal"] = "rollout" if bypass and kind == "ppo_clip" else "old"
    _loss(source, out, bypass, kind)
    _correction(source, out)
    if bypass:
        out.ratio, out.denominator = "current", "original"
        if kind == "ppo_clip" and out.weight.level:
            out.weight = dataclasses.replace(out.weight, apply=False)
            out.notes.append("bypass mode with ppo_clip: verl computes the weights for its metrics only, as here")
        if out.normalize == "batch" and out.weight.level:
            measured = "of weights for metrics alone verl records their mean, which is not recorded here"
            divided = "bypass mode divides by the mean of a micro-batch, this of the mini-batch"
            out.notes.append(f"rollout_is_batch_normalize: {measured if kind == 'ppo_clip' else divided}")
    elif kind == "reinforce":
        out.notes.append("loss_type, use_policy_gradient: verl does not read them without bypass_mode")
    if source.take("rollout.calculate_log_probs", default=True) is False and (out.weight.level or out.reject):
        key = source.key("rollout.calculate_log_probs")
        out.warnings.append(
            f"{key}=False: verl SKIPS THE CORRECTION of this recipe, without a message, and this file applies it. "
            f"Train without it here with correction=none, or with it in verl with {key}=True"
        )
    _reduction(source, out)
    _responses(out)
    _rest(source, out)


def _loss(source: Source, out: Translation, bypass: bool, kind: str) -> None:
    low, high = (source.number(f"actor.clip_ratio_{side}", default=0.2) for side in ("low", "high"))
    cap = source.number("actor.clip_ratio_c", default=3.0)
    if (dead := source.number("actor.clip_ratio")) is not None and dead != low:
        out.notes.append(f"actor.clip_ratio={dead}: no effect in verl, whose clip_ratio_low and _high default to 0.2")
    mode = source.take("actor.policy_loss.loss_mode", default="vanilla")
    if bypass:
        if mode not in ("vanilla", "bypass_mode"):
            out.notes.append(f"loss_mode={mode}: bypass_mode replaces the loss by loss_type={kind}")
        mode = "gpg" if kind == "reinforce" else "vanilla"
    policy = lambda key, default: source.number(f"actor.policy_loss.{key}", default=default)  # noqa: E731
    clip = {"eps_low": low, "eps_high": high}
    if mode in ("vanilla", "bypass_mode"):
        out.loss("ppo", **clip, dual_clip=cap)
    elif mode == "gspo":
        out.loss("gspo", **clip)
        out.notes.append("gspo: verl 0.9.1 reduces by loss_agg_mode, later ones by seq-mean-token-mean")
    elif mode == "sapo":
        taus = {"tau_pos": 1.0, "tau_neg": 1.05}
        out.loss("sapo", **{tau: source.number(f"actor.{tau}", default=default) for tau, default in taus.items()})
    elif mode == "gpg":
        out.loss("pg")
    elif mode == "cispo":
        out.loss("cispo", lower=1 - low, upper=1 + high)
    elif mode == "geo_mean":
        out.loss("gmpo", lower=math.exp(-low), upper=math.exp(high))
    elif mode == "clip_cov":
        band = {"lower": policy("clip_cov_lb", 1.0), "upper": policy("clip_cov_ub", 5.0)}
        out.loss("clip_cov", **clip, share=policy("clip_cov_ratio", 2e-4), **band)
    elif mode == "kl_cov":
        out.loss("kl_cov", share=policy("kl_cov_ratio", 2e-4), coef=policy("ppo_kl_coef", 0.1))
    elif mode in ("dppo_tv", "dppo_kl"):
        out.loss("dppo", divergence=mode.removeprefix("dppo_"), delta_low=low, delta_high=high, upper=cap)
    elif mode == "dro" and source.has("actor.policy_loss.dro_beta"):
        out.loss("dro", beta=policy("dro_beta", None))
    else:
        out.lost.append(f"{source.key('actor.policy_loss.loss_mode')}={mode}: no such loss here, or its parameters are missing")
    if mode in ("clip_cov", "kl_cov"):
        out.notes.append(f"{mode}: verl selects in each micro-batch at π_θ, this once in each mini-batch at the anchor")


def _correction(source: Source, out: Translation) -> None:
    caps = source.number(*CAPS)
    kind = source.take("rollout_is")
    if caps is not None and kind is None and not source.has("rollout_rs"):
        if caps > 0:
            out.weigh(f"{source.key(*CAPS)}={caps}", "token", "truncate", None, caps)
        return
    if caps is not None:
        out.notes.append(f"{source.key(*CAPS)}={caps}: rollout_is and rollout_rs replaced it, and verl knows it no more")
    if isinstance(kind, bool) or source.has("rollout_is_level", "rollout_is_mode", "rollout_is_veto_threshold"):
        return _october_2025(source, out, kind is not False)
    out.denominator = "kept"
    key, threshold = source.key("rollout_is_threshold"), source.take("rollout_is_threshold", default=2.0)
    if kind is not None:
        lower, upper = _pair(key, threshold) if "_" in str(threshold) else (None, threshold)
        upper = as_number(key, upper)
        if kind in ("token", "sequence", "geometric"):
            out.weigh(f"{key}={threshold}", kind, "truncate" if lower is None else "mask", lower, upper)
        else:
            unusable(f"{source.key('rollout_is')}={kind}", "accepted are token, sequence, geometric")
    elif source.has("rollout_is_threshold"):
        out.notes.append(f"{key}={threshold}: rollout_is is not set, so verl computes no weights")
    if source.flag("rollout_is_batch_normalize"):
        out.normalize = "batch"
    _rejection(source, out)
    _veto(source, out, "rollout_token_veto_threshold")


def _rejection(source: Source, out: Translation) -> None:
    names, key = source.take("rollout_rs"), source.key("rollout_rs_threshold")
    threshold, low = source.take("rollout_rs_threshold"), source.number("rollout_rs_threshold_lower")
    if names is None:
        if threshold is not None:
            out.notes.append(f"{key}={threshold}: rollout_rs is not set, so verl rejects nothing")
        return
    options = [name.strip() for name in str(names).split(",")]
    for option in options:
        level, _, statistic = option.rpartition("_")
        if option not in RATIOS and (level not in LEVELS or statistic not in ("k1", "k2", "k3")):
            unusable(f"{source.key('rollout_rs')}={option}", f"accepted are {', '.join(LEVELS)} with _k1, _k2 or _k3")
    if threshold is None:
        raise UserError(f"rollout_rs={names}: rollout_rs_threshold is missing")
    bounds = [bound.strip() for bound in str(threshold).split(",")]
    if len(bounds) not in (1, len(options)):
        raise UserError(f"{key}={threshold}: {len(bounds)} thresholds for the {len(options)} options of rollout_rs={names}")
    for option, bound in zip(options, bounds * len(options) if len(bounds) == 1 else bounds, strict=False):
        if option in RATIOS:
            upper = _pair(key, bound)[1]
            out.filter(f"rollout_rs={option}", option, option, "ratio", 1 / upper if low is None else low, upper)
            continue
        level, _, statistic = option.rpartition("_")
        if statistic == "k1":
            lower, upper = _pair(key, bound)
            out.filter(f"rollout_rs={option} at {bound}", option, LEVELS[level], "ratio", 1 / upper, 1 / lower)
            if not math.isclose(lower * upper, 1, rel_tol=1e-9):
                span = f"[{1 / upper:.6g}, {1 / lower:.6g}]"
                out.notes.append(f"rollout_rs={option} at {bound}: verl bounds k1 = -log ρ: it keeps ρ in {span}, as here")
        else:
            out.filter(
                f"rollout_rs={option} at {bound}",
                option,
                LEVELS[level],
                statistic,
                None,
                as_number(f"{key} of rollout_rs={option}", bound),
            )


def _october_2025(source: Source, out: Translation, applied: bool) -> None:
    """Translate verl's correction of October 2025: bounds, and a veto of token ratios. applied: whether verl uses the weights."""
    level, mode = source.take("rollout_is_level", default="token"), source.take("rollout_is_mode", default="truncate")
    upper = source.number("rollout_is_threshold")
    lower = source.number("rollout_is_threshold_lower")
    if upper is None or upper <= 0:
        source.take("rollout_is_veto_threshold")
        out.notes.append("rollout_is_threshold is not set, which switches everything off in that version")
        return
    lower = 1 / upper if lower is None else lower
    if mode not in ("truncate", "clip", "mask") or level not in ("token", "sequence", "geometric"):
        accepted = "accepted are token, sequence, geometric and truncate, clip, mask"
        unusable(f"rollout_is_level={level}, rollout_is_mode={mode}", accepted)
    if mode == "mask":  # the later form: the tokens outside leave the mask, whether weights are applied or not
        out.denominator = "kept"
        out.filter(f"rollout_is_mode={mode}", "rollout_is", level, "ratio", lower, upper)
    action = "mask" if mode == "clip" else "truncate"
    out.weigh(f"rollout_is_mode={mode}", level, action, lower if mode == "clip" else None, upper, applied)
    if mode == "clip":
        out.notes.append("rollout_is_mode=clip: verl set weights outside the bounds to 0, it did not clamp them")
    if not applied:
        out.notes.append("rollout_is=false: verl computed the weights for its metrics only, as here")
    if applied or mode == "mask":
        if not source.given("rollout_is_veto_threshold"):
            out.notes.append("rollout_is_veto_threshold is not set: 1e-4, verl's default with these keys; null is none")
            source.expand({"rollout_is_veto_threshold": 1e-4})
        _veto(source, out, "rollout_is_veto_threshold")
    else:
        source.take("rollout_is_veto_threshold")


def _veto(source: Source, out: Translation, key: str) -> None:
    veto = source.number(key)
    if veto is not None and veto > 0:
        out.filter(f"{source.key(key)}={veto}", "veto", "worst_token", "ratio", veto, None)


def _pair(key: str, text: object) -> tuple[float, float]:
    """Parse verl's bounds of a ratio: "lo_hi", or one number c for [1/c, c]."""
    parts = [as_number(key, part) for part in str(text).split("_")]
    if len(parts) > 2 or min(parts) <= 0:
        raise UserError(f"{key}={text}: must be one positive number or two, as 0.5_2.0")
    return (1 / parts[0], parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _reduction(source: Source, out: Translation) -> None:
    if out.options.get("loss") in ("sapo", "gmpo"):
        mode = source.take("actor.loss_agg_mode")
        out.options["reduce"] = "seq_mean_token_mean"
        if mode not in (None, "seq-mean-token-mean"):
            out.notes.append(f"loss_agg_mode={mode}: sapo and geo_mean always reduce by seq-mean-token-mean in verl")
        return
    out.options["reduce"] = "token_mean"  # verl's default
    out.choose("reduce", source, "actor.loss_agg_mode", REDUCTIONS)
    if out.options["reduce"] == "seq_mean_token_sum_norm":
        out.set("reduce.norm", source.number("actor.loss_scale_factor", "data.max_response_length"))


def _responses(out: Translation) -> None:
    """Set the denominator of the loss. verl divides a mean over responses by all responses, and a token mean by the kept tokens.

    denominator=original is equivalent if filters keep or drop whole responses and the loss treats responses separately.
    """
    if out.denominator != "kept" or not out.reject or not out.options["reduce"].startswith("seq_mean"):
        return
    by_token = any(filter_.level == "token" for filter_ in out.reject.values() if isinstance(filter_, spec.Reject))
    if not by_token and out.options.get("loss") not in ("clip_cov", "kl_cov"):
        out.denominator = "original"
    else:
        out.notes.append(f"reduce={out.options['reduce']}: verl divides by all responses, this by those with a token kept")


def _rest(source: Source, out: Translation) -> None:
    out.rename(source, RENAMED)
    out.epochs(source, "trainer.total_epochs", "trainer.total_training_steps")
    out.sampling(source, "rollout.top_p", "rollout.top_k")
    rollout = out.values.get("rollout", {})
    if rollout.get("prompts") == 0:
        del rollout["prompts"]
        out.lost.append("data.train_batch_size=0: fully asynchronous; rollout.prompts is a step's, and rollout.staleness its age")
    out.minibatches(source, "actor.ppo_mini_batch_size", "data.train_batch_size")
    std = source.flag("norm_adv_by_std_in_grpo", default=True)
    of_std = {name: "grpo" if std else "dr_grpo" for name in GRPO} | {"grpo_passk": "pass_at_k", "gae": "gae"}
    out.choose("advantage", source, "adv_estimator", ADVANTAGES | of_std)
    _alone(source, out)
    if out.options.get("advantage") == "pass_at_k":
        out.values["advantage"] = {"std": std}
    if out.options.get("advantage") == "gpg":
        out.notes.append("gpg: verl scales by the responses of a reward other than 0, this by those in groups of unequal rewards")
    if out.options.get("advantage") == "gae":
        _critic(source, out)
    _kl(source, out)
    out.entropy(source.number("actor.entropy_coeff"), source.key("actor.entropy_coeff"))
    _schedule(source, out)
    _sampling(source, out)
    own = {name: f"rollout.{name}" for name in ("dtype", "quantization", "logprobs_mode")}
    fp8 = {"fp8": "fp8_block"} if source.has("rollout.quantization") else formats.QUANTIZATION  # 1x128 and 128x128
    formats.engine(source, out, "rollout.engine_kwargs.vllm.", own, "rollout.temperature", fp8)
    operation.of_verl(source, out)
    out.run_on(source, "trainer.n_gpus_per_node", "trainer.nnodes")


def _alone(source: Source, out: Translation) -> None:
    """Choose the advantage if verl's group estimator has one response per prompt, because group estimators here refuse that."""
    theirs = source.take("adv_estimator")
    if theirs in ALONE and out.values.get("rollout", {}).get("group_size") == 1:
        out.options["advantage"] = ALONE[theirs]
        out.notes.append(f"rollout.n=1: verl's {theirs} subtracts no baseline from a response alone, which is {ALONE[theirs]}")


def _critic(source: Source, out: Translation) -> None:
    """Translate verl's adv_estimator=gae: γ and λ, and the critic's own keys where they differ from the actor's."""
    out.values["advantage"] = {"gamma": source.number("gamma", default=1.0), "lam": source.number("lam", default=1.0)}
    out.set("critic.lr", source.number("critic.optim.lr", default=1e-5))
    out.set("critic.cliprange_value", source.number("critic.cliprange_value", default=0.5))
    if (warmup := source.number("trainer.critic_warmup", default=0)) > 1:
        out.set("critic.warmup_steps", int(warmup) - 1)
        out.notes.append(f"trainer.critic_warmup={warmup:g}: verl counts from 1, so the policy waits for {warmup - 1:g} steps")
    for key in ("ppo_epochs", "ppo_mini_batch_size", "grad_clip"):
        if (value := source.take(f"critic.{key}")) not in (None, source.take(f"actor.{key}")):
            out.lost.append(f"critic.{key}={value}: the critic here has that of actor.{key}")
    if (mode := source.take("critic.loss_agg_mode", default=out.options["reduce"].replace("_", "-"))) != "token-mean":
        out.notes.append(f"critic: verl reduces its loss by {mode}, this by token-mean")
    if out.reject and out.denominator == "kept":
        out.notes.append("critic: verl takes rejected tokens out of the values and of the whitening too; here they stay in both")


def _kl(source: Source, out: Translation) -> None:
    """Translate verl's KL terms: use_kl_loss with its type and coefficient; use_kl_in_reward with kl_penalty and kl_ctrl."""
    theirs = str(source.take("actor.kl_loss_type", default="low_var_kl"))
    coef = source.number("actor.kl_loss_coef", default=0.001)
    if source.flag("actor.use_kl_loss"):
        value = theirs.removesuffix("+")
        kind = KL_TYPES.get(value, value) + "+" * theirs.endswith("+")
        out.kl(kind, coef, f"actor.kl_loss_type={theirs}")
        if kind.startswith("k3") and coef:
            out.notes.append(f"kl={out.options['kl']}: verl clamps the value of k3 at 10, with gradient 0 beyond; no clamp here")
        if coef and out.ratio == "current" and out.reject:
            out.notes.append("kl: in bypass mode verl's KL term counts rejected tokens too; here they are left out")
    elif source.has("actor.kl_loss_type", "actor.kl_loss_coef"):
        out.notes.append("actor.use_kl_loss is not true, so verl does not read kl_loss_type and kl_loss_coef")
    keys = [f"kl_ctrl.{key}" for key in ("type", "kl_coef", "horizon", "target_kl")]
    if source.flag("use_kl_in_reward"):
        _kl_in_reward(source, out)
    elif source.has("kl_penalty", *keys):
        source.take("kl_penalty", *keys)
        out.notes.append("use_kl_in_reward is not true, so verl does not read kl_penalty and kl_ctrl")


def _kl_in_reward(source: Source, out: Translation) -> None:
    theirs = str(source.take("kl_penalty", default="kl"))
    kind, controller = theirs.removesuffix("+"), source.take("kl_ctrl.type", default="fixed")
    target, horizon = source.number("kl_ctrl.target_kl", default=0.1), source.number("kl_ctrl.horizon", default=10000)
    if controller not in ("fixed", "adaptive"):
        unusable(f"{source.key('kl_ctrl.type')}={controller}", "accepted are fixed, adaptive")
    steered: tuple[float | None, float | None] = (target, horizon) if controller == "adaptive" else (None, None)
    coef = source.number("kl_ctrl.kl_coef", default=0.001)
    out.kl_in_reward(KL_TYPES.get(kind, kind), coef, f"use_kl_in_reward with kl_penalty={theirs}", *steered)


def _schedule(source: Source, out: Translation) -> None:
    """Translate the learning-rate schedule: verl steps it once per rollout, this project once per optimizer step."""
    names = ("actor.optim.lr_scheduler_type", "actor.optim.warmup_style")
    name, cycles = source.take(*names, default="constant"), source.number("actor.optim.num_cycles", default=0.5)
    steps = source.number("actor.optim.lr_warmup_steps", default=-1)
    ratio, total = source.number("actor.optim.lr_warmup_steps_ratio", default=0.0), out.values.get("steps")
    if steps < 0 and ratio and total is None:
        out.lost.append(f"{source.key('actor.optim.lr_warmup_steps_ratio')}={ratio}: of trainer.total_training_steps, not set")
    warmup = steps if steps >= 0 else int(ratio * (total or 0))
    if cycles != 0.5:
        out.lost.append(f"{source.key('actor.optim.num_cycles')}={cycles}: a cosine here falls once, as 0.5 does")
    actor = out.values.get("actor", {})
    updates = actor.get("num_minibatches", 1) * actor.get("epochs", 1)
    out.schedule(name, source.key(*names), warmup * updates, source.number("actor.optim.min_lr_ratio"))
    if warmup and updates > 1:
        counted = f"verl counts rollouts, actor.schedule optimizer steps, {warmup * updates}"
        out.notes.append(f"warm-up of {warmup} steps: {counted}")


def _sampling(source: Source, out: Translation) -> None:
    """Translate verl's keys of DAPO, which are filter_groups and the overlong buffer, and its treatment of long prompts."""
    if source.flag("filter_groups.enable"):
        out.filter_groups(source.number("filter_groups.max_num_gen_batches", default=0), "filter_groups.max_num_gen_batches")
        if (metric := source.take("filter_groups.metric")) not in (None, "acc"):
            out.notes.append(f"filter_groups.metric={metric}: groups here are chosen by the task's reward, as acc does")
    for place in OVERLONG:
        if source.flag(f"{place}.enable"):
            buffer, penalty = source.number(f"{place}.len"), source.number(f"{place}.penalty_factor", default=1.0)
            if out.ready:
                out.set("overlong.buffer", buffer)
                out.set("overlong.penalty", penalty)
                out.notes.append(f"{place}: the buffer ends at task.answer_length, verl's max_resp_len")
            else:
                out.notes.append(f"{place}.len={buffer:g}: the small model's responses have ten tokens; --launch DIR writes it")
            source.take(f"{place}.log", place.replace("overlong_buffer_cfg", "max_resp_len"))
    if (long := source.take("data.truncation")) is not None:
        ours = "drop" if source.flag("data.filter_overlong_prompts") else {"left": "cut", "error": "error"}.get(long)
        if ours is None:
            out.lost.append(f"data.truncation={long}: a long prompt here loses its beginning, as by left, or is an error")
        elif out.ready:
            out.set("task.long_prompts", ours)
        else:
            out.notes.append(f"data.truncation={long}: task.long_prompts={ours}, of a task of text")
