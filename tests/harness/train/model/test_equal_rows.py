"""Equal rows are computed once: log-probabilities, entropy, routes and gradients are those of computing every row."""

import pytest
import torch

from harness.compose import compose
from harness.config import parse
from harness.models import build
from harness.rollouts.recorded import Recorded
from harness.rollouts.routes import Routes
from harness.run.loop import train
from harness.tasks import PAD
from harness.train.forward import TrainingForward
from harness.train.model.actor import DeepSpeedActor
from harness.train.model.equal_rows import distinct
from harness.train.ranks import Ranks
from tests.harness.conftest import TINY
from tests.harness.train.model.test_actor import SHAPE, settings
from tests.harness.train.routing import test_hooks as test_routing
from tests.harness.train.test_moe_runs import MIXTURE, NOISE
from tests.harness.train.test_trainer import folder_of

COPIES = torch.tensor([0, 1, 2, 0, 3, 0, 2, 4, 1, 5])
"""Ten sampled rows of six: row 0 three times, rows 1 and 2 twice."""


def sampled(places: torch.Tensor = COPIES):
    """Prompts and responses with padding, and the weights of a loss that differ between equal rows."""
    generator = torch.Generator().manual_seed(3)
    prompts, tokens = (torch.randint(0, 11, (6, n), generator=generator) for n in (3, 5))
    prompts[1, :2] = prompts[4, :1] = PAD
    tokens[0, 3:] = tokens[5, 1:] = PAD
    return prompts[places], tokens[places], torch.randn(len(places), 5, generator=generator)


def every_row(monkeypatch):
    """Compute every row, as without `distinct`."""
    monkeypatch.setattr("harness.train.model.by_token.distinct", lambda *_: (slice(None), slice(None)))


def passed(make, replay=None, **changes):
    """(log-probabilities, entropy, gradients, rows of the model's forward) of one backward pass over the sampled rows."""
    prompts, tokens, weights = sampled()
    actor, rows = DeepSpeedActor(make(), settings(zero_stage=0, **changes)), []
    actor.engine.module.register_forward_pre_hook(lambda *call: rows.append(len(call[2]["input_ids"])), with_kwargs=True)
    logp, entropy = actor.logp(prompts, tokens, replay)
    actor.backward((weights * logp).sum(), last=True)
    return logp.detach(), entropy, [p.grad.clone() for p in actor.engine.module.parameters()], rows


def error(gradients: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Norm of the difference over the norm, of all parameters together."""
    ours, theirs = (torch.cat([part.flatten() for part in parts]).double() for parts in (gradients, expected))
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("make", [lambda: build(SHAPE, 0), test_routing.net], ids=["dense", "moe"])
def test_log_probabilities_and_gradients_are_those_of_every_row(make, checkpointing, monkeypatch):
    """Gradients to the rounding of fp32: those of equal rows are added before the matrix products and not after."""
    logp, entropy, gradients, rows = passed(make, gradient_checkpointing=checkpointing)
    every_row(monkeypatch)
    expected_logp, expected_entropy, expected, all_rows = passed(make, gradient_checkpointing=checkpointing)
    assert rows[0] == 6 and all_rows[0] == 10
    assert torch.equal(logp[0], logp[3]) and torch.equal(logp[0], logp[5])
    torch.testing.assert_close(logp, expected_logp, atol=1e-6, rtol=0)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-6, rtol=0)
    assert error(gradients, expected) < 5e-7


def test_rows_whose_replayed_routes_differ_are_computed_apart(monkeypatch):
    """Rows 3 and 5 equal row 0 in their tokens. Row 5 is given other routes, so seven rows are computed."""
    prompts, tokens, _ = sampled()
    ids = DeepSpeedActor(test_routing.net(), settings()).route(prompts, tokens)[1].ids
    assert torch.equal(ids[0], ids[3]) and torch.equal(ids[0], ids[5])
    ids[5, :3] = (ids[5, :3] + 1) % 4
    logp, _, gradients, rows = passed(test_routing.net, Recorded(Routes(ids)))
    every_row(monkeypatch)
    expected_logp, _, expected, all_rows = passed(test_routing.net, Recorded(Routes(ids)))
    assert (rows, all_rows) == ([7], [10])
    assert torch.equal(logp[0], logp[3]) and (logp[0] - logp[5]).abs().max() > 1e-3
    torch.testing.assert_close(logp, expected_logp, atol=1e-6, rtol=0)
    assert error(gradients, expected) < 5e-7


def test_routes_are_those_of_every_row(monkeypatch):
    prompts, tokens, _ = sampled()
    logp, routes = DeepSpeedActor(test_routing.net(), settings()).route(prompts, tokens)
    every_row(monkeypatch)
    expected_logp, expected = DeepSpeedActor(test_routing.net(), settings()).route(prompts, tokens)
    assert torch.equal(routes.ids, expected.ids)
    for ours, theirs in ((logp, expected_logp), (routes.weights, expected.weights), (routes.margin, expected.margin)):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_what_has_no_equal_is_not_copied():
    prompts, tokens, _ = sampled(torch.arange(6))
    assert distinct(prompts, tokens) == (slice(None), slice(None))
    routes = Recorded(Routes(torch.arange(3)[:, None, None, None].to(torch.uint8)))
    twice = torch.tensor([0, 0, 1])
    assert distinct(prompts[twice], tokens[twice], routes) == (slice(None), slice(None))
    first, place = distinct(prompts[twice], tokens[twice])
    assert first.tolist() in ([0, 2], [1, 2], [2, 0], [2, 1]) and torch.equal(tokens[twice][first][place], tokens[twice])


def test_equal_rows_meet_in_one_micro_batch_of_sampled_rows():
    """8 tokens a row at 24 tokens: three sampled rows each. Sorted by their equals, two ranks have as many micro-batches."""
    places = torch.tensor([0, 1, 2, 0, 1, 0, 3, 3, 4, 3, 5, 2])
    prompts, tokens, _ = sampled(places)
    for rank, own, together in ((0, range(6), [0, 3, 5]), (1, range(6, 12), [6, 7, 9])):
        parts = TrainingForward(None, Ranks(rank, 2), 24).micro_batches(prompts, tokens)
        assert [len(part) for part in parts] == [3, 3]
        assert sorted(torch.cat(parts).tolist()) == list(own)
        place = places[torch.cat(parts)]
        assert (place[1:] != place[:-1]).sum() + 1 == len(place.unique())  # equals stand side by side
        assert sorted(i for part in parts for i in part.tolist() if places[i] == places[together[0]]) == together
    unequal = TrainingForward(None, Ranks(0, 1), 24).micro_batches(*sampled(torch.arange(6))[:2])
    assert torch.cat(unequal).tolist() == list(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("base", [TINY, [*MIXTURE, NOISE, "routing.replay=r3"]], ids=["dense", "moe"])
def test_a_run_is_that_of_every_row(base, root, request, monkeypatch):
    """Every metric of three stale steps of two optimizer steps each, in micro-batches or not."""
    shared = [*base, f"run.root={root}", "rollout/precision=fp32", "rollout.staleness=1", "actor.num_minibatches=2", "steps=3"]
    shared += ["correction=token_truncate", f"run.sweep=distinct-{request.node.callspec.id}"]
    calls = []

    def recorded(*rows):
        calls.append(distinct(*rows))
        return calls[-1]

    monkeypatch.setattr("harness.train.model.by_token.distinct", recorded)
    runs = [parse(compose(*shared, *more)) for more in ([], ["actor.micro_tokens=30"])]
    for config in runs:
        train(config)
    assert any(isinstance(place, torch.Tensor) for _, place in calls)
    every_row(monkeypatch)
    expected = parse(compose(*shared, "run.sweep=every-row"))
    train(expected)
    names = ("reward/", "actor/", "mismatch/", "rollout_corr/", "routing/")
    *ours, theirs = (
        [{key: value for key, value in row.items() if key.startswith(names)} for row in folder_of(config).metrics()]
        for config in [*runs, expected]
    )
    assert len(theirs) == 4 and ("routing/flip_any" in theirs[0]) == (base is not TINY)
    for rows in ours:
        for row, other in zip(rows, theirs, strict=True):
            assert row == pytest.approx(other, rel=1e-5, abs=1e-5)
