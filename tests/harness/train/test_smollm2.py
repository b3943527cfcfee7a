"""SmolLM2-135M-Instruct as `make llm` converts it: the right model, computed by the local engine as transformers does."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.install_smollm2 import FOLDER
from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.models import hub_config
from harness.rollouts.local import LocalEngine
from harness.rollouts.turns import respond
from harness.tasks import PAD, stops
from tests.harness.engines import FP32, engine_of

pytestmark = [pytest.mark.llm, pytest.mark.slow]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def net():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="sdpa").eval()


@pytest.fixture(scope="module")
def engine(net, tokenizer):
    made = engine_of(LocalEngine, net.config, FP32, stop=(tokenizer.eos_token_id,))
    made.load_weights(net.named_parameters(), 0)
    return made


def test_it_knows_what_it_was_taught(engine, tokenizer):
    """Wrong weights, of a head turned the wrong way or a norm missing, know no capital."""
    asked = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(engine.greedy(asked, 1)[0]) == " Paris"


def test_its_tokenizer_has_the_chat_template_and_single_digits(tokenizer):
    assert tokenizer.tokenize("26+28=54") == ["2", "6", "+", "2", "8", "=", "5", "4"]
    task = build_task(parse(compose("+experiment=smollm2/bf16", "tracking=disabled")))
    text = tokenizer.decode([token for token in task.train[0] if token != PAD])
    assert text.startswith("<|im_start|>system")
    assert text.endswith("Reply with the number only.<|im_end|>\n<|im_start|>assistant\n")
    assert task.stop == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert task.counts == {"kept": 96, "dropped": 0, "cut": 0, "repeated": 0}


def test_the_engine_agrees_with_transformers_in_fp64_and_is_exact_to_itself(engine, net, tokenizer):
    """Ragged prompts, answers that end. The longest sum has n = 1536 products: fp32 may be off by n·2⁻²⁴ of it, 9.2e-5.

    Measured: 2.4e-5 nats at most, 0.7e-5 for transformers in fp32. Products of one to four rows, which sampling makes, are
    summed in sequence by a faster kernel with 2.5 times the rounding.
    """
    texts = ["What is 2 + 3?", "Name the largest planet of our solar system, please."]
    messages = [[{"role": "user", "content": text}] for text in texts]
    chats = [tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False) for message in messages]
    ids = [tokenizer(chat, add_special_tokens=False)["input_ids"] for chat in chats]
    width = max(map(len, ids))
    prompts = torch.tensor([[PAD] * (width - len(row)) + row for row in ids]).repeat_interleave(2, 0)
    out = engine.generate(prompts, torch.rand(4, 16, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(engine.score(prompts, out.tokens), out.logp)
    exact = net.double()
    for prompt, answer, logp in zip(prompts, out.tokens, out.logp, strict=True):
        answer = answer[answer != PAD]
        with torch.no_grad():
            logits = exact(torch.cat([prompt[prompt != PAD], answer])[None]).logits[0, -len(answer) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, answer[:, None])[:, 0]
        assert (logp[: len(answer)] - expected).abs().max() < net.config.intermediate_size * 2**-24


def test_it_uses_a_calculator(net, tokenizer):
    """90 · 94 is beyond it without one. The reply is the environment's, and what it has written is kept token by token."""
    task = build_task(parse(compose("tracking=disabled", "model=smollm2", "warmstart=none", "task=tools")))
    local = engine_of(LocalEngine, net.config, FP32, stop=stops(task))
    local.load_weights(net.float().named_parameters(), 0)
    row = next(row for row in task.train if task.records[row.tobytes()]["prompt"][-1]["content"] == "What is 90 * 94?")
    prompts = torch.from_numpy(row)[None]
    rollout = respond(local, task, prompts, torch.full((1, task.answer_length), 0.5))
    assert tokenizer.decode(rollout.tokens[0][rollout.written[0]]) == "<<90 * 94>>8460<|im_end|>"
    assert tokenizer.decode(rollout.tokens[0][rollout.environment[0]]) == " = 8460\n"
    assert task.reward(row[None], rollout.tokens.numpy()).tolist() == [1.0]
    scored = local.score(prompts, rollout.tokens)
    assert (scored - rollout.logp)[rollout.mask].abs().max() < 2 * net.config.intermediate_size * 2**-24


def test_a_folder_that_is_not_there_names_the_remedy():
    with pytest.raises(UserError, match=r"model\.path=models/other: there is no such folder here; `make llm`"):
        hub_config(type("Hub", (), {"path": "models/other"}))
