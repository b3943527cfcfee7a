"""The computed memory against the bytes that small runs allocate, under real DeepSpeed and in the embedded engine."""

import copy
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from faultline.cli import main
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.memory import MOMENTS, memory, shape_of, sizes_of
from harness.rollouts.local import LocalEngine
from harness.train.model import head
from harness.train.model.actor import DeepSpeedActor
from harness.train.model.engine import _groups
from harness.train.model.frozen import FrozenPolicy
from tests.harness.memory_profile import count_bytes, measure, phase

KINDS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
SMALL = 131_072
"""Bytes of counters, rotary tables and norms, which are of no part, and of what DeepSpeed keeps between the engines of a process:
60 kB were seen. The states have 3.6 MB."""


@pytest.fixture
def config(tmp_path):
    """config("key=value", kind=..., vocab_size=...) -> a run of a small model: 64 tokens a row, 2 micro-batches of 4 rows."""

    def make(*overrides: str, kind: str = "qwen2", **sizes: int):
        default = {
            "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "tie_word_embeddings": False,
        }  # fmt: skip
        head_dim = {"head_dim": 16} if kind == "qwen3" else {}
        KINDS[kind](**default | head_dim | sizes).save_pretrained(tmp_path)
        return parse(compose(
            "model=hub", f"model.path={tmp_path}", "warmstart=none", "task=jsonl", "task.path=x", "task.verifier=x:y",
            "task.held_out=8", "task.max_prompt=20", "task.answer_length=44", "rollout/precision=bf16", "rollout.prompts=4",
            "rollout.group_size=4", "actor.num_minibatches=2", "actor.micro_tokens=256", "actor.scoring=forward",
            "evaluation.policy=rollout", *overrides,
        ))  # fmt: skip

    return make


@pytest.fixture(scope="module")
def measured():
    """measured(config) -> what `measure` counts with 4 rows, in a process where no test has left anything."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield lambda config: process.submit(measure, config, 4, head.CHUNK["cpu"]).result()


def at(computed, moment, *but):
    """Computed bytes of the actor at a moment, without the named parts."""
    left_out = ("embedded", "copies", "cache", "probabilities", *but)
    return sum(part.at.get(moment, 0) for part in computed.gpu if not part.name.startswith(left_out))


STATES = [(0, "fp32"), (0, "bf16"), (1, "fp32"), (1, "bf16"), (2, "bf16"), (3, "fp32"), (3, "bf16")]


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "dtype"), STATES)
def test_weights_gradients_optimizer_and_buckets_are_exact(config, measured, stage, dtype):
    """Between steps, between two micro-batches, and at the peak of a step. DeepSpeed's bucket has 5e8 numbers."""
    made = config(f"actor.zero_stage={stage}", f"actor.dtype={dtype}")
    counted, computed = measured(made), memory(made, 1, "cpu")
    bucket = 5 * 10**8 * {"fp32": 4, "bf16": 2}[dtype] if stage else 0
    own = ("activations", "gradients in", "logits", "gradient of", "DeepSpeed's")
    states = at(computed, "sync", "DeepSpeed's")
    assert counted["forward 0"].start == pytest.approx(states + bucket * (stage == 3), abs=SMALL)
    # ZeRO-1 keeps its bucket until the last micro-batch, ZeRO-3 for ever.
    between = at(computed, "layers", *own) + bucket * (stage in (1, 3))
    assert counted["forward 1"].start == pytest.approx(between, abs=SMALL)
    assert counted["step"].peak == pytest.approx(at(computed, "step"), abs=SMALL)
    assert counted["backward 0" if stage < 3 else "build"].largest == bucket or not stage


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "checkpointing", "kind"), [
    ("fp32", False, "qwen2"), ("fp32", True, "qwen3"), ("bf16", False, "qwen3"), ("bf16", True, "qwen2"),
])  # fmt: skip
def test_activations(config, measured, dtype, checkpointing, kind):
    """The peak of a backward pass over the states, in the layers, since the vocabulary is small. What is computed is up to a
    tenth more: it takes the largest tensors of a layer's backward pass for alive at once. Up to a twentieth less: masks."""
    recomputed = f"actor.gradient_checkpointing={str(checkpointing).lower()}"
    made = config("actor.zero_stage=0", f"actor.dtype={dtype}", recomputed, kind=kind)
    counted, computed = measured(made), memory(made, 1, "cpu")
    own = ("activations", "inputs", "one layer", "gradients in")
    activations = at(computed, "layers") - at(computed, "layers", *own)
    peak = counted["backward 1"].peak - counted["forward 1"].start
    assert 0.95 * peak < activations < 1.1 * peak


@pytest.mark.slow
@pytest.mark.parametrize("coeff", [0, 0.1])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_head_takes_a_chunk_and_its_gradient(config, measured, dtype, coeff, monkeypatch):
    """Over what the forward pass kept, with 4096 tokens in chunks of 2^16 logits. In 16 bit the copy of the gradient comes after
    the last chunk is gone, so that the sum is up to a fifth more."""
    monkeypatch.setitem(head.CHUNK, "cpu", 2**16)
    sizes = {"vocab_size": 4096, "hidden_size": 16, "intermediate_size": 16}
    made = config("actor.zero_stage=0", f"actor.dtype={dtype}", f"entropy_coeff={coeff}", **sizes)
    counted, computed = measured(made), memory(made, 1, "cpu")
    added = at(computed, "head") - at(computed, "head", "a chunk", "gradient of")
    peak = counted["backward 1"].peak - counted["backward 1"].start
    assert 0.95 * peak < added < 1.2 * peak


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp8_tensor"])
def test_the_embedded_engine(config, precision):
    """Its weights to 1 %, the scales of a format. Loading to 15 %: a matrix that is being cast, large beside so small a model."""
    made = config(f"rollout/precision={precision}")
    parts = {part.name: part.at for part in memory(made, 1, "cpu").gpu}
    shape = shape_of(made)
    net = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    engine = LocalEngine(shape, made.rollout.precision)
    with count_bytes() as measured:
        with phase("load"):
            engine.load_weights(net.named_parameters(), 0)
        with phase("reload"):
            engine.load_weights(net.named_parameters(), 1)
    assert measured["load"].end == pytest.approx(parts["embedded engines"]["sampling"], rel=0.01)
    reload = measured["reload"].peak - measured["reload"].start
    assert parts["copies while one loads"]["sync"] == pytest.approx(reload, rel=0.15)


@pytest.mark.parametrize(("name", "numbers"), [
    ("qwen2.5_0.5b_bf16", 494_032_768), ("qwen2.5_1.5b_bf16", 1_543_714_304),
    ("qwen2.5_7b_bf16", 7_615_616_512), ("qwen2.5_32b_bf16", 32_763_876_352),
])  # fmt: skip
def test_published_sizes_give_the_published_numbers_of_parameters(name, numbers):
    """The totals that the index of each model's safetensors names on the hub."""
    assert sizes_of(shape_of(parse(compose(f"+experiment=gpu/{name}")))).numbers == numbers


@pytest.mark.parametrize(
    ("name", "ranks", "quantised"),
    [("qwen2.5_0.5b", 1, "fp8"), ("qwen2.5_0.5b", 1, "int8"), ("qwen2.5_1.5b", 1, "fp8"), ("qwen2.5_7b", 8, "fp8"),
     ("qwen2.5_32b", 32, "fp8")],
)  # fmt: skip
def test_the_recipes_fit_into_80_gb_and_8_bits_take_half_for_the_matrices(name, ranks, quantised):
    bf16, eight = (memory(parse(compose(f"+experiment=gpu/{name}_{precision}")), ranks) for precision in ("bf16", quantised))
    assert max(bf16.total(moment) for moment in MOMENTS) < 72e9  # a tenth is left for what is not counted
    weights = [next(part.at["sampling"] for part in m.gpu if part.name == "vLLM's weights") for m in (bf16, eight)]
    assert 0.5 < weights[1] / weights[0] < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_reference_of_a_kl_term_is_a_second_model_where_a_forward_pass_scores(config, dtype):
    """b·Ψ to the bytes of its rotary tables. No embedded engine is left; elsewhere it is one."""
    made = config("kl=k3", f"actor.dtype={dtype}")
    names = {part.name: part.at for part in memory(made, 1, "cpu").gpu}
    assert not any("KL term" in name and "embedded" in name for name in names)
    net = AutoModelForCausalLM.from_config(shape_of(made), dtype=torch.float32)
    with count_bytes() as measured:
        with phase("build"):
            frozen = FrozenPolicy(copy.deepcopy(net), made.actor, 1.0)
        with phase("end"):
            del net
    extra = measured["build"].end - names["frozen weights of the KL term"]["head"]
    assert 0 <= extra < SMALL and frozen.here.type == "cpu"
    exact = memory(config("kl=k3", "actor.scoring=exact"), 1, "cpu").gpu
    assert any(part.name == "embedded engines, one of the KL term" for part in exact)


def test_weights_are_read_in_groups(config, monkeypatch):
    made = config("actor.zero_stage=3", "actor.dtype=bf16")
    net = AutoModelForCausalLM.from_config(shape_of(made), dtype=torch.float32)
    expected = {name: weight.detach().bfloat16() for name, weight in net.named_parameters()}
    whole = DeepSpeedActor(net, made.actor)
    monkeypatch.setattr("harness.train.model.engine.GATHERED", 10_000)
    read = {name: weight.detach().clone() for name, weight in whole.weights()}
    assert read.keys() == expected.keys() and all(torch.equal(read[name], expected[name]) for name in read)
    sizes = [sum(p.ds_numel for _, p in group) for group in _groups(whole.engine.module.named_parameters())]
    assert len(sizes) > 10 and max(sizes) == 160 * 64  # a matrix of SwiGLU alone


def test_a_base_model_has_the_sizes_of_its_tuned_one(config):
    base, tuned = (shape_of(config(f"model.path=Qwen/Qwen2.5-7B{end}")) for end in ("", "-Instruct"))
    assert base.to_dict() == tuned.to_dict() and base.hidden_size == 3584


def test_qwen3_has_as_many_numbers_as_its_card_says(config):
    """0.6B, and 0.44B without the embedding (huggingface.co/Qwen/Qwen3-0.6B)."""
    sizes = sizes_of(shape_of(config("model.path=Qwen/Qwen3-0.6B")))
    assert f"{sizes.numbers / 1e9:.1f} {(sizes.numbers - sizes.head) / 1e9:.2f}" == "0.6 0.44"


def test_what_is_not_known_is_refused(config):
    with pytest.raises(UserError, match=r"model.path=no/where: its sizes are not known here.*nothing is downloaded.*Qwen2.5-7B"):
        memory(config("model.path=no/where"), 1)
    with pytest.raises(UserError, match="the memory of qwen3_moe is not computed; it is of llama, qwen2, qwen3"):
        memory(parse(compose("model=moe")), 1)
    with pytest.raises(UserError, match="advantage=gae: the memory of a critic is not computed"):
        memory(config("advantage=gae"), 1)
    with pytest.raises(UserError, match=r"task.name=os:system: system\(command\) cannot be called as"):
        memory(parse(compose("task.name=os:system")), 1)
    with pytest.raises(UserError, match="cannot be shared evenly by 3 ranks"):
        memory(config(), 3)


@pytest.mark.parametrize("line", re.findall(r"^faultline memory (.+)$", Path("docs/cluster.md").read_text(), re.M))
def test_the_page_shows_what_the_command_prints(line, capsys):
    main(["memory", *line.split()])
    assert f"faultline memory {line}\n```\n\n```text\n{capsys.readouterr().out}```" in Path("docs/cluster.md").read_text()
