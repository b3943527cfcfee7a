"""Speculative sampling: against its definition in rational arithmetic and by simulation, and what its ratios do not show."""

from fractions import Fraction

import pytest
import torch

from harness.models import build
from harness.rollouts.draft import drawn_from
from tests.harness.engines import loaded
from tests.harness.train.model.test_actor import SHAPE


def test_a_right_draft_draws_from_the_target():
    """Theorem 1 of arXiv 2211.17192, for policies from flat to sharp and with tokens that top-p excludes."""
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 1.5, 50)[:, None]
    logits[::3, 4] = -torch.inf
    logp = logits.log_softmax(-1)
    torch.testing.assert_close(drawn_from(logp, 0.0), logp.exp(), rtol=1e-5, atol=1e-7)


def test_a_wrong_draft_in_rational_arithmetic():
    """p = (16, 4, 1)/21, so q̂ ∝ √p is (4, 2, 1)/7. With ε = 1/2 the draft is (4, 2, 1)/14 + 1/6."""
    p, believed = [Fraction(n, 21) for n in (16, 4, 1)], [Fraction(n, 7) for n in (4, 2, 1)]
    draft = [q / 2 + Fraction(1, 6) for q in believed]
    proposed = [q * min(1, target / known) for q, target, known in zip(draft, p, believed, strict=True)]
    residual = [max(target - known, 0) for target, known in zip(p, believed, strict=True)]
    expected = [one + (1 - sum(proposed)) * rest / sum(residual) for one, rest in zip(proposed, residual, strict=True)]
    assert sum(expected) == 1 and expected != p
    found = drawn_from(torch.tensor([[float(x) for x in p]]).log(), 0.5)[0]
    assert found.tolist() == pytest.approx([float(x) for x in expected], rel=1e-5)


def test_a_wrong_draft_by_simulation():
    """Propose, accept or redraw, 200,000 times: each share within 5 standard errors of the closed form."""
    generator, n = torch.Generator().manual_seed(0), 200_000
    logp = torch.tensor([1.5, 0.2, -0.5, -2.0]).log_softmax(-1)
    p, believed = logp.exp(), (logp / 2).softmax(-1)
    draft = 0.7 * believed + 0.3 / 4
    tokens = torch.multinomial(draft, n, replacement=True, generator=generator)
    redrawn = torch.multinomial((p - believed).clamp(min=0), n, replacement=True, generator=generator)
    accepted = torch.rand(n, generator=generator) < (p / believed)[tokens]
    shares = torch.bincount(torch.where(accepted, tokens, redrawn), minlength=4) / n
    closed = drawn_from(logp[None], 0.3)[0]
    assert ((shares - closed).abs() < 5 * (closed * (1 - closed) / n).sqrt()).all() and (closed - p).abs().max() > 0.01


def test_the_tokens_are_those_of_the_draft_and_the_log_probabilities_those_of_the_target():
    """A fine grid of uniform numbers gives each first token with μ'. The reported log μ is that of the policy, so ρ is 1."""
    net, n = build(SHAPE, 0), 4000
    prompts, uniforms = torch.full((n, 3), 2), ((torch.arange(n) + 0.5) / n)[:, None]
    right, wrong = loaded(net), loaded(net, draft_error=0.5)
    out = wrong.generate(prompts, uniforms)
    assert torch.equal(out.logp, right.score(prompts, out.tokens))
    whole = right.score(prompts[:11], torch.arange(11)[:, None])[:, 0]
    expected = drawn_from(whole[None], 0.5)[0]
    assert (torch.bincount(out.tokens[:, 0], minlength=11) / n - expected).abs().max() <= 1.5 / n
