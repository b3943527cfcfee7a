"""The real vLLM against transformers, on this machine, in every precision that it can compute in; the others must be refused."""

import contextlib
import functools
import signal
import weakref

import psutil
import pytest
import torch
from transformers import BertConfig

from harness.errors import UserError
from harness.models import build, qwen3_config, qwen3_sizes
from harness.rollouts.check_weights import SyncCheck
from harness.rollouts.recorded import unpack
from harness.rollouts.vllm import VllmEngine
from harness.rollouts.vllm_support import kv_cache_refusal, slow_formats, weight_formats
from harness.tasks import PAD
from harness.train.trainer import Trainer
from harness.validate import check
from tests.harness.engines import engine_of, precision
from tests.harness.paused_runs import is_paused, signal_when_paused, start, wait_for_end
from tests.harness.train.test_trainer import folder_of, stepped, untimed
from tests.waiting import until

pytestmark = pytest.mark.vllm
ENGINE = "rollout/engine=vllm"
SIZES = qwen3_sizes(hidden=128, layers=2, heads=4, kv_heads=2, head=32, mlp=256)  # multiples of 128: FP8 in blocks
VOCABULARY, CONTEXT = 17, 320
BERT = BertConfig(vocab_size=17, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)


@functools.cache
def net(seed=1, tied=False):
    """Sharp logits and gains off 1, so that no term can be missing unnoticed."""
    shape = qwen3_config(SIZES, VOCABULARY, CONTEXT)
    shape.tie_word_embeddings = tied
    made, generator = build(shape, seed), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.mul_(3)
    return made


@functools.cache
def engine(option: str, kv_cache: str, temperature: float) -> VllmEngine:
    return engine_of(VllmEngine, net().config, precision(option), kv_cache=kv_cache, temperature=temperature, kv_cache_gib=0.25)


def loaded(option: str, kv_cache: str = "compute", *, temperature: float = 1.0, seed: int = 1) -> VllmEngine:
    """One engine of a kind for all tests: a start takes seconds, and so does the first forward."""
    made = engine(option, kv_cache, temperature)
    made.load_weights(net(seed).named_parameters(), version=7)
    return made


def asked(rows=64, prompt=5, length=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (rows, prompt), generator=generator), torch.rand(rows, length, generator=generator)


def off(rollout, prompts, seed=1, temperature=1.0, tied=False):
    """log μ − log π of transformers in fp32, on the sampled tokens."""
    with torch.no_grad():
        logits = net(seed, tied)(torch.cat([prompts, rollout.tokens], 1)).logits[:, prompts.shape[1] - 1 : -1] / temperature
    return rollout.logp - logits.log_softmax(-1).gather(-1, rollout.tokens[..., None])[..., 0]


# Mean |Δ log-prob| against fp32, nats: (not less, not more). The unit roundoff of the coarsest number on the way is 2⁻²⁴, 2⁻¹²,
# 2⁻⁹, 2⁻⁸ (int8: half a step of max/127), 2⁻⁴ (e4m3) and 2⁻³ (e5m2); it is met some ten times, at logits of about 5. A format
# that is silently not applied falls below the lower bound, which for those of 8 bits is above what bf16 alone gives.
NORMAL = {
    ("fp32", "compute"): (0, 1e-5),
    ("fp16", "compute"): (1e-5, 3e-3),
    ("bf16", "compute"): (5e-4, 3e-2),
    ("int8", "compute"): (1e-2, 0.1),
    ("fp8_tensor", "compute"): (2e-2, 0.4),
    ("fp8_channel", "compute"): (2e-2, 0.4),
    ("fp8_block", "compute"): (2e-2, 0.4),
    ("fp8_block_w8a16", "compute"): (2e-2, 0.4),
    ("bf16", "fp8_e4m3"): (2e-2, 0.4),
    ("bf16", "fp8_e5m2"): (3e-2, 0.6),
}


@pytest.mark.parametrize(("option", "kv_cache"), NORMAL)
def test_a_precision_is_computed_as_such_or_refused_before_the_start(option, kv_cache):
    refused = weight_formats().get(option) or (kv_cache_refusal(kv_cache, 32) if kv_cache != "compute" else None)
    if refused:
        with pytest.raises(UserError, match=r"it can in fp32, bf16, fp16.*|use rollout.kv_cache=compute"):
            VllmEngine.check(net().config, precision(option), kv_cache)
        if (
            not torch.cuda.is_available() and "fp8" in option + kv_cache and "block" not in option
        ):  # the refusal is right: vLLM itself fails, only later
            with pytest.raises(UserError, match=r"rollout.engine=vllm: cannot start with a qwen3 model"):
                engine_of(VllmEngine, net().config, precision(option), kv_cache=kv_cache)
    else:
        slow = option in slow_formats()
        with pytest.warns(match="slower than bf16") if slow else contextlib.nullcontext():
            VllmEngine.check(net().config, precision(option), kv_cache)
        prompts, uniforms = asked(rows=8 if slow else 64)  # 96 tokens, of whose differences the mean is asked
        rollout = loaded(option, kv_cache).generate(prompts, uniforms)
        difference = off(rollout, prompts).abs()
        low, high = NORMAL[option, kv_cache]
        assert low <= difference.mean() <= high and rollout.logp.dtype == torch.float32
        assert (rollout.version == 7).all() and rollout.version.shape == rollout.tokens.shape == uniforms.shape


def test_greedy_is_the_most_probable_token_each_time():
    prompts = asked(rows=8)[0]
    tokens = loaded("fp32").greedy(prompts, 6)
    with torch.no_grad():
        logits = net(1)(torch.cat([prompts, tokens], 1)).logits[:, prompts.shape[1] - 1 : -1]
    assert torch.equal(tokens, logits.argmax(-1))


def test_given_responses_are_scored_as_they_were_sampled():
    """A prefill of what was decoded: another kernel, the same numbers up to rounding. Prompts are padded on the left, responses
    on the right, and a response of no token has nothing to score."""
    prompts, uniforms = asked(rows=8)
    prompts[:3, :2] = PAD
    made = loaded("fp32")
    rollout = made.generate(prompts, uniforms)
    torch.testing.assert_close(made.score(prompts, rollout.tokens), rollout.logp, atol=1e-4, rtol=0)
    cut = rollout.tokens.clone()
    cut[0, 5:], cut[1] = PAD, PAD
    scores = made.score(prompts, cut)
    torch.testing.assert_close(scores[0, :5], rollout.logp[0, :5], atol=1e-4, rtol=0)
    assert not scores[0, 5:].any() and not scores[1].any()
    with pytest.raises(UserError, match=r"rollout.engine.context=320: scoring needs 418 tokens; raise it"):
        made.score(prompts, torch.zeros(8, 412, dtype=torch.int64))


def test_responses_repeat_and_do_not_depend_on_their_neighbours():
    prompts, uniforms = asked()
    made = loaded("fp32")
    whole, again, part = (made.generate(prompts[rows], uniforms[rows]) for rows in (slice(None), slice(None), slice(5, 9)))
    assert torch.equal(whole.tokens, again.tokens) and torch.equal(whole.logp, again.logp)
    assert torch.equal(part.tokens, whole.tokens[5:9]) and torch.allclose(part.logp, whole.logp[5:9], atol=1e-5)
    other = made.generate(prompts, asked(seed=1)[1])
    assert not torch.equal(other.tokens, whole.tokens)


def test_shorter_prompts_and_responses_that_end():
    """A prompt padded on its left is the prompt; a response ends with its stop token, which counts, and PAD follows."""
    made = engine_of(VllmEngine, net().config, precision("fp32"), kv_cache_gib=0.25, stop=(3, 5))
    made.load_weights(net().named_parameters(), version=0)
    prompts, uniforms = asked()
    padded = torch.cat([torch.full((len(prompts), 2), PAD), prompts], 1)
    padded[::2] = prompts.new_tensor([PAD, PAD, PAD, PAD, 1, 2, 4])
    rollout = made.generate(padded, uniforms)
    plain = made.generate(prompts, uniforms)
    assert torch.equal(rollout.tokens[1::2], plain.tokens[1::2])
    short = made.generate(prompts.new_tensor([[1, 2, 4]]).expand(32, 3), uniforms[::2])
    assert torch.equal(rollout.tokens[::2], short.tokens) and (rollout.logp[::2] - short.logp).abs().max() < 1e-5
    stopped = torch.isin(plain.tokens, torch.tensor([3, 5]))
    ended, after = stopped.any(1), stopped.cumsum(1) - stopped.long() > 0
    assert 0 < ended.sum() < len(ended)  # some do, some are cut off
    assert torch.equal(plain.tokens == PAD, after) and (plain.logp[after] == 0).all() and (plain.logp[stopped] < 0).all()
    told = plain._replace(tokens=plain.tokens.clamp(min=0))
    assert off(told, prompts)[~after].abs().max() < 1e-5


def test_sampling_follows_the_distribution_and_its_temperature_is_reported():
    """Each share of 4000 first tokens is within five standard deviations, √(p(1−p)/n) ≤ 0.008, of its probability."""
    prompts = torch.full((4000, 5), 2)
    made = loaded("fp32", temperature=0.6)
    rollout = made.generate(prompts, torch.rand(4000, 1, generator=torch.Generator().manual_seed(3)))
    with torch.no_grad():
        p = (net()(prompts[:1]).logits[0, -1] / 0.6).softmax(-1)
    share = torch.bincount(rollout.tokens[:, 0], minlength=VOCABULARY) / 4000
    assert (share - p).abs().max() < 0.04
    assert off(rollout, prompts, temperature=0.6).abs().max() < 1e-4


def test_new_weights_count_at_once_after_long_prompts_too():
    """Prompts of two cache blocks of 128: without a reset of the prefix cache the keys of the old weights would answer."""
    prompts, uniforms = asked(rows=4, prompt=290, length=8)
    made = loaded("fp32")
    made.generate(prompts, uniforms)
    rollout = loaded("fp32", seed=2).generate(prompts, uniforms)
    assert off(rollout, prompts, seed=2).abs().max() < 1e-4


def test_a_head_that_is_the_embedding_follows_each_load():
    """Most small models tie them. vLLM packs a head for the CPU; a copy of the weights before would sample from those."""
    made = engine_of(VllmEngine, net(tied=True).config, precision("fp32"), kv_cache_gib=0.25)
    for seed in (1, 2):
        made.load_weights(net(seed, tied=True).named_parameters(), version=seed)
        assert off(made.generate(*asked(rows=8)), asked(rows=8)[0], seed, tied=True).abs().max() < 1e-4


@pytest.mark.parametrize("option", ["int8", "bf16"])
def test_weights_come_back_bit_for_bit(option):
    prompts, uniforms = asked()
    before = loaded(option).generate(prompts, uniforms)
    loaded(option, seed=2)
    after = loaded(option).generate(prompts, uniforms)
    assert torch.equal(before.tokens, after.tokens) and torch.equal(before.logp, after.logp)


def test_half_a_sync_leaves_nothing_to_sample_from():
    made, weights = loaded("fp32"), list(net().named_parameters())

    def cut():
        yield from weights[:5]
        raise OSError("the connection is gone")

    with pytest.raises(OSError, match="the connection is gone"):
        made.load_weights(cut(), 1)
    with pytest.raises(RuntimeError, match="no whole weights"):
        made.generate(*asked())
    with pytest.raises(ValueError, match=r"weights that vLLM was not given: .*lm_head"):
        made.load_weights(weights[:-1], 1)
    with pytest.raises(ValueError, match="of another shape"):
        made.load_weights([(weights[0][0], weights[0][1][:2])], 1)
    assert off(loaded("fp32").generate(*asked()), asked()[0]).abs().max() < 1e-4  # and it recovers


class Scorer:
    """The actor, as far as a sync needs one."""

    def __init__(self, seed):
        self.seed = seed

    def logp(self, prompts, tokens):
        with torch.no_grad():
            logits = net(self.seed)(torch.cat([prompts, tokens], 1)).logits[:, prompts.shape[1] - 1 : -1]
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0], None


def test_a_sync_is_verified():
    made = loaded("bf16")
    probe = SyncCheck(*asked(rows=4))
    assert 0 < probe(made, Scorer(1)) < 0.03
    with pytest.raises(UserError, match=r"off the actor's by .* nats on average, more than 0.3.*rollout.engine.sync_tolerance"):
        probe(made, Scorer(2))


def test_an_engine_that_keeps_old_weights_is_found_out():
    """The actor moves by less than the tolerance, so only the unmoved answer gives it away."""
    made = loaded("bf16")
    probe = SyncCheck(*asked(rows=4))
    probe(made, Scorer(1))
    nudged = build(net().config, 1)
    nudged.load_state_dict({name: w * 1.01 if "lm_head" in name else w for name, w in net().state_dict().items()})
    actor = Scorer(1)
    actor.logp = lambda prompts, tokens: (Scorer.logp(actor, prompts, tokens)[0] - 0.1, None)
    with pytest.raises(UserError, match=r"the actor has moved by 0.1 nats, and the engine answers bit for bit as before"):
        probe(made, actor)
    made.load_weights(nudged.named_parameters(), 8)
    probe(made, actor)  # it answers otherwise, so it has heard of them


def test_lost_weights_are_for_the_collapse_detectors():
    made = loaded("bf16")
    made.load_weights([(name, torch.full_like(w, torch.nan)) for name, w in net().named_parameters()], 1)
    assert not made.generate(*asked()).logp.isfinite().any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loaded("fp32").generate(*asked(prompt=310)), r"context=320: 310 prompt tokens and 12 of a response do not fit"),
        (lambda: engine_of(VllmEngine, net().config, precision("fp32"), kv_cache_gib=1e-6), r"rollout.engine=vllm: .*cache"),
        (
            lambda: engine_of(VllmEngine, net().config, precision("fp32"), tensor_parallel=2),
            r"tensor_parallel=2: must divide .* ranks, 1",
        ),
        (lambda: engine_of(VllmEngine, BERT, precision("fp32")), r"rollout.engine=vllm: cannot start with a bert model: "),
    ],
)
def test_wrong_input_is_one_line(call, message):
    with pytest.raises(UserError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.cpu_fp8_cache
def test_the_fp8_cache_of_a_cpu_is_rounded_towards_zero():
    """Why it is further from the actor than the local engine's, which rounds to nearest as the casts of a GPU do."""
    from vllm import _custom_ops as ops

    x = (torch.randn(128, 1, 32, generator=torch.Generator().manual_seed(0)) * 2).bfloat16()
    codes = torch.zeros(2, 1, 1, 128, 32, dtype=torch.uint8)  # keys and values: [blocks, heads, tokens, head_dim]
    ops.cpu_attn_reshape_and_cache(x, x, *codes, torch.arange(128), "vec", 1.0, 1.0, "fp8_e4m3")
    stored = codes[1].view(torch.float8_e4m3fn).float().flatten()  # the values of one block lie as they were given
    nearest = x.float().to(torch.float8_e4m3fn).view(torch.uint8).int().flatten()
    step_down = (x.float().to(torch.float8_e4m3fn).float().abs() > x.float().abs()).int().flatten()
    assert torch.equal((nearest - step_down).sort()[0], codes[1].int().flatten().sort()[0])
    assert (stored.abs().sort()[0] <= x.float().abs().flatten().sort()[0]).all()


@pytest.mark.gpu
def test_an_engine_at_rest_lends_its_memory_and_comes_back_with_the_same_answers():
    made = engine_of(VllmEngine, net().config, precision("bf16"), kv_cache_gib=1, sleep=True)
    made.load_weights(net().named_parameters(), 1)
    before, free = made.generate(*asked()), torch.cuda.mem_get_info()[0]
    made.sleep()
    assert torch.cuda.mem_get_info()[0] - free > 2**29
    with pytest.raises(RuntimeError, match="load_weights comes first"):
        made.generate(*asked())
    made.load_weights(net().named_parameters(), 1)
    after = made.generate(*asked())
    assert torch.equal(before.tokens, after.tokens) and torch.equal(before.logp, after.logp)


def test_the_fp32_control_is_within_rounding(tiny):
    """Two implementations of fp32: K3 = E[Δ²]/2 of Δ of some 1e-6 nats; a sync is off by no more."""
    metrics, _ = stepped(tiny(ENGINE, "rollout/precision=fp32"))
    assert 0 < metrics["mismatch/log_ratio_max_abs"] < 1e-4
    assert metrics["rollout_corr/k3_kl"] < 1e-9 and metrics["rollout/sync_difference"] < 1e-5
    assert metrics["rollout/version_lag"] == 0


def test_adapters_reach_it_merged(tiny):
    """The second step samples with adapters that have moved. W + s·BA in fp32 is rounded once more than a sum of products."""
    config = tiny(ENGINE, "rollout/precision=fp32", "actor.lora={rank: 4, sync: merged}", "actor.lr=1e-2")
    folder = folder_of(config)
    with folder.claim():
        trainer = Trainer(check(config), folder)
        rows = [trainer.step(number) for number in range(2)]
        moved = [weight.abs().max().item() for name, weight in trainer.actor.weights() if "lora_B" in name]
    assert moved and min(moved) > 1e-3
    for metrics in rows:
        assert 0 < metrics["mismatch/log_ratio_max_abs"] < 1e-4
        assert metrics["rollout_corr/k3_kl"] < 1e-9 and metrics["rollout/sync_difference"] < 1e-5


def test_a_killed_run_resumes_bit_for_bit(tiny):
    """And no port was open but on the loopback interface."""
    kv_cache = "compute" if kv_cache_refusal("fp8_e4m3", 32) else "fp8_e4m3"
    overrides = [ENGINE, "rollout/precision=bf16", f"rollout.kv_cache={kv_cache}"]
    overrides += ["steps=6", "checkpoint.every=2", "rollout.engine.kv_cache_gib=0.25"]
    undisturbed = tiny(*overrides, "run.sweep=vllm-undisturbed")
    wait_for_end(start(undisturbed))
    config = tiny(*overrides, "run.sweep=vllm-killed")
    process = start(config, "row 3")
    until(lambda: is_paused(process), process.is_alive)
    listening = {c.laddr.ip for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN}
    signal_when_paused(process, signal.SIGKILL)
    wait_for_end(process, code=-signal.SIGKILL)
    wait_for_end(start(config))
    assert untimed(folder_of(config).metrics()) == untimed(folder_of(undisturbed).metrics())
    assert listening <= {"127.0.0.1", "::1"}


def test_the_tokens_that_truncation_left_are_told_by_their_log_probabilities():
    """Against the definition by transformers: the four most probable tokens, of them the fewest that hold 0.7 of their mass."""
    made = engine_of(VllmEngine, net().config, precision("fp32"), top_k=4, top_p=0.7, record_support=True, kv_cache_gib=0.25)
    made.load_weights(net().named_parameters(), 0)
    generator = torch.Generator().manual_seed(0)
    prompts, uniforms = torch.randint(0, VOCABULARY, (4, 6), generator=generator), torch.rand(4, 5, generator=generator)
    rollout = made.generate(prompts, uniforms)
    left = unpack(rollout.support, VOCABULARY)
    with torch.no_grad():
        logits = net()(torch.cat([prompts, rollout.tokens], 1)).logits[:, 5:-1]
    ranked, places = logits.topk(4)
    share = ranked.softmax(-1)
    expected = torch.zeros_like(left).scatter(-1, places, share.cumsum(-1) - share < 0.7)
    assert torch.equal(left, expected)
    assert left.sum(-1).min() < left.sum(-1).max() <= 4
    masked = logits.masked_fill(~left, -torch.inf).log_softmax(-1).gather(-1, rollout.tokens[..., None])[..., 0]
    torch.testing.assert_close(rollout.logp, masked, atol=1e-4, rtol=0)
    made.ranked = 2  # as if more had tied than were asked for
    with pytest.raises(UserError, match=r"tokens of vLLM tie at rollout\.top_k; lower it"):
        made.generate(prompts, uniforms)
    made.close()


@pytest.mark.parametrize("top_k", [0, 2000])
def test_sets_that_vllm_cannot_tell_are_refused(tiny, top_k):
    with pytest.raises(UserError, match=r"replay_sampling_mask=true: rollout\.engine=vllm: .* set rollout\.top_k to 1 to 1000"):
        check(tiny(ENGINE, "rollout/precision=fp32", "rollout.top_p=0.9", f"rollout.top_k={top_k}",
                   "rollout.replay_sampling_mask=true"))  # fmt: skip


def test_a_closed_engine_gives_its_cache_back():
    """vLLM itself keeps the layers of an engine, and they its cache of 2^28 bytes."""
    made, caches = engine_of(VllmEngine, net().config, precision("fp32"), kv_cache_gib=0.25), []
    made.load_weights(net().named_parameters(), 7)
    made.llm.apply_model(
        lambda model: caches.extend(weakref.ref(layer.kv_cache) for layer in model.modules() if hasattr(layer, "kv_cache"))
    )
    assert sum(cache().nbytes for cache in caches) > 0.9 * 2**28
    made.close()
    assert [cache() for cache in caches] == [None, None]
