"""TextConfig tasks on a small pretrained model with its tokenizer and chat template, all of it made here."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from faultline.tools.gradient.methods import EXACT, methods
from faultline.tools.gradient.sampled import SampledGradients
from harness.build import build_task
from harness.compose import compose
from harness.config import HubConfig, TextConfig, parse
from harness.errors import UserError
from harness.models import hub_model
from harness.rollouts.local import LocalEngine
from harness.rollouts.turns import respond_greedily
from harness.run.loop import train
from harness.run.restore import find, parts_at
from harness.tasks import PAD
from harness.tasks.gsm8k import verify
from harness.tasks.text import Jsonl
from harness.train.model.actor import DeepSpeedActor
from harness.train.trainer import Trainer
from harness.train.warmstart import start
from harness.validate import check
from tests.harness.engines import FP32, engine_of
from tests.harness.tasks.tools_model import small_qwen3
from tests.harness.train.model.test_actor import settings
from tests.harness.train.test_trainer import folder_of

pytestmark = pytest.mark.slow

WORDS = ["<eos>", "<unk>", "user", "assistant", ":", "+", "=", "?", *"0123456789"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)


def agrees(response: str, record: dict) -> float:
    """A verifier by its path: 1 if the response has a digit of the sum."""
    return float(str(record["sum"] % 10) in response.split())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A folder as the hub's: a Qwen3 with tied embeddings, a tokenizer of words with a chat template."""
    path = tmp_path_factory.mktemp("hub") / "tiny"
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", unk_token="<unk>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(path)
    small_qwen3(
        vocab_size=len(WORDS), intermediate_size=48, max_position_embeddings=64, tie_word_embeddings=True
    ).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> str:
    """Sums of two numbers or of three: prompts of 9 tokens and of 11; the last but one has 15, the last repeats the first."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    terms = [[a, b] if a % 2 else [a, b, 1] for a in range(10) for b in range(4)]
    terms += [[1, 2, 3, 4, 5], terms[0]]
    rows = [{"prompt": " + ".join(map(str, t)) + " = ?", "sum": sum(t)} for t in terms]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.fixture
def text(root, model, questions, request):
    def make(*overrides: str):
        sweep = "run.sweep=" + request.node.originalname
        data = [f"task.path={questions}", f"task.verifier={__name__}:agrees", "task.held_out=8", "task.max_prompt=12"]
        small = ["rollout.prompts=4", "rollout.group_size=4", "evaluation.prompts=4", "evaluation.samples=2", "steps=2"]
        hub = ["model=hub", f"model.path={model}", "warmstart=none", "task=jsonl", "task.answer_length=6"]
        return parse(compose("tracking=disabled", f"run.root={root}", sweep, *hub, *data, *small, *overrides))

    return make


def task(config, model) -> Jsonl:
    return build_task(config)


def test_prompts_in_the_chat_template_padded_dropped_and_counted(text, model):
    made = task(text(), model)
    assert made.counts == {"kept": 40, "dropped": 1, "cut": 0, "repeated": 1}
    assert made.train.shape == (32, 12) and made.held_out.shape == (8, 12) and made.stop == (0,)
    words = [WORDS[i] for i in made.train[0] if i != PAD]  # the first has three terms
    assert " ".join(words) == "user : 0 + 0 + 1 = ? assistant :"
    assert (made.train[0] == PAD).tolist() == [True] + [False] * 11


def test_long_prompts_are_cut_at_their_beginning_and_counted(text, model):
    made = task(text("task.long_prompts=cut"), model)
    assert made.counts == {"kept": 41, "dropped": 0, "cut": 1, "repeated": 1}
    words = [WORDS[i] for i in made.prompts()[-1]]
    assert " ".join(words) == "+ 2 + 3 + 4 + 5 = ? assistant :"


def test_the_verifier_gets_the_response_up_to_its_end(text, model):
    made = task(text(), model)
    digit = {d: WORDS.index(d) for d in "0123456789"}
    answers = np.array([[digit["1"], 0, PAD, PAD, PAD, PAD], [digit["7"]] * 6])
    assert made.reward(made.train[[0, 0]], answers).tolist() == [1.0, 0.0]


def test_a_run_on_a_pretrained_model_is_exact_and_recorded(text):
    """FP32 rollouts of ragged prompts and answers: every ratio is 1; some answers end early, and what follows counts nowhere."""
    config = text("rollout/precision=fp32")
    assert train(config) == "done"
    rows = folder_of(config).metrics()
    assert [row["rollout_corr/k3_kl"] for row in rows[:2]] == [0.0, 0.0]
    assert rows[0]["mismatch/log_ratio_max_abs"] == 0.0 and 1 <= rows[0]["rollout/response_tokens"] < 6
    assert 0 < rows[0]["rollout/truncated"] < 1 and 0 < rows[0]["rollout/same_length"] < 1
    assert next(e for e in folder_of(config).events() if e["kind"] == "prompts")["dropped"] == 1


def test_the_gradient_laboratory_takes_ragged_responses(text):
    """At a checkpoint, by the upper block: in FP32 every ratio is 1, so the exact weight changes nothing; in FP8 it does."""
    for precision, same in (("fp32", True), ("fp8_tensor", False)):
        config = text(f"rollout/precision={precision}", "steps=1", "checkpoint.every=1", "evaluation.policy=own")
        train(config)
        with parts_at(find(config.path, trust=True)) as parts:
            compared = [method for method in methods(["pg"], ["none"], "token_mean") if method.family is None]
            table = SampledGradients(parts, 8, 0, layers=1).compare(compared, 4, 8).set_index("method")
        assert (table.loc[EXACT, "sd"] == table.loc["pg none", "sd"]) == same and (table.sd > 0).all()


def test_the_gradient_laboratory_makes_the_advantages_of_the_run(text, monkeypatch):
    """A − mean_g of R − punishment − coef·Σ k1, with the coefficient of the checkpoint, which looking does not adapt. One step of
    16 responses at KL 0, below the target: coef = 0.5·(1 − 0.2·16/100) = 0.484 (arXiv 1909.08593 section 2.2)."""
    kl = ["kl=k1", "kl.place=reward", "kl.coef=0.5", "kl.target=10", "kl.horizon=100"]
    config = text(*kl, "overlong.buffer=3", "advantage=dr_grpo", "actor.lr=1e-2", "steps=1", "checkpoint.every=1")
    train(config)
    drawn = []
    with parts_at(find(config.path, trust=True)) as parts:
        assert parts.assemble.penalty.coef == pytest.approx(0.484, abs=1e-9)
        laboratory, sample_by = SampledGradients(parts, 8, 0, layers=1), parts.sampler.sample_by
        monkeypatch.setattr(parts.sampler, "sample_by", lambda *given: drawn.append(sample_by(*given)) or drawn[-1])
        for number in range(2):
            batch = laboratory._draw(parts.sampler.engine, "test", number).batch
            tokens = drawn[-1].rollout.tokens
            reference = parts.scorer.score_reference(drawn[-1], [torch.arange(len(tokens))])
            penalty = 0.484 * (batch.logp_old - reference).double().mul(batch.mask).sum(1)
            late = ((tokens != PAD).sum(1) - 3).clamp(min=0) / 3
            shaped = (drawn[-1].rewards.flatten() - late - penalty).view(-1, 4)
            expected = (shaped - shaped.mean(1, keepdim=True)).flatten()
            assert penalty.abs().max() > 1e-3 and len(late.unique()) > 1
            torch.testing.assert_close(batch.advantages[:, 0].double(), expected, atol=1e-5, rtol=1e-5)


def test_padding_changes_no_log_probability_and_no_gradient(model):
    """Rows of several lengths in one batch against each row alone, by the actor and by the local engine."""
    hub = type("H", (), {"path": model})
    prompts = torch.tensor([[PAD, PAD, 3, 4, 5], [6, 7, 8, 9, 10], [PAD, 2, 3, 4, 5]])
    tokens = torch.tensor([[11, 12, 0, PAD, PAD], [13, 14, 15, PAD, PAD], [0, PAD, PAD, PAD, PAD]])
    actor = DeepSpeedActor(hub_model(hub), settings())
    logp, entropy = actor.logp(prompts, tokens)
    assert logp.shape == (3, 5) and (logp[tokens == PAD] == 0).all() and (entropy[tokens == PAD] == 0).all()
    net = hub_model(hub)
    expected = torch.zeros(3, 5)
    for i in range(3):
        p, t = prompts[i][prompts[i] != PAD], tokens[i][tokens[i] != PAD]
        logits = net(torch.cat([p, t])[None]).logits[0, len(p) - 1 : -1]
        alone = logits.log_softmax(-1).gather(-1, t[:, None])[:, 0]
        expected[i, : len(t)] = alone.detach()
        (-alone.sum()).backward()
    assert torch.allclose(logp, expected, atol=1e-5)
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in net.parameters()]))
    actor.backward(-logp.sum(), last=True)
    assert actor.step() == pytest.approx(float(norm), rel=1e-4)
    engine = LocalEngine(net.config, FP32)
    engine.load_weights(hub_model(hub).named_parameters(), 0)
    scored = engine.score(prompts, tokens)
    assert torch.allclose(scored[tokens != PAD], expected[tokens != PAD], atol=1e-5)


def test_gradient_checkpointing_and_micro_batches_change_no_number(text):
    stepped = []
    for overrides in ([], ["actor.gradient_checkpointing=true"], ["actor.micro_tokens=40"]):
        config = text("rollout/precision=fp32", *overrides)
        with folder_of(config).claim() as folder:
            trainer = Trainer(check(config), folder)
            metrics = trainer.step(1)
            stepped.append((metrics["actor/loss"], metrics["actor/grad_norm"]))
    assert stepped[1] == pytest.approx(stepped[0], rel=1e-5) and stepped[2] == pytest.approx(stepped[0], rel=1e-5)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 0), (1.0, 3), (0.6, 5)])
def test_truncated_sampling_reports_what_it_sampled_from(model, top_p, top_k):
    """Against the definition, token by token: the kept tokens renormalised, and nothing else ever sampled."""
    net = hub_model(type("H", (), {"path": model}))
    engine = engine_of(LocalEngine, net.config, FP32, top_p=top_p, top_k=top_k, temperature=0.5)
    engine.load_weights(net.named_parameters(), 0)
    prompts, uniforms = torch.randint(0, 18, (40, 4)), torch.rand(40, 3)
    rollout = engine.generate(prompts, uniforms)
    for prompt, tokens, logp in zip(prompts, rollout.tokens, rollout.logp, strict=True):
        logits = net(torch.cat([prompt, tokens])[None]).logits[0, 3:-1].detach() / 0.5
        for row, token, given in zip(logits, tokens.tolist(), logp.tolist(), strict=True):
            ranked = sorted(enumerate(row.softmax(-1).tolist()), key=lambda pair: -pair[1])[: top_k or None]
            whole, mass, kept = sum(p for _, p in ranked), 0.0, {}
            for i, p in ranked:
                if mass < top_p * whole - 1e-7:
                    kept[i] = p
                mass += p
            assert token in kept and given == pytest.approx(np.log(kept[token] / sum(kept.values())), abs=1e-4)


def test_remax_compares_with_a_greedy_response_that_is_punished_for_its_length_too(text):
    """The last four of at most six tokens cost a quarter each; the metrics have the task's rewards."""
    config = text("advantage=remax", "overlong.buffer=4")
    with folder_of(config).claim() as folder:
        trainer = Trainer(check(config), folder)
        trainer.load_weights()
        sampler = trainer.sampler
        sampled = sampler.sample(0)
        collected, _ = trainer.assemble(sampled, trainer.scorer.score(sampled, trainer.learner.minibatch_order(0)))
        greedy = respond_greedily(sampler.engine, sampler.task, sampled.prompts)
    cost = [((part != PAD).sum(1) - 2).clamp(min=0) / 4 for part in (sampled.rollout.tokens, greedy)]
    task = [torch.from_numpy(sampler.task.reward(sampled.prompts.numpy(), part.numpy()))
            for part in (sampled.rollout.tokens, greedy)]  # fmt: skip
    expected = (task[0] - cost[0]) - (task[1] - cost[1])
    assert cost[1].any() and torch.allclose(collected.batch.advantages[:, 0].double(), expected.double())
    assert sampler.describe(sampled)["reward/greedy"] == pytest.approx(float(task[1].double().mean()))


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("so the total is \\boxed{1200}", 1),
        ("3 + 4 = 7, the answer is 1,200", 1),
        ("The answer is 1200.0", 1),
        ("\\boxed{1201}", 0),
        ("I do not know", 0),
        ("", 0),
    ],
)
def test_gsm8k_answers(response, reward):
    assert verify(response, {"answer": "He has 3 * 400 = <<3*400=1200>>1200\n#### 1,200"}) == reward


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.path=/nowhere/model"], "model.path=/nowhere/model: cannot be loaded"),
        (["task.path=/nowhere.jsonl"], "/nowhere.jsonl: cannot be read as a task"),
        (["task.prompt=question"], "task.prompt=question: this record has no text"),
        (["task.max_prompt=3"], "no prompts are left to train on"),
        (["task.verifier=nosuch"], "verifiers=nosuch: unknown; known are arithmetic, gsm8k"),
        (["task.verifier=nosuch:even"], "verifiers=nosuch:even: there is no module nosuch; write package.module:function"),
        (["task.verifier=math:even"], "verifiers=math:even: module math has no 'even'; write package.module:function"),
        (["task.answer_length=60"], "72 tokens exceed the model's context of 64"),
        (["warmstart=default"], "warmstart has no effect with model=hub"),
        (["task.long_prompts=wrap"], "task.long_prompts='wrap'"),
        (["task.long_prompts=error"], r"task.max_prompt=12: this prompt has 15 tokens; raise it, or set"),
        (["evaluation.prompts=9"], "evaluation.prompts=9: at most 8 prompts of task=jsonl are held out; ask for no more"),
        (["overlong.buffer=7"], "overlong.buffer=7: exceeds task.answer_length=6; lower it"),
        (
            ["correction=token_truncate", "correction.weight.level=segment"],
            "correction.weight.level=segment: task=jsonl has no turns; use level=sequence or geometric",
        ),
        (["task.held_out=null"], "task.held_out_path and task.held_out: give one of them"),
    ],
)
def test_bad_input_is_refused_by_name(text, overrides, message):
    with pytest.raises(UserError, match=message):
        check(text(*overrides))


def test_a_reward_outside_0_and_1_is_refused(model, questions):
    config = TextConfig(
        name="jsonl", path=questions, held_out_path=None, held_out=4, prompt="prompt", verifier="math:isqrt", instruction="",
        chat=True, max_prompt=12, long_prompts="drop", answer_length=4,
    )  # fmt: skip
    from harness.models import hub_tokenizer

    made = Jsonl(config, hub_tokenizer(type("H", (), {"path": model})))
    made.verifier = lambda response, record: 2
    with pytest.raises(UserError, match=r"task.verifier=math:isqrt: gave 2.0; a reward is a number from 0 to 1"):
        made.reward(made.train[:1], np.array([[8, 0, PAD, PAD]]))


def test_a_grid_reads_its_data_once(text, monkeypatch):
    """Three configs on one data set tokenise it once; another max_prompt is another data set."""
    read, tasks = [], {}
    load = Jsonl.load
    monkeypatch.setattr(Jsonl, "load", lambda self, split: (read.append(split), load(self, split))[1])
    for overrides in (["seed=0"], ["seed=1"], ["seed=0", "loss=pg"]):
        check(text("task.instruction= .", *overrides), tasks)
    assert read == ["train", "held_out"]
    check(text("task.instruction= .", "task.max_prompt=13"), tasks)
    assert read == ["train", "held_out"] * 2


def test_a_task_for_the_other_kind_of_model_is_refused(tiny):
    """A plug-in with tokens of its own lacks the divided prompts of a pretrained model, and one of text has no demonstrations."""

    class Bare:
        stop, counts, answer_length = (), {}, 4

        def prompts(self):
            return np.zeros((8, 3), dtype=np.int64)

        def reward(self, prompts, answers):
            return np.zeros(len(prompts))

    config = tiny()
    with pytest.raises(UserError, match="model=qwen3: Bare lacks vocab_size or demonstrations; set model=hub"):
        start(config, Bare())
    with pytest.raises(UserError, match="task=chain: lacks the prompts `train` and `held_out`, which model=hub needs"):
        start(config.model_copy(update={"model": HubConfig(name="hub", path="/nowhere")}), Bare())
