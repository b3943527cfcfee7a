"""On a CPU diagnostics work on a few responses of like length at a time; no number depends on it."""

import pytest
import torch

from algos import chunks
from algos.batch import Batch
from algos.corrections import apply
from algos.corrections.spec import Correction, Reject, Weight
from algos.diagnostics.correction import correct_with_diagnostics, correction_rows, finish_diagnostics
from algos.diagnostics.mismatch import mismatch
from algos.diagnostics.positions import positions
from algos.diagnostics.probabilities import probabilities
from algos.ratios import Ratio, ess_share

SPEC = Correction(
    weight=Weight("token", "truncate", None, 1.2),
    reject={"k3": Reject("geometric", "k3", None, 0.05), "worst": Reject("worst_token", "ratio", 0.3, None)},
    denominator="kept",
)
TURNS = Correction(weight=Weight("segment", "clip", 0.5, 1.5))


def batch():
    """Ragged rows of 40 columns, fp64: one empty, one full, one with a gap of 20 tokens; NaN off the mask."""
    generator = torch.Generator().manual_seed(0)
    old, rollout, advantages = (torch.randn(9, 40, generator=generator, dtype=torch.float64) / 5 - 1 for _ in range(3))
    mask = torch.arange(40)[None] < torch.tensor([3, 40, 0, 17, 1, 25, 9, 33, 12])[:, None]
    mask[7, 5:25] = False
    return Batch(*(torch.where(mask, t, torch.nan) if t.is_floating_point() else t for t in (rollout, mask, old, advantages)))


def everything(given=None, policy=None):
    given = batch() if given is None else given
    turns = torch.arange(40).expand(9, 40)[:, torch.randperm(40, generator=torch.Generator().manual_seed(1))].contiguous()
    of_turns = Ratio(given._replace(segments=turns), policy)
    corrected, rows = correct_with_diagnostics(given, SPEC, policy)
    return {
        **corrected._asdict(),
        **{f"rows {name}": value for name, value in rows.items()},
        **{f"turns {name}": value for name, value in correction_rows(of_turns, TURNS).items()},
        **finish_diagnostics(rows, SPEC),
        **mismatch(given, policy),
        **probabilities(given, policy),
        **positions(given, policy),
        "ess_share": ess_share(given, policy),
    }


@pytest.mark.parametrize("chunk", [1, 100, 160])
def test_in_parts_as_at_once(monkeypatch, chunk):
    at_once = everything()
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    in_parts = everything()
    assert at_once.keys() == in_parts.keys()
    for name, value in at_once.items():
        same = torch.allclose(in_parts[name], value, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert same, (name, in_parts[name], value)


@pytest.mark.parametrize("chunk", [100, 1 << 17])
def test_any_policy_stands_over_mu(monkeypatch, chunk):
    """π_θ given as `policy` is the numerator everywhere, whatever π_old is and without one."""
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    given = batch()
    policy, other = given.logp_old, given.logp_old - 0.7
    expected = everything()
    for one in (given._replace(logp_old=other), given._replace(logp_old=None)):
        found = everything(one, policy)
        for name, value in expected.items():
            assert torch.equal(found[name].nan_to_num(7), value.nan_to_num(7)), name
    moved = everything(given, other)
    for name in ("weights", "rollout_corr/kl", "ess_share", "mismatch/k3_reverse"):
        assert (moved[name] != expected[name]).any(), name


def test_a_correction_and_its_diagnostics_are_of_one_ratio(monkeypatch):
    """A filter's statistic is computed once for the mask and for its diagnostics."""
    computed = []
    statistic = apply._statistic
    monkeypatch.setattr(apply, "_statistic", lambda *given: computed.append(1) or statistic(*given))
    correct_with_diagnostics(batch(), SPEC)
    assert len(computed) == len(SPEC.reject)


def test_parts_hold_every_token_once(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 100)
    mask = batch().mask
    seen = torch.zeros_like(mask, dtype=torch.long)
    widths = []
    for rows, part in chunks.chunks(Ratio(batch())):
        widths.append(part.mask.shape[1])
        seen[rows, : widths[-1]] += 1
    assert (seen[mask] == 1).all() and seen.max() == 1
    assert min(widths) < 40  # padding is left out
