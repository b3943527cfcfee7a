"""verl 0.9.1: its losses, reductions, presets, metrics, advantages and KL estimators, called as its trainer calls them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config.algorithm import AlgoConfig, RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config.actor import ActorConfig, PolicyLossConfig

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction, Reject, Weight
from algos.critic import whiten
from algos.losses.covariance import select_band, select_top
from algos.registry import ADVANTAGES, KL
from tests.oracles.comparing import (
    NORM,
    Case,
    batch,
    grouped,
    objective,
    our_loss,
    our_metrics,
    preset,
    with_gradient,
)  # fmt: skip

REDUCTIONS = ("token_mean", "token_sum", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
TIS = Correction(weight=Weight("token", "truncate", None, 2.0))
TOKENS = Correction(reject={"token": Reject("token", "ratio", 0.5, 2.0)}, denominator="kept")
TOKEN_K1 = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"}
BY_RESPONSE = ("seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm")
BAND = {"share": 1.0, "lower": 0.05, "upper": 5.0}
# loss_mode → our loss, its parameters, those of verl's ActorConfig, those of its PolicyLossConfig
LOSSES = {
    "vanilla": ("ppo", {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": 1.5}, {"clip_ratio_c": 1.5}, {}),
    "gspo": ("gspo", {"eps_low": 0.2, "eps_high": 0.28}, {}, {}),
    "sapo": ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, {}, {}),
    "gpg": ("gpg", {}, {}, {}),
    "cispo": ("cispo", {"lower": 0.8, "upper": 1.28}, {}, {}),
    "geo_mean": ("gmpo", {"lower": math.exp(-0.2), "upper": math.exp(0.28)}, {}, {}),
    "dro": ("dro", {"beta": 0.05}, {}, {"dro_beta": 0.05}),
    "dppo_tv": (
        "dppo",
        {"divergence": "tv", "delta_low": 0.1, "delta_high": 0.05, "upper": 1.5},
        {"clip_ratio_low": 0.1, "clip_ratio_high": 0.05, "clip_ratio_c": 1.5},
        {},
    ),
    "dppo_kl": (
        "dppo",
        {"divergence": "kl", "delta_low": 0.02, "delta_high": 0.01, "upper": 1.5},
        {"clip_ratio_low": 0.02, "clip_ratio_high": 0.01, "clip_ratio_c": 1.5},
        {},
    ),
    "clip_cov": (
        "clip_cov",
        {"eps_low": 0.2, "eps_high": 0.28, **BAND},
        {},
        {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.05, "clip_cov_ub": 5.0},
    ),
    "kl_cov": ("kl_cov", {"share": 0.1, "coef": 0.5}, {}, {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.5}),
}
FORCED = ("sapo", "geo_mean")
"""verl reduces these by the mean over responses, whatever loss_agg_mode says."""
PRESETS = tuple(
    name
    for name, made in vars(RolloutCorrectionConfig).items()
    if isinstance(made, classmethod) and not name.startswith("_") and name != "from_dict"
)


def config(b: Batch, policy: dict | None = None, **actor) -> ActorConfig:
    """verl's actor config."""
    made = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28} | actor
    made["global_batch_info"] = {"loss_scale_factor": NORM, **made.get("global_batch_info", {})}
    return ActorConfig(
        strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(**(policy or {})), **made
    )


def cases() -> Iterator[Case]:
    """Everything that verl and this project share."""
    for name in LOSSES:
        for reduction in REDUCTIONS:
            case = functools.partial(_loss, name, reduction)
            if name in FORCED and reduction != "seq_mean_token_mean":
                yield Case(f"verl/ignored reduction/{name}", case)
                continue
            yield Case(f"verl/loss/{name}", case)
            mean = " by response" if reduction in BY_RESPONSE else ""
            yield Case(f"verl/loss after a token rejection{mean}/{name}", functools.partial(case, correction=TOKENS))
            yield Case(f"verl/loss of an empty response{mean}/{name}", functools.partial(case, kind="empty response"))
            yield Case(f"verl/loss beyond 20/{name}", functools.partial(case, kind="beyond 20"))
        yield Case(f"verl/weighted loss/{name}", functools.partial(_loss, name, "seq_mean_token_mean", correction=TIS))
    for name in PRESETS:
        for reduction in REDUCTIONS:
            mean = " by response" if reduction in BY_RESPONSE else ""
            yield Case(f"verl/preset{mean}/{name}", functools.partial(_preset, name, reduction))
            yield Case(f"verl/preset beyond 20{mean}/{name}", functools.partial(_preset, name, reduction, kind="beyond 20"))
            if mean:
                yield Case(f"verl/preset as imported/{name}", functools.partial(_preset, name, reduction, imported=True))
        yield Case(f"verl/metrics/{name}", functools.partial(_metrics, name))
    for reduction in REDUCTIONS:
        yield Case(f"verl/token rejection in bypass/{reduction}", functools.partial(_token_rejection_in_bypass, reduction))
    for level in ("token", "sequence"):
        yield Case(f"verl/batch normalize/{level}", functools.partial(_normalized, level))
    for name in ADVANTAGE:
        yield Case(f"verl/advantage/{name}", functools.partial(_advantage, name))
    for name in OUR_KL:
        yield Case(f"verl/kl/{name}", functools.partial(_kl, name))


def _loss(name: str, reduction: str, seed: int, correction: Correction | None = None, kind: str = "") -> tuple[dict, dict]:
    ours, params, actor, policy = LOSSES[name]
    logp, b = batch(seed, kind, by_token=name not in ("geo_mean", "gspo"))
    made = objective(ours, reduction, correction=correction, **params)
    # verl selects at π_θ; that it does so, and we at the anchor, is one of the differences
    select = {"clip_cov": select_band, "kl_cov": select_top}.get(name)
    corrected = correct(b, made.correction)
    chosen = b if select is None else b._replace(selected=select(logp, b.advantages, corrected.counted, **params))
    mine = our_loss(logp, chosen, made)
    if select is not None:
        mine["loss with its own selection"] = our_loss(logp, b, made)["loss"]
    weights = corrected.weights if made.correction.weight.level else None
    theirs = _verl(logp, b, name, reduction, config(b, policy, **actor), weights, corrected.kept.double())
    if kind == "empty response" and reduction in BY_RESPONSE:  # 7 of 8 have tokens
        mine["over all responses"], theirs["over all responses"] = mine["gradient"] * 7 / 8, theirs["gradient"]
    return mine, theirs | ({} if select is None else {"loss with its own selection": theirs["loss"]})


def _verl(logp: Tensor, b: Batch, name: str, reduction: str, made: ActorConfig, weights: Tensor | None = None, mask=None) -> dict:
    """The loss as verl's trainer computes it: the mask is what a rejection left, and responses are counted in the mini-batch."""
    function = core_algos.POLICY_LOSS_REGISTRY[name]
    mask = b.mask.double() if mask is None else mask
    mode, metrics = reduction.replace("_", "-"), {}
    old = b.logp_rollout if name == "bypass_mode" else b.logp_old
    made.global_batch_info.update(batch_num_tokens=mask.sum(), global_batch_size=len(mask))

    def value(logp: Tensor) -> Tensor:
        loss, found = function(old, logp, b.advantages, mask, mode, made, weights)
        metrics.update(found)
        return loss

    return with_gradient(value, logp) | metrics


def _preset(name: str, reduction: str, seed: int, kind: str = "", imported: bool = False) -> tuple[dict, dict]:
    """imported: with the denominator that the importer chooses for a mean over responses."""
    (logp, b), theirs = batch(seed, kind), getattr(RolloutCorrectionConfig, name)()
    made = preset(f"verl/{name}", reduction)
    if imported:
        made = made._replace(correction=dataclasses.replace(made.correction, denominator="original"))
    mine = our_loss(logp, b, made)
    clip = {"clip_ratio_high": 0.2, "clip_ratio_c": 3.0 if theirs.bypass_mode else 1e9}  # only presets of bypass set a dual clip
    if theirs.bypass_mode:
        made = config(b, {"rollout_correction": theirs}, **clip)
        found = _verl(logp, b, "bypass_mode", reduction, made)
    else:
        weights, mask, _ = _correct(b.logp_old, b, theirs)
        found = _verl(logp, b, "vanilla", reduction, config(b, **clip), weights, mask)
    return mine, {name: found[name] for name in ("loss", "gradient")}  # the metrics are compared by `_metrics`


def _token_rejection_in_bypass(reduction: str, seed: int) -> tuple[dict, dict]:
    (logp, b), theirs = batch(seed), RolloutCorrectionConfig(bypass_mode=True, rollout_is=None, **TOKEN_K1)
    clip = {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": 3.0}
    spec = Correction("current", reject=TOKENS.reject)
    mine = our_loss(logp, b, objective("ppo", reduction, "rollout", spec, **clip))
    made = config(b, {"rollout_correction": theirs})
    found = _verl(logp, b, "bypass_mode", reduction, made)
    return mine, {name: found[name] for name in ("loss", "gradient")}


def _correct(top: Tensor, b: Batch, made: RolloutCorrectionConfig) -> tuple[Tensor | None, Tensor, dict]:
    keys = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold", "rollout_is_batch_normalize")
    settings = {key: getattr(made, key) for key in keys}
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(top, b.logp_rollout, b.mask.double(), **settings)
    return (None if weights is None else weights.batch["rollout_is_weights"]), mask, metrics


def _metrics(name: str, seed: int) -> tuple[dict, dict]:
    (logp, b), made = batch(seed), getattr(RolloutCorrectionConfig, name)()
    spec = preset(f"verl/{name}", "token_mean").correction
    top = logp if spec.ratio == "current" else b.logp_old
    theirs = _correct(top, b, made)[2]
    for filter_ in spec.reject:  # our filters carry the names of the presets
        theirs = {key.replace(f"rollout_rs_{made.rollout_rs}_", f"rollout_rs_{filter_}_"): value for key, value in theirs.items()}
    mine = our_metrics(b, spec, top)
    return mine, theirs


def _normalized(level: str, seed: int) -> tuple[dict, dict]:
    """Truncated weights over their mean in the batch, and the metrics of them."""
    _, b = batch(seed)
    spec = Correction(weight=Weight(level, "truncate", None, 2.0), normalize="batch")
    made = RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=2.0, rollout_is_batch_normalize=True)
    weights, _, theirs = _correct(b.logp_old, b, made)
    return our_metrics(b, spec) | {"weights": correct(b, spec).weights}, theirs | {"weights": weights * b.mask}


GROUPS = np.repeat(np.arange(2), 4)
ADVANTAGE = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "grpo without std": "dr_grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "remax": "remax",
    "gae": "gae",
    "gae with holes": "gae",
    "grpo_passk": "pass_at_k",
    "grpo_passk without std": "pass_at_k",
    "gpg": "gpg",
    "gpg with rewards of 0": "gpg",
}


def _advantage(name: str, seed: int) -> tuple[dict, dict]:
    rewards, mask, tokens, values, greedy = grouped(seed)
    ours = ADVANTAGES[ADVANTAGE[name]]
    if "holes" in name:
        mask = mask & (torch.arange(6) != 1)  # a token that the policy did not write
        tokens = tokens * mask
    shared = {"token_level_rewards": tokens.clone(), "response_mask": mask.double()}
    if name.startswith("gae"):
        theirs = core_algos.compute_gae_advantage_return(**shared, values=values, gamma=0.9, lam=0.8)
        mine = ours(tokens, mask=mask, values=values, gamma=0.9, lam=0.8)
        return {"advantages": whiten(mine, mask), "returns": (mine + values)[mask]}, {
            "advantages": theirs[0] * mask,
            "returns": theirs[1][mask],
        }
    if name == "gpg with rewards of 0":
        rewards, tokens = rewards.round(), tokens.round()
        shared["token_level_rewards"] = tokens.clone()
    std = "without" not in name
    extra = {"index": GROUPS, "config": AlgoConfig(gamma=1.0, norm_adv_by_std_in_grpo=std), "norm_adv_by_std_in_grpo": std}
    extra |= {"reward_baselines": greedy.repeat_interleave(4)} if name == "remax" else {}
    theirs = core_algos.get_adv_estimator_fn(name.split()[0])(**shared, **extra)[0]
    inputs = {"lengths": mask.sum(-1).view(2, 4), "greedy": greedy}
    params = {"std": std} if "passk" in name else {}
    mine = ours(rewards, **{key: inputs[key] for key in ours.needs}, **params)
    return {"advantages": mine.view(-1, 1) * mask}, {"advantages": theirs}


OUR_KL = {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3", "low_var_kl+": "k3_k2", "k3+": "k3_k2", "abs": "abs"}


def _kl(name: str, seed: int) -> tuple[dict, dict]:
    logp, b = batch(seed)
    mine = with_gradient(lambda logp: KL[OUR_KL[name]](logp, b.logp_old, b.mask).sum(), logp)
    theirs = with_gradient(lambda logp: (core_algos.kl_penalty(logp, b.logp_old, name) * b.mask).sum(), logp)
    return mine, theirs
