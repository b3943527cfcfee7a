"""Starts from a checkpoint of another run: the gradient laboratory and branches."""

import json
import subprocess
import sys

import pytest
import torch

from analysis.load import load
from faultline.tools.gradient.methods import EXACT, methods
from faultline.tools.gradient.sampled import SampledGradients
from harness.errors import UserError
from harness.run.folder import RunFolder, run_folders
from harness.run.loop import Run, train
from harness.run.metrics import METRICS
from harness.run.noise import _k3, matching_noise
from harness.run.restore import find, parts_at, transplant
from harness.validate import check
from sweeps.branch import branch, overridden

pytestmark = pytest.mark.slow


def test_a_run_with_kahan_summation_is_measured_on_any_number_of_ranks(tiny):
    """Saved on one rank; its state then names two, as after a run on two ranks. A resume would need two."""
    config = tiny("actor.dtype=bf16", "actor.masters=kahan", "actor.zero_stage=1", "actor.scoring=forward", "steps=1")
    train(config)
    found = find(config.path)
    with parts_at(found) as parts:
        expected = {name: weight.sum().item() for name, weight in parts.actor.weights()}
    saved = json.loads((found.folder / "state.json").read_text())
    (found.folder / "state.json").write_text(json.dumps(saved | {"ranks": 2}))
    with parts_at(found) as parts:
        assert expected == {name: weight.sum().item() for name, weight in parts.actor.weights()}


def test_a_checkpoint_of_a_real_run(tiny, tmp_path):
    """The control has no mismatch: each correction is uncorrected, and within its interval of the truth; and with fp8 the exact
    weight is not the plain gradient. The paired comparison has the same batches, so its ratio is that of their sds."""
    tables, paired = {}, {}
    for precision in ("fp32", "fp8_tensor"):
        config = tiny(f"rollout/precision={precision}", "steps=2", "checkpoint.every=2", "checkpoint.keep=2")
        train(config)
        found = find(config.path)
        assert found.step == 2
        folder = RunFolder(tmp_path / precision)
        transplant(found, folder)
        run = Run(check(config), folder)
        assert run.resume() == 2
        chosen = [m for m in methods(["ppo"], ["none", "sequence_truncate"], "token_mean") if m.family is None]
        with parts_at(found) as parts:
            restored = {name: w.detach().clone() for name, w in parts.actor.weights()}
            assert all(torch.equal(w, restored[name]) for name, w in run.trainer.actor.weights())
            laboratory = SampledGradients(parts, 8, 0)
            tables[precision] = laboratory.compare(chosen, 16, 64).set_index("method")
            paired[precision] = laboratory.paired(chosen, 16).set_index("method")
    control = tables["fp32"]
    assert control.loc[EXACT, "sd"] == control.loc["ppo none", "sd"] > 0
    assert control.loc["ppo none", "cosine"] > 0.5 and control.loc["ppo none", "bias low"] < 0.5
    assert tables["fp8_tensor"].loc[EXACT, "sd"] != tables["fp8_tensor"].loc["ppo none", "sd"]
    assert (paired["fp32"]["sd ratio"] == 1).all() and (paired["fp32"].bias == 0).all()
    of_exact, of_none = tables["fp8_tensor"].sd[[EXACT, "ppo none"]]
    assert paired["fp8_tensor"]["sd ratio"][EXACT] == pytest.approx(of_exact / of_none, rel=1e-6)
    assert paired["fp8_tensor"].bias[EXACT] == 0 and not paired["fp8_tensor"]["pays from"].isna()[EXACT]
    with pytest.raises(UserError, match=r"no checkpoint of step 7; it has 2"):
        find(config.path, 7)
    with pytest.raises(UserError, match="no checkpoint there"):
        find(tmp_path)
    (found.folder / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged \(state.json differs from its checksum\)"):
        find(config.path)


def untimed(rows):
    return [{key: value for key, value in row.items() if not (key in METRICS and METRICS[key].timing)} for row in rows]


def test_a_branch_goes_on_from_the_checkpoint_and_only_its_settings_differ(tiny):
    """The unchanged arm with the run's own seed is the run, bit for bit from the checkpoint on."""
    solved = "collapse.detectors.learning.solved=0"  # every run has learned in step 0, which its branches do not see again
    config = tiny("rollout/precision=fp8_tensor", "steps=4", "checkpoint.every=2", "checkpoint.keep=2", solved)
    train(config)
    page = branch(config.path, 2, ["correction=icepop loss=pg"], 2)
    sweep = load(page.parent)
    assert list(sweep.runs.outcome) == ["survived"] * 4 and sweep.disagreements == []
    assert all(onsets == {"learning": 0} for onsets in sweep.runs.onsets)
    assert page.exists()
    runs = {(c["loss"]["name"], c["seed"]): folder for folder in run_folders(page.parent) for c in [folder.read("config.json")]}
    assert set(runs) == {("ppo", 0), ("ppo", 1), ("pg", 0), ("pg", 1)}
    original = [row for row in untimed(RunFolder(config.path).metrics()) if row["step"] >= 2]
    assert untimed(runs["ppo", 0].metrics()) == original
    assert all(folder.metrics()[0]["step"] == 2 and folder.state == "done" for folder in runs.values())
    assert untimed(runs["ppo", 1].metrics()) != original
    branch(config.path, 2, ["actor.lr=1e-1"], 1)
    faster = next(f for f in run_folders(page.parent) if f.read("config.json")["actor"]["lr"] == 0.1)
    assert faster.metrics()[0]["actor/entropy"] == original[0]["actor/entropy"] != faster.metrics()[1]["actor/entropy"]
    assert faster.metrics()[1]["actor/entropy"] != original[1]["actor/entropy"]  # not the learning rate of the checkpoint
    for arm, message in [
        ("seed=5", "branches get seeds 0, 1"),
        ("run.sweep=x", "a sweep of their own; leave run.sweep out"),
        ("=3", "write key=value"),
        ("loss=ppo", "two arms are the same, or one changes nothing"),
    ]:
        with pytest.raises(UserError, match=message):
            branch(config.path, 2, [arm], 1)
    with pytest.raises(UserError, match=r"model.hidden_size cannot change on the way, the checkpoint was made with 32"):
        branch(config.path, 2, ["model.hidden_size=64"], 1)
    with pytest.raises(UserError, match=r"steps=4: the checkpoint is of step 4, .*; branch from an earlier one: --at 2$"):
        branch(config.path, 4, [], 1)


def test_the_noise_arm_has_the_mismatch_of_the_run(tiny):
    """K3 of the noise arm over its own steps is that of the unchanged one. From one draw of the noise to the next it differs by
    37 % (standard deviation), measured on this policy: the mean of four by 18 %."""
    overrides = ["rollout/precision=nvfp4", "rollout.prompts=16", "rollout.group_size=8", "actor.lr=1e-6"]
    config = tiny(*overrides, "steps=6", "checkpoint.every=2", "checkpoint.keep=3")
    train(config)
    noise, reached, wanted = matching_noise(find(config.path, 2))
    assert 0.01 < noise < 1 and reached == pytest.approx(wanted, rel=0.02)
    page = branch(config.path, 2, [], 1, noise=True)
    k3 = {
        c["rollout"]["precision"]["name"]: sum(row["rollout_corr/k3_kl"] for row in folder.metrics()[:4]) / 4
        for folder in run_folders(page.parent)
        for c in [folder.read("config.json")]
    }
    assert k3["nvfp4"] / 2 < k3["fp32"] < k3["nvfp4"] * 2
    control = tiny("rollout/precision=fp32", "steps=2", "checkpoint.every=2")
    train(control)
    with pytest.raises(UserError, match=r"no mismatch \(K3 is 0\)"):
        matching_noise(find(control.path))


def test_overrides_of_a_branch_mean_what_they_mean_to_a_run(tiny):
    """A group takes the whole option, what a preset sets outside of its group included; the rest stays the run's."""
    config = tiny("actor.lr=1e-3", "correction=icepop")
    plain = config.model_dump(mode="json")
    preset = overridden(config, ["correction=verl/bypass_ppo_clip"])
    assert preset["proximal"] == "rollout" and preset["loss"]["dual_clip"] == 3.0
    assert preset["correction"]["weight"]["level"] is None
    assert preset["actor"] == plain["actor"] and preset["task"] == plain["task"]
    swapped = overridden(config, ["rollout/precision=fp32", "correction.weight.upper=7"])
    assert swapped["rollout"]["precision"]["name"] == "fp32" and swapped["rollout"]["prompts"] == plain["rollout"]["prompts"]
    assert swapped["correction"]["weight"] == plain["correction"]["weight"] | {"upper": 7}
    with pytest.raises(UserError, match=r"^--set loss=nonesuch: loss/nonesuch: there is no such option; take one of .*gspo.*ppo"):
        overridden(config, ["loss=nonesuch"])


def test_a_wrong_command_is_told_before_torch_is_imported(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000002").mkdir(parents=True)
    code = f"""
import sys
from pathlib import Path
from harness.errors import UserError
from sweeps.branch import branch
for run, at in (("run", 5), ("run", 2), ("none", None)):
    try:
        branch(Path({str(tmp_path)!r}) / run, at, [], 1)
    except UserError as error:
        print(error)
print(*{{"torch", "deepspeed", "transformers", "scipy"}} & sys.modules.keys())
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    assert "no checkpoint of step 5; it has 2" in said[0] and "damaged (manifest.json unreadable" in said[1]
    assert "no checkpoint there" in said[2] and said[3] == ""


@pytest.mark.slow
def test_the_noise_that_matches_merged_adapters_is_measured_without_them(tiny):
    """Merging is the rollouts' mismatch; an engine without noise has adapters apart, and none. Measuring moves no weight."""
    overrides = ["actor.dtype=bf16", "rollout/precision=bf16", "actor.lora={rank: 4, sync: merged_in_place}", "actor.lr=1e-2"]
    config = tiny(*overrides, "steps=4", "checkpoint.every=2", "run.sweep=noise-lora")
    train(config)
    with parts_at(find(config.path, 2)) as parts:
        synced = {name: weight.detach().clone() for name, weight in parts.actor.synced_weights()}
        own = {name: weight.detach().clone() for name, weight in parts.actor.weights()}
        parts.scorer.own_policy.load_weights(own.items(), 0)
        assert _k3(parts, parts.sampler.engine, synced, 64) > 0 == _k3(parts, parts.scorer.own_policy, own, 64)
        assert all(torch.equal(weight, own[name]) for name, weight in parts.actor.weights())
