"""The metrics of bypass mode: verl computes them in each mini-batch, of the policy that is trained, and so does this."""

import pytest
import torch
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import compute_policy_loss_bypass_mode
from verl.utils.metric import reduce_metrics

from harness.train.metrics import CURRENT, over_minibatches, trained_metrics, trained_rows
from tests.oracles.comparing import batch, preset, shared
from tests.oracles.differences import expected
from tests.oracles.verl_cases import config

PRESETS = ["bypass_ppo_clip", "bypass_ppo_clip_geo_rs", "bypass_ppo_clip_k3_rs", "bypass_pg_is", "bypass_pg_geo_rs",
           "bypass_pg_geo_rs_seq_tis", "bypass_pg_geo_rs_token_tis", "bypass_pg_token_icepop"]  # fmt: skip
ALWAYS = {"rollout_corr/kl", "rollout_corr/k3_kl", "rollout_corr/training_ppl", "rollout_corr/chi2_token",
          "rollout_corr/chi2_seq", "rollout_corr/log_ppl_diff_max", "rollout_corr/log_ppl_diff_min"}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_of_two_minibatches_between_which_the_policy_moves(name):
    compared, found = set(), set()
    for seed in range(4):
        logp, whole = batch(seed)
        moved = (logp + 0.2 * torch.randn(8, 12, generator=torch.Generator().manual_seed(seed)).double()).clamp(max=-1e-3)
        parts = [(policy[rows], whole.rows(rows)) for policy, rows in ((logp, slice(0, 4)), (moved, slice(4, 8)))]
        made, spec = getattr(RolloutCorrectionConfig, name)(), preset(f"verl/{name}", "token_mean").correction
        theirs = [_of_verl(now, part, made) for now, part in parts]
        reduced = reduce_metrics({key: [one[key] for one in theirs] for key in theirs[0]})
        for filter_ in spec.reject:  # our filters carry the names of the presets
            old, new = f"rollout_rs_{made.rollout_rs}_", f"rollout_rs_{filter_}_"
            reduced = {key.replace(old, new): value for key, value in reduced.items()}
        mine = over_minibatches([_metrics(now, part, spec) for now, part in parts])
        mine = {key.removeprefix(CURRENT): value for key, value in mine.items()}
        agreement = shared(mine, reduced)
        compared |= agreement.keys()
        found |= {key for key, agrees in agreement.items() if not agrees}
        at_old = over_minibatches([_metrics(part.logp_old, part, spec) for _, part in parts])
        assert not shared({"kl": at_old[f"{CURRENT}rollout_corr/kl"]}, {"kl": reduced["rollout_corr/kl"]})["kl"]
    assert compared >= ALWAYS and found <= expected(f"verl/metrics/{name}", compared)
    if spec.reject:
        assert "rollout_corr/rollout_rs_masked_fraction" in compared - found
    if spec.weight.level:
        assert "rollout_corr/rollout_is_mean" in compared - found


def _metrics(policy, part, spec) -> dict:
    return trained_metrics(trained_rows(part, spec, policy), spec, complete=True)


def _of_verl(logp, b, made) -> dict[str, float]:
    settings = config(b, {"rollout_correction": made})
    _, metrics = compute_policy_loss_bypass_mode(b.logp_rollout, logp, b.advantages, b.mask.double(), "token-mean", settings)
    return {key: value for key, value in metrics.items() if key.startswith("rollout_corr/")}
