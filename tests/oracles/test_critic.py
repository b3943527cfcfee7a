"""The critic's loss and metrics against verl's and SkyRL's, on random values in fp64 with clipped and unclipped tokens."""

import math
from types import SimpleNamespace

import pytest
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.metric_utils import compute_data_metrics

from algos.critic import explained_variance, value_loss
from tests.oracles.comparing import batch


def values_of(seed: int) -> tuple[torch.Tensor, ...]:
    """(V, V_old, R, mask): V changes by more than a clip of 0.5, up and down; responses of unequal length, one with a hole."""
    _, b = batch(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    old, change, noise = torch.randn(3, 8, 12, generator=generator, dtype=torch.float64)
    return old + 0.6 * change, old, old + noise, b.mask


def ours(values, old, returns, mask, cliprange):
    leaf = values.clone().requires_grad_()
    losses, clipped = value_loss(leaf, old, returns, cliprange)
    loss = torch.where(mask, losses, 0.0).sum() / mask.sum()
    loss.backward()
    return loss.detach(), leaf.grad, (clipped & mask).sum() / mask.sum()


@pytest.mark.parametrize("seed", range(4))
def test_value_loss_of_verl(seed):
    values, old, returns, mask = values_of(seed)
    leaf = values.clone().requires_grad_()
    loss, clipfrac = core_algos.compute_value_loss(leaf, returns, old, mask.double(), cliprange_value=0.5)
    loss.backward()
    mine = ours(values, old, returns, mask, 0.5)
    for found, expected in zip(mine, (loss.detach(), leaf.grad, clipfrac), strict=True):
        torch.testing.assert_close(found.double(), expected.double(), atol=1e-6, rtol=1e-6)
    assert 0 < mine[2] < 1


@pytest.mark.parametrize("clip", [0.5, None])
def test_value_loss_of_skyrl(clip):
    """SkyRL takes the mean over responses of their token means: so each response by itself."""
    values, old, returns, mask = values_of(0)
    settings = SimpleNamespace(value_clip=clip)
    for row in range(8):
        part = slice(row, row + 1)
        leaf = values[part].clone().requires_grad_()
        loss, clipfrac = ppo_utils.ppo_critic_loss(leaf, old[part], returns[part], settings, mask[part].double())
        loss.backward()
        mine = ours(values[part], old[part], returns[part], mask[part], clip)
        torch.testing.assert_close(mine[0], loss.detach(), atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(mine[1], leaf.grad, atol=1e-6, rtol=1e-6)
        assert clipfrac is None or math.isclose(mine[2], clipfrac, rel_tol=1e-5, abs_tol=1e-7)


def test_explained_variance_of_verl():
    _, old, returns, mask = values_of(2)
    prompts, responses = torch.ones(8, 1).long(), torch.ones(8, 12).long()
    tensors = {"values": old, "returns": returns, "advantages": returns - old, "token_level_scores": returns}
    tensors |= {"token_level_rewards": returns, "response_mask": mask.long(), "prompts": prompts, "responses": responses}
    tensors["attention_mask"] = torch.cat([prompts, mask.long()], 1)
    metrics = compute_data_metrics(DataProto.from_dict(tensors), use_critic=True)
    assert metrics["critic/vf_explained_var"] == pytest.approx(float(explained_variance(old, returns, mask)), rel=1e-9)
    assert metrics["critic/values/mean"] == pytest.approx(float(old[mask].mean()), rel=1e-9)
    assert metrics["critic/returns/mean"] == pytest.approx(float(returns[mask].mean()), rel=1e-9)
