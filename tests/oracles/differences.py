"""Where a number here differs from a package's on purpose. All else that is compared agrees to 1e-6.

Compared are random batches in fp64, called as the package's trainer calls its functions on one rank with one micro-batch:
- loss and gradient of every loss, preset and reduction, on batches within ±20 nats and beyond, and of an empty response;
- the same after a rejection by token, and with a weight;
- the metrics of losses, corrections and mismatch, on batches within ±20 nats without an empty response;
- advantages of groups of equal size, by token also of a mask with holes; KL estimators.
`test_recipes.py` compares shaped rewards, schedules and the entropy term, `test_bypass_metrics.py` metrics over mini-batches,
`test_critic.py` the loss of values and their explained variance. TRL 1.16.0 has no PPO with a critic.
Not compared: other precisions, several micro-batches or ranks.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import NamedTuple


class Difference(NamedTuple):
    """The comparisons and the names in them that differ, as patterns, and why."""

    comparisons: str
    names: str
    reason: str


RS = "rollout_corr/rollout_rs"
DIFFERENCES = (
    # --- losses ---
    Difference(
        "verl/ignored reduction/*",
        "[lg]*",
        "verl ignores loss_agg_mode for sapo and geo_mean, which take every reduction here",
    ),
    Difference(
        "verl/weighted loss/geo_mean",
        "[lg]*",  # loss, gradient
        "verl takes the geometric mean of a response's weights; here a token's weight multiplies its loss",
    ),
    Difference("verl/*loss*/dppo_*", "loss", "verl writes -sg(r)·A·log π_θ, this -A·r as the paper does: with the same gradient"),
    Difference(
        "*/clip_cov",
        "loss",
        "the packages leave tokens that PPO clips out of the selection: their gradient is 0 either way, their value is not",
    ),
    Difference(
        "verl/*loss*/*_cov",
        "loss with its own selection",
        "verl selects at π_θ in each micro-batch, this once in the mini-batch, at the anchor",
    ),
    Difference(
        "trl/cispo without epsilon_high",
        "*",
        "TRL then caps every ratio at epsilon = 0.2; an upper bound below 1 is refused here",
    ),
    Difference(
        "trl/vespo with a weight", "*", "TRL multiplies the mismatch weight into w = Π π_θ/π_old; here it multiplies the loss"
    ),
    Difference(
        "verl/*loss*/kl_cov", "actor/ppo_kl", "verl reports the mean of abs(log r) for kl_cov; here it is the same of each loss"
    ),
    Difference(
        "trl/gspo with a weight/token_*",
        "gradient",
        "TRL's gradient goes through the mean ratio, so a token's weight spreads over its response; here it does not",
    ),
    # --- empty responses: a mean over responses here is over those with tokens ---
    *(
        Difference(f"{package}/loss of an empty response by response/*", "[lg]*", "all responses count there, the empty ones too")
        for package in ("verl", "skyrl", "trl")
    ),
    # --- beyond 20 nats: every ratio here is that of a log ratio within ±20 nats ---
    Difference("verl/loss beyond 20/gspo", "[lg]*", "verl caps the log of the ratio at 10"),
    Difference("skyrl/loss beyond 20/gspo", "[lg]*", "likewise"),
    *(
        Difference(f"{package}/loss beyond 20/{loss}", names, "it bounds no ratio of this loss")
        for package in ("verl", "skyrl")
        for loss, names in {"clip_cov": "gradient", "kl_cov": "[lg]*"}.items()
    ),
    Difference("skyrl/loss beyond 20/importance_sampling", "[lg]*", "likewise"),
    *(
        Difference(f"verl/loss beyond 20/{loss}", "actor/ppo_kl", "verl clamps log r of this metric")
        for loss in ("vanilla", "sapo", "cispo", "dppo_*")
    ),
    *(
        Difference(
            f"verl/preset beyond 20*/{rejection}*",
            names,
            "verl clamps each token's log ratio before it sums them for a rejection, this the sum",
        )
        for rejection, names in {
            "decoupled_geo_rs": "[lg]*",
            "decoupled_seq_is_rs": "[lg]*",
            "bypass_pg_geo_rs": "[lg]*",
            "bypass_ppo_clip_geo_rs": "loss",
        }.items()  # the last one's dual clip has no gradient there
    ),
    Difference("skyrl/preset beyond 20/recommended", "*", "as within ±20"),
    *(
        Difference(f"trl/loss beyond 20/{loss} token", "[lg]*", "TRL bounds no ratio")
        for loss in ("bnpo", "dapo", "grpo", "dr_grpo", "luspo")
    ),
    Difference("trl/preset beyond 20/*", "[lg]*", "likewise"),
    # --- corrections ---
    Difference(
        "verl/preset*by response/decoupled_*_rs*",
        "[lg]*",
        "verl divides by all responses of the mini-batch, denominator=kept by those that were kept; the importer takes original",
    ),
    Difference(
        "verl/token rejection in bypass/seq_mean_token_mean",
        "[lg]*",
        "verl divides a response by its kept tokens, and the batch by its original ones",
    ),
    Difference(
        "skyrl/preset/recommended",
        "*",
        "SkyRL's geometric mean is over what its token mask left; here every filter reads the original mask",
    ),
    Difference("skyrl/preset/token mask before a sequence weight", "*", "likewise the product in a sequence weight"),
    Difference(
        "trl/off-policy mask with a weight", "*", "TRL's mask is of π_θ/μ, its weight of π_old/μ; here a correction has one ratio"
    ),
    # --- metrics ---
    Difference(
        "verl/metrics/*_seq_*",
        "rollout_corr/rollout_is_max",
        "verl reports the raw maximum of sequence weights; raw is correction/raw_max here",
    ),
    Difference("verl/metrics/*_pg_is", "rollout_corr/rollout_is_max", "likewise"),
    Difference("verl/batch normalize/sequence", "rollout_corr/rollout_is_max", "likewise"),
    Difference(
        "verl/metrics/*_seq_*",
        "rollout_corr/rollout_is_ratio_fraction_*",
        "of sequence weights verl counts responses, this tokens; seq_fraction_* counts responses",
    ),
    Difference("verl/metrics/*_pg_is", "rollout_corr/rollout_is_ratio_fraction_*", "likewise"),
    Difference("verl/batch normalize/sequence", "rollout_corr/rollout_is_ratio_fraction_*", "likewise"),
    *(
        Difference(
            "verl/metrics/*_rs*",
            f"{RS}_???_rs_{name}",  # of geo_rs and seq_rs, all but the masked fractions
            "verl reports k1 = -log ρ against logarithms of its bounds, this ρ against ratios",
        )
        for name in ("*m[aei][anx]*", "*std", "*fraction_[hl]*")
    ),
    Difference(
        "verl/metrics/*_k3_rs*",
        f"{RS}_k3_rs_fraction_high",
        "verl counts responses, this tokens; seq_fraction_high counts responses",
    ),
    Difference("verl/metrics/*_k3_rs*", f"{RS}_k3_rs_std", "verl clamps to the threshold first, which hides the tail"),
    Difference("skyrl/metrics/*", "is_ratio_min", "SkyRL counts padding as ratio 0"),
    Difference("skyrl/metrics/*", "is_ratio_std", "likewise"),
    Difference("skyrl/metrics/recommended", "geo_*", "of the tokens that its token mask left, and counts the other way round"),
    Difference("skyrl/metrics/recommended", "tis_*", "likewise"),
    # --- advantages ---
    Difference("skyrl/advantage/gae with holes", "*", "SkyRL takes a token that the policy did not write for one of its own"),
    Difference(
        "*/advantage/reinforce*",
        "advantages",
        "whitened with 1e-6 added to the standard deviation, not 1e-8 to the variance: 1e-5 apart",
    ),
    Difference(
        "verl/advantage/gpg with rewards of 0",
        "advantages",
        "verl scales by all responses over those of a reward other than 0; the paper, by those in groups of unequal rewards",
    ),
    Difference("skyrl/advantage/maxrl", "advantages", "SkyRL adds 1e-6 to the mean; this divides by it where it is positive"),
)

MISSING = (
    Difference(
        "verl/*loss*/*", "actor/pg_clipfrac", "actor/clip_share here counts every bound of the loss, the dual clip's included"
    ),
    Difference(
        "verl/*loss*/[!vd]*", "actor/pg_clipfrac_lower", "verl has it for losses without a dual clip; here it is absent then"
    ),
    Difference("verl/ignored reduction/*", "actor/pg_clipfrac*", "likewise, both"),
)
"""Results of verl in a comparison whose names do not exist here."""


def expected(comparison: str, names: set[str], listed: tuple[Difference, ...] = DIFFERENCES) -> set[str]:
    """Those of the names that are listed to differ, or to be missing."""
    patterns = [d.names for d in listed if fnmatch(comparison, d.comparisons)]
    return {name for name in names if any(fnmatch(name, pattern) for pattern in patterns)}
