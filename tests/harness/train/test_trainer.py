"""The loop: the exact control, the corrections as one algebra, and a real training run."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from algos.registry import LOSSES
from harness.build import build_task, local_engine, own_precision, samples_as_trainer
from harness.collapse import detect
from harness.errors import UserError
from harness.run.folder import RunFolder
from harness.run.loop import Run, train
from harness.run.metrics import METRICS
from harness.train.trainer import Trainer
from harness.train.warmstart import warm_start
from harness.validate import check

pytestmark = pytest.mark.slow

CORRECTIONS = ["none", "token_truncate", "sequence_truncate", "sequence_mask"]


def folder_of(config) -> RunFolder:
    return RunFolder(config.path)


def stepped(config) -> tuple[dict, dict]:
    """(metrics, weights) after one step from the warm start."""
    folder = folder_of(config)
    with folder.claim():
        trainer = Trainer(check(config), folder)
        metrics = trainer.step(0)
        return metrics, {name: w.detach().clone() for name, w in trainer.actor.weights()}


def untimed(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not (k in METRICS and METRICS[k].timing)} for row in rows]


@pytest.mark.parametrize(("minibatches", "ratio"), [(1, "old"), (2, "old"), (1, "current")])
def test_the_control_is_exact(tiny, minibatches, ratio):
    """fp32 against fp32: every ratio is 1, K3 is 0, and the weights after a step are the same bits under every correction.

    Not by the current ratio with two mini-batches: the second sees a policy that has moved, so its ratio is not 1.
    """
    # A weight on the current ratio belongs to a loss without a ratio of its own.
    shared = ["rollout/precision=fp32", f"actor.num_minibatches={minibatches}", f"loss={'ppo' if ratio == 'old' else 'pg'}"]
    outcomes = []
    for correction in CORRECTIONS:
        config = tiny(*shared, f"correction={correction}", *([f"correction.ratio={ratio}"] if correction != "none" else []))
        metrics, weights = stepped(config)
        assert metrics["rollout_corr/k3_kl"] == metrics["rollout_corr/kl"] == metrics["mismatch/log_ratio_max_abs"] == 0.0
        assert metrics["mismatch/ess_token"] == metrics["mismatch/ess_sequence"] == metrics["correction/weight_mean"] == 1.0
        assert metrics["correction/kept_tokens"] == 1.0
        outcomes.append(weights)
    for other in outcomes[1:]:
        assert all(torch.equal(other[name], w) for name, w in outcomes[0].items())


def test_the_control_is_exact_after_training_too(tiny):
    train(tiny("rollout/precision=fp32", "steps=3"))
    rows = folder_of(tiny("rollout/precision=fp32", "steps=3")).metrics()
    assert [row["rollout_corr/k3_kl"] for row in rows[:-1]] == [0.0, 0.0, 0.0]


def test_with_one_minibatch_ppo_is_pure_policy_gradient(tiny):
    """At π_θ = π_old the gradients agree: −A·r·∇log π with r = 1. Up to the rounding of exp(0)·∇ against ∇: to 1e-6."""
    (_, ppo), (_, pg) = stepped(tiny("loss=ppo")), stepped(tiny("loss=pg"))
    assert all(torch.allclose(ppo[name], pg[name], atol=1e-6) for name in ppo)


def test_the_mean_over_prompts_is_that_over_tokens_when_all_have_as_many(tiny):
    """One mini-batch has four responses of four tokens of each prompt; of two at random they are fewer, and differ."""
    for more, same in (["actor.micro_tokens=30"], True), (["actor.num_minibatches=2", "seed=1"], False):
        (_, prompts), (_, tokens) = (stepped(tiny(f"reduce={mode}_mean", *more)) for mode in ("prompt", "token"))
        assert all(torch.allclose(prompts[name], tokens[name], atol=1e-6) for name in prompts) == same


def test_the_step_is_as_small_as_the_effective_sample(tiny):
    """VCPO: the rate is √e of the configured one, e the sequence ESS over the responses; 1 in the control."""
    shared = ["actor.lr=3e-4", "actor.ess_scaling=sqrt"]
    metrics, _ = stepped(tiny("rollout/precision=nvfp4", *shared))
    assert metrics["mismatch/ess_sequence"] < 1
    assert metrics["actor/lr"] == pytest.approx(3e-4 * metrics["mismatch/ess_sequence"] ** 0.5, rel=1e-6)
    assert stepped(tiny("rollout/precision=fp32", *shared))[0]["actor/lr"] == 3e-4
    with pytest.raises(UserError, match=r"actor\.scoring=none: actor\.ess_scaling=sqrt reads it"):
        check(tiny(*shared, "actor.scoring=none", "proximal=rollout"))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_low_precision_rollout_has_a_mismatch_and_corrections_act(tiny, correction):
    metrics, weights = stepped(tiny("rollout/precision=nvfp4", f"correction={correction}"))
    assert metrics["rollout_corr/k3_kl"] > 1e-6 and metrics["mismatch/ess_sequence"] < 1
    _, uncorrected = stepped(tiny("rollout/precision=nvfp4"))
    changed = any(not torch.equal(weights[name], w) for name, w in uncorrected.items())
    assert changed == (correction != "none")


def test_bypass_anchors_the_loss_on_the_rollout_policy(tiny):
    """With one mini-batch and proximal=rollout the PPO ratio is π_old/μ ≠ 1, so some of it is clipped at a narrow range."""
    narrow = ["loss.eps_low=1e-6", "loss.eps_high=1e-6", "rollout/precision=nvfp4"]
    assert stepped(tiny("proximal=rollout", *narrow))[0]["actor/clip_share"] > 0
    assert stepped(tiny(*narrow))[0]["actor/clip_share"] == 0


def test_staged_scoring_forward_is_close_to_exact(tiny):
    exact, forward = (stepped(tiny("rollout/precision=fp32", f"actor.scoring={s}"))[0] for s in ("exact", "forward"))
    assert exact["rollout_corr/k3_kl"] == 0.0
    assert 0 < forward["mismatch/log_ratio_max_abs"] < 1e-4


def test_remax_takes_the_greedy_response_as_the_baseline(tiny, monkeypatch):
    """A = R − R_greedy of the same prompt, whether the engine samples for this step or, at the end of a stale run, no more."""
    config, seen = tiny("advantage=remax", "rollout.staleness=1", "steps=2"), []
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        update = trainer.learner.update
        monkeypatch.setattr(trainer.learner, "update", lambda batch, *a, **k: (seen.append(batch), update(batch, *a, **k))[1])
        for step in range(2):
            metrics = trainer.step(step)
            own = trainer.sampler.task.reward(seen[step].prompts.numpy(), seen[step].tokens.numpy())
            baseline = torch.from_numpy(own)[:, None] - seen[step].batch.advantages
            assert (baseline == baseline[:, :1]).all() and set(baseline.unique().tolist()) <= {0.0, 1.0}
            groups = baseline[:, 0].view(4, 4)
            assert (groups == groups[:, :1]).all() and metrics["reward/greedy"] == groups[:, 0].mean()


def test_a_segment_of_the_chain_is_a_step_of_its_walk(tiny):
    """With one choice a step is a token, and a weight by segments is that by tokens; with two it is a move and a value.

    Cross entropy, so that there is a gradient to weigh whatever the rewards of a policy that has hardly learned.
    """
    coarse = ["rollout/precision=nvfp4", "correction=token_truncate", "loss=cross_entropy", "warmstart.keep_low=0"]
    for choices, same in ((1, True), (2, False)):
        weights = {}
        for level in ("token", "segment", "sequence"):
            weights[level] = stepped(tiny(*coarse, f"task.choices={choices}", f"correction.weight.level={level}"))[1]
        equal = [all(torch.equal(weights["segment"][n], w) for n, w in weights[level].items()) for level in ("token", "sequence")]
        assert equal == [same, False]


def test_non_finite_rollout_log_probabilities_are_dropped_and_counted(tiny, monkeypatch):
    config = tiny()
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        generate = trainer.sampler.engine.generate

        def damaged(prompts, uniforms):
            rollout = generate(prompts, uniforms)
            rollout.logp[0, 1], rollout.logp[2, 0] = float("nan"), -float("inf")
            return rollout

        monkeypatch.setattr(trainer.sampler.engine, "generate", damaged)
        metrics = trainer.step(0)
    assert metrics["mismatch/dropped"] == 2
    assert all(torch.tensor(value).isfinite() for value in metrics.values())


def test_a_rollout_without_one_finite_log_probability_is_an_event(tiny, monkeypatch):
    config = tiny("steps=2")
    with folder_of(config).claim() as folder:
        run = Run(check(config), folder)
        engine = run.trainer.sampler.engine
        generate = engine.generate
        monkeypatch.setattr(
            engine, "generate", lambda *a: (r := generate(*a))._replace(logp=torch.full_like(r.logp, float("nan")))
        )
        metrics = run.trainer.step(0)
    assert metrics["mismatch/dropped"] == 16 * 4 and "rollout_corr/k3_kl" not in metrics
    assert run.detectors.observe(0, metrics)["numerical"]["cause"] == "no rollout log-probability is finite"


def test_a_run_goes_on_after_its_weights_are_lost(tiny, monkeypatch):
    """NaN weights from step 1 on: every later rollout is dropped whole, the event is recorded, and the run reaches its end."""
    step = Trainer.step

    def poisoned(self, number):
        if number == 1:
            with torch.no_grad():
                next(self.actor.engine.module.parameters()).fill_(float("nan"))
        return step(self, number)

    monkeypatch.setattr(Trainer, "step", poisoned)
    config = tiny("steps=3")
    assert train(config) == "collapsed"
    events = [event for event in folder_of(config).events() if event["kind"] == "collapse"]
    assert events[0]["detector"] == "numerical" and events[0]["onset"] == 1
    online = {e["detector"]: e["onset"] for e in folder_of(config).events() if "detector" in e}
    offline = detect(folder_of(config).metrics(), config.collapse.detectors)
    assert online == {name: event["onset"] for name, event in offline.items()}
    assert [row["step"] for row in folder_of(config).metrics()] == [0, 1, 2, 3]


def test_more_evaluation_prompts_than_a_warm_start_keeps(tiny):
    """7 of 25 prompts could be held out; those that are solved at most half of the time have fewer."""
    with pytest.raises(UserError, match=r"evaluation.prompts=7: only [1-6] prompts are held out"):
        train(tiny("evaluation.prompts=7", "warmstart.keep_high=0.5"))


def test_an_evaluation_judges_any_policy(tiny):
    """Engine and own policy of the fp32 control are one policy, to the bit; a 4-bit engine answers otherwise."""
    for precision, same in (("fp32", True), ("nvfp4", False)):
        config = tiny(f"rollout/precision={precision}", "evaluation.samples=16")
        with folder_of(config).claim() as folder:
            trainer = Trainer(check(config), folder)
            trainer.load_weights()
            evaluator, policies = trainer.evaluator, (trainer.scorer.own_policy, trainer.sampler.engine)
            own, rollout = (evaluator.rewards_of(policy, evaluator.prompts) for policy in policies)
            uniforms = evaluator._uniforms(evaluator.prompts)
            answers = [trainer.sampler.generate(p, evaluator.prompts, uniforms).tokens for p in policies]
        assert own.shape == rollout.shape == (4, 16)
        assert torch.equal(*answers) == same and ((own == rollout).all() or not same)


def test_training_prompts_are_judged_too_and_change_nothing_else(tiny):
    """Both policies on three training prompts of four answers each, at steps 0, 2 and 4. The other metrics keep their bits.

    A question's rewards are shares of four, whose mean over three training prompts is the metric.
    """
    both = ["rollout/precision=nvfp4", "evaluation.policy=both"]
    plain, more = tiny(*both), tiny(*both, "evaluation.train_prompts=3")
    for config in (plain, more):
        train(config)
    added = {"eval/train_reward", "eval/train_rollout_reward"}
    rows, judged = untimed(folder_of(plain).metrics()), untimed(folder_of(more).metrics())
    assert [{key: value for key, value in row.items() if key not in added} for row in judged] == rows
    questions = folder_of(more).questions()
    assert [row["step"] for row in questions] == [0, 2, 4]
    names = {"held_out/own": "eval/reward", "held_out/rollout": "eval/rollout_reward"}
    names |= {"train/own": "eval/train_reward", "train/rollout": "eval/train_rollout_reward"}
    for row in questions:
        for name, metric in names.items():
            means = np.array(row[name])
            assert len(means) == (3 if name.startswith("train") else 4) and (means * 4 % 1 == 0).all()
            assert means.mean() == pytest.approx(judged[row["step"]][metric], abs=1e-12)
    kept = [{key: value for key, value in row.items() if not key.startswith("train")} for row in questions]
    assert kept == folder_of(plain).questions()


def test_the_exact_control_has_one_policy_on_training_prompts(tiny):
    config = tiny("rollout/precision=fp32", "evaluation.policy=both", "evaluation.train_prompts=3", "steps=1")
    train(config)
    for row in folder_of(config).questions():
        assert row["train/own"] == row["train/rollout"] and row["held_out/own"] == row["held_out/rollout"]


def test_more_training_prompts_than_there_are(tiny):
    with pytest.raises(UserError, match=r"evaluation.train_prompts=99: only \d+ prompts are trained on; ask for no more"):
        train(tiny("evaluation.train_prompts=99"))


def test_what_was_sampled_along_the_own_path_is_not_scored_again(tiny):
    """The control's π_old is what its rollout says, bit for bit what an engine of its own scores. Not so of older weights."""
    config = tiny("rollout/precision=fp32", "actor.num_minibatches=2")
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        trainer.step(0)
        trainer.load_weights()
        sampler, scorer = trainer.sampler, trainer.scorer
        assert scorer.policy is sampler.engine
        other = local_engine(scorer.plan, own_precision(config))
        other.load_weights(trainer.actor.weights(), 0)
        sampled = sampler.sample(1)
        scores = scorer.score(sampled, trainer.learner.minibatch_order(1))
        expected = other.score(sampled.prompts, sampled.rollout.tokens)
        older = sampled._replace(rollout=sampled.rollout._replace(version=sampled.rollout.version - 1))
        again = scorer.score(older, trainer.learner.minibatch_order(1))
    assert scores.old is sampled.rollout.logp and again.old is not sampled.rollout.logp
    assert torch.equal(scores.old, expected) and torch.equal(again.old, expected)


@pytest.mark.parametrize(
    "change",
    [
        "rollout/precision=fp8_channel", "rollout/precision=bf16", "actor.dtype=bf16", "rollout.kv_cache=fp8_e4m3",
        "rollout.top_p=0.9", "rollout.top_k=3", "rollout.staleness=1", "rollout.engine.noise=0.01",
        "rollout.engine.head_dtype=fp32",
    ],
)  # fmt: skip
def test_a_rollout_that_differs_in_anything_is_scored(tiny, change):
    assert samples_as_trainer(tiny("rollout/precision=fp32"))
    assert not samples_as_trainer(tiny("rollout/precision=fp32", change))


def test_several_choices_and_a_bf16_actor_go_through_the_loop(tiny):
    numerics = ["actor.dtype=bf16", "rollout/precision=bf16", "actor.num_minibatches=2"]
    config = tiny("task.choices=2", "task.length=2", *numerics, "steps=2")
    assert train(config) == "done"
    rows = folder_of(config).metrics()
    assert rows[0]["rollout_corr/k3_kl"] == 0.0 and rows[0]["actor/grad_norm"] > 0


@pytest.mark.parametrize("steps", [1, 9, 10, 11])
def test_a_warm_start_may_be_short(tiny, steps):
    """With 10 steps a rise of a tenth has no length, by which torch's one-cycle schedule divided."""
    cold = ["warmstart.seed=8", f"warmstart.steps={steps}", "warmstart.keep_low=0", "warmstart.keep_high=1"]
    config = tiny(*cold)
    weights = warm_start(config, build_task(config))[0]
    assert weights and all(weight.isfinite().all() for weight in weights.values())


def test_a_warm_start_that_solves_nothing_is_refused_and_not_made_again(tiny, capsys):
    """After one step no prompt is solved 99 % of the time. The weights are kept, so a second run of the seed refuses at once."""
    config = tiny("warmstart.seed=9", "warmstart.steps=1", "warmstart.keep_low=0.99", "warmstart.keep_high=1", "steps=1")
    for made in (True, False):
        with pytest.raises(UserError, match=r"warmstart: 0 of 25 prompts .* \[0.99, 1.0\] \(mean rate 0\.\d\d\), too few"):
            train(config)
        assert ("warm start solves" in capsys.readouterr().out) == made


def test_a_damaged_warm_start_is_named(tiny):
    config = tiny("warmstart.seed=7", "warmstart.steps=20", "warmstart.keep_low=0", "warmstart.keep_high=1", "steps=1")
    train(config)
    path = Path(config.run.root) / ".warmstart" / config.warmstart_digest / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"unreadable warm start \(model.safetensors differs.*delete that folder"):
        warm_start(config, build_task(config))


def test_everything_rejected_is_a_step_of_zero_gradient(tiny):
    """A filter that a 4-bit rollout cannot pass: k2 ≤ 1e-12 of the worst token."""
    reject = "+correction.reject.all={level: worst_token, statistic: k2, upper: 1e-12}"
    config = tiny("rollout/precision=nvfp4", reject, "actor.weight_decay=0", "steps=2")
    assert train(config) == "done"
    for metrics in folder_of(config).metrics()[:2]:
        assert metrics["correction/kept_tokens"] == metrics["actor/loss"] == metrics["actor/grad_norm"] == 0.0
    assert [event["step"] for event in folder_of(config).events() if event["kind"] == "all_rejected"] == [0, 1]


def test_a_run_learns_and_its_folder_is_whole(tiny):
    """Real RL with an fp8 rollout: the sampled reward rises by more than its noise, about 0.02 over ten steps of 128."""
    batch = ["rollout.prompts=16", "rollout.group_size=8"]
    config = tiny("steps=40", *batch, "actor.lr=1e-3", "actor.eps=1e-3", "~collapse.detectors.drawdown")
    assert train(config) == "done"
    folder = folder_of(config)
    rows = folder.metrics()
    rewards = [row["reward/rollout"] for row in rows[:-1]]
    assert len(rows) == 41 and sum("eval/reward" in row for row in rows) == 21
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.1
    assert folder.state == "done" and folder.read("provenance.json")["processes"][0]["packages"]["torch"]
    assert set(rows[0]) >= {
        "rollout_corr/kl", "rollout_corr/k3_kl", "mismatch/ess_sequence", "mismatch/log_ratio_max_abs", "actor/grad_norm",
        "actor/entropy", "reward/rollout", "eval/reward", "actor/clip_share", "throughput/rollout_tokens", "time/generate",
    }  # fmt: skip
    before = (folder.path / "metrics.jsonl").read_bytes()
    assert train(config) == "done"  # done is skipped
    assert (folder.path / "metrics.jsonl").read_bytes() == before


def test_a_metric_that_a_loss_lacks_is_absent(tiny):
    metrics, _ = stepped(tiny("loss=pg"))
    assert "actor/clip_share" not in metrics and not LOSSES["pg"].anchored


def test_collapse_stop_ends_the_run(tiny):
    """A learning rate that destroys the policy: the drawdown is recorded, and stop=true ends the run there.

    15 prompts: with 7, what is left (one prompt solved by chance) is within three standard errors of the start.
    """
    task = ["task.modulus=9", "warmstart.steps=300"]
    overrides = [*task, "actor.lr=0.05", "steps=40", "evaluation.samples=20", "evaluation.prompts=15", "evaluation.every=1"]
    assert train(tiny(*overrides, "collapse.stop=true")) == "collapsed"
    stopped = folder_of(tiny(*overrides, "collapse.stop=true"))
    assert [e["detector"] for e in stopped.events() if e["kind"] == "collapse"] == ["drawdown"]
    assert len(stopped.metrics()) < 40
    assert train(tiny(*overrides)) == "collapsed"
    assert len(folder_of(tiny(*overrides)).metrics()) == 41  # without stop the run goes on
    assert os.path.getsize(stopped.path / "metrics.jsonl") > 0


def test_a_probe_measures_what_its_precision_would_have_had(tiny):
    """Along a control: fp32 against itself has none, bf16 and fp8 have theirs, and the training is the same, bit by bit."""
    probes = [f"+rollout/precision@evaluation.probe.{name}={name}" for name in ("bf16", "fp8_tensor")]
    probed, plain = tiny("rollout/precision=fp32", "steps=3", *probes), tiny("rollout/precision=fp32", "steps=3")
    assert train(probed) == train(plain) == "done"
    rows = folder_of(probed).metrics()
    first = rows[0]
    assert first["rollout_corr/k3_kl"] == 0.0 and 0 < first["probe/bf16/k3_kl"] < first["probe/fp8_tensor/k3_kl"] < 0.1
    assert 0 < first["probe/fp8_tensor/ess_sequence"] < 1 and "probe/bf16/k3_kl" not in rows[1]  # at evaluations only
    trained = [{k: v for k, v in row.items() if not k.startswith("probe/")} for row in untimed(rows)]
    assert trained == untimed(folder_of(plain).metrics())


def test_without_scoring_a_run_takes_the_same_steps(tiny):
    """REINFORCE without a correction reads no π_old: its loss, gradient and rewards are the same bits without that pass."""
    configs = [tiny("loss=pg", "steps=2", f"actor.scoring={how}") for how in ("forward", "none")]
    rows = []
    for config in configs:
        train(config)
        rows.append(folder_of(config).metrics())
    for name in ("actor/loss", "actor/grad_norm", "reward/rollout", "rollout_corr/k3_kl"):
        assert [row.get(name) for row in rows[0]] == [row.get(name) for row in rows[1]]
    with pytest.raises(UserError, match=r"actor.scoring=none: loss=ppo .* reads it"):
        check(tiny("loss=ppo", "actor.scoring=none"))
    check(tiny("loss=pg", "actor.scoring=none", "kl=k2"))
    with pytest.raises(UserError, match=r"actor.scoring=none: loss=pg .* kl=k3_unbiased .* reads it"):
        check(tiny("loss=pg", "actor.scoring=none", "kl=k3_unbiased"))


def test_a_filter_and_a_kl_term(tiny):
    reject = "+correction.reject.all={level: token, statistic: ratio, lower: 1.0, upper: 1.000001, when: all}"
    metrics, _ = stepped(tiny(reject, "kl=k3", "diagnostics.every=1"))
    assert metrics["correction/kept_tokens"] < 1 and metrics["actor/kl"] >= 0
    assert {"mismatch/js_divergence", "rollout_corr/rollout_rs_all_mean"} <= metrics.keys()
    assert any(name.startswith("profile/") for name in metrics)


@pytest.mark.parametrize("settings", [
    ["actor.dtype=bf16", "actor.num_minibatches=2"], ["actor.dtype=bf16", "rollout/precision@actor.precision=fp8_tensor"],
    ["actor.micro_tokens=64"], ["+actor.lora.rank=2", "+actor.lora.sync=merged"],
])  # fmt: skip
def test_the_reference_of_forward_scoring_has_the_bits_of_the_start(tiny, settings, monkeypatch):
    """π_ref is the training forward of the first weights: it has the bits of π_old before the first update, and it stays."""
    config = tiny("kl=k3", "actor.scoring=forward", "evaluation.policy=rollout", *settings)
    folder, given, scores = folder_of(config), [], []
    with folder.claim():
        trainer = Trainer(check(config), folder)
        scorer, score = trainer.scorer, trainer.scorer.score
        monkeypatch.setattr(scorer, "score", lambda *rows: given.append(rows) or scores.append(score(*rows)) or scores[-1])
        for step in range(2):
            trainer.step(step)
        assert scorer.reference is None and scorer.policy is None  # no embedded engine
        assert torch.equal(scores[0].old, scores[0].reference) and not torch.equal(scores[1].old, scores[1].reference)
        assert torch.equal(scorer.score_reference(*given[0]), scores[0].reference)


def test_both_ways_of_scoring_have_one_reference(tiny):
    """In fp32 the forward pass and the embedded engine differ by rounding, and so does training with a KL in the reward."""
    rows = []
    for scoring in ("exact", "forward"):
        config = tiny("kl=k1", "kl.place=reward", "kl.coef=0.1", "steps=2", f"actor.scoring={scoring}")
        train(config)
        rows.append(folder_of(config).metrics()[1])
    for name in ("actor/reward_kl_penalty", "actor/grad_norm"):
        assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-3) and rows[0][name] != 0
