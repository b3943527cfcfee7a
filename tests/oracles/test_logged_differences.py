"""What verl and SkyRL log of two log-probabilities where they log no K3, as docs/metrics-only.md reads it."""

import pytest
import torch
from omegaconf import OmegaConf
from skyrl.backends.skyrl_train.utils.off_policy_correction_utils import compute_off_policy_correction
from skyrl.train.config.config import OffPolicyCorrectionConfig
from verl import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics

from tests.oracles.comparing import batch


def test_verl_compares_probabilities_and_not_their_logarithms():
    _, b = batch(0)
    tensors = {"response_mask": b.mask.long(), "old_log_probs": b.logp_old, "rollout_log_probs": b.logp_rollout}
    logged = calculate_debug_metrics(DataProto.from_dict(tensors=tensors | {"responses": torch.zeros_like(b.mask.long())}))
    difference = (b.logp_old.exp() - b.logp_rollout.exp()).abs()[b.mask]
    for name, value in (("mean", difference.mean()), ("std", difference.std()), ("max", difference.max())):
        assert logged[f"training/rollout_probs_diff_{name}"] == pytest.approx(value.item(), rel=1e-9)


def test_skyrl_logs_the_mean_ratio_before_its_cap_and_a_least_ratio_of_padding():
    _, b = batch(0)
    settings = OmegaConf.structured(OffPolicyCorrectionConfig(tis_ratio_type="token", token_tis_ratio_clip_high=1.01))
    _, logged, _ = compute_off_policy_correction(b.logp_old, b.logp_rollout, b.mask.double(), settings)
    ratio = (b.logp_old - b.logp_rollout).exp()[b.mask]
    assert logged["is_ratio_mean"] == pytest.approx(ratio.mean().item(), rel=1e-6) and ratio.max() > 1.01
    assert logged["is_ratio_max"] == pytest.approx(ratio.max().item(), rel=1e-6)
    assert not b.mask.all() and logged["is_ratio_min"] == 0 < ratio.min()
