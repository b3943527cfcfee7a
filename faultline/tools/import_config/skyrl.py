"""Import of SkyRL configs, from the version with use_tis to version 0.3.0 with trainer.algorithm.off_policy_correction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from algos.corrections.spec import Weight
from faultline.tools.import_config import operation
from faultline.tools.import_config.source import Source
from faultline.tools.import_config.translation import UNREACHED, PolicyKeys, Translation, unusable

POLICY = PolicyKeys(
    "trainer.policy.model.path", "data.train_data", "trainer.max_prompt_length", "generator.sampling_params.max_generate_length"
)
BARE = ("use_tis", "policy_loss_type", "tis_ratio_type")
CORRECTION = re.compile(r"off_policy_correction\.|tis_|use_tis|_mask_(is|low|high|metric)|outlier_token")
PREFIXES = ("trainer.algorithm.", "off_policy_correction.")
UNCORRECTED = ("importance_sampling", "cross_entropy")
"""Losses to which SkyRL applies no correction, even if the config sets one."""
REDUCTIONS = {mode: mode for mode in ("token_mean", "seq_mean_token_sum_norm", "prompt_mean")}
REDUCTIONS["sequence_mean"] = "seq_mean_token_mean"
RENAMED = {
    "generator.n_samples_per_prompt": "rollout.group_size",
    "generator.sampling_params.temperature": "rollout.temperature",
    "trainer.train_batch_size": "rollout.prompts",
    "trainer.policy.optimizer_config.lr": "actor.lr",
    "trainer.policy.optimizer_config.weight_decay": "actor.weight_decay",
    "trainer.policy.optimizer_config.max_grad_norm": "actor.max_grad_norm",
    "trainer.update_epochs_per_batch": "actor.epochs",
    "trainer.max_training_steps": "steps",
}


def recognises(keys: Mapping[str, Any]) -> bool:
    """Whether one of these keys is of SkyRL: below trainer.algorithm, off_policy_correction or generator, or one of BARE."""
    return any(key.startswith((*PREFIXES, "generator.")) or key in BARE for key in keys)


def shorten(key: str) -> str:
    """Remove from a SkyRL key the sections of the algorithm: trainer.algorithm and off_policy_correction."""
    for prefix in PREFIXES:
        key = key.removeprefix(prefix)
    return key


def translate(source: Source, out: Translation) -> None:
    """Translate a SkyRL config: fill `out` from `source`."""
    if out.ready:
        out.defaults(source, "SkyRL 0.3.0", operation.SKYRL_DEFAULTS)
    out.values["proximal"] = "old"
    _loss(source, out)
    _weight(source, out)
    _masks(source, out)
    kind = source.take("policy_loss_type")
    if kind in UNCORRECTED and (out.weight.level or out.reject):
        out.weight, out.reject = Weight(), {}
        out.notes.append(f"policy_loss_type={kind}: SkyRL applies no off_policy_correction to it")
    out.options["reduce"] = "token_mean"
    out.choose("reduce", source, "loss_reduction", REDUCTIONS)
    if out.options.get("loss") == "cross_entropy":
        out.options["reduce"] = "token_sum"
        out.notes.append("cross_entropy: SkyRL sums it over tokens, whatever loss_reduction says")
    if out.options["reduce"] == "seq_mean_token_sum_norm":
        out.set("reduce.norm", source.number("max_seq_len"))
    std = source.flag("grpo_norm_by_std", default=True)
    names = {"grpo": "grpo" if std else "dr_grpo", "rloo": "rloo", "reinforce++": "reinforce_pp", "maxrl": "maxrl", "gae": "gae"}
    out.choose("advantage", source, "advantage_estimator", names)
    if out.options.get("advantage") == "gae":
        _critic(source, out)
    _kl(source, out)
    out.rename(source, RENAMED)
    out.epochs(source, "trainer.epochs", "trainer.max_training_steps")
    source.take("generator.sampling_params.logprobs")  # log μ is always recorded here
    out.sampling(source, "generator.sampling_params.top_p", "generator.sampling_params.top_k")
    _entropy_and_groups(source, out)
    operation.of_skyrl(source, out)
    out.minibatches(source, "trainer.policy_mini_batch_size", "trainer.train_batch_size")
    out.run_on(source, "trainer.placement.policy_num_gpus_per_node", "trainer.placement.policy_num_nodes")


def _loss(source: Source, out: Translation) -> None:
    low, high = (source.number(f"eps_clip_{side}", default=0.2) for side in ("low", "high"))
    clip, kind = {"eps_low": low, "eps_high": high}, source.take("policy_loss_type", default="regular")
    cap = source.number("clip_ratio_c", default=3.0)
    if kind in ("regular", "dual_clip"):
        out.loss("ppo", **clip, dual_clip=cap if kind == "dual_clip" else None)
    elif kind == "gspo":
        out.loss("gspo", **clip)
    elif kind == "sapo":
        out.loss("sapo", **{tau: source.number(f"sapo.{tau}", default=d) for tau, d in (("tau_pos", 1.0), ("tau_neg", 1.05))})
    elif kind == "cispo":
        if not (source.has("cispo.cispo_eps_clip_low") and source.has("cispo.cispo_eps_clip_high")):
            out.notes.append("cispo bounds not set: SkyRL 0.3.0's are 0 and 5, ratios in [1, 6]; later ones 1 and 4")
        low = source.number("cispo.cispo_eps_clip_low", default=0.0)
        high = source.number("cispo.cispo_eps_clip_high", default=5.0)
        out.loss("cispo", lower=1 - low, upper=1 + high)
        if source.take("cispo.cispo_anchor", "cispo_anchor", default="old") == "rollout":
            out.values["proximal"] = "rollout"
    elif kind == "rollout_is":
        out.loss("rollout_is", lower=1 - low, upper=1 + high)
        out.values["proximal"] = "rollout"
        out.notes.append("rollout_is: SkyRL's bounds are exclusive, these are inclusive")
    elif kind == "dppo":
        form = str(source.take("dppo.dppo_type", default="binary_tv")).removeprefix("binary_")
        deltas = {name: source.number(f"dppo.{name}", default=0.2) for name in ("delta_low", "delta_high")}
        out.loss("dppo", divergence=form, **deltas)
        out.values["proximal"] = "rollout"
    elif kind == "cross_entropy":
        out.loss("cross_entropy")
    elif kind == "importance_sampling":
        out.loss("ppo", eps_low=1.0, eps_high=UNREACHED, dual_clip=None)
    else:
        reason = "SkyRL pre-divides advantages by the token count, so its covariance bounds never match what they say"
        out.lost.append(f"{source.key('policy_loss_type')}={kind}: " + (reason if "cov" in str(kind) else "no such loss here"))


def _weight(source: Source, out: Translation) -> None:
    """Translate SkyRL's importance weight: tis_ratio_type, or the older use_tis with tis_imp_ratio_cap."""
    kind, old = source.take("tis_ratio_type"), source.flag("use_tis")
    cap = source.number("tis_imp_ratio_cap")
    caps = {
        "token": source.number("token_tis_ratio_clip_high", default=2.0),
        "sequence": source.number("sequence_tis_ratio_clip_high", default=5.0),
    }
    if kind is None and old:
        if cap is None or cap <= 0:
            unusable("use_tis=True", f"tis_imp_ratio_cap={cap} is no positive cap, at which SkyRL stopped; give one of 1 or more")
        else:
            out.weigh(f"tis_imp_ratio_cap={cap}", "token", "truncate", None, cap)
    elif kind in caps:
        out.weigh(f"tis_ratio_type={kind}", kind, "truncate", None, caps[kind])
    elif kind is not None:
        unusable(f"{source.key('tis_ratio_type')}={kind}", "accepted are token, sequence")
    if out.weight.level and out.values["proximal"] == "rollout":
        unusable(
            f"the {out.weight.level} weight with policy_loss_type={source.take('policy_loss_type')}",
            "the mismatch would count twice, which SkyRL refuses for cispo only",
        )


def _masks(source: Source, out: Translation) -> None:
    """Translate SkyRL's token mask, outlier bounds and sequence mask, which bound π_old/μ."""
    low, high = source.number("token_mask_is_threshold_low"), source.number("token_mask_is_threshold_high")
    if low is not None and high is not None:
        out.filter(f"token_mask_is_threshold {low} to {high}", "token", "token", "ratio", low, high)
    elif low is not None or high is not None:
        out.notes.append("token_mask_is_threshold: SkyRL ignores one bound without the other; no token mask")
    low, high = (source.number(f"outlier_token_is_threshold_{side}") for side in ("low", "high"))
    if low is not None or high is not None:
        out.filter("outlier_token_is_threshold", "outlier", "worst_token", "ratio", low, high)
    metric = source.take("sequence_mask_metric")
    bounds = {
        "geometric": (source.number("geo_mask_low", default=0.99), source.number("geo_mask_high", default=1.01)),
        "product": (source.number("product_mask_low", default=0.5), source.number("product_mask_high", default=2.0)),
    }
    if metric in bounds:
        level = "geometric" if metric == "geometric" else "sequence"
        low, high = bounds[metric]
        out.filter(f"sequence_mask_metric={metric}", metric, level, "ratio", low, high)
    elif metric is not None:
        unusable(f"{source.key('sequence_mask_metric')}={metric}", "accepted are geometric, product")
    if "token" in out.reject and (metric or out.weight.level == "sequence"):
        out.notes.append("SkyRL takes sequence ratios over the tokens that its token mask left, this over the response")


def _critic(source: Source, out: Translation) -> None:
    """Translate SkyRL's advantage_estimator=gae: γ and λ, and the critic's own keys."""
    out.values["advantage"] = {"gamma": source.number("gamma", default=1.0), "lam": source.number("lambd", default=1.0)}
    out.set("critic.lr", source.number("trainer.critic.optimizer_config.lr", default=5e-6))
    out.set("critic.cliprange_value", source.number("value_clip", default=0.2))


def _kl(source: Source, out: Translation) -> None:
    """Translate SkyRL's KL term: use_kl_loss, on by default, or use_kl_in_reward, which excludes use_kl_loss."""
    kind, coef = str(source.take("kl_estimator_type", default="k3")), source.number("kl_loss_coef", default=0.001)
    on = source.flag("use_kl_loss", default=True)
    if source.flag("use_kl_in_reward"):
        steered: tuple[float | None, float | None] = (None, None)
        if source.take("kl_ctrl.type", default="fixed") == "adaptive":
            steered = source.number("kl_ctrl.kl_target", default=0.1), source.number("kl_ctrl.horizon", default=10000)
        out.kl_in_reward(kind, coef, f"use_kl_in_reward with kl_estimator_type={kind}", *steered)
        return
    keys = [f"kl_ctrl.{key}" for key in ("type", "kl_target", "horizon")]
    if source.has(*keys):
        source.take(*keys)
        out.notes.append("use_kl_in_reward is not true, so SkyRL does not read kl_ctrl")
    if on and coef:
        out.kl(kind, coef, f"kl_estimator_type={kind}")
        default = "" if source.has("use_kl_loss") else "; use_kl_loss is not set: it is on by default"
        out.notes.append(f"kl: SkyRL takes its mean over responses, rejected tokens included, and clamps k3 at 10{default}")


def _entropy_and_groups(source: Source, out: Translation) -> None:
    """Translate SkyRL's entropy bonus, learning-rate schedule and dynamic sampling."""
    coef = source.number("entropy_loss_coef", default=0.01)
    if source.flag("use_entropy_loss"):
        out.entropy(coef, source.key("entropy_loss_coef"), "token_mean")
    elif source.has("entropy_loss_coef"):
        out.notes.append("use_entropy_loss is not true, so SkyRL does not read entropy_loss_coef")
    optimizer = "trainer.policy.optimizer_config"
    name = source.take(f"{optimizer}.scheduler", default="constant")
    out.schedule(name, f"{optimizer}.scheduler", source.number(f"{optimizer}.num_warmup_steps", default=0))
    kind, rounds = source.take("dynamic_sampling.type"), source.number("dynamic_sampling.max_sample_batches", default=30)
    if kind == "filter":
        out.filter_groups(rounds, "dynamic_sampling.max_sample_batches")
    elif kind is not None:
        out.lost.append(f"dynamic_sampling.type={kind}: groups of equal rewards are sampled anew here, none is repeated")
