"""Partial rollouts: responses of several versions of the weights, from the engine to the record."""

from types import SimpleNamespace

import pytest
import torch
from pyarrow.parquet import read_table

import faultline
from harness.errors import UserError
from harness.models import build
from harness.rollouts import Rollout
from harness.rollouts.local import LocalEngine
from harness.rollouts.recorded import Recorded
from harness.tasks import PAD
from harness.train.options.ahead import SampledAhead
from harness.train.options.partial import continued
from harness.train.trainer import Trainer
from harness.validate import check
from tests.harness import engines
from tests.harness.train.model.test_actor import SHAPE
from tests.harness.train.options.test_ahead import assert_resumes_to_the_bit
from tests.harness.train.routing import test_hooks as test_routing
from tests.harness.train.test_trainer import folder_of

STOP = (3, 4)


def dense(seed):
    return build(SHAPE, seed)


def asked(seed=0, rows=24, length=6):
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, 4, (rows // 8, 3), generator=generator).repeat_interleave(8, 0)
    prompts[:8, 0] = PAD
    return prompts, torch.rand(rows, length, generator=generator)


def loaded(net, version, **settings) -> LocalEngine:
    return engines.loaded(net, version=version, stop=STOP, **settings)


def in_parts(engines, prompts, uniforms, part):
    """The responses, each part by the next engine."""
    rollout = None
    for number, engine in enumerate(engines):
        own = uniforms[:, number * part : (number + 1) * part]
        rollout = engine.generate(prompts, own) if rollout is None else continued(engine, prompts, rollout, own, STOP)
    return rollout


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("part", [1, 4])
def test_by_unmoved_weights_the_parts_are_the_whole_to_the_bit(kind, part):
    """Tokens, log-probabilities, routes with their weights, and support; ragged prompts, responses that end in every part."""
    net = dense(0) if kind == "dense" else test_routing.net()
    engine = loaded(net, 7, top_k=5, record_support=True, temperature=2.0)
    prompts, uniforms = asked()
    whole = engine.generate(prompts, uniforms)
    parts = in_parts([engine] * -(-6 // part), prompts, uniforms, part)
    lengths = whole.written.sum(1)
    assert lengths.min() < 4 < lengths.max()
    for name in ("tokens", "logp", "expert_ids", "expert_weights", "support"):
        ours, theirs = getattr(parts, name), getattr(whole, name)
        assert (ours is None) == (theirs is None) == (kind == "dense" and "expert" in name)
        assert ours is None or torch.equal(ours, theirs), name
    assert (parts.version[whole.written] == 7).all()


def test_each_token_has_the_log_probability_and_the_version_of_the_weights_that_drew_it():
    """The second version conditions on tokens of the first, and computes them anew."""
    first, second = loaded(dense(0), 3), loaded(dense(1), 5)
    prompts, uniforms = asked()
    rollout = in_parts([first, second], prompts, uniforms, 3)
    old, new = (engine.score(prompts, rollout.tokens) for engine in (first, second))
    assert torch.equal(rollout.logp, torch.cat([old[:, :3], new[:, 3:]], 1)) and not torch.equal(old, new)
    written = rollout.written
    assert (rollout.version[:, :3][written[:, :3]] == 3).all() and (rollout.version[:, 3:][written[:, 3:]] == 5).all()
    assert written[:, 3:].any() and not written[:, 3:].all()


def test_an_engine_that_knows_no_parts_goes_on_from_a_longer_prompt():
    """RolloutEngine.resume, as vLLM has it: the same up to the rounding of a prefill."""
    prompts, uniforms = asked()
    engine = loaded(dense(0), 0)
    plain = SimpleNamespace(resume=lambda *args: super(LocalEngine, engine).resume(*args), generate=engine.generate)
    whole = engine.generate(prompts, uniforms)
    rollout = in_parts([plain, plain], prompts, uniforms, 3)
    assert torch.equal(rollout.tokens, whole.tokens)
    torch.testing.assert_close(rollout.logp, whole.logp, atol=1e-5, rtol=0)


def drained(staleness, part, steps, restarted=False):
    """Versions [T] of the rollout of each step, where the engine's version is the step."""
    now = 0
    config = SimpleNamespace(steps=steps, rollout=SimpleNamespace(staleness=staleness))
    sampler = SimpleNamespace(
        config=config, task=SimpleNamespace(answer_length=5), draw_prompts=int, rewarded=lambda prompts, rollout: rollout
    )

    class Parts(SampledAhead):
        def _sampled(self, number, begun):
            assert begun is None or begun.tokens.shape[1] < 5
            n = min(part or 5, 5 - (0 if begun is None else begun.tokens.shape[1]))
            new = Rollout(torch.full((1, n), number), torch.zeros(1, n), torch.full((1, n), now))
            return new if begun is None else Rollout(*(torch.cat(two, 1) for two in zip(begun[:3], new[:3], strict=True)))

    queue, versions = Parts(sampler, part), []
    for now in range(steps):
        rollout = queue.sample(now)
        assert (rollout.tokens == now).all()
        versions.append(rollout.version[0].tolist())
        if restarted:
            state = queue.state()
            queue = Parts(sampler, part)
            queue.restore(state)
    assert not queue.waiting
    return versions


@pytest.mark.parametrize("restarted", [False, True])
def test_each_part_is_sampled_at_a_step_of_its_own(restarted):
    """Five tokens in parts of two are three parts: at steps s − 2, s − 1 and s, or a step earlier; at step 0 what is lacking."""
    assert drained(0, 2, 5, restarted) == [
        [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 1, 2], [1, 1, 2, 2, 3], [2, 2, 3, 3, 4],
    ]  # fmt: skip
    assert drained(1, 2, 5, restarted) == [
        [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 1, 2], [1, 1, 2, 2, 3],
    ]  # fmt: skip
    assert drained(2, None, 4, restarted) == [[0] * 5, [0] * 5, [0] * 5, [1] * 5]


PARTS = ["rollout/precision=fp32", "rollout.partial_tokens=2", "actor.num_minibatches=2", "steps=4"]


@pytest.mark.slow
def test_a_run_knows_the_age_of_each_token_and_corrects_with_its_own_mu(tiny):
    """Four tokens in two parts, two optimizer steps a step: ages 2 and 0, so 1 on average. Every response is of two versions.

    The dump has the versions, and replay the mismatch of each age: of the present weights it is 0."""
    config = tiny(*PARTS, "dump.every=1", "segments=version", "correction=token_truncate", "correction.weight.level=segment")
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        rows = [trainer.step(step) for step in range(3)]
    assert [row["rollout/version_lag"] for row in rows] == [0, 1, 1]
    assert [row["rollout/version_lag_max"] for row in rows] == [0, 2, 2]
    assert [row["rollout/mixed_versions"] for row in rows] == [0, 1, 1]
    assert rows[0]["mismatch/log_ratio_max_abs"] == 0 < rows[1]["mismatch/log_ratio_max_abs"]
    dump = folder_of(config).path / "dumps" / "step-00000002.parquet"
    table = read_table(dump)
    assert table["version"].to_pylist() == [[2, 2, 4, 4]] * 16 and table["segments"].to_pylist() == [[0, 0, 1, 1]] * 16
    ages = faultline.replay(dump, ["none"]).versions.set_index("behind")
    assert ages.index.tolist() == [0, 2] and ages.tokens.tolist() == [32, 32]
    assert ages.k3[0] == 0 < ages.k3[2]


@pytest.mark.slow
def test_a_run_whose_weights_stand_still_samples_in_parts_what_it_samples_whole(tiny):
    """Each part has uniform numbers of its own, those that the whole response has at its places."""
    tokens = []
    for part in ("null", "2"):
        config = tiny("rollout/precision=fp32", "actor.lr=1e-12", "dump.every=1", f"rollout.partial_tokens={part}")
        with folder_of(config).claim() as folder:
            trainer = Trainer(check(config), folder)
            for step in range(2):
                trainer.step(step)
        tokens.append(read_table(folder_of(config).path / "dumps" / "step-00000001.parquet")["tokens"].to_pylist())
    assert tokens[0] == tokens[1]


@pytest.mark.slow
def test_a_run_of_partial_rollouts_resumes_to_the_bit(tiny):
    """Killed with responses half done: they are in the checkpoint, and their weights are gone."""
    overrides = [*PARTS, "steps=5", "rollout.staleness=1", "rollout.top_k=3", "rollout.replay_sampling_mask=true"]
    assert assert_resumes_to_the_bit(tiny, "partial", *overrides)[3]["rollout/mixed_versions"] == 1


SEGMENTS = ["correction=token_truncate", "correction.weight.level=segment"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["rollout.partial_tokens=4"], r"partial_tokens=4 has no effect: responses of task=chain have at most 4 tokens"),
        (["rollout.partial_tokens=2", "rollout.filter.max_rounds=2"], r"with rollout\.filter\.max_rounds=2.*partial_tokens=null"),
        (["rollout.partial_tokens=2", "rollout/engine=vllm", "rollout.engine.tensor_parallel=2"], r"tensor_parallel=1$"),
        (["rollout.partial_tokens=2", "segments=version"], r"segments=version has no effect: no level"),
        (["segments=version", *SEGMENTS], r"each response is of one version; set rollout\.partial_tokens"),
    ],
)
def test_what_cannot_work_is_refused(tiny, overrides, reason):
    with pytest.raises(UserError, match=reason):
        check(tiny(*overrides))


def test_masks_of_two_versions_are_replayed_token_by_token():
    """The support is of the version that drew the token, and equal rows of different supports are told apart."""
    truncated = {"top_k": 2, "record_support": True}
    first, second = loaded(dense(0), 0, **truncated), loaded(dense(1), 1, **truncated)
    prompts, uniforms = asked()
    rollout = in_parts([first, second], prompts, uniforms, 3)
    logp = loaded(dense(1), 1).score(prompts, rollout.tokens, Recorded(support=rollout.support))
    assert torch.equal(logp[:, 3:], rollout.logp[:, 3:]) and logp.isfinite().all()
