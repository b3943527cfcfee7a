"""Configs of other programs, old spellings included, become what those programs really did."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from analysis.sources import is_control
from faultline.cli import main
from faultline.tools.import_config import import_config, trl
from faultline.tools.import_config.source import Source
from faultline.tools.import_config.translation import Translation
from harness.arms import arms
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.run.metrics import check_named
from harness.validate import check
from tests.faultline.tools.import_config.expected import NONE, correction, keep, weight

SKYRL = {  # trainer.algorithm → (loss, its parameters, proximal, correction, notes, not translated)
    "use_tis": ({"use_tis": True, "tis_imp_ratio_cap": 2.0}, "ppo", {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": None}, "old",
                correction(weight("token", upper=2.0)), [], []),
    "its recommendation": (
        {"policy_loss_type": "dual_clip", "eps_clip_high": 0.28, "off_policy_correction": {
            "tis_ratio_type": "token", "sequence_mask_metric": "geometric", "token_mask_is_threshold_low": 0.5,
            "token_mask_is_threshold_high": 2.0, "outlier_token_is_threshold_low": 1e-4, "outlier_token_is_threshold_high": 100}},
        "ppo", {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": 3.0}, "old",
        correction(weight("token", upper=2.0), {"token": keep("token", "ratio", 0.5, 2.0),
                                                "outlier": keep("worst_token", "ratio", 1e-4, 100),
                                                "geometric": keep("geometric", "ratio", 0.99, 1.01)}),
        ["SkyRL takes sequence ratios over the tokens that its token mask left, this over the response"], []),
    "sequence weight, product mask, half a token mask": (
        {"off_policy_correction": {"tis_ratio_type": "sequence", "sequence_mask_metric": "product", "product_mask_low": 0.25,
                                   "token_mask_is_threshold_high": 2.0}},
        "ppo", {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": None}, "old",
        correction(weight("sequence", upper=5.0), {"product": keep("sequence", "ratio", 0.25, 2.0)}),
        ["token_mask_is_threshold: SkyRL ignores one bound without the other; no token mask"], []),
    "an outlier mask from above": (
        {"off_policy_correction": {"outlier_token_is_threshold_low": 0.0, "outlier_token_is_threshold_high": 100}}, "ppo",
        {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": None}, "old",
        correction(NONE, {"outlier": keep("worst_token", "ratio", None, 100)}), [], []),
    "cispo": ({"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 4.0,
                                                     "cispo_anchor": "rollout"}},
              "cispo", {"lower": 0.0, "upper": 5.0}, "rollout", correction(NONE), [], []),
    "cispo of the package": (
        {"policy_loss_type": "cispo"}, "cispo", {"lower": 1.0, "upper": 6.0}, "old", correction(NONE),
        ["cispo bounds not set: SkyRL 0.3.0's are 0 and 5, ratios in [1, 6]; later ones 1 and 4"], []),
    "dppo": ({"policy_loss_type": "dppo", "dppo": {"dppo_type": "binary_kl", "delta_high": 0.1}}, "dppo",
             {"divergence": "kl", "delta_low": 0.2, "delta_high": 0.1}, "rollout", correction(NONE), [], []),
    "gspo": ({"policy_loss_type": "gspo"}, "gspo", {"eps_low": 0.2, "eps_high": 0.2}, "old", correction(NONE), [], []),
    "sapo": ({"policy_loss_type": "sapo", "sapo": {"tau_neg": 2}}, "sapo", {"tau_pos": 1.0, "tau_neg": 2}, "old",
             correction(NONE), [], []),
    "cross_entropy": ({"policy_loss_type": "cross_entropy"}, "cross_entropy", None, "old", correction(NONE),
                      ["cross_entropy: SkyRL sums it over tokens, whatever loss_reduction says"], []),
    "importance_sampling": (
        {"policy_loss_type": "importance_sampling", "off_policy_correction": {"tis_ratio_type": "token"}}, "ppo",
        {"eps_low": 1.0, "eps_high": 4.86e8, "dual_clip": None}, "old", correction(NONE),
        ["policy_loss_type=importance_sampling: SkyRL applies no off_policy_correction to it"], []),
    "clip_cov": ({"policy_loss_type": "clip_cov"}, None, None, "old", correction(NONE), [],
                 ["trainer.algorithm.policy_loss_type=clip_cov: SkyRL pre-divides advantages by the token count, so its "
                  "covariance bounds never match what they say"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SKYRL)
def test_skyrl(imported, case):
    algorithm, loss, params, proximal, expected, notes, lost = SKYRL[case]
    body, *said = imported({"trainer": {"algorithm": {"use_kl_loss": False} | algorithm}})
    assert (body["options"].get("loss"), body.get("loss"), body["proximal"]) == (loss, params, proximal)
    assert body["correction"] == expected
    assert said == [notes, lost]


def test_the_recipes_of_skyrl_and_trl(imported):
    algorithm = {"use_kl_loss": False, "use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive", "kl_target": 0.05},
                 "use_entropy_loss": True, "dynamic_sampling": {"type": "filter", "max_sample_batches": -1}}  # fmt: skip
    optimizer = {"scheduler": "cosine", "num_warmup_steps": 7}
    body, notes, lost = imported({"trainer": {"algorithm": algorithm, "policy": {"optimizer_config": optimizer}}})
    assert body["kl"] == {"coef": 0.001, "place": "reward", "target": 0.05, "horizon": 10000} and body["entropy_coeff"] == 0.01
    assert body["rollout"] == {"filter": {"max_rounds": 1000}} and lost == []
    assert body["actor"]["schedule"] == {"name": "cosine", "warmup_steps": 7}
    assert imported({"trainer.algorithm": {"use_kl_loss": False, "dynamic_sampling.type": "replace"}})[2] == [
        "dynamic_sampling.type=replace: groups of equal rewards are sampled anew here, none is repeated"
    ]
    trl = {"use_vllm": False, "loss_type": "grpo", "learning_rate": 1e-6, "entropy_coef": 0.02, "max_steps": 30}
    body, notes, lost = imported(trl | {"warmup_ratio": 0.1})
    assert body["actor"] == {"schedule": {"name": "linear", "warmup_steps": 3}} and body["entropy_coeff"] == 0.02
    entropy = "entropy_coef: theirs is the token_mean of the entropy, this is reduced as the loss is"
    assert (own(notes), lost) == ([OFF, entropy, RATE], [])
    assert imported({"use_vllm": False, "lr_scheduler_type": "polynomial"})[2] == [
        "lr_scheduler_type=polynomial: no such schedule here"
    ]


def test_the_rest_of_a_skyrl_config(imported):
    body, _, lost = imported(
        {"trainer.algorithm": {"advantage_estimator": "reinforce++", "loss_reduction": "seq_mean_token_sum_norm",
                               "max_seq_len": 512},
         "trainer": {"train_batch_size": 64, "policy_mini_batch_size": 16, "epochs": 2, "update_epochs_per_batch": 3},
         "generator": {"n_samples_per_prompt": 4, "sampling_params": {"top_p": 0.9, "top_k": 20}}}
    )  # fmt: skip
    assert body["options"]["advantage"] == "reinforce_pp" and body["reduce"] == {"norm": 512}
    assert body["rollout"] == {"prompts": 64, "group_size": 4, "top_p": 0.9, "top_k": 20}
    assert body["actor"] == {"epochs": 3, "num_minibatches": 4}
    assert lost == []
    assert imported({"trainer.algorithm.loss_reduction": "prompt_mean"})[0]["options"]["reduce"] == "prompt_mean"
    assert imported({"trainer.algorithm.loss_reduction": "token_mean_legacy", "trainer.policy_mini_batch_size": 8})[2] == [
        "trainer.algorithm.loss_reduction=token_mean_legacy: no such reduce here, or no run provides what it needs",
        "trainer.policy_mini_batch_size=8: actor.num_minibatches is trainer.train_batch_size over it, which is not set",
    ]


def test_the_critic_of_skyrl(imported):
    """Its defaults: value_clip 0.2, a critic's lr of 5e-6, γ = λ = 1."""
    body, _, lost = imported({"trainer.algorithm": {"advantage_estimator": "gae", "use_kl_loss": False}})
    assert (body["options"]["advantage"], body["advantage"]) == ("gae", {"gamma": 1.0, "lam": 1.0}) and lost == []
    assert body["critic"] == {"lr": 5e-6, "cliprange_value": 0.2}
    theirs = {"advantage_estimator": "gae", "use_kl_loss": False, "lambd": 0.95, "gamma": 0.99, "value_clip": 0.5}
    body, _, lost = imported({"trainer": {"algorithm": theirs, "critic.optimizer_config.lr": 1e-5}})
    assert body["advantage"] == {"gamma": 0.99, "lam": 0.95} and lost == []
    assert body["critic"] == {"lr": 1e-5, "cliprange_value": 0.5}


@pytest.mark.parametrize(
    ("theirs", "line"),
    [
        ({"algorithm.adv_estimator": "grpo", "trainer.total_epochs": 15}, "trainer.total_epochs=15: a run here counts steps"),
        ({"algorithm.adv_estimator": "grpo"}, "trainer.total_training_steps is not set"),
        (
            {"trainer.algorithm.use_kl_loss": False, "trainer.epochs": 20},
            "trainer.epochs=20: a run here counts steps, not epochs",
        ),
        ({"loss_type": "grpo", "num_train_epochs": 3}, "num_train_epochs=3: a run here counts steps, not epochs"),
    ],
)
def test_a_length_in_epochs_is_the_loudest_line(tmp_path, capsys, theirs, line):
    """It stands above all other comments, and on standard error."""
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    main(["import-config", str(tmp_path / "theirs.yaml")])
    out, err = capsys.readouterr()
    first = next(shown for shown in out.splitlines()[3:] if shown.startswith("#"))
    assert first.startswith(f"# WARNING: {line}") and "STEPS STAY AT THE DEFAULT OF 280" in first and err == f"{first}\n"


def test_a_length_in_steps_warns_of_nothing(imported, capsys):
    body, notes, _ = imported({"algorithm.adv_estimator": "rloo", "trainer": {"total_epochs": 15, "total_training_steps": 9}})
    assert body["steps"] == 9
    assert notes == ["trainer.total_epochs=15: trainer.total_training_steps is set, and ends the run here"]
    assert imported({"trainer.algorithm.use_kl_loss": False, "trainer.max_training_steps": 7})[0]["steps"] == 7


SKYRL_KL = "kl: SkyRL takes its mean over responses, rejected tokens included, and clamps k3 at 10"
ON_BY_DEFAULT = "; use_kl_loss is not set: it is on by default"


@pytest.mark.parametrize(
    ("algorithm", "kl", "coef", "notes", "lost"),
    [
        ({}, "k3", 0.001, [SKYRL_KL + ON_BY_DEFAULT], []),
        ({"use_kl_loss": True, "kl_estimator_type": "abs", "kl_loss_coef": "0.02"}, "abs", 0.02, [SKYRL_KL], []),
        ({"kl_loss_coef": 0}, None, None, [], []),
        ({"use_kl_loss": False, "kl_ctrl": {"type": "adaptive"}}, None, None,
         ["use_kl_in_reward is not true, so SkyRL does not read kl_ctrl"], []),
        ({"use_kl_loss": False, "use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive"}}, "k3", 0.001, [], []),
    ],
)  # fmt: skip
def test_the_kl_of_skyrl(imported, algorithm, kl, coef, notes, lost):
    body, *said = imported({"trainer": {"algorithm": {"policy_loss_type": "regular"} | algorithm}})
    assert (body["options"].get("kl"), body.get("kl", {}).get("coef")) == (kl, coef)
    assert said == [notes, lost]


UNBIASED = "use_bias_correction_kl is not set: on in TRL 1.16, off before; kl=k3 is the latter"


@pytest.mark.parametrize(
    ("settings", "kl", "notes"),
    [
        ({"beta": 0.0}, None, []),
        ({"beta": 0.04}, "k3_unbiased", [UNBIASED]),
        ({"beta": 0.04, "use_bias_correction_kl": False}, "k3", []),
        ({"beta": 0.04, "use_bias_correction_kl": True, "importance_sampling_level": "sequence"}, "k3_unbiased",
         ["kl: TRL multiplies each token's k3 by the ratio of its response, this by the token's own"]),
        ({"beta": 0.04, "use_bias_correction_kl": False, "use_vllm": True, "off_policy_mask_threshold": 0.5,
          "vllm_importance_sampling_correction": False}, "k3",
         ["kl: TRL's KL term counts masked tokens too; here they are left out"]),
    ],
)  # fmt: skip
def test_the_kl_of_trl(imported, settings, kl, notes):
    body, said, lost = imported({"loss_type": "grpo", "use_vllm": False} | settings)
    assert (body["options"].get("kl"), body.get("kl")) == (kl, None if kl is None else {"coef": 0.04})
    assert [line for line in own(said) if line != OFF] == notes and lost == []


NAMED = ("TRL 1.16's defaults", "use_vllm=True: the embedded engine")
"""Beginnings of the notes on what only --launch writes. `test_launch.py` has its tests."""


def own(notes: list[str]) -> list[str]:
    """The notes of a TRL config without those that every one has."""
    return [line for line in notes if not line.startswith(NAMED)]


DEFAULT_MODE = "vllm_importance_sampling_mode is not set: sequence_mask is TRL's default"
OFF = "use_vllm is not true, so TRL applies no correction, whatever its keys say"
PPO = {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": None}
TRL = {  # config without use_vllm: true → (loss, its parameters, reduction, correction, notes, not translated)
    "defaults": ({"num_generations": 8}, "ppo", PPO, "token_mean", correction(weight("sequence", "mask", None, 3.0)),
                 [DEFAULT_MODE], []),
    "switched off": ({"vllm_importance_sampling_correction": False}, "ppo", PPO, "token_mean", correction(NONE), [], []),
    "no vLLM": ({"use_vllm": False, "vllm_importance_sampling_mode": "token_mask"}, "ppo", PPO, "token_mean", correction(NONE),
                [OFF], []),
    "the old cap": ({"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 2.0}, "ppo", PPO,
                    "token_mean", correction(weight("token", upper=2.0)), [], []),
    "two bounds clip": ({"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_min": 0.5}, "ppo",
                        PPO, "token_mean", correction(weight("sequence", "clip", 0.5, 3.0)), [], []),
    "a lower bound of 0 clips nothing": (
        {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0}, "ppo", PPO, "token_mean",
        correction(weight("token", upper=3.0)), [], []),
    "a lower bound of 0 masks nothing": (
        {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.0}, "ppo", PPO, "token_mean",
        correction(weight("token", "mask", None, 3.0)), [], []),
    "no bound at all": (
        {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": math.inf}, "ppo", PPO, "token_mean",
        correction(weight("token", "truncate", None, 4.86e8)), [], []),
    "off-policy mask alone": (
        {"vllm_importance_sampling_correction": False, "off_policy_mask_threshold": 0.5}, "ppo", PPO, "token_mean",
        correction(NONE, {"off_policy": keep("geometric", "ratio", math.exp(-0.5), None, "negative_advantage")}, ratio="current"),
        [], []),
    "off-policy mask with a weight": (
        {"off_policy_mask_threshold": 0.5, "vllm_importance_sampling_mode": "token_truncate"}, "ppo", PPO, "token_mean",
        correction(weight("token", upper=3.0),
                   {"off_policy": keep("geometric", "ratio", math.exp(-0.5), None, "negative_advantage")}),
        ["off_policy_mask_threshold=0.5: TRL compares μ with π_θ, this with π_old as the weight does; "
         "equal on the first mini-batch"], []),
    "delta": ({"use_vllm": False, "loss_type": "grpo", "delta": 4, "epsilon_high": 0.28}, "ppo",
              {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": 4}, "seq_mean_token_mean", correction(NONE), [OFF], []),
    "sequence level": ({"use_vllm": False, "loss_type": "grpo", "importance_sampling_level": "sequence", "delta": 4}, "gspo",
                       {"eps_low": 0.2, "eps_high": 0.2}, "seq_mean_token_mean", correction(NONE), [OFF],
                       ["delta=4: caps the ratio in TRL, which loss gspo has no parameter for"]),
    "cispo": ({"use_vllm": False, "loss_type": "cispo", "epsilon_high": 5.0}, "cispo", {"lower": 0.0, "upper": 5.0}, "token_mean",
              correction(NONE), [OFF], []),
    "cispo with its cap unset": (
        {"use_vllm": False, "loss_type": "cispo"}, "pg", None, "token_mean", correction(NONE),
        ["cispo: epsilon_high is not set, so TRL caps every ratio at 0.2, absolute: REINFORCE times 0.2 where r exceeds it", OFF],
        ["that factor 0.2: loss=cispo takes an upper of 1 or more"]),
    "sapo": ({"use_vllm": False, "loss_type": "sapo"}, "sapo", {"tau_pos": 1.0, "tau_neg": 1.05}, "seq_mean_token_mean",
             correction(NONE), [OFF], []),
    "luspo": ({"use_vllm": False, "loss_type": "luspo", "importance_sampling_level": "sequence"}, "luspo",
              {"eps_low": 0.2, "eps_high": 0.2}, "seq_mean_token_mean", correction(NONE), [OFF], []),
    "luspo at its default level": ({"use_vllm": False, "loss_type": "luspo", "delta": 4}, "ppo", PPO | {"dual_clip": 4},
                                   "seq_mean_token_sum", correction(NONE), [OFF], []),
    "gspo with a token weight": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "vllm_importance_sampling_mode": "token_mask"}, "gspo",
        {"eps_low": 0.2, "eps_high": 0.2}, "seq_mean_token_mean", correction(weight("token", "mask", None, 3.0)),
        ["importance_sampling_level=sequence: in TRL a token's weight spreads over its response, here it does not"], []),
    "vespo": ({"loss_type": "vespo", "vllm_importance_sampling_correction": False}, "vespo",
              {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}, "token_mean", correction(NONE),
              ["vespo: TRL multiplies the mismatch ratio into w, this multiplies the loss"], []),
    "bnpo": ({"use_vllm": False, "loss_type": "bnpo"}, "ppo", PPO, "token_mean", correction(NONE),
             ["bnpo: TRL divides by the tokens of each micro-batch, this by those of the mini-batch", OFF], []),
    "unknown loss": ({"use_vllm": False, "loss_type": "bco"}, None, None, "token_mean", correction(NONE), [OFF],
                     ["loss_type=bco: no such loss here"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TRL)
def test_trl(imported, case):
    source, loss, params, reduction, expected, notes, lost = TRL[case]
    body, said, left = imported({"use_vllm": True} | source)
    assert (body["options"].get("loss"), body.get("loss"), body["options"]["reduce"]) == (loss, params, reduction)
    assert body["correction"] == expected
    assert (own(said), left) == (notes, lost)


def test_the_rest_of_a_trl_config_in_json(imported):
    theirs = {"loss_type": "dr_grpo", "scale_rewards": False, "learning_rate": 1e-6, "max_steps": -1, "beta": 0.04}
    body, _, lost = imported(json.dumps(theirs))
    assert body["options"]["advantage"] == "dr_grpo" and body["reduce"] == {"norm": 512}
    assert body["actor"] == {"schedule": {"name": "linear", "warmup_steps": 0}} and "steps" not in body
    assert body["options"]["kl"] == "k3_unbiased" and lost == []
    assert imported({"scale_rewards": "batch", "use_vllm": False})[0]["options"]["advantage"] == "grpo_batch_std"
    assert imported({"scale_rewards": "median", "use_vllm": False})[2] == [
        "scale_rewards=median: no such advantage here, or no run provides what it needs"
    ]


OTHER_STEPS = "TRL counts optimizer steps"


@pytest.mark.parametrize(
    ("settings", "actor", "steps", "said"),
    [
        ({"gradient_accumulation_steps": 4}, {"num_minibatches": 1}, 100, ""),  # steps_per_generation is 4 as well
        ({"steps_per_generation": 8, "gradient_accumulation_steps": 4}, {"num_minibatches": 2}, 50, OTHER_STEPS),
        ({"steps_per_generation": 3, "num_iterations": 2}, {"epochs": 2, "num_minibatches": 3}, 17, OTHER_STEPS),  # ⌈100/6⌉
        ({"steps_per_generation": 6, "gradient_accumulation_steps": 4}, None, 100, "steps_per_generation=6: no multiple of"),
        ({"generation_batch_size": 64}, None, 100, "generation_batch_size=64: actor.num_minibatches is it over"),
    ],
)
def test_the_mini_batches_of_trl(imported, settings, actor, steps, said):
    """A rollout lasts steps_per_generation · num_iterations passes, an optimizer step gradient_accumulation_steps of them."""
    body, notes, lost = imported({"use_vllm": False, "max_steps": 100, "seed": 7, "top_p": 0.9, "top_k": 0} | settings)
    assert (body.get("actor"), body["steps"], body["seed"]) == (actor, steps, 7)
    assert (body["rollout"]["top_p"], body["rollout"]["top_k"]) == (0.9, 0)
    assert said in "\n".join(notes + lost) and (said or own(notes) + lost == [OFF])


def warnings_of(tmp_path, theirs) -> list[str]:
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    lines = import_config(tmp_path / "theirs.yaml").splitlines()
    return [line.removeprefix("# WARNING: ") for line in lines if line.startswith("# WARNING: ")]


@pytest.mark.parametrize(
    ("settings", "prompts", "warning"),
    [
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 8}, None,
         "per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8: a process of TRL samples 4 prompts"),
        ({"per_device_train_batch_size": 2, "steps_per_generation": 16, "gradient_accumulation_steps": 4}, None,
         "per_device_train_batch_size=2, steps_per_generation=16, gradient_accumulation_steps=4: a process of TRL samples 4"),
        ({"per_device_train_batch_size": 1}, None, "per_device_train_batch_size=1: a process of TRL samples 0.125 prompts"),
        ({"gradient_accumulation_steps": 4}, None, "gradient_accumulation_steps=4: a process of TRL samples 4 prompts"),
        ({"generation_batch_size": 64, "num_generations": 4}, 16, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_the_prompts_of_trl(imported, tmp_path, settings, prompts, warning):
    """TRL's defaults are 8 responses per device, 8 per prompt, and a generation per optimizer step."""
    theirs = {"use_vllm": False, "max_steps": 100} | settings
    body, _, lost = imported(theirs)
    assert body.get("rollout", {}).get("prompts") == prompts and not any("per_device" in line for line in lost)
    told = [line for line in warnings_of(tmp_path, theirs) if "PROMPTS STAY THOSE OF THE DEFAULTS" in line]
    assert len(told) == (warning is not None) and (not told or told[0].startswith(warning))


@pytest.mark.parametrize(
    ("theirs", "first"),
    [
        ({"loss_type": "dapo", "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct", "learning_rate": 1e-6},
         "not the recipe's Qwen/Qwen2.5-1.5B-Instruct. --launch DIR writes a run of the recipe's own model."),
        ({"algorithm.adv_estimator": "grpo", "actor_rollout_ref.model.path": "Qwen/Qwen3-8B"},
         "not the recipe's Qwen/Qwen3-8B. --launch DIR writes a run of the recipe's own model."),
        ({"actor_rollout_ref.model.path": "${MODEL}", "actor_rollout_ref.actor.optim.lr": 1e-3},
         "not the recipe's. --launch DIR writes a run of the recipe's own model."),
        ({"trainer.algorithm.use_tis": True, "trainer.algorithm.tis_imp_ratio_cap": 2.0, "trainer.policy.model.path": "M"},
         "not the recipe's M. --launch DIR writes a run of the recipe's own model."),
    ],
)  # fmt: skip
def test_that_another_model_trains_is_the_first_line(tmp_path, theirs, first):
    assert warnings_of(tmp_path, theirs)[0] == f"the built-in small model trains, {first}"


@pytest.mark.parametrize(("temperature", "mode", "told"), [(0.7, "raw_logprobs", 1), (1, "raw_logprobs", 0), (0.7, None, 0)])
def test_ratios_that_verl_gets_wrong_are_told(tmp_path, temperature, mode, told):
    theirs = {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 5}
    theirs |= {"actor_rollout_ref.rollout.temperature": temperature, "actor_rollout_ref.rollout.logprobs_mode": mode}
    assert sum("so every ratio of that run is wrong." in line for line in warnings_of(tmp_path, theirs)) == told


@pytest.mark.parametrize(("settings", "told"), [({"temperature": 0.6}, 1), ({"temperature": 1.0}, 0), ({}, 0)])
def test_ratios_that_skyrl_gets_wrong_are_told(tmp_path, settings, told):
    """At a temperature other than 1 its default mode logs log μ before temperature, and with its key set log μ itself."""
    theirs = {"trainer.algorithm.use_kl_loss": False, "trainer.max_training_steps": 5}
    theirs |= {f"generator.sampling_params.{key}": value for key, value in settings.items()}
    assert sum("SkyRL leaves vLLM's raw_logprobs" in line for line in warnings_of(tmp_path, theirs)) == told
    own = {key: value for key, value in theirs.items() if key.startswith("generator.")}  # which alone are known for SkyRL's
    assert not own or sum("SkyRL leaves vLLM's raw_logprobs" in line for line in warnings_of(tmp_path, own)) == told
    mode = {"generator.inference_engine.engine_init_kwargs.logprobs_mode": "processed_logprobs"}
    assert not any("raw_logprobs" in line for line in warnings_of(tmp_path, theirs | mode))


@pytest.mark.parametrize(("mode", "temperature", "told"), [("server", 0.7, 1), ("server", 1.0, 0), ("colocate", 0.7, 0)])
def test_a_server_that_trl_did_not_start_is_warned_of(tmp_path, mode, temperature, told):
    """TRL 1.16 asks for processed log-probabilities in its own process; a server has vLLM's default."""
    theirs = {"loss_type": "grpo", "use_vllm": True, "vllm_mode": mode, "temperature": temperature, "max_steps": 5}
    warned = [line for line in warnings_of(tmp_path, theirs) if "--logprobs-mode processed_logprobs" in line]
    assert len(warned) == told and all(line.startswith("temperature=0.7 with vllm_mode=server: ") for line in warned)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"top_p": 0.7}, "top_p=0.7"), ({"top_k": 50}, "top_k=50"), ({"top_p": 1.0, "top_k": -1}, None), ({"top_k": 0}, None)],
)
def test_tokens_that_are_cut_off_are_told(tmp_path, settings, told):
    """All of verl's, whose keys lie below rollout. A top k of 0 or −1 keeps all tokens."""
    theirs = {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 5}
    theirs |= {f"actor_rollout_ref.rollout.{key}": value for key, value in settings.items()}
    cut = [
        line
        for line in warnings_of(tmp_path, theirs)
        if line.endswith("top_p be 1 and top_k off: with processed_logprobs every ratio would be wrong too")
    ]
    assert [line.split(":")[0] for line in cut] == ([f"actor_rollout_ref.rollout.{told}"] if told else [])


def test_a_project_that_the_small_model_does_not_log_to_is_noted(imported):
    _, notes, _ = imported({"algorithm.adv_estimator": "grpo", "trainer.project_name": "mine"})
    assert "trainer.project_name=mine: the look on the small model goes to no W&B project. --launch writes it" in notes


def test_the_words_for_a_control_leave_rollouts_exact_and_uncorrected(tmp_path):
    """The composed config is what the report calls a control."""
    at = "algorithm.rollout_correction."
    theirs = {"algorithm.adv_estimator": "grpo", f"{at}rollout_is": "token", f"{at}rollout_is_threshold": 2.0}
    theirs |= {f"{at}rollout_rs": "seq_mean_k1", f"{at}rollout_rs_threshold": "0.9_1.1", f"{at}rollout_is_batch_normalize": True}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    (tmp_path / "experiment").mkdir()
    text = import_config(tmp_path / "theirs.yaml")
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    (words,) = re.findall(r"^# a control: faultline train --config-dir conf \+experiment=mine (.*)$", text, re.M)
    more = {"it": [], "control": words.split()}
    configs = {
        run: parse(compose("+experiment=mine", *these, config_dir=tmp_path)).model_dump(mode="json")
        for run, these in more.items()
    }
    assert [is_control(configs[run], arm) for run, arm in arms(configs).items()] == [False, True]


@pytest.mark.parametrize(("rate", "written"), [(1e-6, False), (9.9e-5, False), (1e-4, True), (0.0, True)])
@pytest.mark.parametrize("key", ["learning_rate", "actor.optim.lr", "trainer.policy.optimizer_config.lr"])
def test_a_rate_for_large_models_is_a_comment(imported, key, rate, written):
    """At such a rate the small model, which trains without --launch, hardly learns: it keeps its own."""
    of_program = {"learning_rate": "use_vllm", "actor.optim.lr": "actor.use_kl_loss"}.get(key, "use_tis")
    body, notes, lost = imported({key: rate, of_program: False})
    assert body.get("actor", {}).get("lr") == (rate if written else None) and body.get("actor") != {}
    told = RATE.replace("1e-06", f"{rate:g}")
    assert [line for line in notes if line.startswith("actor.lr")] == ([] if written else [told]) and not lost


RATE = "actor.lr=1e-06: the recipe's, for large models; the small model keeps its own rate. --launch DIR writes it"
NARROW, BAND = (
    f"this geometric band keeps {share} % of an FP8 batch of SmolLM2, or less; docs/collapsed.md says: do not set it"
    for share in (3, 12)
)
"""The bands of verl and of SkyRL; docs/collapsed.md has the shares."""


@pytest.mark.parametrize(
    ("theirs", "warning"),
    [
        ({"rollout_correction": {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}},
         f"rollout_rs=seq_mean_k1 at 0.999_1.001: {NARROW}"),
        ({"rollout_correction": {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.99_1.01"}},
         f"rollout_rs=seq_mean_k1 at 0.99_1.01: {BAND}"),
        ({"rollout_correction": {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.98_1.02"}}, None),
        ({"rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.999_1.001"}}, None),
        ({"rollout_correction": "geo_rs"}, f"rollout_rs=geometric: {NARROW}"),
        ({"trainer.algorithm.off_policy_correction.sequence_mask_metric": "geometric"},
         f"sequence_mask_metric=geometric: {BAND}"),
        ({"trainer.algorithm.off_policy_correction": {"sequence_mask_metric": "geometric", "geo_mask_high": 1.2}}, None),
        ({"use_vllm": True, "off_policy_mask_threshold": 0.001}, None),
    ],
)  # fmt: skip
def test_a_geometric_band_for_bf16_is_a_warning(tmp_path, theirs, warning):
    assert [line for line in warnings_of(tmp_path, theirs) if "band" in line] == ([] if warning is None else [warning])


def test_a_correction_that_verl_skips_is_a_warning(tmp_path):
    theirs = {"algorithm.rollout_correction.rollout_is": "token", "trainer.total_training_steps": 9}
    assert warnings_of(tmp_path, theirs | {"actor_rollout_ref.rollout.calculate_log_probs": True}) == []
    (warning,) = warnings_of(tmp_path, theirs | {"actor_rollout_ref.rollout.calculate_log_probs": False})
    assert warning == (
        "actor_rollout_ref.rollout.calculate_log_probs=False: verl SKIPS THE CORRECTION of this recipe, without a message, and "
        "this file applies it. Train without it here with correction=none, or with it in verl with "
        "actor_rollout_ref.rollout.calculate_log_probs=True"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rollout_is: tokenn\n", r"rollout_is=tokenn: accepted are token, sequence, geometric; or remove it"),
        ("rollout_is: token\nrollout_is_threshold: 0.5\n", r"rollout_is_threshold=0.5: upper=0.5 is below 1"),
        ("tis_imp_ratio_cap: 0.5\n", r"tis_imp_ratio_cap=0.5: upper=0.5 is below 1"),
        ("rollout_is: true\nrollout_is_threshold: 2\nrollout_is_level: turn\n", r"rollout_is_level=turn, .* accepted are token"),
        ("rollout_rs: turn_k9\nrollout_rs_threshold: 1\n", r"rollout_rs=turn_k9: accepted are token, seq_sum"),
        ("rollout_rs: foo\n", r"rollout_rs=foo: accepted are token, seq_sum"),
        ("rollout_rs: token_k1\nrollout_rs_threshold: '2_4'\n", r"rollout_rs=token_k1 at 2_4: upper=0.5 is below 1"),
        ("rollout_rs: 'seq_mean_k1,token_k2'\nrollout_rs_threshold: 0.99_1.01\n",
         r"rollout_rs_threshold of rollout_rs=token_k2='0.99_1.01': must be a number"),
        ("rollout_rs: token_k2\nrollout_rs_threshold: '1_2'\n", r"rollout_rs=token_k2='1_2': must be a number"),
        ("use_tis: true\ntis_imp_ratio_cap: -1\ntrainer.algorithm.x: 1\n", r"tis_imp_ratio_cap=-1 is no positive cap"),
        ("trainer.algorithm.off_policy_correction.tis_ratio_type: turn\n", r"tis_ratio_type=turn: accepted are token, sequence"),
        ("off_policy_correction.sequence_mask_metric: median\n", r"sequence_mask_metric=median: accepted are geometric, product"),
        ("use_vllm: true\nvllm_importance_sampling_mode: turn_mask\n", r"sampling_mode=turn_mask: accepted are token_truncate"),
        ("use_vllm: true\nloss_type: vespo\n", r"sampling_mode=sequence_mask: TRL refuses it with loss_type=vespo; it takes"),
        ("importance_sampling_level: turn\n", r"importance_sampling_level=turn: accepted are token, sequence"),
        ("trainer.algorithm.policy_loss_type: rollout_is\noff_policy_correction.tis_ratio_type: token\n",
         r"the token weight with policy_loss_type=rollout_is: the mismatch would count twice"),
        ("loss_type: sapo\nimportance_sampling_level: sequence\n", r"importance_sampling_level=sequence: no loss here is sapo"),
        ("loss_type: cispo\nimportance_sampling_level: sequence\n", r"importance_sampling_level=sequence: no loss here is cispo"),
        ("seed: 1\n", r"theirs.yaml: no key of a verl, SkyRL or TRL config"),
        ("", r"theirs.yaml: no key of a verl, SkyRL or TRL config"),
        ("- a\n- b\n", r"theirs.yaml: must hold keys and values, not a list"),
        ("a: b\n  c: [", r"theirs.yaml: neither YAML nor JSON \(line 2: "),
        ("rollout_is: token\nrollout_is_threshold: high\n", r"rollout_is_threshold='high': must be a number"),
        ("rollout_is: token\nrollout_is_threshold: 1_2_3x\n", r"rollout_is_threshold='3x': must be a number"),
        ("rollout_is: token\nrollout_is_threshold: '1_2_3'\n", r"rollout_is_threshold=1_2_3: must be one positive number or two"),
        ("rollout_rs: token\nrollout_rs_threshold: 0\n", r"rollout_rs_threshold=0: must be one positive number or two"),
        ("rollout_rs: token_k1\n", r"rollout_rs=token_k1: rollout_rs_threshold is missing"),
        ("rollout_rs: token_k1,seq_sum_k1\nrollout_rs_threshold: 1,2,3\n", r"=1,2,3: 3 thresholds for the 2 options"),
        ("bypass_mode: maybe\n", r"bypass_mode='maybe': must be true or false"),
        ("rollout_is: [token]\n", r"rollout_is=\['token'\]: must be a single value"),
        ("actor.clip_ratio_low: ${eps}\n", r"actor.clip_ratio_low=\${eps}: resolve the config first"),
        ("algorithm.rollout_is: token\nrollout_is: null\n", r"rollout_is=None contradicts algorithm.rollout_is=token"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(imported, text, message):
    with pytest.raises(UserError, match=message) as caught:
        imported(text)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "theirs",
    [
        {"rollout_correction": {"rollout_is": "sequence", "rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.4"}},
        {"rollout_correction": {"rollout_is": "token", "bypass_mode": True, "loss_type": "reinforce"}},
        {"trainer.algorithm": {"policy_loss_type": "dppo", "off_policy_correction": {"sequence_mask_metric": "product"}}},
        {"trainer.algorithm": {"loss_reduction": "prompt_mean", "kl_estimator_type": "k2"}},
        {"loss_type": "dr_grpo", "use_vllm": True, "num_generations": 4, "max_steps": 10, "beta": 0.04, "seed": 3, "top_p": 0.9,
         "top_k": -1, "num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 2},
        {"algorithm.adv_estimator": "grpo_passk", "actor.use_kl_loss": True, "actor.kl_loss_type": "k3+"},
        {"algorithm.adv_estimator": "remax"},
        {"actor_rollout_ref.rollout": {"name": "vllm", "tensor_model_parallel_size": 2, "free_cache_engine": True}},
        {"generator.inference_engine": {"backend": "vllm", "tensor_parallel_size": 2}, "trainer.algorithm.use_tis": False},
        {"algorithm": {"use_kl_in_reward": True, "kl_ctrl.type": "adaptive", "filter_groups.enable": True},
         "actor": {"entropy_coeff": 0.01, "optim.lr_warmup_steps": 5, "optim.lr_scheduler_type": "cosine"}},
    ],
)  # fmt: skip
def test_what_is_printed_runs(theirs, tmp_path):
    """Saved as conf/experiment/mine.yaml, as its comment says, the output composes and passes every check."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    (tmp_path / "experiment/mine.yaml").write_text(import_config(tmp_path / "theirs.yaml"))
    check(parse(compose("+experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")))


def test_the_command_prints_the_file_and_errors_in_one_line_without_torch(tmp_path):
    good = tmp_path / "verl.yaml"
    good.write_text("actor.tis_imp_ratio_cap: 2\nactor.shuffle: 0.1\n")
    code = """
import sys
from pathlib import Path
from faultline.cli import main
try:
    main()
finally:
    print([name for name in ("torch", "pandas", "wandb") if name in sys.modules], file=sys.stderr)
"""

    def run(path):
        done = subprocess.run([sys.executable, "-c", code, "import-config", str(path)], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    status, out, err = run(good)
    assert (status, err.endswith("[]\n")) == (0, True)
    assert err.startswith("# WARNING: trainer.total_training_steps is not set. STEPS STAY AT THE DEFAULT OF 280 otherwise: give")
    assert out.startswith("# @package _global_\n# verl config verl.yaml, translated.")
    assert "# not translated: actor.shuffle=0.1\n# a control: " in out and "\ndefaults:\n  - override /loss: ppo\n" in out
    missing = tmp_path / "none.yaml"
    assert run(missing) == (2, "", f"{missing}: cannot be read (No such file or directory); give a YAML or JSON file\n[]\n")


@pytest.mark.parametrize("name", ["theirs.yaml", "run.sh"])
def test_what_is_no_regular_file_is_refused(tmp_path, capsys, name):
    """A FIFO without a writer would be waited for, and /dev/zero be read without an end."""
    os.mkfifo(tmp_path / name)
    for path in (str(tmp_path / name), "/dev/zero"):
        with pytest.raises(SystemExit) as left:
            main(["import-config", path])
        assert left.value.code == 2 and f"{path}: no regular file" in capsys.readouterr().err


def test_a_key_of_a_stranger_stays_in_its_comment(tmp_path):
    """A line break would end the comment, and what follows would be read as a part of the experiment."""
    theirs = {"algorithm": {"rollout_is": False, "x\ndefaults: [evil]\ny": "\u2028\x1f"}}
    (tmp_path / "a.json").write_text(json.dumps(theirs))
    text = import_config(tmp_path / "a.json")
    assert r"# not translated: algorithm.x\ndefaults: [evil]\ny=\u2028\x1f" in text.splitlines()
    assert "evil" not in str(yaml.safe_load(text))


def rows_of_the_page():
    """(theirs, here) of each row of docs/import.md, as lists of what stands in backticks."""
    lines = [
        line.split("|")[1:3]
        for line in Path("docs/import.md").read_text().splitlines()
        if line.startswith("| `") and not line.startswith("| `.")
    ]
    return [tuple(re.findall(r"`([^`]+)`", cell) for cell in cells) for cells in lines]


@pytest.mark.parametrize(("theirs", "here"), rows_of_the_page(), ids=lambda cell: cell[0][:60])
def test_each_row_of_the_page(theirs, here, tmp_path):
    """The first column, as a file, gives an output that holds every part of the second."""
    (tmp_path / "theirs.yaml").write_text("".join(f"{key}\n" for key in theirs if key != "--launch"))
    text = import_config(tmp_path / "theirs.yaml", ready="--launch" in theirs)
    assert [part for part in here if part not in text] == []


def test_the_page_has_every_document():
    assert len(rows_of_the_page()) == 111 and Path("docs/import.md").read_text().count("| **") == 8


def test_the_page_has_every_key_of_trl():
    """All keys that the importer asks for, over the rows of TRL."""
    rows = [
        {key: yaml.safe_load(value) for key, _, value in (line.partition(": ") for line in theirs if line != "--launch")}
        for theirs, _ in rows_of_the_page()
    ]
    asked = set()
    for row in filter(trl.recognises, rows):
        source = Source(row, trl.shorten)
        trl.translate(source, Translation())
        asked |= source._taken
    assert len(asked) > 40 and asked | set(trl.POLICY) <= {key for row in rows for key in row}


def test_the_metrics_of_the_page_are_recorded():
    """Each name of the second column is a metric of a run."""
    lines = [line for line in Path("docs/import.md").read_text().splitlines() if line.startswith("| mismatch/")]
    names = [name for line in lines for name in re.findall(r"`([^`]+)`", line)]
    assert len(names) == 21
    check_named(names)
