"""SkyRL 0.3.0: its losses, reductions, corrections, metrics, advantages and KL estimators, called as its trainer calls them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.utils.off_policy_correction_utils import compute_off_policy_correction
from skyrl.train.config.config import AlgorithmConfig
from torch import Tensor

from algos.batch import Batch
from algos.corrections.spec import Correction, Reject
from algos.critic import whiten
from algos.losses.covariance import select_band, select_top
from algos.objective import Objective
from algos.registry import ADVANTAGES, KL
from tests.oracles.comparing import NORM, Case, batch, grouped, objective, our_loss, our_metrics, preset, with_gradient

REDUCTIONS = {
    "token_mean": "token_mean",
    "sequence_mean": "seq_mean_token_mean",
    "seq_mean_token_sum_norm": "seq_mean_token_sum_norm",
    "prompt_mean": "prompt_mean",
}
BY_RESPONSE = ("sequence_mean", "seq_mean_token_sum_norm")
PPO = {"eps_low": 0.2, "eps_high": 0.28}
TOKENS = Correction(reject={"token": Reject("token", "ratio", 0.5, 2.0)})
CLIP_COV = {"share": 1.0, "lower": 0.05, "upper": 5.0}
# policy_loss_type → our loss, its anchor, its parameters, SkyRL's settings
LOSSES = {
    "regular": ("ppo", "old", PPO | {"dual_clip": None}, {}),
    "dual_clip": ("ppo", "old", PPO | {"dual_clip": 1.5}, {"clip_ratio_c": 1.5}),
    "gspo": ("gspo", "old", PPO, {}),
    "sapo": ("sapo", "old", {"tau_pos": 1.0, "tau_neg": 1.05}, {}),
    "cispo": ("cispo", "old", {"lower": 0.8, "upper": 1.5}, {"cispo.cispo_eps_clip_low": 0.2, "cispo.cispo_eps_clip_high": 0.5}),
    "rollout_is": ("rollout_is", "rollout", {"lower": 0.8, "upper": 1.28}, {}),
    "dppo": (
        "dppo",
        "rollout",
        {"divergence": "tv", "delta_low": 0.1, "delta_high": 0.05, "upper": None},
        {"dppo.dppo_type": "binary_tv", "dppo.delta_low": 0.1, "dppo.delta_high": 0.05},
    ),
    "dppo binary_kl": (
        "dppo",
        "rollout",
        {"divergence": "kl", "delta_low": 0.02, "delta_high": 0.01, "upper": None},
        {"dppo.dppo_type": "binary_kl", "dppo.delta_low": 0.02, "dppo.delta_high": 0.01},
    ),
    "cross_entropy": ("cross_entropy", "old", {}, {}),
    "importance_sampling": ("ppo", "old", {"eps_low": 1.0, "eps_high": float("inf"), "dual_clip": None}, {}),
    "clip_cov": (
        "clip_cov",
        "old",
        PPO | CLIP_COV,
        {"clip_cov.clip_ratio": 1.0, "clip_cov.clip_cov_lb": 0.05, "clip_cov.clip_cov_ub": 5.0},
    ),
    "kl_cov": ("kl_cov", "old", {"share": 0.1, "coef": 0.5}, {"kl_cov.kl_cov_frac": 0.1, "kl_cov.ppo_kl_coef": 0.5}),
}
SUMMED = ("cross_entropy", "importance_sampling", "clip_cov", "kl_cov")
"""Compared under a plain sum: of these the first two are sums in SkyRL; the advantages that the last two select by are scaled
by the token count first in its trainer, so that nothing is selected."""
PRESETS = {
    "token_tis": {"tis_ratio_type": "token"},
    "sequence_tis": {"tis_ratio_type": "sequence"},
    "geometric_mask": {"sequence_mask_metric": "geometric"},
    "product_mask": {"sequence_mask_metric": "product"},
    "token_mask": {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0},
}
PRESETS["recommended"] = PRESETS["token_tis"] | PRESETS["geometric_mask"] | PRESETS["token_mask"]
PRESETS["recommended"] |= {"outlier_token_is_threshold_low": 1e-4, "outlier_token_is_threshold_high": 100.0}


def config(**settings) -> AlgorithmConfig:
    """SkyRL's algorithm config with dotted settings."""
    made = AlgorithmConfig(eps_clip_low=0.2, eps_clip_high=0.28, max_seq_len=NORM)
    for key, value in settings.items():
        *groups, last = key.split(".")
        setattr(functools.reduce(getattr, groups, made), last, value)
    return made


def cases() -> Iterator[Case]:
    """Everything that SkyRL and this project share."""
    for name in LOSSES:
        for theirs in ("token_sum",) if name in SUMMED else REDUCTIONS:
            case = functools.partial(_loss, name, theirs)
            yield Case(f"skyrl/loss/{name}", case)
            mean = " by response" if theirs in BY_RESPONSE else ""
            yield Case(f"skyrl/loss of an empty response{mean}/{name}", functools.partial(case, kind="empty response"))
            yield Case(f"skyrl/loss beyond 20/{name}", functools.partial(case, kind="beyond 20"))
            if name not in SUMMED:
                yield Case(f"skyrl/loss after a token rejection/{name}", functools.partial(case, correction=TOKENS))
    for name in PRESETS:
        for theirs in REDUCTIONS:
            yield Case(f"skyrl/preset/{name}", functools.partial(_preset, name, theirs))
            yield Case(f"skyrl/preset beyond 20/{name}", functools.partial(_preset, name, theirs, kind="beyond 20"))
        yield Case(f"skyrl/metrics/{name}", functools.partial(_metrics, name))
    yield Case("skyrl/preset/token mask before a sequence weight", _token_mask_then_sequence)
    for name in ADVANTAGE:
        yield Case(f"skyrl/advantage/{name}", functools.partial(_advantage, name))
    for name in ("k1", "k2", "k3", "abs"):
        yield Case(f"skyrl/kl/{name}", functools.partial(_kl, name))


def _loss(name: str, reduction: str, seed: int, correction: Correction | None = None, kind: str = "") -> tuple[dict, dict]:
    loss, anchor, params, settings = LOSSES[name]
    logp, b = batch(seed, kind, by_token=name != "gspo")
    made = objective(loss, REDUCTIONS.get(reduction, reduction), anchor, correction, **params)
    select = {"clip_cov": select_band, "kl_cov": select_top}.get(loss)
    chosen = b if select is None else b._replace(selected=select(logp, b.advantages, b.mask, **params))
    mine = our_loss(logp, chosen, made)
    settings = settings | {"policy_loss_type": name.split()[0], "loss_reduction": reduction}
    if correction is not None:
        settings |= {f"off_policy_correction.{key}": value for key, value in PRESETS["token_mask"].items()}
    theirs = _skyrl(logp, b, config(**settings), reduction)
    if kind == "empty response" and reduction in BY_RESPONSE:  # 7 of 8 have tokens
        mine["over all responses"], theirs["over all responses"] = mine["gradient"] * 7 / 8, theirs["gradient"]
    return mine, theirs


def _skyrl(logp: Tensor, b: Batch, made: AlgorithmConfig, reduction: str) -> dict:
    function = ppo_utils.PolicyLossRegistry.get(made.policy_loss_type)
    mask, advantages = b.mask.double(), b.advantages
    if reduction != "token_sum":
        prompts = [(start, start + 2) for start in range(0, len(mask), 2)]
        advantages = ppo_utils.apply_loss_reduction_to_advantages_minibatch(advantages, mask, reduction, len(mask), NORM, prompts)
    return with_gradient(lambda logp: function(logp, b.logp_old, advantages, made, mask, b.logp_rollout)[0], logp)


def _corrected(name: str) -> dict:
    settings = {f"off_policy_correction.{key}": value for key, value in PRESETS[name].items()}
    return settings | {"policy_loss_type": "regular", "eps_clip_high": 0.2}


def _preset(name: str, reduction: str, seed: int, kind: str = "") -> tuple[dict, dict]:
    logp, b = batch(seed, kind)
    made = preset(f"skyrl/{name}", REDUCTIONS[reduction])._replace(
        loss=objective("ppo", eps_low=0.2, eps_high=0.2, dual_clip=None).loss
    )
    return our_loss(logp, b, made), _skyrl(logp, b, config(**_corrected(name)), reduction)


def _token_mask_then_sequence(seed: int) -> tuple[dict, dict]:
    logp, b = batch(seed)
    weight = preset("skyrl/sequence_tis", "token_mean").correction.weight
    spec = Correction(weight=weight, reject={"token": Reject("token", "ratio", 0.5, 2.0)})
    made = Objective(objective("ppo", eps_low=0.2, eps_high=0.2, dual_clip=None).loss, spec, "old", "token_mean")
    return our_loss(logp, b, made), _skyrl(logp, b, config(**_corrected("token_mask") | _corrected("sequence_tis")), "token_mean")


def _metrics(name: str, seed: int) -> tuple[dict, dict]:
    """SkyRL's metrics beside ours of the same meaning."""
    _, b = batch(seed)
    spec = preset(f"skyrl/{name}", "token_mean").correction
    policies, settings = (b.logp_old, b.logp_rollout), config(**_corrected(name)).off_policy_correction
    theirs = compute_off_policy_correction(*policies, b.mask.double(), settings)[1]
    mine = our_metrics(b, spec)
    same = {
        "is_ratio_mean": mine["mismatch/ratio_mean"],
        "is_ratio_std": mine["mismatch/ratio_std"],
        "is_ratio_max": mine["mismatch/ratio_max"],
        "is_ratio_min": mine["mismatch/ratio_min"],
    }
    if spec.weight.level == "token":
        same["tis_token_clip_high_ratio"] = mine["rollout_corr/rollout_is_ratio_fraction_high"]
    if spec.weight.level == "sequence":
        same["tis_seq_clip_high_ratio"] = mine["rollout_corr/rollout_is_seq_fraction_high"]
    for filter_, theirs_name in {"geometric": "geo_sequence_mask", "product": "product_sequence_mask"}.items():
        if filter_ in spec.reject:
            high = mine[f"rollout_corr/rollout_rs_{filter_}_seq_fraction_high"]
            low = mine[f"rollout_corr/rollout_rs_{filter_}_seq_fraction_low"]
            same |= {
                f"{theirs_name}_over_high_ratio": high,
                f"{theirs_name}_under_low_ratio": low,
                f"{theirs_name}_masked_ratio": high + low,
            }
    if "token" in spec.reject:
        same["token_mask_ratio"] = sum(mine[f"rollout_corr/rollout_rs_token_fraction_{side}"] for side in ("high", "low"))
    return same, theirs


GROUPS = np.repeat(np.arange(2), 4)
ADVANTAGE = {
    "grpo": "grpo",
    "grpo without std": "dr_grpo",
    "rloo": "rloo",
    "maxrl": "maxrl",
    "reinforce++": "reinforce_pp",
    "gae": "gae",
    "gae with holes": "gae",
}


def _advantage(name: str, seed: int) -> tuple[dict, dict]:
    rewards, mask, tokens, values, _ = grouped(seed)
    if "holes" in name:
        mask = mask & (torch.arange(6) != 1)  # a token that the policy did not write
        tokens = tokens * mask
    ours, theirs = ADVANTAGES[ADVANTAGE[name]], ppo_utils.AdvantageEstimatorRegistry.get(name.split()[0])
    shared = {"token_level_rewards": tokens.clone(), "response_mask": mask.double(), "index": GROUPS}
    shared |= {"gamma": 0.9, "lambd": 0.8, "values": values * mask} if name.startswith("gae") else {"gamma": 1.0}
    shared |= {"grpo_norm_by_std": False} if "without" in name else {}
    if name.startswith("gae"):
        mine = ours(tokens, mask=mask, values=values, gamma=0.9, lam=0.8)
        advantages, returns = theirs(**shared)
        found = {"advantages": whiten(mine, mask), "returns": (mine + values)[mask]}
        return found, {"advantages": advantages * mask, "returns": returns[mask]}
    inputs = {"lengths": mask.sum(-1).view(2, 4)}
    mine = ours(rewards, **{key: inputs[key] for key in ours.needs})
    return {"advantages": mine.view(-1, 1) * mask}, {"advantages": theirs(**shared)[0]}


def _kl(name: str, seed: int) -> tuple[dict, dict]:
    logp, b = batch(seed)
    mine = with_gradient(lambda logp: KL[name](logp, b.logp_old, b.mask).sum(), logp)
    theirs = with_gradient(lambda logp: ppo_utils.compute_approx_kl(logp, b.logp_old, b.mask.double(), name).sum(), logp)
    return mine, theirs
