"""Diagnosis of a batch's log-probabilities in one sentence: rounding, a named fault, or an unknown one."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from algos.batch import Batch
from algos.diagnostics import rounding
from algos.diagnostics.evidence import Predicted, Statistics, statistics
from algos.diagnostics.pairs import LogpPairs, deviate
from algos.faults import FAULTS
from algos.faults.base import ABSURD, QUESTIONS, SIZE, SURE, Fault, broken, excess, or_both_bases

UNKNOWN = "not explained by rounding"
BY_SIZE = {
    "yours": "the rollouts' format, which --precision must name; then replay with --baseline and a dump of a good run of this "
    "model: the bound is of SmolLM2-135M, and a larger model may be above it without a fault"
}
"""Check where K3 exceeds what rounding in the sampler's precision gives in SmolLM2-135M, and nothing else is known."""


class Diagnosis(NamedTuple):
    """A diagnosis of the log-probabilities of a batch.

    kind: consistent (rounding explains the difference of π and μ), fault (a known fault does), or unknown (neither does).
    fault: name of the fault; with kind=consistent, name of a harmless cause such as routing, or None. question: "a" (the logged
    numbers are not the sampler's), "b" (they are, but differ from the trainer's by more than rounding), "c" (rounding), or None.
    evidence: a sentence with the numbers that decide. check: name of a program such as vLLM -> where to look for the cause in it.
    severity: critical (nothing learned from the batch is right), high (biased), note (harmless), or None. strength: how far the
    statistics are beyond their thresholds, ≥ 1, or 0 when nothing was found. statistics: name -> value, all that were computed.
    power: the smallest |E[π/μ] − 1| that the batch could reveal.
    """

    kind: Literal["consistent", "fault", "unknown"]
    fault: str | None
    question: str | None
    evidence: str
    check: dict[str, str]
    severity: str | None
    strength: float
    statistics: Statistics
    power: float

    @property
    def copied(self) -> bool:
        """Whether no fault was found and every ratio is exactly 1, as where one column is a copy of the other."""
        return self.kind == "consistent" and self.statistics["identity/below"] == self.statistics["identity/above"] == 0

    def __str__(self) -> str:
        name = f" {self.fault}:" if self.kind == "fault" else ""
        return f"{self.kind.upper() if self.kind != 'consistent' else self.kind}{name} {self.evidence}"


def diagnose(
    batch: Batch,
    *,
    usual: str | float | None = None,
    lag: Tensor | None = None,
    tokens: Tensor | None = None,
    predicted: Predicted | None = None,
) -> Diagnosis:
    """Diagnose a batch's log-probabilities by the first fault that their statistics show; wrong logging is tried first.

    usual: the sampler's precision, a key of `rounding.K3`, or the K3 of a batch that the same model logged without a fault.
    Without it K3 may be as large as in the coarsest format. A K3 above a precision's bound alone is of kind unknown. lag [B, T]:
    number of versions by which each token's weights are known to be old, which is no fault; `compared` says what is then
    compared. tokens [B, T]: ids, which identify repeated samples exactly. predicted: entropies of π_old, which reveal another
    sampler's tokens, and probabilities of a repeated token, which reveal a penalty. Raises ValueError without `logp_old`.
    """
    found = statistics(batch, tokens, predicted)
    found |= compared(batch, found["tails/k3"], usual, lag)
    found["size/lag"] = found["size/lag_spread"] = 0.0
    if lag is not None and bool(batch.mask.any()):
        known = torch.where(batch.mask, lag, 0)
        found["size/lag"] = float(known.sum()) / float(batch.mask.sum())
        found["size/lag_spread"] = float((known.amax(-1) - torch.where(batch.mask, lag, known.amax()).amin(-1)).max())
    return judge(found)


def compared(batch: Batch, k3: float, usual: str | float | None, lag: Tensor | None) -> Statistics:
    """The K3 that is compared with rounding, and its bounds. k3: that of the whole batch. usual, lag: those of `diagnose`.

    size/k3, size/k3_most, size/k3_most_of_model: K3, the most that rounding explains, and the most by the same model. With `lag`
    the bounds of `usual` hold for fresh tokens, and that of the coarsest format for the whole batch; the K3 nearer to its bound
    is returned. A token is fresh if neither it nor an earlier one of its response was sampled by older weights, since a cache
    may keep keys and values of these. size/fresh: share of fresh tokens.
    """
    sizes, share = [(k3, usual)], 1.0
    if lag is not None:
        fresh = LogpPairs(batch._replace(mask=batch.mask & (torch.where(batch.mask, lag, 0).cumsum(-1) == 0)))
        share = len(fresh) / max(1, int(batch.mask.sum()))
        sizes = [(k3, None), *([(float(fresh.k3.mean()), usual)] if len(fresh) else [])]
    k3, usual = max(sizes, key=lambda size: size[0] / rounding.most(size[1]))
    return {
        "size/k3": k3,
        "size/k3_most": rounding.most(usual),
        "size/k3_most_of_model": rounding.most(None if isinstance(usual, str) else usual),
        "size/fresh": share,
    }


def judge(found: Statistics) -> Diagnosis:
    """The diagnosis of a batch's log-probabilities from its statistics, given by name."""
    error = found["identity/error"]
    power = max(SIZE, error * deviate(SURE, found["identity/clusters"] - 1)) if error == error else float("inf")
    plugins: list[Fault] = sorted(
        (FAULTS[name] for name in FAULTS.names()), key=lambda fault: (fault.question, fault.order, fault.name)
    )
    for fault in plugins:
        why = _unexplained(found)
        above = found["identity/mean"] > 1  # a mean above 1 is no other policy's, where one below may be a lost tail
        if why and (fault.question == "c" or (fault.question == "b" and why[0] == "a" and above)):
            check = BY_SIZE if why[0] == "b" and found["size/k3_most"] < found["size/k3_most_of_model"] else {}
            return Diagnosis("unknown", None, why[0], why[1], check, "high", 1.0, found, power)
        strength = fault.signature(found)
        if strength is not None:
            kind: Literal["consistent", "fault"] = "consistent" if fault.question == "c" else "fault"
            sentence = fault.evidence(found)
            return Diagnosis(kind, fault.name, fault.question, sentence, fault.check, fault.severity, strength, found, power)
    sentence = f"mean ratio {found['identity/mean']:.4f} ± {error:.4f}, K3 {found['tails/k3']:.2g}"
    return Diagnosis("consistent", None, None, sentence, {}, None, 0.0, found, power)


def _unexplained(found: Statistics) -> tuple[str, str] | None:
    """Sign of an unnamed fault, (key of `QUESTIONS`, sentence): a if E[π/μ] ≠ 1, b if K3 exceeds rounding; None if neither."""
    if broken(found):
        cause = f"{QUESTIONS['a']}, or responses were filtered out of the batch{or_both_bases(found)}"
        mean = found["identity/mean"]
        how = f"z {found['identity/z']:.1f}" if mean < ABSURD else f"probability of at most {1 / mean:.1g}"
        return "a", f"{UNKNOWN}: the mean ratio is {mean:.4f} ({how}) and not 1; {cause}"
    if excess(found) >= 1:
        whose = "" if found["size/k3"] == found["tails/k3"] else " of the tokens none of which older weights sampled"
        return "b", f"{UNKNOWN}: K3{whose} is {found['size/k3']:.3g}, above the bound of rounding, {found['size/k3_most']:.3g}"
    return None
