"""Meaning and unit of every metric of a run. METRICS have fixed names; names in FAMILIES depend on the config. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.precisions import PROBED


class Metric(NamedTuple):
    """A metric of a run: its meaning, its unit, and whether it is a wall-clock time, which a resumed run does not reproduce."""

    meaning: str
    unit: str
    timing: bool = False


METRICS = {
    "reward/rollout": Metric("mean reward of the sampled responses", "0..1"),
    "reward/informative_groups": Metric("share of prompts whose responses differ in the task's reward", "0..1"),
    "reward/greedy": Metric("mean reward of the prompts' most probable responses, the baseline of advantage=remax", "0..1"),
    "reward/sampled": Metric("mean reward of all rounds of rollout.filter, before groups were chosen", "0..1"),
    "reward/overlong": Metric("share of the responses that overlong.buffer punishes", "0..1"),
    "reward/overlong_penalty": Metric("mean that overlong.buffer takes off the reward", "reward"),
    "actor/reward_kl_penalty": Metric("KL of kl.place=reward per token, mean over responses; verl's name", "nats"),
    "actor/reward_kl_penalty_coeff": Metric("coefficient of the KL penalty on the reward in this step; verl's name", "1"),
    "rollout/rounds": Metric("rounds of sampling of a step, under rollout.filter", "count"),
    "rollout/filtered_groups": Metric("share of the sampled groups whose rewards were all equal", "0..1"),
    "rollout/filler_groups": Metric("share of the step's groups whose rewards are all equal, after the last round", "0..1"),
    "eval/reward": Metric("held-out reward of the policy of evaluation.policy, fixed prompts and random numbers", "0..1"),
    "eval/rollout_reward": Metric("held-out reward of the rollout engine's policy, with evaluation.policy=both", "0..1"),
    "eval/rollout_stderr": Metric("standard error of eval/rollout_reward, clustered by prompt", "0..1"),
    "eval/gap": Metric("eval/reward − eval/rollout_reward, the trainer's own policy over the sampling one", "[−1, 1]"),
    "eval/stderr": Metric("standard error of eval/reward, clustered by prompt", "0..1"),
    "eval/train_reward": Metric("reward of the policy of eval/reward on evaluation.train_prompts training prompts", "0..1"),
    "eval/train_rollout_reward": Metric("reward of the rollout engine's policy on the same training prompts", "0..1"),
    "eval/samples": Metric("responses behind eval/reward", "count"),
    "rollout_corr/chi2_token": Metric("plug-in χ² of the token ratio, mean ρ² − 1; verl's name", "1"),
    "rollout_corr/chi2_seq": Metric("plug-in χ² of the sequence ratio; verl's name", "1"),
    "rollout_corr/training_ppl": Metric("perplexity of π_old, mean over responses; verl's name", "1"),
    "rollout_corr/training_log_ppl": Metric("log perplexity of π_old, mean over responses; verl's name", "nats"),
    "rollout_corr/rollout_ppl": Metric("perplexity of μ, mean over responses; verl's name", "1"),
    "rollout_corr/rollout_log_ppl": Metric("log perplexity of μ, mean over responses; verl's name", "nats"),
    "rollout_corr/ppl_ratio": Metric("mean over responses of exp(−mean log ratio); verl's name", "ratio"),
    "rollout_corr/log_ppl_diff": Metric("mean over responses of −mean log ratio; verl's name", "nats"),
    "rollout_corr/log_ppl_abs_diff": Metric("mean over responses of |mean log ratio|; verl's name", "nats"),
    "rollout_corr/log_ppl_diff_max": Metric("largest of −mean log ratio of a response; verl's name", "nats"),
    "rollout_corr/log_ppl_diff_min": Metric("smallest of −mean log ratio of a response; verl's name", "nats"),
    "rollout_corr/rollout_rs_masked_fraction": Metric("share of tokens rejected; verl's name", "0..1"),
    "rollout_corr/rollout_rs_seq_masked_fraction": Metric("share of responses with a rejected token; verl's name", "0..1"),
    "mismatch/chi2_token_normalized": Metric("self-normalised χ² of the token ratio, 1/ess − 1", "≥ 0"),
    "mismatch/chi2_sequence_normalized": Metric("self-normalised χ² of the sequence ratio, 1/ess − 1", "≥ 0"),
    "mismatch/ratio_mean": Metric("mean raw token ratio π_old/μ", "ratio"),
    "mismatch/ratio_std": Metric("standard deviation of the raw token ratio", "ratio"),
    "mismatch/ratio_max": Metric("largest raw token ratio, at least 1", "ratio"),
    "mismatch/ratio_min": Metric("smallest raw token ratio, at most 1", "ratio"),
    "mismatch/pareto_k": Metric("tail shape of the raw sequence weights; absent when they do not vary", "1"),
    "rollout_corr/kl": Metric("K1 = mean −log(π_old/μ), estimates KL(μ‖π_old) per token; verl's name", "nats"),
    "rollout_corr/k3_kl": Metric("K3 = mean ρ − 1 − log ρ, estimates KL(μ‖π_old) per token, ≥ 0; verl's name", "nats"),
    "mismatch/ess_token": Metric("effective sample size of the raw token weights over their number", "(0, 1]"),
    "mismatch/ess_sequence": Metric("effective sample size of the raw sequence weights over their number", "(0, 1]"),
    "mismatch/log_ratio_max_abs": Metric("largest |log π_old − log μ| of a token", "nats"),
    "mismatch/beyond_bound": Metric("share of tokens whose log ratio is clamped before exp", "0..1"),
    "mismatch/dropped": Metric("tokens dropped because the rollout reported a non-finite log-probability", "count"),
    "correction/weight_mean": Metric("mean applied weight over response tokens", "ratio"),
    "correction/weight_ess": Metric("effective sample size of the applied weights over the response tokens", "[0, 1]"),
    "correction/weight_zero": Metric("share of response tokens with weight 0", "0..1"),
    "correction/kept_tokens": Metric("share of response tokens left by the filters", "0..1"),
    "correction/kept_sequences": Metric("share of responses left by the filters", "0..1"),
    "correction/used_length": Metric("mean length of the responses with a token kept at a weight above 0", "tokens"),
    "correction/dropped_length": Metric("mean length of the other responses; absent when all are used", "tokens"),
    "actor/loss": Metric("objective, mean over the mini-batches", "loss"),
    "actor/lr": Metric("learning rate of the step's last optimizer step", "1"),
    "actor/grad_norm": Metric("global gradient norm before clipping, largest of the mini-batches", "norm"),
    "actor/skipped": Metric("share of the optimizer steps that a loss scaler skipped", "0..1"),
    "actor/changed_bf16": Metric("share of weights whose BF16 value changes in an optimizer step", "0..1"),
    "actor/entropy": Metric("entropy of π_θ per response token just before each optimizer step", "nats"),
    "actor/kl": Metric("value of the KL term's estimator per counted token, mean over the mini-batches", "nats"),
    "actor/pg_clipfrac_lower": Metric("kept tokens at the dual clip over counted tokens; verl's name", "0..1"),
    "actor/clip_share": Metric("kept tokens at a bound of the loss over counted tokens, mean over the mini-batches", "0..1"),
    "actor/ppo_kl": Metric("mean log π_prox − log π_θ over kept tokens, mean over the mini-batches", "nats"),
    "critic/loss": Metric("clipped value loss per token, mean over the mini-batches", "reward²"),
    "critic/clipfrac": Metric("share of tokens whose value is clipped; verl's critic/vf_clipfrac", "0..1"),
    "critic/explained_variance": Metric("share of the variance of A + V that V explains; verl's critic/vf_explained_var", "≤ 1"),
    "critic/value_mean": Metric("mean value of the response tokens, when they were taken", "reward"),
    "critic/return_mean": Metric("mean of what the values learn, A + V", "reward"),
    "critic/grad_norm": Metric("global gradient norm of the critic before clipping, largest of the mini-batches", "norm"),
    "critic/skipped": Metric("share of the critic's optimizer steps that a loss scaler skipped", "0..1"),
    "rollout/response_tokens": Metric("mean length of the responses, in tokens of the policy", "tokens"),
    "rollout/truncated": Metric("share of the responses that were cut off before they ended, of tasks where they can", "0..1"),
    "rollout/same_length": Metric("share of the responses that have the commonest length, of tasks where they can end", "0..1"),
    "mismatch/mult_prob_error": Metric("mean max(ρ, 1/ρ) over tokens; NeMo-RL's token_mult_prob_error", "≥ 1"),
    "mismatch/seq_mult_prob_error_mean": Metric("mean over responses of their tokens' mean max(ρ, 1/ρ); NeMo-RL's", "≥ 1"),
    "mismatch/seq_mult_prob_error_max": Metric("largest mean max(ρ, 1/ρ) of a response", "≥ 1"),
    "mismatch/seq_mult_prob_error_min": Metric("smallest mean max(ρ, 1/ρ) of a response", "≥ 1"),
    "mismatch/k3_reverse": Metric("mean 1/ρ − 1 + log ρ over tokens: K3 in the other direction, as NeMo-RL has both", "nats"),
    "mismatch/js_divergence": Metric("mean log cosh(½ log ρ) over tokens; NeMo-RL's js_divergence_error", "nats"),
    "mismatch/prob_diff_mean": Metric("mean |π − μ| of the sampled tokens", "0..1"),
    "mismatch/prob_diff_std": Metric("standard deviation of |π − μ|", "0..1"),
    "mismatch/prob_diff_max": Metric("largest |π − μ|", "0..1"),
    **{
        f"mismatch/persistence_{lag}": Metric(f"correlation of the log ratios of fixed responses {lag} syncs apart", "[−1, 1]")
        for lag in (1, 5, 20)
    },
    "mismatch/prob_pearson": Metric("correlation of π and μ over tokens", "[−1, 1]"),
    "routing/flip_any": Metric("share of response tokens whose experts differ from the engine's in any layer", "0..1"),
    "routing/margin": Metric("p_k − p_(k+1) of the trainer's router, mean over response tokens and layers", "0..1"),
    "routing/margin_p10": Metric("10 % quantile of p_k − p_(k+1) over response tokens and layers", "0..1"),
    "routing/load_max": Metric("largest share of a layer's slots that an expert got", "0..1"),
    "routing/load_min": Metric("smallest share of a layer's slots that an expert got", "0..1"),
    "routing/dead_experts": Metric("experts of all layers that no response token picked", "count"),
    "routing/k3_routing": Metric("part of K3 that the choice of experts explains: K3 − routing/k3_rest", "nats"),
    "routing/k3_rest": Metric("K3 of π_old with the experts that the engine chose", "nats"),
    "rollout/support_tokens": Metric("tokens that top_p and top_k left, mean over response tokens", "tokens"),
    "rollout/turns": Metric("mean turns of the responses, of tasks with an environment", "count"),
    "rollout/environment_tokens": Metric("mean tokens of a response that its environment wrote; no length has them", "tokens"),
    "rollout/version_lag": Metric("optimizer steps between the weights that sampled and those that are trained, mean", "steps"),
    "rollout/version_lag_max": Metric("optimizer steps since the batch's oldest token was sampled, in partial rollouts", "steps"),
    "rollout/mixed_versions": Metric("share of the responses with tokens of several versions, of partial rollouts", "0..1"),
    "rollout/sync_difference": Metric("mean |log μ − log π| of a few responses after the weights were loaded", "nats"),
    **{
        f"probe/{precision}/{name}": Metric(f"{meaning}, had {precision} sampled for these weights", unit)
        for precision in PROBED
        for name, (meaning, unit) in {
            "k3_kl": ("K3 per token", "nats"),
            "ess_sequence": ("effective sample size of the sequence weights over their number", "(0, 1]"),
            "log_ratio_max_abs": ("largest |log π_old − log μ| of a token", "nats"),
        }.items()
    },
    "diagnosis/faulty": Metric("1 if the log-probabilities have a fault or are not explained by rounding, else 0", "0 or 1"),
    "diagnosis/mean_ratio": Metric("mean of ρ over tokens, whose expectation is 1 if μ sampled them", "ratio"),
    "diagnosis/mean_ratio_z": Metric("diagnosis/mean_ratio − 1 over its standard error, as a normal deviate", "1"),
    "time/generate": Metric("sampling", "seconds", timing=True),
    "time/score": Metric("scoring π_old", "seconds", timing=True),
    "time/train": Metric("forward, backward and optimizer", "seconds", timing=True),
    "time/sync": Metric("weights to the engine", "seconds", timing=True),
    "time/verify": Metric("checking that the engine holds the new weights", "seconds", timing=True),
    "time/persistence": Metric("scoring of the fixed responses of mismatch/persistence_*", "seconds", timing=True),
    "time/evaluate": Metric("held-out evaluation", "seconds", timing=True),
    "time/step": Metric("the whole step but for its record", "seconds", timing=True),
    "throughput/rollout_tokens": Metric("sampled tokens per second of sampling", "tokens/s", timing=True),
}

_OF_MISMATCH = ("mismatch/chi2", "mismatch/ratio_", "mismatch/ess_", "mismatch/pareto_k", "mismatch/log_ratio", "mismatch/beyond")
_OF_CORRECTION = ("correction/", "rollout_corr/rollout_rs_")
_CURRENT = {
    f"current/{name}": Metric(f"of π_θ in place of π_old, over the mini-batches: {metric.meaning}", metric.unit)
    for name, metric in METRICS.items()
    if name.startswith((*_OF_MISMATCH, "rollout_corr/")) and not name.startswith(_OF_CORRECTION)
}
_OLD = {
    f"old/{name}": Metric(f"of a correction of π_old/μ, which was not applied: {metric.meaning}", metric.unit)
    for name, metric in METRICS.items()
    if name.startswith(_OF_CORRECTION)
}
METRICS |= _CURRENT | _OLD
"""All metrics with fixed names. Those with the prefix `current/` are recorded with proximal=rollout or
correction.ratio=current. Those with the prefix `old/` are recorded only with correction.ratio=current, where correction/…
describes the applied correction."""

FAMILIES = {
    "diagnosis/fault_": Metric(
        "1 at a step whose diagnosis names this fault, or none that is known (docs/diagnosis.md)", "0 or 1"
    ),
    "mismatch/share_above_": Metric("share of tokens with max(ρ, 1/ρ) above the number", "0..1"),
    "correction/raw_": Metric("of the weight before its bounds: mean, std, max, min, eff_sample_size", "ratio"),
    "rollout_corr/rollout_is_": Metric("of the applied weight; verl's names", "ratio or 0..1"),
    "rollout_corr/rollout_rs_": Metric("of a filter's statistic, by the filter's name; verl's names", "that of the statistic"),
    "old/correction/raw_": Metric("of the weight of π_old/μ before its bounds, which was not applied", "ratio"),
    "old/rollout_corr/rollout_is_": Metric("of the bounded weight of π_old/μ, which was not applied", "ratio or 0..1"),
    "old/rollout_corr/rollout_rs_": Metric("of a filter's statistic of π_old/μ, which was not applied", "that of the statistic"),
    "routing/flip_layer_": Metric("share of response tokens whose experts in that layer are not the engine's", "0..1"),
    "profile/": Metric("kl or k3 per token of the positions (or response lengths) up to the number, above half of it", "nats"),
}
"""Metrics whose full names depend on the config, by the prefix of their names. Those of a correction's weight are recorded at
each step, the others every diagnostics.every steps."""


def check_named(names: Iterable[str]) -> None:
    """Raise KeyError if any metric name is not in METRICS and begins with no prefix in FAMILIES."""
    for name in names:
        if not name.startswith(tuple(FAMILIES)):
            METRICS[name]
