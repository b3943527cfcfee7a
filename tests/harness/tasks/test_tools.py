"""Turns with a calculator: who wrote which token, kept ids, and environment tokens that nothing is trained on or counts."""

import math
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.objective import Objective
from algos.reductions import Counts
from algos.registry import LOSSES
from faultline.tools.replay.collect import collect
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.build import build_task
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError
from harness.models import hub_model
from harness.rollouts.local import LocalEngine
from harness.rollouts.turns import respond, respond_greedily, turn_metrics
from harness.run.folder import run_folders
from harness.run.loop import train
from harness.tasks import PAD, EnvironmentTask, stops
from harness.validate import check
from tests.algos.algo_cases import LOSS_PARAMS
from tests.harness.engines import FP32, engine_of
from tests.harness.tasks.tools_model import CALL, IDS, make
from tests.harness.train.test_ranks import assert_same, torchrun
from tests.harness.train.test_ranks import run as on_two_ranks
from tests.harness.train.test_trainer import folder_of

TASK = ["task=tools", "task.operators=+", "task.digits=1", "task.train=24", "task.held_out=8", "task.max_prompt=100"]
TASK += ["task.turns=2", "task.turn_length=10"]
PLUS = ["task.turn_length=6", "rollout.prompts=4", "rollout.group_size=4", "evaluation.prompts=4", "evaluation.samples=2"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[bool, str]:
    """Whether every token is equally probable -> model."""
    return {uniform: make(tmp_path_factory.mktemp("tools") / "model", uniform=uniform) for uniform in (True, False)}


@pytest.fixture
def config(models, tmp_path):
    def made(*overrides: str, uniform=False):
        hub = ["tracking=disabled", f"run.root={tmp_path}", "model=hub", f"model.path={models[uniform]}", "warmstart=none"]
        return parse(compose(*hub, *TASK, *overrides))

    return made


@pytest.fixture
def engine(config):
    """(task, engine) of a config."""

    def made(*overrides: str, uniform=False):
        chosen = config(*overrides, uniform=uniform)
        task, net = build_task(chosen), hub_model(chosen.model)
        local = engine_of(LocalEngine, net.config, FP32, stop=stops(task))
        local.load_weights(net.named_parameters(), 3)
        return task, local

    return made


def ids(text: str) -> list[int]:
    """A token per character."""
    return [IDS[piece] for piece in text]


def drawing(task, script: list[list[int | None]]) -> torch.Tensor:
    """Uniform numbers by which a uniform policy writes these tokens: the middle of the i-th of V equal intervals. None: any."""
    rows = torch.full((len(script), task.answer_length), 0.999)
    for row, tokens in enumerate(script):
        for place, token in enumerate(tokens):
            if token is not None:
                rows[row, place] = (token + 0.5) / len(IDS)
    return rows


def padded(rows: list[list], length: int, value) -> list[list]:
    return [row + [value] * (length - len(row)) for row in rows]


def test_turns_are_recorded_token_by_token(engine):
    """Five scripts: a call and its use; an end at once; a call in the last turn, which nobody answers; a turn that is cut off;
    `>` all along, after which the environment is asked and has nothing to say."""
    task, local = engine(uniform=True)
    assert isinstance(task, EnvironmentTask) and task.pauses == (IDS[">"], IDS[CALL]) and task.stop == (0,)
    reply, error = ids(" = 3\n"), [*ids(" = "), 1, *ids(" "), 1, *ids("\n")]  # letters are unknown to this tokenizer
    gap, end = [None] * len(reply), 0
    script = [
        [*ids("1<<1+2>>"), *gap, *ids("3"), end],
        [end],
        [*ids("<<1+2>>"), *gap, *ids("<<3>>")],
        ids("1111111111"),
        ids(">>>>>>>>>>"),
        [*ids("<<+>>"), *[None] * len(error), end],
    ]
    prompts = torch.from_numpy(task.train[: len(script)])
    rollout = respond(local, task, prompts, drawing(task, script))
    expected = [
        [*ids("1<<1+2>>"), *reply, *ids("3"), end], [end], [*ids("<<1+2>>"), *reply, *ids("<<3>>")], ids("1" * 10),
        ids(">" * 10), [*ids("<<+>>"), *error, end],
    ]  # fmt: skip
    length = task.answer_length
    assert length == 2 * 10 + 24
    assert rollout.tokens.tolist() == padded(expected, length, PAD)
    own = [[8, 5, 2], [1], [7, 5, 5], [10], [10], [5, 7, 1]]  # tokens of the first turn, of the reply, of the second
    environment = [[number == 1 for number, n in enumerate(row) for _ in range(n)] for row in own]
    turns = [[number // 2 for number, n in enumerate(row) for _ in range(n)] for row in own]  # a reply belongs to its call
    assert rollout.environment.tolist() == padded(environment, length, False)
    assert rollout.turns.tolist() == padded(turns, length, 0)
    assert (rollout.version[rollout.tokens != PAD] == 3).all()
    assert torch.equal(rollout.mask, rollout.written)
    assert torch.allclose(rollout.logp[rollout.mask], torch.tensor(-math.log(len(IDS))))
    assert (rollout.logp[~rollout.mask] == 0).all()
    metrics = turn_metrics(rollout)
    assert metrics["rollout/turns"] == (2 + 1 + 2 + 1 + 1 + 2) / 6 and metrics["rollout/environment_tokens"] == (5 + 5 + 7) / 6
    values = [task.records[row.tobytes()]["value"] for row in task.train[: len(script)]]
    answers = [3, None, None, 1111111111, None, None]  # the last number after the last reply
    rewards = task.reward(prompts.numpy(), rollout.tokens.numpy()).tolist()
    assert rewards == [float(answer == value) for answer, value in zip(answers, values, strict=True)]


def test_a_response_depends_on_its_own_row_alone(engine):
    """Rows that pause, go on and end at other places are sampled in other groups; alone each is the same."""
    task, local = engine()
    prompts = torch.from_numpy(task.train[:12])
    uniforms = torch.rand(12, task.answer_length, generator=torch.Generator().manual_seed(2))
    together = respond(local, task, prompts, uniforms)
    assert together.environment.any(1).sum() > 1 and not together.environment.any(1).all()
    for row in range(12):
        alone = respond(local, task, prompts[row : row + 1], uniforms[row : row + 1])
        assert torch.equal(alone.tokens[0], together.tokens[row])
        assert torch.allclose(alone.logp[0], together.logp[row], atol=1e-5)


def test_the_greedy_response_has_turns_too(engine):
    """The first of equally probable tokens is taken, which ends the response; a policy that always calls does so in each turn."""
    task, local = engine(uniform=True)
    prompts = torch.from_numpy(task.train[:2])
    assert (respond_greedily(local, task, prompts)[:, 0] == 0).all()
    local.head[:, IDS[CALL]] = local.norm  # its logit is then positive or negative, the others are 0
    local.head[:, IDS["1"]] = -local.norm
    tokens = respond_greedily(local, task, prompts)[0]
    first = [token for token in tokens.tolist() if token != PAD]
    answered = [IDS[CALL], *ids(" = 3\n")]
    assert any(first[at : at + len(answered)] == answered for at in range(len(first)))


def test_ids_are_kept_where_the_tokenizer_would_write_others(engine):
    """The policy wrote 1 and 2; the tokenizer has one token for both. What followed has the log-probabilities of the ids that
    were sampled, and others after the history as it would be tokenised again."""
    task, local = engine()
    turn = ids("12<<1+2>>")
    text = task.tokenizer.decode(turn)
    again = task.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert text == "12<<1+2>>" and again == [IDS["12"], *turn[2:]]
    prompt = torch.from_numpy(task.train[:1])

    def uniform_for(token: int, so_far: list[int]) -> float:
        context = torch.cat([prompt, torch.tensor([so_far], dtype=torch.int64)], 1)
        logp = torch.stack([local.score(context, torch.tensor([[i]]))[0, 0] for i in range(len(IDS))])
        mass = logp.exp().double()
        return float(mass[:token].sum() + mass[token] / 2)

    uniforms = torch.full((1, task.answer_length), 0.5, dtype=torch.float64)
    for place, token in enumerate(turn):
        uniforms[0, place] = uniform_for(token, turn[:place])
    rollout = respond(local, task, prompt, uniforms)
    history = turn + ids(" = 3\n")
    assert rollout.tokens[0, : len(history)].tolist() == history
    second = rollout.tokens[:, len(history) :]
    assert (second != PAD).any()
    recorded = rollout.logp[:, len(history) :]
    kept = local.score(torch.cat([prompt, torch.tensor([history])], 1), second)
    drifted = local.score(torch.cat([prompt, torch.tensor([again + ids(" = 3\n")])], 1), second)
    assert torch.allclose(kept, recorded, atol=1e-4) and (drifted - recorded).abs().max() > 0.01
    assert torch.allclose(local.score(prompt, rollout.tokens)[rollout.mask], rollout.logp[rollout.mask], atol=1e-4)


def test_a_run_is_exact_and_its_dumps_tell_who_wrote_what(config):
    """fp32 against fp32: every ratio of a policy's token is 1 to the bit. No length and no mask has the environment's."""
    run = config(
        *PLUS, "rollout/precision=fp32", "correction=token_truncate", "correction.weight.level=segment", "steps=2",
        "dump.every=1", "diagnostics.every=1", "diagnostics.persistence.every=22", "diagnostics.persistence.responses=4",
    )  # fmt: skip
    assert train(run) == "done"
    folder = folder_of(run)
    row, *later = folder.metrics()[:2]
    for one in (row, *later):
        assert one["rollout_corr/k3_kl"] == 0 and one["mismatch/log_ratio_max_abs"] == 0 and one["mismatch/dropped"] == 0
    assert 1 < row["rollout/turns"] < 2 and row["rollout/environment_tokens"] > 0 and row["rollout/truncated"] > 0
    path = sorted(folder.path.glob("dumps/*.parquet"))[0]
    table = pq.read_table(path).to_pydict()
    reply, replies, written = ids(" = 3\n"), 0, 0
    for tokens, mask, turns, logp in zip(table["tokens"], table["mask"], table["segments"], table["logp_rollout"], strict=True):
        tokens, mask = np.array(tokens), np.array(mask)
        theirs = tokens[~mask].tolist()
        assert theirs == ([] if max(turns) == 0 else reply if IDS[CALL] in tokens else theirs)
        assert (np.array(logp)[~mask] == 0).all() and (np.diff(turns) >= 0).all() and mask[-1]
        replies, written = replies + len(theirs), written + int(mask.sum())
    assert replies / 16 == row["rollout/environment_tokens"] and written / 16 == row["rollout/response_tokens"]
    preset = "token_truncate"
    assert collect(Dump(path), {preset: presets([preset])[preset].correction}).tokens == written


@pytest.mark.slow
def test_two_ranks_answer_in_turns_and_train_as_one(config, tmp_path):
    """The ranks' rows have turns of their own, so that one asks its engine when the other does not; the step is that of one."""
    more = [*PLUS, "rollout/precision=fp32", "correction=token_truncate", "correction.weight.level=segment", "loss=cross_entropy",
            "advantage=remax", "steps=2"]  # fmt: skip
    run = config(*more, "run.sweep=one")
    assert train(run) == "done"
    hub = ["tracking=disabled", f"run.root={tmp_path}", "model=hub", f"model.path={run.model.path}", "warmstart=none"]
    on_two_ranks(torchrun(*hub, *TASK, *more, "run.sweep=two", "actor.zero_stage=2"))
    (two,) = run_folders(tmp_path / "two")
    rows = folder_of(run).metrics()
    assert 1 < rows[0]["rollout/turns"] < 2 and rows[0]["actor/grad_norm"] > 0
    assert_same(two.metrics(), rows)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.turns=8"], r"task.max_prompt \+ the response of task.turns and task.turn_length: 348 tokens exceed .* of 160"),
        (["overlong.buffer=3"], r"overlong.buffer=3: task=tools bounds each turn, not the whole .*; set overlong.buffer=null"),
        (["task.turns=0"], r"task.turns=0"),
        (["task.turn_length=0"], r"task.turn_length=0"),
        (["task.answer_length=5"], r"task.answer_length"),
        (["rollout/engine=vllm", "rollout.engine.tensor_parallel=2"], r"tensor_parallel=2: .* have a further turn; set 1"),
        (["rollout.replay_sampling_mask=true", "rollout.top_p=0.9"], r"sampling_mask=true: task=tools records no .*; set false"),
        (["rollout.partial_tokens=4"], r"partial_tokens=4: task=tools samples whole responses, .*; set null"),
        (["routing.replay=r3"], r"routing.replay=r3: task=tools records no routes of its turns; set none or r2"),
    ],
)
def test_what_cannot_be_is_refused_by_name(config, overrides, message):
    with pytest.raises(UserError, match=message):
        check(config(*overrides))


@pytest.mark.vllm
def test_vllm_answers_in_turns(engine):
    """Its log-probabilities are those of the local engine on the very ids, and the environment's reply follows each call."""
    from harness.rollouts.vllm import VllmEngine

    task, local = engine()
    made = engine_of(VllmEngine, local.config, FP32, stop=stops(task), kv_cache_gib=0.25)
    made.load_weights(hub_model(type("Hub", (), {"path": local.config._name_or_path})).named_parameters(), 3)
    prompts = torch.from_numpy(task.train).repeat_interleave(4, 0)
    uniforms = torch.rand(len(prompts), task.answer_length, generator=torch.Generator().manual_seed(0))
    rollout = respond(made, task, prompts, uniforms)
    asked = rollout.environment.any(1)
    assert 0 < asked.sum() < len(prompts)
    scored = local.score(prompts, rollout.tokens)
    assert torch.allclose(scored[rollout.mask], rollout.logp[rollout.mask], atol=1e-4)
    for tokens, environment in zip(rollout.tokens[asked], rollout.environment[asked], strict=True):
        place = int(environment.int().argmax())
        assert task.reply(tokens[:place].tolist()) == tokens[environment].tolist()
    again = respond(made, task, prompts[3:4], uniforms[3:4])
    assert torch.equal(again.tokens[0], rollout.tokens[3])


def spread(part: torch.Tensor | None, places: torch.Tensor, fill) -> torch.Tensor | None:
    """The columns of `part` at these places of a wider tensor, between columns of `fill`."""
    if part is None or part.ndim == 1:
        return part
    wide = torch.full((len(part), 9), fill, dtype=part.dtype)
    wide[:, places] = part
    return wide


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES.names())
def test_environment_tokens_have_no_gradient_and_change_nothing(name):
    """Six tokens of a policy against the same with three of the environment after the second and the fourth: under every preset
    the same weights, the same loss and gradient on the policy's tokens, and a gradient of exactly 0 on the others."""
    generator, shape = torch.Generator().manual_seed(1), (4, 6)
    mu = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    old = (mu + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)).clamp(max=0)
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [-0.5]], dtype=torch.float64).expand(shape)
    mask = torch.tensor([[1] * 6, [1] * 6, [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]).bool()
    turns = torch.tensor([0, 0, 1, 1, 2, 2]).expand(shape)
    plain = Batch(mu, mask, old, advantages, segments=turns, prompt=torch.tensor([0, 0, 1, 1]))
    places, fills = torch.tensor([0, 1, 4, 5, 7, 8]), Batch(math.nan, False, math.nan, math.nan, 0, math.nan, 0, False)
    wide = Batch._make(spread(part, places, fill) for part, fill in zip(plain, fills, strict=True))
    loss = partial(LOSSES[name], **LOSS_PARAMS[name])
    current = (old - 0.1).clamp(max=0)
    for correction in {repr(preset.correction): preset.correction for preset in presets().values()}.values():
        objective = Objective(loss, correction, "old", "prompt_mean")
        results = []
        for batch, logp in ((plain, current), (wide, spread(current, places, 0.0))):
            corrected, logp = correct(batch, correction), logp.clone().requires_grad_()
            counts = Counts.of(corrected.counted, batch.prompt)
            value, _ = objective(logp, objective.select(batch, corrected.counted), corrected, counts)
            results.append((corrected.weights, corrected.kept, value.detach(), torch.autograd.grad(value, logp)[0]))
        (weights, kept, value, gradient), (*wider, wide_gradient) = results
        environment = torch.ones(9, dtype=torch.bool).index_fill(0, places, False)
        assert (wide_gradient[:, environment] == 0).all()
        for one, other in zip((weights * kept, kept, gradient), (wider[0] * wider[1], wider[1], wide_gradient), strict=True):
            assert torch.allclose(one.double(), other.expand(4, 9)[:, places].double(), rtol=1e-12, atol=1e-12), correction
        assert torch.allclose(value, wider[2], rtol=1e-12)
