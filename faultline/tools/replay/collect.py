"""One pass over a dump that computes its mismatch, the effect of the chosen corrections, and every threshold."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Tensor

from algos.batch import Batch
from algos.corrections.apply import correct
from algos.corrections.spec import Correction
from algos.diagnostics.mismatch import finish_mismatch, mismatch_rows
from algos.diagnostics.positions import BINS
from algos.diagnostics.rows import Rows, merge
from faultline.tools.replay.advice import Advisor
from faultline.tools.replay.effect import blocks, effect_rows, finish_effect, missing, needs_whole, padded, profile_sums
from faultline.tools.replay.evidence import Evidence
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.thresholds import Thresholds
from faultline.tools.replay.versions import Versions
from harness.errors import UserError
from harness.progress import Progress
from harness.room import bounded

Parts = dict[str, list[Rows]]


@dataclass
class Replayed:
    """Results of one pass over a dump: its mismatch, and the effects of corrections.

    batches, responses, tokens: numbers in the dump. bad: number of rows left out. fills: number of tokens whose
    log-probability is below FILL, a placeholder. mismatch: metrics of the uncorrected ratio π_old/μ.
    corrections: a row per correction. profiles: a row per correction and bin of positions or lengths. skipped: correction -> why
    it was not replayed. groups: lists of corrections with the same effect on a dump. thresholds: sums of every kind of
    correction at each bound. versions: a row per age of the weights that sampled a token.
    """

    batches: int
    responses: int
    tokens: int
    bad: int
    fills: int
    mismatch: dict[str, float]
    corrections: pd.DataFrame
    profiles: pd.DataFrame
    skipped: dict[str, str]
    groups: list[list[str]]
    thresholds: Thresholds
    versions: pd.DataFrame


@dataclass
class _Sums:
    rows: Parts = field(default_factory=dict)
    profiles: dict[str, Tensor] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, batch: Batch, specs: dict[str, Correction]) -> None:
        """Correct the responses of `batch` by each correction in `specs`, and add the effects to the sums by correction."""
        for name, spec in specs.items():
            corrected = correct(batch, spec)
            self.rows.setdefault(name, []).append(effect_rows(batch, corrected))
            self.profiles[name] = self.profiles.get(name, 0) + profile_sums(batch, corrected)


def alike(specs: dict[str, Correction]) -> list[list[str]]:
    """Group the names of corrections that have the same effect on any dump, in their order.

    Corrections of a group have equal weights, filters and normalisation. They may differ in `ratio`, since π_θ is π_old on a
    dump, and in `denominator`, on which effective weights do not depend.
    """
    groups: list[tuple[tuple, list[str]]] = []
    for name, spec in specs.items():
        settings = spec.weight, list(spec.reject.values()), spec.normalize
        names = next((names for other, names in groups if other == settings), None)
        if names is None:
            groups.append((settings, names := []))
        names.append(name)
    return [names for _, names in groups]


def collect(
    dump: Dump, specs: dict[str, Correction], advisor: Advisor | None = None, evidence: Evidence | None = None
) -> Replayed:
    """Replay `specs` (name -> correction) on a dump, which is read once, by batches, in blocks of responses of similar length.

    Statistics cover all responses of the dump. Corrections with normalize=batch and plug-ins see each training batch as a whole.
    Corrections with equal effect are computed once.

    advisor, evidence: collectors that receive the same batches. Raises UserError if no correction can be replayed, or if the
    dump takes more memory than there is room for.
    """
    with bounded(dump.path):
        return _collect(dump, specs, advisor, evidence)


def _collect(dump: Dump, specs: dict[str, Correction], advisor: Advisor | None, evidence: Evidence | None) -> Replayed:
    sums, thresholds, versions, ratios, batches = _Sums(), Thresholds(), Versions(), [], 0
    groups = alike(specs)
    first = {name: names[0] for names in groups for name in names}
    distinct = {name: specs[name] for name, *_ in groups}
    progress, read = Progress(sum(path.stat().st_size for path in dump.files)), 0
    for responses in dump.batches():
        progress.show(f"{batches} batches replayed", dump.read - read)
        read = dump.read
        thresholds.add(responses)
        versions.add(responses)
        if advisor is not None:
            advisor.add(responses)
        if evidence is not None:
            evidence.add(responses)
        batches += 1
        possible = dict(distinct)
        for name, spec in distinct.items():
            if reason := missing(spec, responses):
                sums.skipped[name] = reason
                del possible[name]
        apart = {name: spec for name, spec in possible.items() if not needs_whole(spec)}
        for batch in map(padded, blocks(responses)):
            ratios.append(mismatch_rows(batch))
            sums.add(batch, apart)
        if len(apart) < len(possible):
            sums.add(padded(responses), {name: spec for name, spec in possible.items() if name not in apart})
    whole = merge(ratios)
    if not whole["n"].sum():
        raise UserError(f"{dump.path}: mask is false for every token; set it to true on the tokens that the loss counts")
    skipped = {name: sums.skipped[first[name]] for name in specs if first[name] in sums.skipped}
    usable = [name for name in specs if name not in skipped]
    if not usable:
        reasons = "; ".join(f"{name} {reason}" for name, reason in skipped.items())
        raise UserError(f"{dump.path}: {reasons}; dump that column (docs/dumps.md) or choose other corrections")
    effects = {name: finish_effect(merge(rows)) for name, rows in sums.rows.items() if name not in skipped}
    return Replayed(
        batches=batches,
        responses=len(whole["n"]),
        tokens=int(whole["n"].sum()),
        bad=dump.bad,
        fills=dump.fills,
        mismatch={name: float(value) for name, value in finish_mismatch(whole).items()},
        corrections=pd.DataFrame([{"correction": name, **effects[first[name]]} for name in usable]),
        profiles=pd.concat([_profile(name, sums.profiles[first[name]]) for name in usable], ignore_index=True),
        skipped=skipped,
        groups=groups,
        thresholds=thresholds,
        versions=versions.table(),
    )


def _profile(name: str, sums: Tensor) -> pd.DataFrame:
    """Table of a correction's mean effective weight, a row per bin of token positions and of response lengths.

    Column upto: last position or length of the bin. sums: of weights and of tokens per bin, from `profile_sums`.
    """
    frames = []
    for by, (weight, tokens) in {"position": sums[:2], "length": sums[2:]}.items():
        here = tokens > 0
        upto = 2 ** torch.arange(BINS)[here]
        mean = (weight[here] / tokens[here]).numpy()
        frames.append(pd.DataFrame({"correction": name, "by": by, "upto": upto, "tokens": tokens[here], "weight": mean}))
    return pd.concat(frames)
