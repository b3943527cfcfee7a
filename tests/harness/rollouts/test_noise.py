"""Noise with a persistence: an AR(1) process over versions of the weights, in its moments, its resume and its refusals."""

import pytest
import torch

from harness.rollouts.noise import Noise

SHAPE = torch.Size([200, 200])


@pytest.mark.parametrize("persistence", [0.0, 0.3, 0.9, 1.0])
def test_the_size_is_the_same_at_every_version_and_the_correlation_falls_as_a_power(persistence):
    """40,000 values: a standard deviation is known to 1/√80,000 = 0.0035 and a correlation to 1/200 = 0.005; 4 errors allowed."""
    noise = Noise(0.1, persistence, seed=3)
    drawn = torch.stack([noise.draw("w", SHAPE, version).flatten() for version in range(6)])
    assert (drawn.std(1) - 1).abs().max() < 0.014 and drawn.mean(1).abs().max() < 0.02
    for lag in (1, 2, 5):
        correlation = torch.corrcoef(torch.stack([drawn[0], drawn[lag]]))[0, 1].item()
        assert correlation == pytest.approx(persistence**lag, abs=0.02)


@pytest.mark.parametrize("persistence", [0.0, 0.7, 1.0])
def test_a_resume_goes_on_with_the_same_noise(persistence):
    """A fresh object asked for a late version, and one asked for an earlier version again, give the same bits."""
    onward = Noise(0.1, persistence, seed=3)
    values = [onward.draw("w", SHAPE, version) for version in range(5)]
    assert torch.equal(Noise(0.1, persistence, seed=3).draw("w", SHAPE, 4), values[4])
    assert torch.equal(onward.draw("w", SHAPE, 2), values[2])
    jumping = Noise(0.1, persistence, seed=3)
    assert [torch.equal(jumping.draw("w", SHAPE, v), values[v]) for v in (1, 3)] == [True, True]


def test_the_three_terms_of_the_process_by_hand():
    """ε_2 = φ²·ξ_0 + φ·√(1−φ²)·ξ_1 + √(1−φ²)·ξ_2, with ξ what fresh noise draws."""
    xi = [Noise(0.1, 0.0, seed=3).draw("w", SHAPE, version) for version in range(3)]
    expected = 0.36 * xi[0] + 0.6 * 0.8 * xi[1] + 0.8 * xi[2]
    torch.testing.assert_close(Noise(0.1, 0.6, seed=3).draw("w", SHAPE, 2), expected, atol=1e-6, rtol=0)


def test_names_and_seeds_are_independent_and_the_size_is_relative():
    noise, other = Noise(0.1, 0.5, seed=3), Noise(0.1, 0.5, seed=4)
    a, b, c = noise.draw("a", SHAPE, 1), noise.draw("b", SHAPE, 1), other.draw("a", SHAPE, 1)
    for x in (b, c):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), x.flatten()]))[0, 1].item()) < 0.02
    weight = torch.full(SHAPE, 5.0)
    assert torch.allclose(noise("a", weight, 1), 5 + 0.5 * a)
