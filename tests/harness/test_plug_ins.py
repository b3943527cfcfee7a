"""Plug-ins of a config: what is wrong with one is named before anything starts."""

import pytest
import torch

from algos.advantages import advantage
from algos.registry import RegistryError
from harness.errors import UserError
from harness.validate import check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+correction.reject.m={function: nosuch}"], "corrections=nosuch: unknown; known are m2po"),
        (["+correction.reject.m={function: m2po, params: {x: 1}}"], "correction.reject.m.params.x: unknown"),
        (
            [f"advantage.name={__name__}:by_entropy"],
            "advantage=.*:by_entropy: needs logp_old, pi_squared, which a run does not have",
        ),
        (["advantage=gae", "critic=none"], "critic.lr is missing: advantage=gae needs .* values of a critic; set critic=default"),
        (["critic=default"], "critic.lr=0.001 has no effect: advantage=dr_grpo reads no values; set critic=none or"),
        *[
            ([f"advantage={name}", "rollout.group_size=1"], rf"rollout.group_size=1: advantage={name} compares .*; set 2 or more")
            for name in ("grpo", "dr_grpo", "grpo_batch_std", "gpg", "rloo", "maxrl", "pass_at_k", "opo", "reinforce_pp_baseline")
        ],
        (["evaluation.prompts=50"], r"evaluation.prompts=50: at most 7 prompts of task=chain are held out; ask for no more"),
        (["diagnostics.persistence.every=21", "diagnostics.persistence.responses=50"], r"persistence.responses=50: at most 7"),
        (["advantage=gae", "advantage.lam=1.5"], r"advantage.lam=1.5: must be a number in \[0, 1\]"),
        (["correction=token_truncate", "correction.ratio=current"], "correction.ratio=current .* counts the update twice"),
        (["correction=token_truncate", "proximal=rollout"], "proximal=rollout .* counts the mismatch twice"),
        (["loss.eps_low=abc"], "loss.eps_low='abc': must be an offset from ratio 1"),
        (["collapse.detectors.drawdown.consecutive=x"], "drawdown.consecutive='x': must be a whole number ≥ 1"),
        (["collapse.detectors.drawdown.consecutive=0"], "drawdown.consecutive=0: must be a whole number ≥ 1"),
        (["collapse.detectors.numerical.hits=20"], "collapse.detectors.numerical.hits=20: must be at most hits_window=10"),
        (["loss=pg", "proximal=rollout"], "proximal=rollout has no effect: loss pg"),
        (["loss=pg", f"loss.name={__name__}:bare"], "loss.name=.*:bare: does not say whether .* @loss"),
        ([f"advantage.name={__name__}:bare"], "advantage.name=.*:bare: does not say what it needs; .* @advantage"),
        (
            [f"+correction.reject.m={{function: '{__name__}:by_response'}}"],
            r"correction.reject.m: filter .*:by_response returned \[1\] torch.bool; it must return bool of .* \[1, 1\]",
        ),
        (["+correction.reject.m={function: 'os:system'}"], r"m.params: system\(command\) cannot be called as \(log_ratio, mask"),
        (["kl.name=math:sqrt", "kl.coef=1"], r"kl.name=math:sqrt: sqrt\(x, /\) cannot be called as \(logp, logp_ref"),
        (["rollout.engine.name=os:system"], "rollout.engine.name=os:system: no class derived from .*RolloutEngine"),
        (["task.name=os:system"], r"task.name=os:system: system\(command\) cannot be called as \(config, tokenizer"),
        (["loss.name=nosuch.module:f"], "losses=nosuch.module:f: there is no module nosuch; write package.module:function"),
        (["loss.name=nosuch"], "losses=nosuch: unknown; known are .*ppo"),
        (["loss.eps_low=-0.1"], "loss.eps_low=-0.1"),
        *([(["actor.dtype=fp16"], "actor.dtype=fp16: DeepSpeed trains in it on a GPU only")] * (not torch.cuda.is_available())),
        (["+loss.eps=0.1"], "loss.eps: unknown; it takes eps_low"),
        (["~loss.eps_low"], "loss.eps_low: missing"),
        (["advantage.name=nosuch"], "advantages=nosuch: unknown"),
        (["rollout.engine.name=nosuch"], "engines=nosuch: unknown; known are local"),
        (["+collapse.detectors.drawdown.x=1"], "collapse.detectors.drawdown.x: unknown"),
        (["+collapse.detectors.nosuch={}"], "detectors=nosuch: unknown"),
    ],
)
def test_plug_ins_are_checked_before_anything_starts(tiny, overrides, message):
    with pytest.raises(UserError, match=message):
        check(tiny(*overrides))


def bare(logp, logp_prox, advantages, mask):
    """A loss, or an estimator, whose author forgot the decorator."""


@advantage("logp_old", "pi_squared")
def by_entropy(rewards, *, logp_old, pi_squared):
    """An estimator of what no run computes."""


def by_response(log_ratio, mask):
    """A filter that returns [B], not [B, T]."""
    return (log_ratio > -1).all(-1)


def test_a_plug_in_that_fails_to_load_shows_its_own_traceback(tiny, tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RegistryError, match="broken_plugin:loss: the plug-in failed to load") as raised:
        check(tiny("loss.name=broken_plugin:loss"))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
