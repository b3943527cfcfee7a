"""Runs with a mixture of experts: the exact control, replay, the split of K3, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table

from faultline.tools.gradient.sampled import SampledGradients
from harness.compose import compose
from harness.config import parse
from harness.dumps.files import read, tabulate
from harness.errors import UserError
from harness.rollouts.vllm import VllmEngine
from harness.run.folder import RunFolder
from harness.run.loop import train
from harness.run.restore import Checkpoint, find, parts_at
from harness.train.trainer import Trainer
from harness.validate import check
from sweeps.branch import _seeded
from tests.harness.conftest import TINY
from tests.harness.paused_runs import start_ranks, wait_for_end

pytestmark = pytest.mark.slow

MIXTURE = [
    *(override for override in TINY if not override.startswith("model.intermediate_size")),
    "model=moe", "model.num_experts=4", "model.moe_intermediate_size=32", "diagnostics.every=1",
]  # fmt: skip
NOISE = "rollout.engine.router_noise=0.5"


@pytest.fixture
def tiny(root, request):
    def make(*overrides: str):
        sweep = "run.sweep=" + re.sub(r"[^\w.-]+", "-", request.node.name)
        return parse(compose(*MIXTURE, f"run.root={root}", sweep, *overrides))

    return make


def stepped(config) -> tuple[dict, dict]:
    """(metrics, weights) after one step from the warm start."""
    folder = RunFolder(config.path)
    with folder.claim():
        trainer = Trainer(check(config), folder)
        return trainer.step(0), {name: w.detach().clone() for name, w in trainer.actor.weights()}


@pytest.mark.parametrize("replay", ["r2", "r3"])
def test_sampling_masks_are_replayed_beside_the_experts(tiny, replay):
    """With either alone the truncated mass, or the choice of experts, would stay: in the control both are exactly 0.

    By unmoved weights the mini-batches, which replay both too, are then at π_old."""
    masks = ["rollout.top_k=2", "rollout.replay_sampling_mask=true", "actor.lr=1e-12"]
    metrics, _ = stepped(tiny("rollout/precision=fp32", *masks, "actor.num_minibatches=2", f"routing.replay={replay}"))
    assert metrics["rollout_corr/k3_kl"] == metrics["routing/k3_rest"] == metrics["routing/k3_routing"] == 0.0
    assert abs(metrics["actor/ppo_kl"]) < 1e-6


def same(a: dict, b: dict) -> bool:
    return all(torch.equal(a[name], w) for name, w in b.items())


@pytest.mark.parametrize("replay", ["none", "r2", "r3", "r3_weights"])
def test_the_control_is_exact(tiny, replay):
    """fp32 against fp32, on two mini-batches: every ratio to μ is 1, no expert differs, and K3 has no part but 0."""
    metrics, _ = stepped(tiny("rollout/precision=fp32", "actor.num_minibatches=2", f"routing.replay={replay}"))
    zero = ["rollout_corr/k3_kl", "mismatch/log_ratio_max_abs", "routing/k3_routing", "routing/k3_rest", "routing/flip_any"]
    assert [metrics[name] for name in zero] == [0.0] * 5
    assert metrics["mismatch/ess_sequence"] == 1.0 and metrics["routing/flip_layer_0"] == 0.0
    assert 0 < metrics["routing/margin_p10"] < metrics["routing/margin"] < 1
    assert metrics["routing/load_min"] <= 0.25 <= metrics["routing/load_max"]


def test_in_the_control_replay_changes_no_bit_of_the_first_update(tiny):
    """The engine chose what the trainer chooses: the step of r3 is that of none."""
    (none, plain), (r3, replayed) = (stepped(tiny("rollout/precision=fp32", f"routing.replay={r}")) for r in ("none", "r3"))
    assert same(plain, replayed)
    assert none["actor/grad_norm"] == r3["actor/grad_norm"] > 0 and none["actor/loss"] == r3["actor/loss"]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_under_noise_on_the_selection_r3_makes_every_ratio_one(tiny, minibatches):
    shared = ["rollout/precision=fp32", NOISE, f"actor.num_minibatches={minibatches}"]
    (without, plain), (metrics, replayed) = (stepped(tiny(*shared, f"routing.replay={r}")) for r in ("none", "r3"))
    # How large they are depends on the warm start, and its last bits on the processor. Summing in another order gives K3 of 1e-9.
    assert without["rollout_corr/k3_kl"] > 1e-8 and without["routing/flip_any"] > 0
    assert metrics["rollout_corr/k3_kl"] == metrics["mismatch/log_ratio_max_abs"] == metrics["routing/k3_rest"] == 0.0
    assert metrics["routing/k3_routing"] == pytest.approx(without["rollout_corr/k3_kl"], rel=1e-3)
    assert not same(plain, replayed)


@pytest.mark.parametrize("scoring", ["exact", "forward"])
def test_the_two_parts_of_k3_add_up_to_what_is_reported(tiny, scoring):
    """Under none the reported K3 is that of the trainer's own choice, under r3 the part that is left."""
    shared = ["rollout/precision=nvfp4_w4a4", f"actor.scoring={scoring}"]
    (none, _), (r3, _) = (stepped(tiny(*shared, f"routing.replay={r}")) for r in ("none", "r3"))
    assert none["routing/k3_routing"] + none["routing/k3_rest"] == pytest.approx(none["rollout_corr/k3_kl"], rel=1e-5)
    assert r3["routing/k3_rest"] == pytest.approx(r3["rollout_corr/k3_kl"], rel=1e-5)
    for name in ("routing/k3_routing", "routing/k3_rest", "routing/flip_any"):
        assert none[name] == pytest.approx(r3[name], rel=1e-4, abs=1e-9)


def test_r3_weights_leave_the_router_where_it_is(tiny):
    """AdamW without weight decay moves nothing that has no gradient."""
    shared = ["rollout/precision=bf16", "loss=cross_entropy", "warmstart.keep_low=0"]
    start, weights = ({}, {})
    for replay in ("r3", "r3_weights"):
        config = tiny(*shared, f"routing.replay={replay}")
        folder = RunFolder(config.path)
        with folder.claim():
            trainer = Trainer(check(config), folder)
            start = {name: w.detach().clone() for name, w in trainer.actor.weights()}
            trainer.step(0)
            weights[replay] = {name: w.detach().clone() for name, w in trainer.actor.weights()}
    routers = [name for name in start if name.endswith("mlp.gate.weight")]
    assert len(routers) == 2
    for name in start:
        assert not torch.equal(weights["r3"][name], start[name]), name
        assert torch.equal(weights["r3_weights"][name], start[name]) == (name in routers), name


def test_several_minibatches_under_replay_train_on_it(tiny):
    """r2 and r3 differ from none only from the second mini-batch on, so their first is that of none."""
    shared = ["rollout/precision=fp32", "actor.num_minibatches=2", "actor.lr=3e-2", "loss=cross_entropy", "warmstart.keep_low=0"]
    runs = {replay: stepped(tiny(*shared, f"routing.replay={replay}"))[1] for replay in ("none", "r2", "r3")}
    assert same(runs["r2"], runs["r3"]) and not same(runs["none"], runs["r2"])


def test_checkpointed_and_stale_runs_resume_to_the_bit(tiny):
    """Stopped after two steps and started again; rollouts that wait carry their experts, recomputed layers take them."""
    settings = [
        "rollout/precision=nvfp4_w4a4", "rollout.staleness=2", "routing.replay=r3_weights", "actor.num_minibatches=2",
        "actor.gradient_checkpointing=true", "rollout.engine.noise=0.01", "rollout.engine.noise_persistence=0.5",
        "checkpoint.every=1",
    ]  # fmt: skip
    whole = tiny(*settings, "steps=5")
    train(whole)
    part = tiny(*settings, "steps=5", "run.sweep=stopped")
    step = Trainer.step

    def stopping(self, number):
        if number == 3:
            raise KeyboardInterrupt
        return step(self, number)

    Trainer.step = stopping
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train(part)
    finally:
        Trainer.step = step
    train(part)
    rows = [
        [{name: value for name, value in row.items() if not name.startswith(("time/", "throughput/"))} for row in rows]
        for rows in (RunFolder(config.path).metrics() for config in (whole, part))
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 6


def test_a_dump_holds_the_experts_of_the_engine_and_readers_leave_them_out(tiny):
    config = tiny("rollout/precision=nvfp4_w4a4", "dump.every=1")
    folder, seen = RunFolder(config.path), []
    with folder.claim():
        trainer = Trainer(check(config), folder)
        sample = trainer.sampler.sample
        trainer.sampler.sample = lambda step: (seen.append(sample(step)), seen[-1])[1]
        trainer.step(0)
    path = folder.path / "dumps" / "step-00000000.parquet"
    column = read_table(path)["routed_experts"]
    prompt = seen[0].prompts.shape[1]
    assert column.to_pylist() == seen[0].rollout.expert_ids.tolist()  # no padding: the ids as they are
    assert len(column[0]) == prompt + 4 - 1 and len(column[0][0]) == 2 and len(column[0][0][0]) == 2
    assert "routed_experts" not in next(read(path)).column_names


def test_places_without_a_route_are_left_out_of_a_dump():
    ids = np.array([[[[1, 2]], [[0, 3]], [[255, 255]]], [[[255, 255]], [[2, 1]], [[3, 0]]]], dtype=np.uint8)
    columns = {"mask": np.ones((2, 2), dtype=bool), "logp_rollout": np.zeros((2, 2), dtype=np.float32), "routed_experts": ids}
    assert tabulate(columns)["routed_experts"].to_pylist() == [[[[1, 2]], [[0, 3]]], [[[2, 1]], [[3, 0]]]]


def test_gradients_of_a_checkpoint_follow_the_replay_of_its_run(tiny):
    """Noise on the selection in fp32: with r3 the corrections have nothing to correct, without it they do."""
    shared = ["rollout/precision=fp32", NOISE, "steps=1", "checkpoint.every=1", "loss=pg"]
    bias = {}
    for replay in ("none", "r3"):
        config = tiny(*shared, f"routing.replay={replay}")
        train(config)
        with parts_at(find(config.path)) as parts:
            drawn = SampledGradients(parts, prompts=2, seed=0)._draw(parts.sampler.engine, "test", 0)
        off = (drawn.batch.logp_old - drawn.batch.logp_rollout).abs().max().item()
        bias[replay] = off
        assert (drawn.replay is None) == (replay == "none")
        assert drawn.replay is None or drawn.replay.routes.weights is None  # r3 replays the choice alone
    assert bias["r3"] == 0.0 < 1e-3 < bias["none"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["routing.replay=r2"], r"routing\.replay=r2 has no effect with one optimizer step"),
        (["routing.replay=r2", "actor.scoring=none", "loss=pg", "actor.epochs=2"], "makes no pass of π_old"),
        (["model.num_experts_per_tok=4"], "must be below num_experts=4"),
        (["model.num_experts_per_tok=1"], "the router gets no gradient"),
        (["model.moe_intermediate_size=40", "rollout/precision=nvfp4"], "model.moe_intermediate_size is 40"),
        (["rollout.engine.router_noise_persistence=0.5"], "no effect with router_noise=0"),
        (["rollout.engine.noise=-1"], "rollout.engine.noise=-1: must be a number ≥ 0"),
        (["rollout.engine.noise_seed=3"], "noise_seed=3 has no effect without noise"),
        (["rollout/precision=fp32", "rollout.engine.router_dtype=fp32"], "router_dtype=fp32 has no effect: the precision"),
        (["rollout/precision=fp32", "rollout.engine.head_dtype=fp32"], "head_dtype=fp32 has no effect: the precision"),
        (["routing.replay=r3_weights", "actor.weight_decay=0.1"], "decay alone would move it; set actor.weight_decay=0"),
        (
            ["rollout.engine.router_noise=0.5", "rollout.engine.router_noise_persistence=2"],
            "rollout.engine.router_noise_persistence=2: must be a number ≥ 0 and ≤ 1",
        ),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused_with_the_reason(tiny, overrides, reason):
    with pytest.raises(UserError, match=reason):
        check(tiny(*overrides))


@pytest.mark.parametrize("override", ["routing.replay=r3", "rollout.engine.router_noise=0.5", "rollout.engine.router_dtype=fp32"])
def test_a_dense_model_has_nothing_to_route(root, override):
    config = parse(compose(*TINY, f"run.root={root}", override))
    with pytest.raises(UserError, match=f"{override} has no effect"):
        check(config)


@pytest.mark.parametrize(
    ("told", "replay", "reason"),
    [
        ("nothing", "r3", r"routing\.replay=r3: rollout\.engine=vllm does not tell the experts"),
        ("nothing", "r3_weights", r"rollout\.engine=vllm does not tell the experts"),
        ("experts", "r3_weights", "without their weights; use routing.replay=r3$"),
    ],
)
def test_what_an_engine_does_not_tell_cannot_be_replayed(tiny, monkeypatch, told, replay, reason):
    """vLLM computes the mixture. On a CPU it does not tell its experts, on a GPU it tells them without their weights."""
    # Whether vLLM is installed is not asked here.
    monkeypatch.setattr(VllmEngine, "check", classmethod(lambda cls, *rest, **params: None))
    monkeypatch.setattr(VllmEngine, "reports_routes", classmethod(lambda cls: told))
    with pytest.raises(UserError, match=reason):
        check(tiny("rollout/engine=vllm", "rollout/precision=fp32", f"routing.replay={replay}"))


@pytest.mark.parametrize("replay", ["none", "r3"])
def test_probes_and_matched_noise_replay_as_the_run_does_and_a_reference_never(tiny, replay):
    """Noise on the selection alone in fp32: an engine that is probed has no mismatch under replay. The reference of a KL term is
    a policy of its own. At the start it is the policy itself, by its own choice of experts."""
    config = tiny("rollout/precision=fp32", NOISE, f"routing.replay={replay}", "kl=k3")
    folder = RunFolder(config.path)
    with folder.claim():
        trainer = Trainer(check(config), folder)
        trainer.load_weights()
        sampler, scorer = trainer.sampler, trainer.scorer
        prompts = sampler.draw_prompts(0)
        uniforms = torch.rand(len(prompts), sampler.task.answer_length, generator=torch.Generator().manual_seed(0))
        batch = scorer.scored_batch(prompts, sampler.generate(sampler.engine, prompts, uniforms))
        sampled = sampler.sample(0)
        scores = scorer.score(sampled, trainer.learner.minibatch_order(0))
        own = scorer.score_by(scorer.own_policy, sampled.prompts, sampled.rollout.tokens)
    off = (batch.logp_old - batch.logp_rollout).abs().max().item()
    assert off == 0.0 if replay == "r3" else off > 1e-3
    assert torch.equal(scores.reference, own) and torch.equal(scores.old, own) == (replay == "none")


def test_a_branch_cannot_replay_what_waiting_rollouts_lack(tiny):
    """With staleness the checkpoint holds rollouts, by the engine and for the replay of its run."""
    checkpoint = Checkpoint(tiny("rollout.staleness=1", "steps=4"), Path("nowhere"), 2)
    for arm in ("routing.replay=r3_weights", "routing.replay=r3 rollout/engine=vllm"):
        with pytest.raises(UserError, match="reads what the rollouts that wait in the checkpoint may lack"):
            _seeded(checkpoint, arm, 1, "branches")
    assert len(_seeded(checkpoint, "routing.replay=r3", 2, "branches")) == 2  # experts are told always
    fresh = checkpoint._replace(config=tiny("steps=4"))
    assert len(_seeded(fresh, "routing.replay=r3_weights", 1, "branches")) == 1


def test_two_ranks_under_replay_train_as_one(tiny):
    """At ZeRO stage 3, with experts that wait for their step: the metrics of every step, routing's among them."""
    shared = ["rollout/precision=fp32", NOISE, "routing.replay=r3_weights", "actor.num_minibatches=2", "rollout.staleness=1"]
    shared += ["actor.zero_stage=3", "steps=3"]
    config = tiny(*shared, "run.sweep=one-rank-of-experts")
    train(config)
    pair = tiny(*shared, "run.sweep=two-ranks-of-experts")
    wait_for_end(*start_ranks(pair))
    fixed = [
        [{key: value for key, value in row.items() if key.startswith(("routing/", "actor/", "rollout_corr/k3"))} for row in rows]
        for rows in (RunFolder(pair.path).metrics(), RunFolder(config.path).metrics())
    ]
    assert len(fixed[0]) == len(fixed[1]) == 4 and "routing/flip_any" in fixed[0][0]
    for row, other in zip(*fixed, strict=True):
        assert row == pytest.approx(other, rel=1e-5, abs=1e-5)
