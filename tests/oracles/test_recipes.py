"""Schedules, entropy bonus, KL and length in the reward: the functions of verl, SkyRL and TRL on the same numbers."""

import ast

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from skyrl.backends.skyrl_train.utils import ppo_utils
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl.rewards import get_soft_overlong_punishment
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils import torch_functional
from verl.workers.reward_manager.dapo import DAPORewardManager

from algos.corrections.apply import correct
from algos.critic import token_rewards
from algos.registry import ADVANTAGES
from algos.shaping import adapted, overlong_punishment
from faultline.tools.import_config.verl import ALONE
from harness.train.data.rewards import RewardPenalty
from harness.train.schedule import learning_rates
from tests.oracles.comparing import NORM, Counts, batch, config, objective
from tests.oracles.site.sitecustomize import ORACLES
from tests.oracles.verl_cases import REDUCTIONS


@pytest.mark.parametrize("theirs", [core_algos.AdaptiveKLController, ppo_utils.AdaptiveKLController])
def test_the_adaptive_controller(theirs):
    controller, coef = theirs(0.2, 0.1, 1000), 0.2
    for kl in (0.5, 0.1, 0.09, 0.0, 0.115):
        controller.update(kl, 64)
        coef = adapted(coef, kl, target=0.1, horizon=1000, responses=64)
        assert coef == pytest.approx(controller.value, rel=1e-12)


@pytest.mark.parametrize("name", [*ALONE, "rloo_vectorized"])
def test_verl_subtracts_no_baseline_from_a_response_alone(name):
    """Which is the estimator that the importer chooses then; rloo_vectorized alone gives 0, as rloo here."""
    rewards, lengths = torch.tensor([1.0, 0.25, 0.0, 2.0]).double(), torch.tensor([1, 3, 2, 2])
    mask = torch.arange(3) < lengths[:, None]
    tokens = torch.where(torch.arange(3) == lengths[:, None] - 1, rewards[:, None], 0.0)
    given = {"token_level_rewards": tokens, "response_mask": mask.double(), "index": np.arange(4)}
    theirs = core_algos.get_adv_estimator_fn(name)(**given, config=AlgoConfig(gamma=1.0), norm_adv_by_std_in_grpo=False)[0]
    ours = ADVANTAGES[ALONE.get(name, "rloo")]
    inputs = {"lengths": lengths[:, None]} if ours.needs else {}
    torch.testing.assert_close((theirs * mask).double(), ours(rewards[:, None], **inputs) * mask, rtol=1e-5, atol=1e-6)


def apply_kl_penalty(*given):
    """verl's function of that name, whose module needs torchdata for other things."""
    parts = ast.parse((ORACLES / "verl/trainer/ppo/ray_trainer.py").read_text()).body
    (function,) = (part for part in parts if isinstance(part, ast.FunctionDef) and part.name == "apply_kl_penalty")
    names = {"torch": torch, "core_algos": core_algos, "DataProto": DataProto, "masked_mean": torch_functional.masked_mean}
    exec(compile(ast.Module([function], []), "ray_trainer.py", "exec"), names)
    return names["apply_kl_penalty"](*given)


@pytest.mark.parametrize(("kind", "ours"), [("kl", "k1"), ("abs", "abs"), ("mse", "k2"), ("low_var_kl", "k3")])
def test_kl_in_the_reward(kind, ours):
    """verl's apply_kl_penalty, by token."""
    _, b = batch(0)
    reference = (b.logp_old + (b.logp_ref - b.logp_old).clamp(-1, 1)).float()
    old, mask, rewards = b.logp_old.float(), b.mask, torch.rand(4, 2)
    last = (mask * torch.arange(12)).amax(-1)
    scores = torch.zeros(8, 12).scatter(1, last[:, None], rewards.view(8, 1))
    controller = core_algos.AdaptiveKLController(0.5, 0.05, 100)
    tensors = {"response_mask": mask.float(), "token_level_scores": scores, "old_log_probs": old, "ref_log_prob": reference}
    made, metrics = apply_kl_penalty(DataProto.from_dict(tensors), controller, kind)
    settings = (f"kl={ours}", "kl.coef=0.5", "kl.place=reward", "kl.target=0.05", "kl.horizon=100")
    shaping = RewardPenalty(config(*settings))
    penalty, found = shaping(old, reference, mask)
    mine = token_rewards(rewards.view(8), mask, penalty)
    torch.testing.assert_close(mine, made.batch["token_level_rewards"] * mask, atol=1e-6, rtol=1e-6)
    assert {name: pytest.approx(value, rel=1e-5) for name, value in metrics.items()} == {n: float(v) for n, v in found.items()}
    assert shaping.coef == pytest.approx(controller.value, rel=1e-6)


LENGTHS = [1, 15, 16, 17, 19, 20]


def test_overlong_of_trl():
    theirs = get_soft_overlong_punishment(max_completion_len=20, soft_punish_cache=4)([[0] * n for n in LENGTHS])
    assert overlong_punishment(torch.tensor(LENGTHS), longest=20, buffer=4, penalty=1.0).tolist() == pytest.approx(theirs)


def test_overlong_of_verl():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), eos_token="a")
    buffer = OmegaConf.create({"enable": True, "len": 4, "penalty_factor": 0.7, "log": False})
    manager = DAPORewardManager(tokenizer, 0, lambda **given: 1.0, max_resp_len=20, overlong_buffer_cfg=buffer)
    attention = torch.arange(21) <= torch.tensor(LENGTHS)[:, None]  # a prompt of one token before the response
    n = len(LENGTHS)
    tensors = {"prompts": torch.zeros(n, 1).long(), "responses": torch.zeros(n, 20).long(), "attention_mask": attention.long()}
    others = {"data_source": ["x"] * n, "reward_model": [{"ground_truth": "1"}] * n}
    theirs = manager(DataProto.from_dict(tensors, non_tensors=others)).sum(-1)
    ours = overlong_punishment(torch.tensor(LENGTHS), longest=20, buffer=4, penalty=0.7)
    assert theirs.tolist() == pytest.approx((1 + ours).tolist(), rel=1e-6)


@pytest.mark.parametrize("ratio", [0.0, 0.1])
def test_schedules_of_verl(ratio):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    shared = ("steps=20", "actor.lr=1e-3", "actor.schedule.warmup_steps=4")
    cosine = torch_functional.get_cosine_schedule_with_warmup(optimizer, 4, 20, min_lr_ratio=ratio)
    constant = torch_functional.get_constant_schedule_with_warmup(optimizer, 4)
    kinds = {"cosine": (cosine, (f"actor.schedule.min_lr_ratio={ratio}",)), "constant": (constant, ())}
    for name, (theirs, more) in kinds.items():
        ours = learning_rates(config(*shared, f"actor.schedule.name={name}", *more))
        assert [ours(u) for u in range(20)] == pytest.approx([1e-3 * theirs.lr_lambdas[0](u) for u in range(20)], abs=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_entropy_bonus_of_verl(reduction):
    """verl: policy_loss −= entropy_coeff · agg_loss(entropy), which adds 1e-8 to the length of a response."""
    logp, b = batch(1)
    made = objective("ppo", reduction, eps_low=0.2, eps_high=0.2, dual_clip=None)
    corrected, entropy = correct(b, made.correction), b.logp_ref.abs()
    values = [float(made._replace(entropy_coeff=c)(logp, b, corrected, Counts.of(b.mask), entropy)[0]) for c in (0.0, 0.3)]
    theirs = core_algos.agg_loss(entropy, b.mask.double(), reduction.replace("_", "-"), loss_scale_factor=NORM)
    assert values[0] - values[1] == pytest.approx(0.3 * float(theirs), rel=1e-8)
