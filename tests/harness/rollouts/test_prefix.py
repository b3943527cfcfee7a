"""KV that is kept over a sync: against transformers with a cache of two versions, and against no rule at all."""

from itertools import product

import pytest
import torch
from transformers import DynamicCache

from harness.errors import UserError
from harness.models import build, qwen3_config, qwen3_sizes
from harness.rollouts import prefix
from harness.rollouts.prefix import History, PrefixCache
from harness.tasks import PAD
from harness.train.options.partial import continued, started
from harness.train.ranks import check_ranks
from harness.validate import check
from tests.harness.engines import loaded
from tests.harness.train.options.test_ahead import assert_resumes_to_the_bit
from tests.harness.train.routing import test_hooks as test_routing

VOCABULARY, STOP = 4, (3,)


def net(seed):
    sizes = qwen3_sizes(hidden=32, layers=2, heads=4, kv_heads=2, head=16, mlp=48)
    made = build(qwen3_config(sizes, VOCABULARY, 20), seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)  # logits that tell the versions apart
    return made


A, B = net(0), net(1)
PROMPTS = torch.tensor([[PAD, 1, 2], [0, 1, 3], [2, 2, 2]])


def logp_of(parts, sequence):
    """log μ of each token of `sequence` after its first, where parts = [(net, n), ...] says who computed which places."""
    cache, found, at = DynamicCache(config=A.config), [], 0
    for made, n in parts:
        if len(own := sequence[at : at + n]):
            with torch.no_grad():
                found.append(made(own[None], past_key_values=cache, use_cache=True).logits[0].log_softmax(-1))
        at += n
    return torch.cat(found)[: len(sequence) - 1].gather(-1, sequence[1:, None])[:, 0]


def asked(rows=8, length=6):
    prompts = PROMPTS.repeat_interleave(rows, 0)
    return prompts, torch.rand(len(prompts), length, generator=torch.Generator().manual_seed(0))


def in_parts(engine, prompts, uniforms, nets):
    """The responses of one engine that takes new weights before each part."""
    rollout, part = None, uniforms.shape[1] // len(nets)
    for version, made in enumerate(nets):
        engine.load_weights(made.named_parameters(), version)
        own = uniforms[:, version * part : (version + 1) * part]
        rollout = started(engine, prompts, own) if rollout is None else continued(engine, prompts, rollout, own, STOP)
    return rollout


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_by_unmoved_weights_a_salted_engine_samples_to_the_bit_what_one_that_recomputes_does(kind):
    """At zero: a kept KV is what would be computed again. Of a mixture the kept places have no route, the others their own."""
    made = A if kind == "dense" else test_routing.net()
    prompts, uniforms = asked()
    exact, salted = (
        in_parts(loaded(made, stop=STOP, kv_at_sync=rule), prompts, uniforms, [made] * 3) for rule in ("recompute", "salt")
    )
    assert torch.equal(exact.tokens, salted.tokens) and torch.equal(exact.logp, salted.logp)
    assert kind == "dense" or torch.equal(exact.expert_ids, salted.expert_ids)
    kept = in_parts(loaded(made, stop=STOP, kv_at_sync="keep"), prompts, uniforms, [made] * 3)
    assert torch.equal(exact.tokens, kept.tokens)
    torch.testing.assert_close(exact.logp, kept.logp, atol=1e-5, rtol=0)  # prompts are computed in two products


@pytest.mark.parametrize("rule", ["salt", "keep"])
def test_a_running_response_attends_to_the_kv_of_the_version_that_computed_each_place(rule):
    """Part 1 of 3 tokens by A, part 2 by B: A computed the prompt and two tokens, B the third and what follows."""
    prompts, uniforms = asked()
    rollout = in_parts(loaded(A, stop=STOP, kv_at_sync=rule), prompts, uniforms, [A, B])
    compared = 0
    for prompt, tokens, logp in zip(prompts, rollout.tokens, rollout.logp, strict=True):
        asked_for, answer = prompt[prompt != PAD], tokens[tokens != PAD]
        by_a = len(asked_for) + 2
        expected = logp_of([(A, by_a), (B, 6)], torch.cat([asked_for, answer]))[len(asked_for) - 1 :]
        torch.testing.assert_close(logp[: len(answer)], expected, atol=1e-5, rtol=0)
        compared += len(answer) > 3
    assert compared > 5
    fresh = in_parts(loaded(A, stop=STOP), prompts, uniforms, [A, B])
    assert (fresh.logp[:, 3:] - rollout.logp[:, 3:]).abs().max() > 1e-3


def test_a_kept_prompt_gives_a_policy_of_two_versions_that_sums_to_one():
    """Every response of 3 tokens: μ is transformers' with A's cache of the prompt but for its last place; Σ μ = 1."""
    engine = loaded(A, kv_at_sync="keep")
    responses = torch.tensor(list(product(range(VOCABULARY), repeat=3)))
    engine.generate(PROMPTS, torch.rand(3, 2))  # A meets the prompts
    engine.load_weights(B.named_parameters(), 1)
    for prompt in PROMPTS:
        logp = engine.score(prompt.expand(len(responses), -1), responses)
        assert logp.double().sum(1).exp().sum().item() == pytest.approx(1, abs=1e-6)
        given = prompt[prompt != PAD]
        for row, response in zip(logp, responses, strict=True):
            expected = logp_of([(A, len(given) - 1), (B, 4)], torch.cat([given, response]))[len(given) - 1 :]
            torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)


def test_a_salted_engine_gives_a_new_response_no_old_kv():
    prompts, uniforms = asked()
    salted = loaded(A, stop=STOP, kv_at_sync="salt")
    started(salted, prompts, uniforms[:, :2])
    salted.load_weights(B.named_parameters(), 1)
    assert torch.equal(started(salted, prompts, uniforms).logp, loaded(B, stop=STOP).generate(prompts, uniforms).logp)


def test_a_response_that_stopped_going_on_is_dropped_after_a_sync():
    """What ends at sync n is there until n + 1: a dropped one is recomputed, as after an eviction."""
    engine = loaded(A, kv_at_sync="salt")
    begun = started(engine, *asked(rows=1, length=2))
    assert len(engine.prefixes.running) == 3
    engine.load_weights(A.named_parameters(), 1)
    assert len(engine.prefixes.before) == 3 and not engine.prefixes.running
    engine.load_weights(B.named_parameters(), 2)
    assert not engine.prefixes.before
    prompts, uniforms = asked(rows=1, length=2)
    late = continued(engine, prompts, begun, uniforms, STOP)
    torch.testing.assert_close(late.logp[:, 2:], loaded(B).score(prompts, late.tokens)[:, 2:], atol=1e-5, rtol=0)


def test_the_prompt_that_was_read_least_recently_is_dropped_first(monkeypatch):
    monkeypatch.setattr(prefix, "PROMPTS", 2)
    kept, cache = PrefixCache("keep"), [(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))]
    one, two, three = (History.of(torch.tensor([[number, 9]])) for number in range(3))
    kept.hold_prompts(one, cache)
    kept.hold_prompts(two, cache)
    kept.find(one)
    kept.hold_prompts(three, cache)
    assert [kept.find(each) == [None] for each in (one, two, three)] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["salt", "keep"])
def test_a_run_resumes_to_the_bit_with_its_kept_kv(tiny, rule):
    overrides = ["rollout/precision=fp32", "rollout.partial_tokens=2", "steps=5", "evaluation.policy=both"]
    rows = assert_resumes_to_the_bit(tiny, f"kept-{rule}", *overrides, f"rollout.engine.kv_at_sync={rule}")
    assert rows[3]["mismatch/log_ratio_max_abs"] > 0


@pytest.mark.slow
def test_what_has_no_effect_or_cannot_work_is_refused(tiny):
    with pytest.raises(
        UserError, match=r"kv_at_sync=salt has no effect: no response runs over a sync; set rollout\.partial_tokens"
    ):
        tiny("rollout.engine.kv_at_sync=salt")
    with pytest.raises(UserError, match=r"rollout\.engine\.kv_at_sync='never': must be"):
        check(tiny("rollout.engine.kv_at_sync=never"))
    with pytest.raises(UserError, match=r"kv_at_sync=keep on 2 ranks: .* use one rank, or recompute"):
        check_ranks(tiny("rollout.engine.kv_at_sync=keep"), 2)
