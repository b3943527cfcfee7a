"""Replay of dumps that the packages themselves have written, against verl's own function on the same batch."""

from pathlib import Path

import pytest
import torch
import verl
import yaml
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.train.config.config import OffPolicyCorrectionConfig, SamplingParams
from trl import GRPOConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from faultline.tools.replay.collect import collect
from faultline.tools.replay.presets import presets
from faultline.tools.replay.settings import SKYRL, VERL, settings
from faultline.tools.replay.sources import Dump
from tests.oracles.comparing import batch
from tests.oracles.verl_cases import PRESETS

DECOUPLED = [name for name in PRESETS if name.startswith("decoupled") or name == "disabled"]
SEEDS = range(4)


def replayed(path, name):
    found = collect(Dump(path), {name: presets([f"verl/{name}"])[f"verl/{name}"].correction})
    return found.mismatch | found.corrections.iloc[0].to_dict()


@pytest.mark.parametrize("name", DECOUPLED)
def test_verls_own_function_on_the_same_dump(tmp_path, name):
    """The metrics whose definitions agree: shares that are kept, the mean and ESS of the applied weights, K1, K3, χ².

    verl's ESS is of weights clamped to [0, threshold], which truncated weights are; of IcePop's, which it only masks, the mean is
    compared. Its sums have 1e-8 in their denominators.
    """
    made = getattr(RolloutCorrectionConfig, name)()
    keys = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold", "rollout_is_batch_normalize")
    for seed in SEEDS:
        _, b = batch(seed)
        tensors = {"response_mask": b.mask.long(), "old_log_probs": b.logp_old, "rollout_log_probs": b.logp_rollout}
        path = tmp_path / f"step_{seed}.pt"
        torch.save(tensors, path)
        settings = {key: getattr(made, key) for key in keys}
        policies = (b.logp_old, b.logp_rollout)
        weights, kept, theirs = compute_rollout_correction_and_rejection_mask(*policies, b.mask.double(), **settings)
        theirs = {key.removeprefix("rollout_corr/"): float(value) for key, value in theirs.items()}
        ours = replayed(path, name)
        for key in ("kl", "k3_kl", "chi2_token", "chi2_seq", "ppl_ratio"):
            assert ours[f"rollout_corr/{key}"] == pytest.approx(theirs[key], abs=1e-6), key
        assert ours["correction/kept_tokens"] == pytest.approx(float(kept.sum() / b.mask.sum()), abs=1e-6)
        if made.rollout_rs:
            for key in ("rollout_rs_masked_fraction", "rollout_rs_seq_masked_fraction"):
                assert ours[f"rollout_corr/{key}"] == pytest.approx(theirs[key], abs=1e-6), key
        if weights is not None:
            assert ours["correction/weight_mean"] == pytest.approx(theirs["rollout_is_mean"], abs=1e-6)
            if "icepop" not in name:
                assert ours["correction/weight_ess"] == pytest.approx(theirs["rollout_is_eff_sample_size"], abs=1e-6)


def below(values, section):
    """The settings of a section, by the last part of their key."""
    return {key.rpartition(".")[2]: value for key, value in values.items() if key.rpartition(".")[0] == section}


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_settings_that_a_verdict_prints_are_those_of_the_packages(tmp_path, level):
    """Their own config classes take every key, and verl's own function then gives min(ρ, 1.75) at that level."""
    made = {name: dict(line.split("=") for line in lines) for name, lines in settings(level, 1.75).items()}
    values = {name: {key: yaml.safe_load(value) for key, value in pairs.items()} for name, pairs in made.items()}
    rollout = yaml.safe_load((Path(verl.__file__).parent / "trainer/config/rollout/rollout.yaml").read_text())
    assert below(values["verl"], "actor_rollout_ref.rollout").items() <= rollout.items()
    assert SamplingParams(**below(values["SkyRL"], "generator.sampling_params")).logprobs == 1
    made_verl = RolloutCorrectionConfig(**below(values["verl"], VERL))
    skyrl = OffPolicyCorrectionConfig(**below(values["SkyRL"], SKYRL))
    trl = GRPOConfig(output_dir=str(tmp_path), use_vllm=True, report_to="none", use_cpu=True, bf16=False, **values["TRL"])
    assert (skyrl.tis_ratio_type, getattr(skyrl, f"{level}_tis_ratio_clip_high")) == (level, 1.75)
    assert trl.vllm_importance_sampling_mode == f"{level}_truncate" and trl.vllm_importance_sampling_clip_max == 1.75
    _, b = batch(0)
    chosen = {
        key: getattr(made_verl, key) for key in ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    }
    weights, _, _ = compute_rollout_correction_and_rejection_mask(b.logp_old, b.logp_rollout, b.mask.double(), **chosen)
    l = torch.where(b.mask, b.logp_old - b.logp_rollout, 0.0)
    rho = (l if level == "token" else l.sum(-1, keepdim=True).expand_as(l)).exp()
    theirs = weights.batch["rollout_is_weights"]
    torch.testing.assert_close(theirs[b.mask], rho.clamp(max=1.75)[b.mask].to(theirs.dtype), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_skyrls_own_file(tmp_path, dtype):
    """TrainingInputBatch.save, as trainer.dump_data_batch calls it, read without skyrl's classes: the arrays are those."""
    _, b = batch(0)
    tensors = {"action_log_probs": b.logp_old, "rollout_logprobs": b.logp_rollout, "advantages": b.advantages}
    theirs = TrainingInputBatch({name: tensor.to(dtype) for name, tensor in tensors.items()} | {"loss_mask": b.mask.long()})
    theirs.metadata = {"response_length": 12, "pad_size": 2, "policy_prompt_boundaries": [(0, 4), (4, 8)]}
    path = tmp_path / "global_step_3_training_input.pkl"
    theirs.save(str(path))
    (found,) = Dump(path).batches()
    assert len(found) == 6 and set(found.step) == {3}
    mask = torch.zeros(6, 12, dtype=torch.bool)
    for row, (start, end) in enumerate(zip(found.offsets[:-1], found.offsets[1:], strict=True)):
        mask[row, : end - start] = torch.tensor(found.mask[start:end])
    assert torch.equal(mask, b.mask[:6])
    for name, tensor in {"logp_old": b.logp_old, "logp_rollout": b.logp_rollout, "advantages": b.advantages}.items():
        expected = tensor.to(dtype).float()[:6][b.mask[:6]]
        assert torch.equal(torch.tensor(getattr(found, name))[torch.tensor(found.mask)], expected), name
