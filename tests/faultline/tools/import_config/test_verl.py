"""verl configs of every version become what verl really did."""

import math

import pytest
import yaml

from faultline.tools.import_config import import_config
from faultline.tools.import_config.verl_presets import DECEMBER, JANUARY, NOVEMBER
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from tests.faultline.tools.import_config.expected import NONE, correction, keep, weight

BAND = "rollout_rs=token_k1 at 0.6_1.4: verl bounds k1 = -log ρ: it keeps ρ in [0.714286, 1.66667], as here"
VERL = {  # config → (loss, proximal, correction, notes, not translated)
    "August 2025, the first spelling": (
        {"actor": {"behav_imp_weight_cap": 3}}, "ppo", "old", correction(weight("token", upper=3)), [], []),
    "August 2025, the second": (
        {"actor_rollout_ref": {"actor": {"imp_ratio_cap": 2.5}}}, "ppo", "old", correction(weight("token", upper=2.5)), [], []),
    "August 2025, the third": (
        {"actor_rollout_ref.actor.tis_imp_ratio_cap": "2"}, "ppo", "old", correction(weight("token", upper=2.0)), [], []),
    "a bare cap that is off": ({"tis_imp_ratio_cap": -1}, "ppo", "old", correction(NONE), [], []),
    "no log-probabilities": (
        {"actor_rollout_ref": {"actor": {"tis_imp_ratio_cap": 2}, "rollout": {"calculate_log_probs": False}}},
        "ppo", "old", correction(weight("token", upper=2)), [], []),
    "October 2025, truncate": (
        {"algorithm": {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_veto_threshold": "1e-4"}},
        "ppo", "old", correction(weight("token", upper=2.0), {"veto": keep("worst_token", "ratio", 1e-4, None)}), [], []),
    "October 2025, clip, the lower bound implied": (
        "algorithm:\n  rollout_is: true\n  rollout_is_threshold: 4\n  rollout_is_threshold_lower: null\n"
        "  rollout_is_level: sequence\n  rollout_is_mode: clip\n",
        "ppo", "old", correction(weight("sequence", "mask", 0.25, 4), {"veto": keep("worst_token", "ratio", 1e-4, None)}),
        ["rollout_is_mode=clip: verl set weights outside the bounds to 0, it did not clamp them",
         "rollout_is_veto_threshold is not set: 1e-4, verl's default with these keys; null is none"], []),
    "October 2025, no veto": (
        {"algorithm": {"rollout_is": True, "rollout_is_threshold": 2.0, "rollout_is_veto_threshold": None}},
        "ppo", "old", correction(weight("token", upper=2.0)), [], []),
    "October 2025, mask without weights": (
        {"algorithm": {"rollout_is": False, "rollout_is_threshold": 1.001, "rollout_is_threshold_lower": 0.999,
                       "rollout_is_level": "geometric", "rollout_is_mode": "mask", "rollout_is_veto_threshold": 1e-4}},
        "ppo", "old",
        correction(weight("geometric", upper=1.001, apply=False),
                   {"rollout_is": keep("geometric", "ratio", 0.999, 1.001),
                    "veto": keep("worst_token", "ratio", 1e-4, None)}, denominator="kept"),
        ["rollout_is=false: verl computed the weights for its metrics only, as here"], []),
    "October 2025, metrics only": (
        {"algorithm": {"rollout_is": False, "rollout_is_threshold": 2.0, "rollout_is_veto_threshold": 1e-4}},
        "ppo", "old", correction(weight("token", upper=2.0, apply=False)),
        ["rollout_is=false: verl computed the weights for its metrics only, as here"], []),
    "October 2025, no threshold": (
        {"algorithm": {"rollout_is": True, "rollout_is_level": "token"}}, "ppo", "old", correction(NONE),
        ["rollout_is_threshold is not set, which switches everything off in that version"], []),
    "November 2025, rejection": (
        {"rollout_correction": {"rollout_is": "token", "rollout_rs": "geometric", "rollout_rs_threshold": 1.25,
                                "rollout_token_veto_threshold": 1e-4}},
        "ppo", "old",
        correction(weight("token", upper=2.0), {"geometric": keep("geometric", "ratio", 0.8, 1.25),
                                                "veto": keep("worst_token", "ratio", 1e-4, None)}, denominator="kept"), [], []),
    "November 2025, the lower bound given": (
        {"algorithm.rollout_correction": {"rollout_rs": "token", "rollout_rs_threshold": 2, "rollout_rs_threshold_lower": 0.25}},
        "ppo", "old", correction(NONE, {"token": keep("token", "ratio", 0.25, 2)}, denominator="kept"), [], []),
    "November 2025, pure correction": (
        {"algorithm": {"rollout_correction": {"rollout_is": "sequence", "rollout_is_threshold": 3.0,
                                              "bypass_old_logprob_for_rollout": True, "use_pure_rollout_correction": True}}},
        "pg", "old", correction(weight("sequence", upper=3.0), ratio="current"), [], []),
    "bypass_mode and use_policy_gradient": (
        {"algorithm": {"rollout_correction": {"rollout_is": "token", "bypass_mode": True, "use_policy_gradient": True}}},
        "pg", "old", correction(weight("token", upper=2.0), ratio="current"), [], []),
    "bypass with ppo_clip": (
        {"algorithm": {"rollout_correction": {"rollout_is": "token", "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01,
                                              "bypass_mode": True, "loss_type": "ppo_clip"}}},
        "ppo", "rollout",
        correction(weight("token", upper=2.0, apply=False), {"seq_mean_k3": keep("geometric", "k3", None, 0.01)},
                   ratio="current"),
        ["bypass mode with ppo_clip: verl computes the weights for its metrics only, as here"], []),
    "bypass with ppo_clip, normalised": (
        {"rollout_correction": {"rollout_is": "token", "bypass_mode": True, "rollout_is_batch_normalize": True}},
        "ppo", "rollout", correction(weight("token", upper=2.0, apply=False), ratio="current"),
        ["bypass mode with ppo_clip: verl computes the weights for its metrics only, as here",
         "rollout_is_batch_normalize: of weights for metrics alone verl records their mean, which is not recorded here"], []),
    "bypass with reinforce, normalised": (
        {"rollout_correction": {"rollout_is": "token", "bypass_mode": True, "loss_type": "reinforce",
                                "rollout_is_batch_normalize": True}},
        "pg", "old", correction(weight("token", upper=2.0), ratio="current", normalize="batch"),
        ["rollout_is_batch_normalize: bypass mode divides by the mean of a micro-batch, this of the mini-batch"], []),
    "loss_type without bypass": (
        {"rollout_correction": {"rollout_is": None, "loss_type": "reinforce"}}, "ppo", "old", correction(NONE),
        ["loss_type, use_policy_gradient: verl does not read them without bypass_mode"], []),
    "IcePop, normalised": (
        {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0", "rollout_is_batch_normalize": True}},
        "ppo", "old", correction(weight("token", "mask", 0.5, 5.0), normalize="batch"), [], []),
    "inverted bounds": (  # [1/1.4, 1/.6]
        {"rollout_correction": {"rollout_rs": "token_k1, seq_max_k2", "rollout_rs_threshold": "0.6_1.4, 0.5"}}, "ppo", "old",
        correction(NONE, {"token_k1": keep("token", "ratio", 1 / 1.4, 1 / 0.6),
                          "seq_max_k2": keep("worst_token", "k2", None, 0.5)}, denominator="kept"), [BAND], []),
    "one number for k1 is a reciprocal pair": (
        {"rollout_correction": {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": 2}},
        "ppo", "old", correction(NONE, {"seq_sum_k1": keep("sequence", "ratio", 0.5, 2)}, denominator="kept"), [], []),
    "thresholds that nothing reads": (
        {"rollout_correction": {"rollout_is": None, "rollout_is_threshold": 3, "rollout_rs_threshold": 2}}, "ppo", "old",
        correction(NONE), ["rollout_correction.rollout_is_threshold=3: rollout_is is not set, so verl computes no weights",
                           "rollout_correction.rollout_rs_threshold=2: rollout_rs is not set, so verl rejects nothing"], []),
    "a cap beside its successor": (
        {"actor": {"tis_imp_ratio_cap": 2}, "rollout_correction": {"rollout_is": "token"}}, "ppo", "old",
        correction(weight("token", upper=2.0)),
        ["actor.tis_imp_ratio_cap=2: rollout_is and rollout_rs replaced it, and verl knows it no more"], []),
}  # fmt: skip


@pytest.mark.parametrize("case", VERL)
def test_verl_corrections_of_every_version(imported, case):
    source, loss, proximal, expected, notes, lost = VERL[case]
    body, *said = imported(source)
    assert body["options"]["loss"] == loss and body["proximal"] == proximal
    assert body["correction"] == expected
    assert said == [notes, lost]


VERL_LOSSES = {
    "vanilla": ("ppo", {"eps_low": 0.2, "eps_high": 0.3, "dual_clip": 3.0}),
    "gspo": ("gspo", {"eps_low": 0.2, "eps_high": 0.3}),
    "sapo": ("sapo", {"tau_pos": 1.0, "tau_neg": 1.05}),
    "cispo": ("cispo", {"lower": 0.8, "upper": 1.3}),
    "geo_mean": ("gmpo", {"lower": math.exp(-0.2), "upper": math.exp(0.3)}),
    "clip_cov": ("clip_cov", {"eps_low": 0.2, "eps_high": 0.3, "share": 2e-4, "lower": 1.0, "upper": 5.0}),
    "kl_cov": ("kl_cov", {"share": 2e-4, "coef": 0.1}),
    "dppo_kl": ("dppo", {"divergence": "kl", "delta_low": 0.2, "delta_high": 0.3, "upper": 3.0}),
    "dro": ("dro", {"beta": 0.07}),
    "gpg": ("pg", None),
}


@pytest.mark.parametrize("mode", VERL_LOSSES)
def test_verl_losses(imported, mode):
    policy = {"loss_mode": mode} | ({"dro_beta": 0.07} if mode == "dro" else {})
    body, notes, lost = imported({"actor_rollout_ref": {"actor": {"clip_ratio_high": 0.3, "policy_loss": policy}}})
    assert (body["options"]["loss"], body.get("loss")) == VERL_LOSSES[mode]
    said = notes + lost
    assert len(said) == (mode in ("gspo", "clip_cov", "kl_cov")) and all(mode in line for line in said)
    assert body["options"]["reduce"] == ("seq_mean_token_mean" if mode in ("sapo", "geo_mean") else "token_mean")


RESPONSES = "reduce=seq_mean_token_mean: verl divides by all responses, this by those with a token kept"


@pytest.mark.parametrize(
    ("filters", "loss", "aggregation", "denominator", "notes"),
    [
        ("seq_mean_k1", "vanilla", "token-mean", "kept", []),
        ("seq_mean_k1", "vanilla", "seq-mean-token-mean", "original", []),
        ("seq_max_k2", "geo_mean", "token-mean", "original", []),  # which verl reduces by response
        ("token_k1", "vanilla", "seq-mean-token-mean", "kept", [RESPONSES]),
        ("seq_mean_k1", "kl_cov", "seq-mean-token-mean", "kept", [RESPONSES]),
    ],
)
def test_what_verl_divides_by(imported, filters, loss, aggregation, denominator, notes):
    """Its trainer passes the size of the mini-batch as the number of responses; the comparison with verl runs the two."""
    actor = {"loss_agg_mode": aggregation, "policy_loss": {"loss_mode": loss}}
    body, said, lost = imported({"actor": actor, "rollout_correction": {"rollout_rs": filters, "rollout_rs_threshold": 2}})
    assert (body["correction"]["denominator"], lost) == (denominator, [])
    assert [note for note in said if note.startswith("reduce=")] == notes


def test_verl_bypass_replaces_the_loss(imported):
    actor = {"policy_loss": {"loss_mode": "gspo"}}
    body, notes, _ = imported({"actor": actor, "rollout_correction": {"bypass_mode": True}})
    assert body["options"]["loss"] == "ppo" and notes == ["loss_mode=gspo: bypass_mode replaces the loss by loss_type=ppo_clip"]


def test_an_unknown_loss_is_named(imported):
    assert imported({"actor.policy_loss.loss_mode": "cppo"})[2] == [
        "actor.policy_loss.loss_mode=cppo: no such loss here, or its parameters are missing"
    ]


def test_the_rest_of_a_verl_config(imported):
    """Renamed keys, the dead clip_ratio, sizes in prompts; what has no place here is named with its value."""
    body, notes, lost = imported(
        {
            "data": {"train_batch_size": 256, "max_response_length": 1024},
            "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False, "kl_ctrl": {"kl_coef": 0.001}},
            "actor_rollout_ref": {
                "actor": {"clip_ratio": 0.3, "ppo_mini_batch_size": 64, "loss_agg_mode": "seq-mean-token-sum-norm",
                          "optim": {"lr": "1e-6"}, "use_kl_loss": True, "ppo_epochs": 2},
                "rollout": {"n": 8, "dtype": "bfloat16", "quantization": "fp8", "temperature": 0.9, "top_p": 0.95, "top_k": -1},
            },
        }
    )  # fmt: skip
    assert body["options"] == {"loss": "ppo", "reduce": "seq_mean_token_sum_norm", "advantage": "dr_grpo", "kl": "k3",
                               "rollout/precision": "fp8_block", "correction": "none"}  # fmt: skip
    assert body["rollout"] == {"group_size": 8, "prompts": 256, "temperature": 0.9, "top_p": 0.95, "top_k": 0}
    assert body["actor"] == {"epochs": 2, "num_minibatches": 4} and body["reduce"] == {"norm": 1024}
    assert notes == [
        "actor.clip_ratio=0.3: no effect in verl, whose clip_ratio_low and _high default to 0.2",
        CLAMPED.format("k3"),
        "use_kl_in_reward is not true, so verl does not read kl_penalty and kl_ctrl",
        "actor.lr=1e-06: the recipe's, for large models; the small model keeps its own rate. --launch DIR writes it",
    ]
    assert body["kl"] == {"coef": 0.001} and lost == []


@pytest.mark.parametrize(("estimator", "std", "alone", "group"), [
    ("grpo", True, "reinforce", "grpo"), ("grpo_vectorized", False, "reinforce", "dr_grpo"), ("rloo", True, "reinforce", "rloo"),
    ("opo", True, "reinforce", "opo"), ("reinforce_plus_plus_baseline", True, "reinforce_pp", "reinforce_pp_baseline"),
    ("remax", True, "remax", "remax"), ("rloo_vectorized", True, "rloo", "rloo"),  # which is 0 in verl too
])  # fmt: skip
def test_one_response_to_a_prompt_in_verl(imported, estimator, std, alone, group):
    """verl's baseline of a group of one is 0; here such an estimator would be refused."""
    for n, expected in ((1, alone), (2, group)):
        body, notes, _ = imported({"algorithm": {"adv_estimator": estimator, "norm_adv_by_std_in_grpo": std}, "rollout.n": n})
        assert body["options"]["advantage"] == expected
        changed = f"rollout.n=1: verl's {estimator} subtracts no baseline from a response alone, which is {expected}"
        assert [note for note in notes if "rollout.n" in note] == ([changed] if expected != group else [])


CLAMPED = "kl={}: verl clamps the value of k3 at 10, with gradient 0 beyond; no clamp here"


@pytest.mark.parametrize(
    ("kind", "kl", "notes"),
    [
        ("kl", "k1", ["actor.kl_loss_type=kl: the mean gradient of k1 as a loss is 0; it pulls towards no reference"]),
        ("mse", "k2", []),
        ("abs", "abs", []),
        ("low_var_kl", "k3", [CLAMPED.format("k3")]),
        ("low_var_kl+", "k3_k2", [CLAMPED.format("k3_k2")]),
        ("k2+", "k2", []),
        ("k1+", "k2", ["actor.kl_loss_type=k1+: of the value k1 and the gradient of k2; here the value is k2's too"]),
    ],
)
def test_the_kl_of_verl(imported, kind, kl, notes):
    body, *said = imported({"actor": {"use_kl_loss": True, "kl_loss_type": kind, "kl_loss_coef": 0.02}})
    assert (body["options"]["kl"], body["kl"], said) == (kl, {"coef": 0.02}, [notes, []])


def test_the_kl_in_the_reward_of_verl(imported):
    body, notes, lost = imported({"actor": {"kl_loss_coef": 0.02}, "algorithm": {"use_kl_in_reward": True, "kl_penalty": "k3"}})
    assert notes == ["actor.use_kl_loss is not true, so verl does not read kl_loss_type and kl_loss_coef"] and lost == []
    assert (body["options"]["kl"], body["kl"]) == ("k3", {"coef": 0.001, "place": "reward", "target": None, "horizon": None})
    adaptive = {"type": "adaptive", "kl_coef": 0.01, "target_kl": 0.05, "horizon": 500}
    theirs = {"use_kl_in_reward": True, "kl_ctrl": adaptive, "adv_estimator": "reinforce_plus_plus"}
    body, notes, lost = imported({"algorithm": theirs})
    assert (body["options"]["kl"], body["kl"]) == ("k1", {"coef": 0.01, "place": "reward", "target": 0.05, "horizon": 500})
    assert notes == ["use_kl_in_reward with kl_penalty=kl: theirs gives a token the penalties still to come, this that of its "
                     "whole response"] and lost == []  # fmt: skip
    both = imported({"actor": {"use_kl_loss": True}, "algorithm": {"use_kl_in_reward": True}})
    assert both[0]["kl"] == {"coef": 0.001}
    assert both[2] == ["use_kl_in_reward with kl_penalty=kl: a run has one KL, and this config has one in its loss too"]
    full = imported({"algorithm": {"use_kl_in_reward": True, "kl_penalty": "full"}})
    assert full[2] == ["use_kl_in_reward with kl_penalty=full: no such KL penalty here"]


def test_the_schedule_of_verl_counts_rollouts(imported):
    optimizer = {"lr_warmup_steps_ratio": 0.1, "lr_scheduler_type": "cosine", "min_lr_ratio": 0.05}
    shared = {"data.train_batch_size": 64, "trainer.total_training_steps": 50}
    actor = {"ppo_mini_batch_size": 16, "ppo_epochs": 2, "optim": optimizer}
    body, notes, lost = imported(shared | {"actor_rollout_ref": {"actor": actor}})
    assert body["actor"]["schedule"] == {"name": "cosine", "warmup_steps": 40, "min_lr_ratio": 0.05} and lost == []
    assert notes == ["warm-up of 5 steps: verl counts rollouts, actor.schedule optimizer steps, 40"]
    assert imported({"actor.optim.lr_warmup_steps_ratio": 0.1})[2] == [
        "actor.optim.lr_warmup_steps_ratio=0.1: of trainer.total_training_steps, not set"
    ]
    assert imported({"actor.optim.num_cycles": 2.5, "actor.optim.lr_scheduler_type": "cosine"})[2] == [
        "actor.optim.num_cycles=2.5: a cosine here falls once, as 0.5 does"
    ]
    old = imported({"actor.optim.warmup_style": "constant", "actor.optim.lr_warmup_steps": 3})[0]
    assert old["actor"]["schedule"] == {"name": "constant", "warmup_steps": 3}


def test_the_sampling_of_dapo(imported):
    """recipe/dapo/run_dapo_qwen2.5_32b.sh of verl."""
    groups = {"enable": True, "metric": "acc", "max_num_gen_batches": 10}
    buffer = {"enable": True, "len": 4096, "penalty_factor": 1.0}
    theirs = {"algorithm": {"filter_groups": groups}, "reward_model": {"overlong_buffer": buffer}}
    body, notes, lost = imported(theirs | {"data": {"truncation": "left"}})
    assert body["rollout"] == {"filter": {"max_rounds": 10}} and "overlong" not in body
    assert notes == [
        "filter_groups.max_num_gen_batches: theirs ends with an error at its limit, this fills up with groups of equal rewards",
        "reward_model.overlong_buffer.len=4096: the small model's responses have ten tokens; --launch DIR writes it",
        "data.truncation=left: task.long_prompts=cut, of a task of text",
    ] and lost == []  # fmt: skip
    unlimited = imported({"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "seq_reward"})
    assert unlimited[0]["rollout"]["filter"] == {"max_rounds": 1000}
    assert unlimited[1][1] == "filter_groups.metric=seq_reward: groups here are chosen by the task's reward, as acc does"
    assert imported({"algorithm.filter_groups.enable": True, "algorithm.filter_groups.max_num_gen_batches": 1})[2] == [
        "filter_groups.max_num_gen_batches=1: one round is never refilled; rollout.filter.max_rounds is 2 or more"
    ]
    assert imported({"algorithm.adv_estimator": "grpo", "data.truncation": "right"})[2] == [
        "data.truncation=right: a long prompt here loses its beginning, as by left, or is an error"
    ]
    (negative,) = imported({"actor.entropy_coeff": -0.1})[2]
    assert negative == "actor.entropy_coeff=-0.1: rewards certainty; entropy_coeff here is ≥ 0"


def test_a_kl_that_is_not_here(imported):
    assert imported({"actor": {"use_kl_loss": True, "kl_loss_type": "full"}})[2] == [
        "actor.kl_loss_type=full: no such KL term here"
    ]


def test_the_advantages_of_verl(imported):
    for std in (True, False):
        body = imported({"algorithm": {"adv_estimator": "grpo_passk", "norm_adv_by_std_in_grpo": std}})[0]
        assert (body["options"]["advantage"], body["advantage"]) == ("pass_at_k", {"std": std})
    assert imported({"algorithm.adv_estimator": "remax"})[0]["options"]["advantage"] == "remax"
    body, notes, _ = imported({"algorithm.adv_estimator": "gpg"})
    assert body["options"]["advantage"] == "gpg" and notes == [
        "gpg: verl scales by the responses of a reward other than 0, this by those in groups of unequal rewards"
    ]


def test_a_critic(imported):
    """verl's defaults, then its keys; critic_warmup=k leaves out the policy's first k − 1 steps, as global_steps begins at 1."""
    body, notes, lost = imported({"algorithm.adv_estimator": "gae", "critic.ppo_epochs": 3, "actor.ppo_epochs": 3})
    assert body["options"]["advantage"] == "gae" and body["advantage"] == {"gamma": 1.0, "lam": 1.0} and not notes + lost
    assert body["critic"] == {"lr": 1e-5, "cliprange_value": 0.5} and body["actor"]["epochs"] == 3
    keys = {"critic": {"optim": {"lr": "2e-5"}, "cliprange_value": 0.2, "loss_agg_mode": "seq-mean-token-mean"}}
    keys |= {"algorithm": {"adv_estimator": "gae", "gamma": 0.99, "lam": 0.95}, "trainer": {"critic_warmup": 20}}
    body, notes, lost = imported(keys | {"rollout_correction": {"rollout_rs": "token_k1", "rollout_rs_threshold": 2}})
    assert body["advantage"] == {"gamma": 0.99, "lam": 0.95} and not lost
    assert body["critic"] == {"lr": 2e-5, "cliprange_value": 0.2, "warmup_steps": 19}
    assert notes[-3:] == [
        "trainer.critic_warmup=20: verl counts from 1, so the policy waits for 19 steps",
        "critic: verl reduces its loss by seq-mean-token-mean, this by token-mean",
        "critic: verl takes rejected tokens out of the values and of the whitening too; here they stay in both",
    ]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ({"algorithm": {"adv_estimator": "optimal_token_baseline"}},
         "algorithm.adv_estimator=optimal_token_baseline: no such advantage here, or no run provides what it needs"),
        ({"algorithm": {"adv_estimator": "gae"}, "critic": {"ppo_epochs": 2}, "actor.ppo_epochs": 1},
         "critic.ppo_epochs=2: the critic here has that of actor.ppo_epochs"),
        ({"actor.ppo_mini_batch_size": 64},
         "actor.ppo_mini_batch_size=64: actor.num_minibatches is data.train_batch_size over it, which is not set"),
        ({"actor.loss_agg_mode": "median"}, "actor.loss_agg_mode=median: no such reduce here, or no run provides what it needs"),
        ({"actor_rollout_ref.rollout.quantization": "torchao"},
         "actor_rollout_ref.rollout.quantization=torchao: no such rollout/precision here, or no run provides what it needs"),
    ],
)  # fmt: skip
def test_what_a_verl_config_asks_and_no_run_has_is_named(imported, source, line):
    assert imported(source)[2] == [line]


ALSO = {"decoupled_token_is": "token_is", "decoupled_seq_is": "seq_is", "decoupled_seq_is_rs": "seq_is_rs"}
"""Later names of presets that did not change."""


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, f"verl_2025/{ALSO.get(name, name)}") for name in NOVEMBER | DECEMBER]
    + [(name, f"verl/{name}") for name in JANUARY if name not in DECEMBER]
    + [(f"{name}(rs_threshold='{JANUARY[name]['rollout_rs_threshold']}')", f"verl/{name}")
       for name in ("decoupled_seq_is_rs", "decoupled_geo_rs")],
)  # fmt: skip
def test_the_presets_of_each_year(imported, name, option):
    """A preset's name imports as the option of that name: the same loss, anchor and correction."""
    option = parse(compose(f"correction={option}"))
    body, _, lost = imported({"algorithm": {"rollout_correction": name}})
    ours, made = option.correction, body["correction"]
    assert (body["options"]["loss"], body["proximal"], lost) == (option.loss.name, option.proximal, [])
    assert (made["ratio"], made["denominator"]) == (ours.ratio, ours.denominator)
    assert {"apply": True, **made["weight"]} == vars(ours.weight)
    for filter_, expected in zip(made["reject"].values(), ours.reject.values(), strict=True):
        assert filter_ == pytest.approx(vars(expected))


def test_a_key_is_stronger_than_the_preset_beside_it(imported):
    body = imported({"rollout_correction": "token_is", "rollout_is_threshold": 4})[0]
    assert body["correction"]["weight"] == weight("token", upper=4)
    with pytest.raises(UserError, match=r"rollout_correction=token_iss: accepted are sections and .*token_is, token_tis"):
        imported({"algorithm.rollout_correction": "token_iss"})


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("decoupled_token_is(threshold=3)", correction(weight("token", upper=3))),
        ("RolloutCorrectionConfig.decoupled_token_is(threshold = 3)", correction(weight("token", upper=3))),
        ("seq_is_rs(is_threshold=4, rs_threshold=1.5, rs_threshold_lower=0.5)",
         correction(weight("sequence", upper=4), {"sequence": keep("sequence", "ratio", 0.5, 1.5)})),
        ("geo_rs(rs_threshold=1.01, veto_threshold=None)",
         correction(NONE, {"geometric": keep("geometric", "ratio", 1 / 1.01, 1.01)})),
        ("decoupled_k3_rs_token_tis(is_threshold=5, rs_threshold=0.02)",
         correction(weight("token", upper=5), {"seq_mean_k3": keep("geometric", "k3", None, 0.02)})),
    ],
)  # fmt: skip
def test_a_preset_with_parameters(imported, preset, expected):
    """Signatures of RolloutCorrectionConfig at pull requests 4070 and 4544."""
    body, _, lost = imported({"algorithm": {"rollout_correction": preset}})
    assert body["correction"] == expected | {"denominator": "kept" if expected["reject"] else "original"} and lost == []


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("token_is(rs_threshold=2)", r"token_is sets no rollout_rs_threshold"),
        ("token_is(cap=2)", r"parameters are threshold, is_threshold, "),
        ("token_is(2)", r"parameters are threshold, is_threshold, "),
        ("token_is(threshold=2", r"accepted are sections and"),
    ],
)
def test_a_parameter_that_a_preset_lacks_is_refused(imported, preset, message):
    with pytest.raises(UserError, match=message):
        imported({"algorithm": {"rollout_correction": preset}})


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"rollout_correction": {"rollout_iz": "token"}}, "rollout_correction.rollout_iz=token"),
        ({"algorithm.rollout_correction.rollout_is": "token", "algorithm.rollout_is_treshold": 3}, "rollout_is_treshold=3"),
        ({"actor.tis_imp_ratio_capp": 2}, "actor.tis_imp_ratio_capp=2"),
        ({"trainer.algorithm.off_policy_correction.tis_type": "token"}, "off_policy_correction.tis_type=token"),
        ({"trainer.algorithm.use_tis_token": True}, "use_tis_token=True"),
        ({"use_vllm": True, "vllm_importance_sampling_clip": 2.0}, "vllm_importance_sampling_clip=2.0"),
    ],
)
def test_a_key_of_a_correction_that_is_not_translated_is_an_error(imported, source, key):
    """Otherwise a misspelt correction would train as none."""
    with pytest.raises(UserError, match="a correction's key that is not translated") as caught:
        imported(source)
    assert key in str(caught.value)


def test_the_engine_and_the_memory_of_verl(imported):
    """Without --launch the small model trains, and no machine needs vLLM for it."""
    body, notes, lost = imported(
        {"actor_rollout_ref": {"rollout": {"name": "vllm", "tensor_model_parallel_size": 2},
                               "model": {"path": "Qwen/Qwen3-8B", "enable_gradient_checkpointing": True}}}
    )  # fmt: skip
    assert "rollout/engine" not in body["options"] and body["options"]["rollout/precision"] == "bf16"
    assert body["actor"]["gradient_checkpointing"] is True
    assert lost == ["actor_rollout_ref.rollout.tensor_model_parallel_size=2"]
    remedy = "rollout/engine=vllm, after `make vllm`, samples with vLLM"
    assert notes == [f"actor_rollout_ref.rollout.name=vllm: the embedded engine samples here; {remedy}"]
    assert imported({"actor_rollout_ref.rollout": {"name": "sglang", "tensor_model_parallel_size": 2}})[2] == [
        "actor_rollout_ref.rollout.name=sglang: no such rollout/engine here, or no run provides what it needs",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    ]


JOINED = r"rollout_{}_threshold={}: Hydra and YAML read this as the number {}, and so does verl; .* as 0\.5_2\.0"


@pytest.mark.parametrize(("bounds", "number"), [("0.5_2", "0.52"), ("0.5_1e9", r"5\.1e\+08"), ("1_2", "12")])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.yaml", "algorithm:\n  rollout_correction:\n    rollout_rs: token_k1\n    rollout_rs_threshold: {}  # bounds\n"),
        ("a.yaml", "algorithm.rollout_correction: {{rollout_rs: token_k1, rollout_rs_threshold: {}}}\n"),
        ("a.yaml", "algorithm.rollout_correction.rollout_is: token\nalgorithm.rollout_correction.rollout_is_threshold: {}\n"),
        ("a.yaml", "- algorithm.rollout_correction.rollout_is=token\n- algorithm.rollout_correction.rollout_is_threshold={}\n"),
        ("a.sh", "B={}\npython -m verl.trainer.main_ppo algorithm.rollout_correction.rollout_rs=token_k1 \\\n"
                 '  algorithm.rollout_correction.rollout_rs_threshold="$B"\n'),
    ],
)  # fmt: skip
def test_two_bounds_that_hydra_joins_to_one_number_are_refused(tmp_path, bounds, number, file, text):
    """An underscore may stand within a number's digits, so verl itself trains with the number."""
    (tmp_path / file).write_text(text.format(bounds))
    with pytest.raises(UserError, match=JOINED.format("i?r?s", bounds, number)):
        import_config(tmp_path / file)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.yaml", "rollout_rs: token_k1\nrollout_rs_threshold: '0.5_2'  # rollout_rs_threshold: 0.5_2\n"),
        ("a.yaml", "rollout_rs: token_k1\nrollout_rs_threshold: 0.5_2.0\n"),
        ("a.yaml", "rollout_rs: token_k1\nrollout_rs_threshold: !!str 0.5_2\n"),
        ("a.yaml", "rollout_rs: token_k1\nrollout_rs_threshold: '0.5_2'\n"
                   "trainer.experiment_name: 'rollout_rs_threshold: 2_000'\n"),
        ("a.yaml", "rollout_rs: token_k1\nrollout_rs_threshold: '0.5_2'\n"
                   "trainer.experiment_name: |\n  rollout_rs_threshold: 0.5_2\n"),
        ("a.sh", "run algorithm.rollout_correction.rollout_rs=token_k1 \\\n"
                 "  algorithm.rollout_correction.rollout_rs_threshold=\"'0.5_2'\"\n"),
    ],
)  # fmt: skip
def test_two_bounds_as_text_are_two_bounds(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    (filter_,) = yaml.safe_load(import_config(tmp_path / file))["correction"]["reject"].values()
    assert (filter_["lower"], filter_["upper"]) == (0.5, 2.0)


def test_an_underscore_within_other_numbers_is_read_as_hydra_does(tmp_path):
    (tmp_path / "a.sh").write_text("run algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1_6\n")
    assert yaml.safe_load(import_config(tmp_path / "a.sh"))["rollout"]["group_size"] == 16
