"""Format the verdict of `faultline replay` for a terminal."""

from __future__ import annotations

from math import log
from textwrap import wrap

from faultline.tools.replay.deployed import CONSTANT
from faultline.tools.replay.evidence import NOTES, UNTESTED
from faultline.tools.replay.gate import GateResult
from faultline.tools.replay.scales import SCALES
from faultline.tools.replay.verdict import (
    STARVED,
    UNGROUPED,
    WIDE,
    Compared,
    DiagnosisSummary,
    Mismatch,
    Verdict,
)
from harness.errors import printable

WIDTH = 100
PASTED = 104
"""Maximum width of a line of settings, in characters. It holds two settings of verl or of SkyRL."""
CHECK = 17
"""Column of the terminal, in characters, at which the advice on what to check begins."""
LIMITATIONS = 1
"""Maximum number of lines on limitations, those on doubts, persistence, NOTES and a rule's own test included. The page shows
all."""
FEW_RESPONSES = 200
"""Number of responses below which the terminal too says that intervals are wide. The value is our choice."""
NEAREST = 3
"""Number of published K3 beside that of the dump, those nearest to it. The page shows all."""
WORDS = {
    "none": "it needs none of this",
    "undecided": "undecided whether to correct it",
    "no weight suffices": "no importance weight suffices",
    "not asked": "no correction is proposed",
}
"""Value of Verdict.by_size -> its words in the terminal, where no weight is proposed."""
COPIED = "NOT TESTED  Every ratio is exactly 1: is logp_old a copy of logp_rollout, as in verl's bypass mode?"
"""First line on a dump with one column twice."""
FIXED = "No known bug shown. Defaults for any sound dump; no rule reading one was shown better:"
"""Headline where the study of docs/decision.md supports one correction for each deployed policy, whatever the dump shows. None of
the other rules and corrections was shown better there, nor was the default shown to beat no correction."""
DEPLOYED = {"trainer": "trainer's weights", "sampler": "engine's weights"}
"""Deployed policy -> its words: the checkpoint in the trainer's format, or what the rollout engine makes of it in its own."""
SLIGHT = 0.99
"""ESS of the token weights above which the terminal says that a correction hardly changes the dump. The value is our choice."""


def lines(verdict: Verdict) -> list[str]:
    """Format a verdict in about 20 lines of at most WIDTH printable characters, names cut to fit, and a line per gate."""
    d, m = verdict.dump, verdict.mismatch
    bad = f"; {d.bad_rows:,} bad rows left out" if d.bad_rows else ""
    responses = f"{d.responses:,} response{'s' * (d.responses != 1)}"
    size = f"{d.name[:60]}: {responses}, {d.tokens:,} tokens, {d.batches:,} batch{'es' * (d.batches > 1)}{bad}"
    sizes = f"Mismatch: token ESS {_ess(m.ess_token)}, sequence ESS {_ess(m.ess_sequence)}. K3"
    first, notes = diagnosis_lines(verdict.diagnosis), [f"Note: {line}" for line in _narrow(verdict)]
    if not verdict.diagnosis.consistent:
        reason = wrap(verdict.reason, WIDTH, initial_indent="  ", subsequent_indent="  ")
        rest = [size, f"{sizes} {m.k3:.1e} nats per token.", f"VERDICT  {headline(verdict)}", *reason]
        rest += [*gate_lines(verdict), *notes]
        return [printable(line)[:WIDTH] for line in [*first, *rest]]
    because = wrap(" ".join(reasons(verdict)), WIDTH - 2)
    untested = [line for line in verdict.limitations if line in NOTES or line.startswith(UNTESTED)]
    told = len(untested) + (verdict.persistence is not None) + verdict.answerable
    others = [line for line in verdict.limitations if line not in (*untested, *_narrow(verdict))]
    limitations = others[: max(LIMITATIONS - told, 0)]
    out = [
        *first,
        *(part for line in untested for part in wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")),
        size,
        f"VERDICT  {headline(verdict)}",
        *deployed_lines(verdict),
        *(f"  {line}" for line in [*because, *starved(verdict)]),
        *gate_lines(verdict),
        f"{sizes} in nats per token; no threshold of harm is known:",
        *_scales(m, verdict.compared),
        *persistence_lines(verdict),
        *(f"Not shown: {line}" for line in limitations),
        *notes,
    ]
    return [*(printable(line)[:WIDTH] for line in out), *(line for one in pastes(verdict) for line in pasted(one))]


def deployed(verdict: Verdict) -> list[tuple[str, str]]:
    """(Correction, what the study of docs/decision.md measured of it) for each deployed policy; [] if none may be named."""
    if not verdict.answerable:
        return []
    slight = "; optional: it hardly changes this dump" * ((verdict.mismatch.ess_token or 0) > SLIGHT)
    below = f" (set below{slight})"
    return [
        (f"IF YOU DEPLOY THE {DEPLOYED[one.policy].upper()}: {one.text}{below * bool(one.settings)}", one.measured)
        for one in verdict.deployed
    ]


def deployed_lines(verdict: Verdict) -> list[str]:
    """Format the correction for each deployed policy, and below what the study measured of a rule that reads the dump."""
    chosen = [line for one, _ in deployed(verdict) for line in wrap(one, WIDTH, subsequent_indent="  ")]
    own = [one.measured for one in verdict.deployed if chosen and one.rule != CONSTANT]
    return [*chosen, *(line for said in own for line in wrap(said, WIDTH, initial_indent="  ", subsequent_indent="  "))]


def persistence_lines(verdict: Verdict) -> list[str]:
    """Format the persistence, how far log ratios agree between two steps of the dump, as one line; empty if it is unknown."""
    if verdict.persistence is None:
        return []
    return [f"Persistence {verdict.persistence:.2f}: {verdict.persistence_note}"]


def diagnosis_lines(d: DiagnosisSummary) -> list[str]:
    """Format the diagnosis of a dump as lines. With a fault, the lines include its evidence and what to check in each program."""
    if d.consistent:
        return [first_line(d), *([f"  Note, {d.fault}: {d.evidence}"] if d.fault else [])]
    out = wrap(first_line(d), WIDTH, subsequent_indent="  ")
    for i, (program, what) in enumerate(d.check.items()):
        first, *more = wrap(what, WIDTH - CHECK)
        out += [f"{'Check' if i == 0 else '':<6} {program:<9} {first}", *(" " * CHECK + line for line in more)]
    return out


def first_line(d: DiagnosisSummary) -> str:
    """Return the diagnosis in one line of any length."""
    if d.copied:
        return COPIED
    if d.consistent:
        told = "consistent" if d.tells else "too few prompts for a standard error"
        return f"LOG-PROBABILITIES  {told}: {mean_ratio(d)}"
    return (f"FAULT  {d.fault}: " if d.fault else "UNKNOWN  ") + d.evidence


def mean_ratio(d: DiagnosisSummary) -> str:
    """Return a phrase with the mean of π_old/μ, its standard error, and the smallest shift that the dump would have shown."""
    if d.mean_ratio is None:
        return "no token tells"
    if d.error is None:
        return f"mean ratio {d.mean_ratio:.4f}"
    power = "" if d.power is None else f" (a mean off by {d.power:.2g} would show)"
    return f"mean ratio {d.mean_ratio:.4f} ± {d.error:.4f}{power}"


def gate_lines(verdict: Verdict) -> list[str]:
    """Format each gate as a line: whether the dump passes it, with the value and the interval that decide it."""
    return [f"GATE  {gate.gate}: {gate.outcome}, {measured(gate)}" for gate in verdict.gates]


def measured(gate: GateResult) -> str:
    """Format the value of a gate's metric with its interval."""
    value = "no value" if gate.value is None else f"{gate.value:.4g}"
    return f"{value}, no interval" if gate.interval is None else "{} ({:.4g} to {:.4g})".format(value, *gate.interval)


def headline(verdict: Verdict) -> str:
    """Summarise the verdict in a sentence."""
    if not verdict.answerable:
        return f"{WORDS[verdict.by_size].capitalize()}."
    fixed = all(one.rule == CONSTANT for one in verdict.deployed)
    return FIXED if fixed else "By the rule tested for the policy that you deploy:"


def reasons(verdict: Verdict) -> list[str]:
    """Return sentences on what the mismatch's size alone says. Beside a tested rule they stand only if no weight is proposed."""
    if not verdict.answerable:
        return [verdict.reason]
    return [] if verdict.proposal else [f"By its size alone: {WORDS[verdict.by_size]}.", verdict.reason]


def starved(verdict: Verdict) -> list[str]:
    """Return [text on the presets that leave almost no ESS, and on bounds that the geometric mean ratio needs], or []."""
    names = [preset.label.split(",")[0] for preset in verdict.presets if preset.ess < STARVED]
    if not names or not verdict.diagnosis.tells:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    band = next((bound for bound in verdict.bounds if bound.family == "reject-geometric" and bound.verdict == "ok"), None)
    fits = "" if band is None else f" A geometric band needs {band.lower:.3g} to {band.upper:.3g}."
    return [f"Not here: {', '.join(names[:3])}{more}: ESS under {STARVED:g}.{fits}"]


def pastes(verdict: Verdict) -> list[dict[str, list[str]]]:
    """List of {framework: settings to copy}, one for each correction that a tested rule chooses."""
    return list({one.arm: one.settings for one in verdict.deployed if one.settings}.values()) if verdict.answerable else []


def pasted(by_framework: dict[str, list[str]]) -> list[str]:
    """Lines of at most PASTED characters with the settings to copy. Faultline's own are left out if another program has some."""
    out: list[str] = []
    for name, settings in by_framework.items():
        if name == "Faultline" and len(by_framework) > 1:
            continue
        joint = ", " if name == "TRL" else " "
        first, *more = settings
        out.append(f"{name:<6} {first}")
        for setting in more:
            one = f"{out[-1]}{joint}{setting}"
            if len(one) <= PASTED:
                out[-1] = one
            else:
                out[-1] += joint.rstrip()
                out.append(f"{'':<6} {setting}")
    return out


def _scales(m: Mismatch, compared: Compared | None) -> list[str]:
    """Format the NEAREST published scales of K3, with that of the dump and the most that rounding explains among them."""
    nearest = sorted(SCALES, key=lambda scale: abs(log(scale.low * scale.high) / 2 - log(max(m.k3, 1e-300))))[:NEAREST]
    rows = [(scale.low, f"    {scale!s:<18}  {scale.what} ({scale.source})") for scale in nearest]
    interval = "" if m.k3_interval is None else ", 95 % interval {:.1e} to {:.1e}".format(*m.k3_interval)
    rows.append((m.k3, f">>> {m.k3:.1e}             this dump{interval}"))
    if compared is not None:
        rows.append((compared.most, f"    {compared.most:.1e}             {compared.what}: above it the dump is UNKNOWN"))
    return [line for _, line in sorted(rows, key=lambda row: row[0])]


def _narrow(verdict: Verdict) -> list[str]:
    """The limitations on intervals that are printed in any case: few responses, and a dump without the prompts' numbers."""
    few = verdict.dump.responses < FEW_RESPONSES
    return [line for line in verdict.limitations if line == UNGROUPED or (few and line.endswith(WIDE))]


def _ess(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
