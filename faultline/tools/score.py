"""`faultline score`: write a dump of one model's responses, which one engine samples and a second engine scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from algos.diagnostics.evidence import Predicted
from harness.config import HubConfig, PrecisionConfig
from harness.dumps import files
from harness.errors import UserError, first_line, printable
from harness.files import output_folder
from harness.models import DTYPES, device, hub_model, hub_tokenizer
from harness.precisions import PRECISIONS
from harness.progress import Progress
from harness.rollouts import ENGINES, RolloutEngine, Sampling
from harness.rollouts.lists import padded
from harness.seeding import generator
from harness.tasks import PAD

HF = "hf"
"""Name of transformers' own forward pass, which scores and does not sample."""


class Engine(NamedTuple):
    """An engine with the format in which it computes. name: HF or a key of ENGINES. precision: a key of PRECISIONS."""

    name: str
    precision: str

    @property
    def formats(self) -> PrecisionConfig:
        row = PRECISIONS[self.precision]
        formats = {"compute": row.compute, "weights": row.weights, "activations": row.activations}
        return PrecisionConfig.model_validate({"name": self.precision} | formats)


class SampledResponses(NamedTuple):
    """Sampled responses. prompts [B, P], padded on the left. tokens [B, T] and mask [B, T]; logp [B, T]: log μ in nats.

    group [B]: number of the prompt; of the response if the responses are from a dump without groups.
    """

    prompts: Tensor
    tokens: Tensor
    mask: Tensor
    logp: Tensor
    group: Tensor


def score(model: str, source: Path, out: Path, *, sampler: str, scorer: str, samples: int, tokens: int) -> None:
    """Write a dump in which `sampler` gives log μ and `scorer` gives log π_old of the same responses.

    source: a text file with a prompt a line, to which `sampler` makes `samples` responses of at most `tokens` tokens each; or a
    dump with columns `prompt` and `tokens`, whose responses and log μ are kept. sampler, scorer: ENGINE:FORMAT.
    Raises UserError on an engine or a format that is unknown or unusable on this machine, and on a source that cannot be read.
    """
    by, against = parse("--sampler", sampler), parse("--scorer", scorer)
    if by.name == HF:
        raise UserError(f"--sampler {sampler}: transformers keeps no log-probabilities of its sampling; use vllm or local")
    if against.name == HF and PRECISIONS[against.precision].weights is not None:
        raise UserError(
            f"--scorer {scorer}: transformers computes in {', '.join(DTYPES)} here; use one of these, or vllm or local"
        )
    config = HubConfig(name="hub", path=model)
    tokenizer = hub_tokenizer(config)
    responses = dumped(source) if source.suffix == ".parquet" else None
    prompts = encoded(source, tokenizer).repeat_interleave(samples, 0) if responses is None else responses.prompts
    net = hub_model(config)
    if responses is None:
        print(printable(f"{sampler} samples {len(prompts)} responses"), file=sys.stderr, flush=True)
        responses = _sampled(net, by, prompts, samples, tokens, tokenizer.eos_token_id)
    print(printable(f"{scorer} scores {len(prompts)} responses"), file=sys.stderr, flush=True)
    files.write(output_folder(out.parent) / out.name, _columns(responses, *_scored(net, against, responses)))
    print(printable(f"{int(responses.mask.sum()):,} tokens: {out}"))


def parse(option: str, text: str) -> Engine:
    """Parse ENGINE:FORMAT, such as vllm:bf16. option: the option that has the text, for the error."""
    name, _, precision = text.partition(":")
    engines = (HF, *ENGINES.names())
    if name not in engines or precision not in PRECISIONS:
        known = f"engines are {', '.join(engines)}, formats {', '.join(PRECISIONS)}"
        raise UserError(f"{option} {text}: write ENGINE:FORMAT, as vllm:bf16; {known}")
    return Engine(name, precision)


def encoded(path: Path, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Token ids of the prompts in a text file, a prompt a line, [N, P] with PAD on the left. Empty lines are left out.

    A tokenizer with a chat template gets each line as a user's message.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({first_line(error)}); give a text file with a prompt a line, or a dump"
        ) from None
    if not lines:
        raise UserError(f"{path}: holds no prompt; write one a line")
    rows = [_tokens(line, tokenizer) for line in lines]
    return padded(rows, max(map(len, rows)), PAD, torch.int64, left=True)


def _tokens(line: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer(line)["input_ids"]
    messages = [{"role": "user", "content": line}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def dumped(path: Path) -> SampledResponses:
    """Read the responses of a parquet dump. Raises UserError if it lacks prompts, tokens, log μ or a mask in any row."""
    table = pa.concat_tables(files.read(path), promote_options="permissive")
    needed = ("prompt", "tokens", "logp_rollout", "mask")
    if missing := [name for name in needed if name not in table.column_names or table[name].null_count]:
        raise UserError(f"{path}: no column {' and '.join(missing)} in every row; score a text file of prompts with --sampler")
    prompts, tokens, logp, mask = (table[name].to_pylist() for name in needed)
    prompts = [[token for token in row if token != PAD] for row in prompts]
    length = max(map(len, tokens))
    group = table["group"].to_numpy() if "group" in table.column_names else np.arange(len(table))
    return SampledResponses(
        padded(prompts, max(map(len, prompts)), PAD, torch.int64, left=True),
        padded(tokens, length, PAD, torch.int64),
        padded(mask, length, False, torch.bool),
        padded(logp, length, 0.0, torch.float32),
        torch.from_numpy(np.array(group)),
    )


def _sampled(net: PreTrainedModel, by: Engine, prompts: Tensor, samples: int, length: int, stop: int | None) -> SampledResponses:
    engine = _built(net, by, prompts.shape[1] + length, () if stop is None else (stop,))
    uniforms = torch.rand(len(prompts), length, generator=generator(0, "score"))
    rollout = engine.generate(prompts.to(device()), uniforms)
    engine.close()
    group = torch.arange(len(prompts)) // samples
    return SampledResponses(prompts, rollout.tokens.cpu(), rollout.mask.cpu(), rollout.logp.cpu(), group)


def _scored(net: PreTrainedModel, against: Engine, responses: SampledResponses) -> tuple[Tensor, Predicted]:
    """Return log π [B, T] of the responses' tokens in nats, and what π predicts; of the latter only transformers computes any."""
    prompts, tokens = responses.prompts.to(device()), responses.tokens.to(device())
    if against.name == HF:
        module: torch.nn.Module = net  # transformers' own `to` has no types
        module.to(device(), DTYPES[against.formats.compute])
        return transformers_scores(net, prompts, tokens)
    engine = _built(net, against, prompts.shape[1] + tokens.shape[1] + 1)  # vLLM samples one token more to score
    logp = engine.score(prompts, tokens)
    engine.close()
    return logp.cpu(), Predicted()


def _built(net: PreTrainedModel, chosen: Engine, context: int, stop: tuple[int, ...] = ()) -> RolloutEngine:
    """Build the engine `chosen` with a model's weights. context: maximum number of tokens of a prompt with its response."""
    kind: Any = ENGINES[chosen.name]
    kind.check(net.config, chosen.formats, "compute")
    engine = kind(net.config, chosen.formats, Sampling(stop=stop), **({"context": context} if chosen.name == "vllm" else {}))
    engine.load_weights(net.named_parameters(), 0)
    return engine


@torch.inference_mode()
def transformers_scores(net: PreTrainedModel, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Predicted]:
    """Return log π [B, T] of tokens in nats, and what π predicts, by transformers' forward pass, softmax in fp32; 0 on PAD."""
    logp, entropy, repeat_prob = (torch.zeros(tokens.shape) for _ in range(3))
    progress = Progress(len(tokens))
    for row, (prompt, response) in enumerate(zip(prompts, tokens, strict=True)):
        written = response[response != PAD]
        ids = torch.cat([prompt[prompt != PAD], written])[None]
        logits = net(input_ids=ids, logits_to_keep=len(written) + 1).logits[0, :-1]
        every = logits.float().log_softmax(-1)
        there = response.cpu() != PAD
        logp[row, there] = every.gather(-1, written[:, None])[:, 0].cpu()
        entropy[row, there] = torch.special.entr(every.exp()).sum(-1).cpu()
        repeat_prob[row, there] = repeat_probs(every, written).cpu()
        progress.show(f"{row + 1} responses scored")
    return logp, Predicted(entropy, repeat_prob)


def repeat_probs(logp: Tensor, written: Tensor) -> Tensor:
    """π of all tokens that a response has before each place, [n]. logp: log π [n, V] of each place. written: its ids [n]."""
    place = torch.arange(len(written), device=written.device)
    ids, which = written.unique(return_inverse=True)
    first = torch.full_like(ids, len(written)).scatter_reduce(0, which, place, "amin")
    return torch.where(first < place[:, None], logp[:, ids].exp(), 0.0).sum(-1).clamp(max=1)


def _columns(responses: SampledResponses, logp: Tensor, predicted: Predicted) -> dict[str, Any]:
    """Return the scored responses as columns of a dump of one batch: name -> a value per response. logp: log π_old."""
    known = {name: values.numpy() for name, values in predicted._asdict().items() if values is not None}
    return known | {
        "step": np.zeros(len(logp), dtype=np.int64),
        "group": responses.group.numpy(),
        "mask": responses.mask.numpy(),
        "logp_rollout": responses.logp.numpy(),
        "logp_old": logp.numpy(),
        "tokens": responses.tokens.numpy(),
        "prompt": [row[row != PAD].numpy() for row in responses.prompts],
    }
