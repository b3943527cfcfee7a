"""The verdict on a dump: the size of its mismatch, whether and how to correct it, and the limitations of the dump."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from algos.diagnostics import rounding
from algos.diagnostics.identity import BIN_EDGES, by_log_probability, by_place, by_turn, by_version
from algos.diagnostics.saturation import saturation
from algos.faults import diagnose
from faultline.tools.replay.advice import HEAVY, Advice, Target
from faultline.tools.replay.collect import Replayed
from faultline.tools.replay.evidence import DiagnosedTokens
from faultline.tools.replay.gate import Gate, GateResult
from faultline.tools.replay.scales import LARGE, NEGLIGIBLE, SCALES
from faultline.tools.replay.settings import settings
from faultline.tools.replay.sources import FILL
from harness.diagnosis import RunFacts

KNOWN = {
    "verl/decoupled_geo_rs": "verl geo_rs, 0.999 to 1.001",
    "verl/decoupled_k3_rs": "verl k3_rs, 0.01",
    "skyrl/geometric_mask": "SkyRL geometric, 0.99 to 1.01",
    "skyrl/product_mask": "SkyRL product, 0.5 to 2",
    "trl/sequence_mask": "TRL sequence_mask, 3, default",
    "skyrl/sequence_tis": "SkyRL sequence TIS, 5",
    "verl/decoupled_seq_is": "verl sequence TIS, 2",
    "icepop": "IcePop, 0.5 to 5",
    "verl/decoupled_token_is": "verl, SkyRL token TIS, 2",
    "none": "no correction",
}
"""Preset correction, such as verl's, that `faultline replay` shows in its verdict and figure -> its label there."""
USUAL = 2.0
"""Bound C that is proposed if the data need no smaller one: the default of verl, SkyRL's token weight and Yao et al. 2025."""
MEND_FIRST = "A correction would hide what is wrong here. Mend it, dump again, and replay."
SCORE_FIRST = (
    "Dump a batch whose logp_old the trainer computed. If engine and trainer are equal to the bit, give --precision fp32."
)
"""Reason of a verdict on a dump with one column twice."""
UNNAMED = "No known pattern fits. Were responses filtered before the dump? Are both columns of the same tokens?"
"""Reason of a verdict where a test failed, and no fault has a name."""
COMPARE_FIRST = "Neither a bug nor sound: a larger model may exceed SmolLM2-135M's rounding without a fault."
"""Reason of a verdict where K3 alone is unexplained, and was compared with a format and not with the same model."""
FEW = 1000
"""Number of samples (prompts or responses) below which the verdict calls the intervals wide. The value is our choice."""
STARVED = 0.1
"""ESS, as a share, below which the verdict warns of a preset by name."""
WIDE = f"intervals are wide; {FEW:,} are better."
"""End of the limitation of a dump with fewer than FEW samples."""
UNGROUPED = "No column group: intervals take responses for independent, and may be too narrow."
"""Limitation of a dump that does not say which responses share a prompt. The terminal prints it in any case."""

UNCHANGED = 0.999
"""ESS (a share) above which truncated weights hardly vary. They then only scale the loss and correct nothing."""

BySize = Literal["none", "weight", "undecided", "no weight suffices", "not asked"]
"""What the size of the mismatch alone asks for, by uncalibrated cut-offs: no correction, or a weight. undecided: the dump or K3's
interval leaves it open. no weight suffices: no bound reaches the target ESS. not asked: a fault, or more than rounding, in the
log-probabilities."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DumpSize(_Part):
    """Size of a dump: responses, tokens and batches."""

    name: str = Field(description="last part of the dump's path")
    responses: int = Field(description="responses with a token on the mask, and empty ones")
    tokens: int = Field(description="tokens on the mask")
    batches: int = Field(description="training batches")
    bad_rows: int = Field(description="rows left out by --skip-bad")
    mean_tokens: float = Field(description="tokens of a response, on average")


class Mismatch(_Part):
    """Statistics of the uncorrected ρ = π_old/μ. Pareto k is null for equal weights, an ESS if all weights underflow."""

    k1: float = Field(description="mean of log μ − log π_old, nats per token")
    k3: float = Field(description="mean of ρ − 1 − log ρ, nats per token")
    k3_interval: tuple[float, float] | None = Field(description="95 % interval of k3, like that of C; null of one sample")
    ess_token: float | None = Field(description="ESS of the token weights, a share")
    ess_sequence: float | None = Field(description="ESS of the sequence weights, a share")
    largest_log_ratio: float = Field(description="largest |log ρ| of a token, nats")
    pareto_k: float | None = Field(description="Pareto k of the sequence weights")


class Compared(_Part):
    """What K3 was compared with: a larger one is of kind unknown."""

    most: float = Field(description="largest K3 that it explains, nats per token")
    what: str = Field(description="the format or the baseline, and how many times its K3")


class MeanRatio(_Part):
    """Mean of ρ = π_old/μ over a part of the tokens. Its expectation is 1 if the part was chosen before they were drawn."""

    by: Literal["place", "log_probability", "turn", "version"] = Field(description="what divides the tokens")
    at: float = Field(description="last place of a bin, upper end of a bin of log μ, or number of the turn or version")
    mean: float = Field(description="mean of ρ")
    error: float | None = Field(description="its standard error over prompts; null of fewer than four prompts")


class DiagnosisSummary(_Part):
    """Diagnosis of the log-probabilities, before any correction is proposed; see docs/diagnosis.md."""

    kind: Literal["consistent", "fault", "unknown"] = Field(description="unknown: a fault that has no name here")
    fault: str | None = Field(description="its name; of kind consistent a note, as routing")
    question: Literal["a", "b", "c"] | None = Field(description="a: not the sampler's. b: not rounding. c: rounding")
    evidence: str = Field(description="a sentence with its number")
    check: dict[str, str] = Field(description="program: what to look at there")
    severity: Literal["critical", "high", "note"] | None = Field(description="of the fault")
    mean_ratio: float | None = Field(description="mean of ρ, 1 of what the sampler drew; null without a token")
    error: float | None = Field(description="its standard error over prompts; null of fewer than four prompts")
    power: float | None = Field(description="distance of the mean ratio from 1 that this dump would have shown")
    strength: float = Field(description="how far the statistics are beyond the thresholds of the fault, at least 1; 0 of none")
    statistics: dict[str, float | None] = Field(description="all that were computed, as algos.diagnostics explains them")
    copied: bool = Field(default=False, description="both columns are equal to the bit, so that they were not compared")
    mean_ratio_by: list[MeanRatio] = Field(default=[], description="mean of ρ by place, log μ, turn and version")

    @property
    def consistent(self) -> bool:
        """Whether the log-probabilities are consistent, so that a correction may be proposed."""
        return self.kind == "consistent"

    @property
    def tells(self) -> bool:
        """Whether the mean ratio has a standard error, so that the test for faults could fail. This takes four prompts."""
        return self.error is not None


class PresetEffect(_Part):
    """Effect of one correction preset on a dump."""

    preset: str = Field(description="its name in experiments/conf/correction, or the YAML file")
    label: str = Field(description="what people call it, with its bounds")
    tokens_kept: float = Field(description="share of tokens with a weight above 0")
    responses_kept: float = Field(description="share of responses with such a token")
    ess: float = Field(description="ESS of the effective weights over all tokens")
    agreement: float = Field(description="squared cosine of the effective and the exact sequence weights; 1 if proportional")
    largest_weight: float = Field(description="largest effective weight")
    false_rejections: float | None = Field(description="share of the null's tokens rejected; null without --null")


class Proposal(_Part):
    """A proposed truncated weight min(ρ, upper), with ρ = π_old/μ of a token or of a response (`level`)."""

    level: Literal["token", "sequence"] = Field(description="token or sequence")
    upper: float = Field(description="the bound C")
    ess: float = Field(description="ESS that it leaves")
    interval: tuple[float, float] | None = Field(description="95 % interval of C, over resampled prompts; null for 2")
    at_bound: float | None = Field(default=None, description="share of tokens whose weight is C; at 1 it only scales the loss")
    verdict: str = Field(description="of `bounds`, on the family that truncates at this level")
    settings: dict[str, list[str]] = Field(description="framework: its settings")


class Deployed(_Part):
    """The correction to train with if `policy` is to be deployed, by the rule tested for this policy (docs/decision.md)."""

    policy: Literal["trainer", "sampler"] = Field(description="the policy that is deployed")
    rule: str = Field(description="v2 or best constant")
    arm: str | None = Field(description="none, token, sequence, mask or geometric; null where no arm is named")
    text: str = Field(description="the arm in words, or why none is named")
    measured: str = Field(description="what the study measured for the rule, in a sentence")
    regimes: int = Field(description="number of regimes of the study that no rule was tuned on")
    lost: dict[str, tuple[float, float]] = Field(
        description="fixed setting: share of RL's gain that it lost to the best correction in these regimes, mean and worst"
    )
    settings: dict[str, list[str]] = Field(description="framework: its settings of the arm")


class Bound(_Part):
    """A proposed bound of one kind of correction. Numbers are null where no bound is proposed."""

    family: str = Field(description="action, level and statistic")
    c: float | None = Field(description="the bound C")
    lower: float | None = Field(description="lower bound of a config")
    upper: float | None = Field(description="upper bound of a config")
    tokens_kept: float = Field(description="share of tokens kept at C, or without a bound")
    ess: float = Field(description="ESS at C, or without a bound")
    verdict: str = Field(description="ok, or why there is none or it is not to be trusted")


class Verdict(_Part):
    """The verdict on a dump, as `faultline replay --json` prints it."""

    schema_version: Literal[3] = Field(default=3, description="of this layout")
    dump: DumpSize = Field(description="what was read")
    diagnosis: DiagnosisSummary = Field(description="whether the log-probabilities are what they should be")
    mismatch: Mismatch = Field(description="how far rollout engine and trainer are apart")
    compared: Compared | None = Field(default=None, description="what K3 was compared with; null if a limitation says why not")
    by_size: BySize = Field(
        description="what the size alone asks for, by uncalibrated cut-offs; `deployed` has the tested answer"
    )
    reason: str = Field(description="why, in a sentence")
    proposal: Proposal | None = Field(description="the weight for `by_size`; null where it asks for none or none suffices")
    presets: list[PresetEffect] = Field(description="the well-known presets, or those of --corrections; least ESS first")
    deployed: list[Deployed] = Field(default=[], description="the answer for each policy that may be deployed")
    persistence: float | None = Field(default=None, description="of the mismatch between two steps; null where it is not told")
    persistence_note: str = Field(default="", description="the steps of persistence and their lag, or why it is not told")
    bounds: list[Bound] = Field(description="a bound for each family")
    skipped: dict[str, str] = Field(description="presets that could not be replayed, and why")
    limitations: list[str] = Field(description="what this dump cannot show")
    gates: list[GateResult] = Field(default=[], description="the gates of --gate, in their order")
    page: str | None = Field(default=None, description="path of the HTML page")

    @property
    def answerable(self) -> bool:
        """Whether a rule may name a correction: the log-probabilities are shown to be consistent, and none is a mask's fill."""
        unfit = self.by_size == "undecided" and self.proposal is None
        return self.diagnosis.consistent and self.diagnosis.tells and not unfit


def judge(
    name: str,
    replayed: Replayed,
    null: Replayed | None,
    advice: Advice,
    target: Target,
    found: diagnose.Diagnosis,
    shown: Container[str] | None = None,
    copied: bool = False,
) -> Verdict:
    """Judge a replayed dump and return its verdict.

    null: replay of a dump without mismatch. advice: the bounds proposed for `target`. found: the diagnosis of the dump; no
    correction is proposed unless it is "consistent". shown: names of the presets to list; None for all.
    copied: whether both columns of log-probabilities are one.
    """
    diagnosis = diagnosed(found, copied)
    m = replayed.mismatch
    mismatch = Mismatch(
        k1=m["rollout_corr/kl"],
        k3=m["rollout_corr/k3_kl"],
        k3_interval=advice.intervals.get("k3"),
        ess_token=_or_none(m["mismatch/ess_token"]),
        ess_sequence=_or_none(m["mismatch/ess_sequence"]),
        largest_log_ratio=m["mismatch/log_ratio_max_abs"],
        pareto_k=_or_none(m["mismatch/pareto_k"]),
    )
    proposal = propose(replayed, advice.bounds, target)
    by_size, reason = _by_size(mismatch, proposal, target)
    if not diagnosis.consistent:
        unnamed = COMPARE_FIRST if found.check == diagnose.BY_SIZE else UNNAMED
        by_size, reason, proposal = "not asked", MEND_FIRST if diagnosis.fault else unnamed, None
    elif copied:
        by_size, reason, proposal = "undecided", SCORE_FIRST, None
    elif not diagnosis.tells:
        by_size, reason, proposal = "undecided", "Dump at least four prompts, better a thousand responses.", None
    elif replayed.fills:
        fills = f"{replayed.fills:,} of {replayed.tokens:,} tokens have a log-probability below {FILL:g}"
        by_size, reason, proposal = "undecided", f"{fills}, a mask's fill: set their mask to false.", None
    return Verdict(
        dump=DumpSize(
            name=name,
            responses=replayed.responses,
            tokens=replayed.tokens,
            batches=replayed.batches,
            bad_rows=replayed.bad,
            mean_tokens=replayed.tokens / replayed.responses,
        ),
        diagnosis=diagnosis,
        mismatch=mismatch,
        by_size=by_size,
        reason=reason,
        proposal=proposal if by_size in ("weight", "undecided") else None,
        presets=listed(replayed, null, shown),
        bounds=[_bound(row) for row in advice.bounds.to_dict("records")],
        skipped=replayed.skipped,
        limitations=_limitations(replayed, null, mismatch, advice),
    )


def gated(verdict: Verdict, gates: Sequence[Gate], advice: Advice) -> Verdict:
    """Return a verdict with the results of gates (bounds on metrics) added. advice: has the metrics' intervals, which decide."""
    values = verdict.mismatch.model_dump() | {"mean_ratio": verdict.diagnosis.mean_ratio}
    intervals = advice.intervals if verdict.diagnosis.tells else {}  # a bootstrap of three prompts covers little
    results = [gate.result(values[gate.metric], intervals.get(gate.metric)) for gate in gates]
    return verdict.model_copy(update={"gates": results})


def diagnosed(found: diagnose.Diagnosis, copied: bool = False) -> DiagnosisSummary:
    """Return a diagnosis as a verdict shows it. A statistic that the dump cannot tell is None."""
    mean, error = found.statistics["identity/mean"], found.statistics["identity/error"]
    return DiagnosisSummary(
        kind=found.kind,
        fault=found.fault,
        question=found.question,  # type: ignore[arg-type]  # pydantic checks it
        evidence=found.evidence,
        check=found.check,
        severity=found.severity,  # type: ignore[arg-type]
        mean_ratio=_or_none(mean),
        error=None if copied else _or_none(error),
        power=None if copied else _or_none(found.power),
        strength=found.strength,
        copied=copied,
        statistics={name: _or_none(value) for name, value in found.statistics.items()},
    )


def compared(found: diagnose.Diagnosis, facts: RunFacts) -> Compared | None:
    """What K3 was compared with; None if with nothing, or if a part of the tokens is known to be of older weights."""
    if (facts.precision is None and facts.baseline is None) or found.statistics["size/fresh"] < 1:
        return None
    times, whose = rounding.EXCESS, f"the K3 of SmolLM2-135M in {facts.precision}"
    if facts.baseline is not None:
        times, whose = rounding.EXCESS_OF_BASELINE, "that of the baseline"
    return Compared(most=found.statistics["size/k3_most"], what=f"{times:.0f} times {whose}")


def detailed(verdict: Verdict, tokens: DiagnosedTokens) -> Verdict:
    """Return a verdict with the mean ratio of each part of the diagnosed tokens, and the share at the proposed bound."""
    pairs, proposal = tokens.pairs, verdict.proposal
    means = {
        "place": {2**i: mean for i, mean in enumerate(by_place(pairs))},
        "log_probability": dict(zip((*BIN_EDGES, 0.0), by_log_probability(pairs), strict=True)),
        "turn": {} if pairs.batch.segments is None else dict(enumerate(by_turn(pairs))),
        "version": {} if tokens.version is None else by_version(pairs, tokens.version),
    }
    parts = [
        MeanRatio(by=by, at=at, mean=mean.mean, error=_or_none(mean.error))  # type: ignore[arg-type]  # pydantic checks it
        for by, by_part in means.items()
        for at, mean in by_part.items()
        if mean.clusters
    ]
    if proposal is not None:
        at_bound = saturation(pairs, proposal.level, proposal.upper)
        proposal = proposal.model_copy(update={"at_bound": at_bound})
    diagnosis = verdict.diagnosis.model_copy(update={"mean_ratio_by": parts})
    return verdict.model_copy(update={"diagnosis": diagnosis, "proposal": proposal})


def propose(replayed: Replayed, bounds: pd.DataFrame, target: Target) -> Proposal | None:
    """Propose the sequence weight truncated at USUAL, because it is exact, if it has the target ESS; else the token weight.

    The token weight is truncated at USUAL, or at the largest smaller bound with that ESS; None if no bound has it. At a K3
    of LARGE or more, a weight that hardly varies is not proposed: every response is at the bound, or the ratios cancel out.
    """
    large = replayed.mismatch["rollout_corr/k3_kl"] >= LARGE
    ess = replayed.thresholds.table().set_index(["family", "c"]).ess
    rows = bounds.set_index("family")
    for level in ("sequence", "token"):
        reached = float(ess[f"truncate-{level}", USUAL])
        if reached >= target.ess and not (large and reached >= UNCHANGED):
            return _proposal(level, USUAL, reached, None, rows.verdict[f"truncate-{level}"])
    row = rows.loc["truncate-token"]
    if np.isnan(row.C) or (large and row.ESS >= UNCHANGED):
        return None
    interval = None if np.isnan(row.low) else (float(row.low), float(row.high))
    return _proposal("token", _rounded_down(row.C), float(row.ESS), interval, row.verdict)


def _proposal(
    level: Literal["token", "sequence"], upper: float, ess: float, interval: tuple[float, float] | None, verdict: str
) -> Proposal:
    pasted = settings(level, upper)
    return Proposal(level=level, upper=upper, ess=ess, interval=interval, verdict=verdict, settings=pasted)


def _rounded_down(c: float) -> float:
    """Round a bound down to two decimals, or to as many as keep it above 1: a smaller bound has at least the same ESS."""
    decimals = max(2, math.ceil(-math.log10(c - 1)) + 1)
    return math.floor(c * 10**decimals) / 10**decimals


def _by_size(mismatch: Mismatch, proposal: Proposal | None, target: Target) -> tuple[BySize, str]:
    """Return (what the size asks for, reason). It is "undecided" if K3 has no interval, or one that NEGLIGIBLE divides."""
    if mismatch.largest_log_ratio == 0:
        return "none", "Every ratio is exactly 1."
    fits = mismatch.ess_sequence is not None and mismatch.ess_sequence >= target.ess
    low, high = (fits and k3 < NEGLIGIBLE for k3 in mismatch.k3_interval or (0.0, math.inf))
    if proposal is None and not low:
        return (
            "no weight suffices",
            f"No bound leaves weights that differ and an ESS of {target.ess:g}: bring engine and trainer closer first.",
        )
    if mismatch.k3_interval is None:
        return "undecided", "One prompt or response gives K3 no interval."
    if low != high:
        ends = "K3 is {:.1e} to {:.1e} (95 %)".format(*mismatch.k3_interval)
        return "undecided", f"{ends}: our cut-off {NEGLIGIBLE:.0e} lies between."
    ess = "none" if mismatch.ess_sequence is None else f"{mismatch.ess_sequence:.3f}"
    if low:
        fp16 = "FP16, K3 {:.1e} to {:.1e}, trains alike without a correction.".format(*SCALES[0][:2])
        return "none", f"K3 < {NEGLIGIBLE:.0e}, sequence ESS {ess}. {fp16}"
    if mismatch.k3 < NEGLIGIBLE:
        return "weight", f"K3 < {NEGLIGIBLE:.0e}, but the sequence ESS is {ess}: small ratios add up over a response."
    return "weight", f"K3 is above {NEGLIGIBLE:.0e}, our uncalibrated cut-off."


def listed(replayed: Replayed, null: Replayed | None, shown: Container[str] | None = None) -> list[PresetEffect]:
    """Effects on a dump of the presets in `shown` (None: all), by ascending ESS. null: a dump without mismatch, or None."""
    return [
        PresetEffect(
            preset=row["correction"],
            label=KNOWN.get(row["correction"], row["correction"]),
            tokens_kept=row["effect/kept_tokens"],
            responses_kept=row["effect/kept_sequences"],
            ess=row["effect/ess"],
            agreement=row["effect/agreement"],
            largest_weight=row["effect/weight_max"],
            false_rejections=_or_none(row.get("false_rejections", math.nan)),
        )
        for row in with_null(replayed, null).sort_values("effect/ess").to_dict("records")
        if shown is None or row["correction"] in shown
    ]


def _bound(row: dict) -> Bound:
    c, lower, upper = (_or_none(row[name]) for name in ("C", "lower", "upper"))
    kept, ess = row["tokens kept"], row["ESS"]
    return Bound(family=row["family"], c=c, lower=lower, upper=upper, tokens_kept=kept, ess=ess, verdict=row["verdict"])


def _limitations(replayed: Replayed, null: Replayed | None, mismatch: Mismatch, advice: Advice) -> list[str]:
    limitations = []
    if replayed.fills:
        limitations.append("Every number of this page: the fill values count as the ratios that they make.")
    if advice.samples < FEW:
        prompts = f" to {advice.samples} prompt{'s' * (advice.samples > 1)}" if advice.by_prompt else ""
        limitations.append(f"{replayed.responses} response{'s' * (replayed.responses != 1)}{prompts}: {WIDE}")
    if not advice.by_prompt:
        limitations.append(UNGROUPED)
    if mismatch.pareto_k is not None and mismatch.pareto_k > HEAVY:
        limitations.append(
            f"Pareto k of the sequence weights is {mismatch.pareto_k:.2f}: no sample shows their mean and ESS, or the agreement."
        )
    if (mismatch.ess_sequence or 0) < 1:
        mean = replayed.tokens / replayed.responses
        limitations.append(f"Longer responses: the sequence ESS is of {mean:.0f} tokens on average, and falls with length.")
    if replayed.batches == 1:
        limitations.append("Growth: one batch does not show whether the mismatch grows in training.")
    if len(replayed.versions) > 1:
        limitations.append(f"Engine or staleness: the tokens have {len(replayed.versions)} ages, which --all tells apart.")
    if null is None:
        limitations.append("False rejections: give a dump of a control with --null.")
    if replayed.skipped:
        needs = " or ".join(sorted({reason.removeprefix("needs ") for reason in replayed.skipped.values()}))
        limitations.append(f"{len(replayed.skipped)} presets, which need {needs}.")
    return limitations


def with_null(replayed: Replayed, null: Replayed | None) -> pd.DataFrame:
    """Table with a row per correction. With `null`, a dump without mismatch, false_rejections: share of its tokens rejected."""
    if null is None:
        return replayed.corrections
    kept = null.corrections.set_index("correction")["effect/kept_tokens"]
    return replayed.corrections.assign(false_rejections=1 - replayed.corrections.correction.map(kept))


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
