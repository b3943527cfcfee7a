"""The metrics of the policy that is trained are those of what was applied to it, mini-batch by mini-batch."""

import pytest
import torch

from algos.corrections import apply
from algos.objective import Objective
from harness.run.metrics import check_named
from harness.train.learner import corrected_part
from harness.train.metrics import over_minibatches
from harness.train.trainer import Trainer
from harness.validate import check
from tests.harness.train.test_trainer import folder_of

# A weight that caps many ratios and a filter that drops responses, of π_θ/μ; and a loss with a gradient whatever the rewards are.
CURRENT = ["loss=cross_entropy", "correction=token_truncate", "correction.ratio=current", "correction.weight.upper=1.01",
           "+correction.reject.worst={level: worst_token, lower: 0.8}", "rollout/precision=nvfp4"]  # fmt: skip


def stepped(config, monkeypatch) -> tuple[dict, list[list[tuple]]]:
    """The metrics of a step, and of each mini-batch the (log π_θ, batch, correction) that its micro-batches were given."""
    given, minibatches, call = [], [], Objective.__call__

    def watched(self, logp, batch, corrected, counts, entropy=None):
        given.append((logp.detach().double(), batch, corrected))
        return call(self, logp, batch, corrected, counts, entropy)

    with folder_of(config).claim() as folder, monkeypatch.context() as patch:
        trainer = Trainer(check(config), folder)
        step = trainer.actor.step

        def stepped(lr):
            minibatches.append(given.copy())
            given.clear()
            return step(lr)

        patch.setattr(Objective, "__call__", watched)
        patch.setattr(trainer.actor, "step", stepped)
        return trainer.step(0), minibatches


def token_means(minibatches, value) -> float:
    """The mean over mini-batches of the mean over tokens of `value(logp, batch, corrected)`."""
    means = []
    for parts in minibatches:
        values = torch.cat([value(*part)[part[1].mask].double() for part in parts])
        means.append(values.mean())
    return float(torch.stack(means).mean())


@pytest.mark.slow
@pytest.mark.parametrize("scoring", ["exact", "none"])
def test_what_is_recorded_is_what_was_applied(tiny, monkeypatch, scoring):
    config = tiny(*CURRENT, f"actor.scoring={scoring}", "actor.num_minibatches=2", "actor.micro_tokens=30", "actor.lr=0.01")
    metrics, minibatches = stepped(config, monkeypatch)
    assert len(minibatches) == 2 and all(len(parts) > 1 for parts in minibatches)
    weight = token_means(minibatches, lambda logp, batch, corrected: corrected.weights)
    kept = token_means(minibatches, lambda logp, batch, corrected: corrected.kept)
    l = lambda logp, batch: logp - batch.logp_rollout  # noqa: E731
    k3 = token_means(minibatches, lambda logp, batch, _: l(logp, batch).exp() - 1 - l(logp, batch))
    assert 0.5 < weight < 1 and metrics["correction/weight_mean"] == pytest.approx(weight, rel=1e-6)
    assert 0 < kept < 1 and metrics["correction/kept_tokens"] == pytest.approx(kept, rel=1e-9)
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(weight, rel=1e-6)
    assert metrics["current/rollout_corr/k3_kl"] == pytest.approx(k3, rel=1e-4)
    if scoring == "exact":  # of π_old: all but the first mini-batch are trained at another policy
        assert metrics["rollout_corr/k3_kl"] != pytest.approx(k3, rel=1e-4)
        assert metrics["old/correction/weight_mean"] != pytest.approx(weight, rel=1e-6)
    else:
        assert not any(name.startswith("old/") for name in metrics)
    check_named(metrics)


FILTER = "+correction.reject.worst={level: worst_token, lower: 0.8}"
TWO = ["actor.num_minibatches=2", "actor.micro_tokens=30"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "corrections"),
    [
        (["correction=token_truncate"], 1),
        ([FILTER, *TWO], 1),  # for the gradients and the metrics
        ([FILTER, "proximal=rollout", *TWO], 1),  # current/… are metrics of the mismatch alone
        ([*CURRENT, *TWO], 3),  # of π_old for its metrics, then of π_θ in each mini-batch
    ],
)
def test_a_step_is_corrected_once(tiny, monkeypatch, overrides, corrections):
    """Beside the one token on which `harness.validate.check` tries the correction out."""
    rows, weights = [], apply.token_weights
    monkeypatch.setattr(apply, "token_weights", lambda ratio, weight: rows.append(len(ratio.mask)) or weights(ratio, weight))
    stepped(tiny("rollout/precision=nvfp4", "diagnostics.every=1", *overrides), monkeypatch)
    assert rows[0] == 1 and sum(n > 1 for n in rows) == corrections


@pytest.mark.slow
def test_a_weight_for_its_metrics_alone_trains_as_none(tiny, monkeypatch):
    """The weight of π_old/μ, and in bypass mode of π_θ/μ in each mini-batch, is recorded, and no loss has it."""
    own = tiny("rollout/precision=nvfp4", "correction=token_truncate", "correction.weight.upper=1.01",
               "correction.weight.apply=false", "actor.num_minibatches=2")  # fmt: skip
    metrics, minibatches = stepped(own, monkeypatch)
    assert all(torch.equal(corrected.weights, batch.mask.float()) for parts in minibatches for _, batch, corrected in parts)
    ratios = torch.cat([(batch.logp_old - batch.logp_rollout)[batch.mask] for parts in minibatches for _, batch, _ in parts])
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(float(ratios.exp().clamp(max=1.01).mean()), rel=1e-5)
    bypass = tiny("rollout/precision=nvfp4", "correction=verl_2025/ppo_is_bypass", "actor.num_minibatches=2", "actor.lr=0.01",
                  "correction.weight.upper=1.01", "entropy_coeff=0.1")  # fmt: skip
    assert corrected_part(bypass) == "batch"  # without the forward pass of a weight by π_θ
    metrics, minibatches = stepped(bypass, monkeypatch)
    assert all(torch.equal(corrected.weights, batch.mask.float()) for parts in minibatches for _, batch, corrected in parts)
    weight = token_means(minibatches, lambda logp, batch, _: (logp - batch.logp_rollout).exp().clamp(max=1.01))
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(weight, rel=1e-6)
    assert metrics["old/rollout_corr/rollout_is_mean"] != pytest.approx(weight, rel=1e-6)


@pytest.mark.slow
def test_of_one_minibatch_both_policies_are_one(tiny, monkeypatch):
    metrics, _ = stepped(tiny("proximal=rollout", "rollout/precision=nvfp4"), monkeypatch)
    current = {name.removeprefix("current/"): value for name, value in metrics.items() if name.startswith("current/")}
    assert len(current) > 20 and current["rollout_corr/k3_kl"] > 0
    assert current == pytest.approx({name: metrics[name] for name in current}, rel=1e-9)  # of the same rows in another order
    assert not any(name.startswith(("current/", "old/")) for name in stepped(tiny("rollout/precision=nvfp4"), monkeypatch)[0])


def test_minibatches_without_a_metric_do_not_count():
    nan, one, three = torch.tensor([float("nan"), 1, 3]).double().unbind()
    parts = [{"a": one, "ratio_max": one, "ratio_min": one, "current/mismatch/pareto_k": nan, "correction/used_length": nan},
             {"a": three, "ratio_max": three, "ratio_min": three, "current/mismatch/pareto_k": three}, {}]  # fmt: skip
    assert over_minibatches(parts) == {"a": 2, "ratio_max": 3, "ratio_min": 1, "current/mismatch/pareto_k": 3}
    assert over_minibatches([{"a": nan}, {"a": one}])["a"].isnan()
