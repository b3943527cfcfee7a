"""The answer of `faultline replay` on a dump: the verdict in the terminal, the page and the CSV files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import torch

from algos.corrections.spec import Correction
from algos.diagnostics.identity import by_place
from analysis.frames import show
from faultline import records
from faultline.tools.replay import page, terminal
from faultline.tools.replay.advice import Advisor, Target
from faultline.tools.replay.collect import Replayed, collect
from faultline.tools.replay.deployed import answers
from faultline.tools.replay.evidence import Evidence, known, of_run
from faultline.tools.replay.example import EXAMPLES, PRECISIONS, SOUND, example
from faultline.tools.replay.gate import Gate
from faultline.tools.replay.junit import write_junit
from faultline.tools.replay.persistence import Lasting, persistence
from faultline.tools.replay.sources import Dump
from faultline.tools.replay.verdict import KNOWN, PresetEffect, Verdict, compared, detailed, gated, judge, listed
from harness.errors import UserError, printable


def answer(
    path: Path,
    specs: dict[str, Correction],
    gates: list[Gate],
    *,
    example_name: str | None,
    chosen: bool,
    null: Path | None,
    skip_bad: bool,
    precision: str | None,
    baseline: Path | None,
    keep: float = 0.99,
    ess: float = 0.9,
    out: Path | None = None,
    tables: bool = False,
    as_json: bool = False,
    junit: Path | None = None,
    deploy: str | None = None,
) -> Verdict:
    """Print the verdict on the dump `path`, write the page and CSV files, and return the verdict.

    specs: the corrections by name. chosen: whether the user named them. gates: bounds of metrics, parsed. example_name, null,
    skip_bad, precision, baseline: as in `replay_command`, which has checked them. keep: share of tokens that a proposed filter
    must keep. ess: ESS that a proposed truncation must have. tables: print all numbers too. as_json: print only a `Verdict`.
    deploy: the policy that is deployed, trainer or sampler; both if None. junit: path of a JUnit file with the diagnosis and the
    gates as test cases.
    out: folder of the files; by default `replay` in the dump's folder, `<file>-replay` beside a file, `replay-example-NAME`.
    """
    torch.set_num_threads(1)
    target = Target(keep, ess)
    advisor, evidence = Advisor(target), Evidence(known(path, precision or PRECISIONS.get(example_name or ""), baseline))
    replayed = collect(Dump(path, skip_bad=skip_bad), specs, advisor, evidence)
    control = None if null is None else collect(Dump(null, skip_bad=skip_bad), specs)
    advice = advisor.propose(None if control is None else control.thresholds)
    name = EXAMPLES[example_name] if example_name else printable(path.resolve().name)
    diagnosis, tokens = evidence.diagnosis()
    copied = of_run(path) is None and evidence.copied(diagnosis)  # a run of Faultline scores its samples again
    verdict = judge(name, replayed, control, advice, target, diagnosis, None if chosen else KNOWN, copied)
    verdict = detailed(gated(verdict, gates, advice), tokens)
    notes = [None if copied else evidence.note(diagnosis), evidence.untested()] if diagnosis.kind == "consistent" else []
    verdict = verdict.model_copy(update={"compared": compared(diagnosis, evidence.facts)})
    verdict = _answered(verdict, persistence(Dump(path, skip_bad=skip_bad)), deploy, list(filter(None, notes)))
    shown = {name: verdict.presets} | ({} if example_name else _references(specs, verdict))
    out = out or _folder(path, example_name)
    verdict = page.write(out, verdict, shown, replayed, control, advice.bounds, by_place(tokens.pairs))
    if junit is not None:
        write_junit(junit, verdict)
    if as_json:
        print(json.dumps(verdict.model_dump(mode="json"), indent=2))  # ASCII: a stranger's names send the terminal no codes
        return verdict
    print(*terminal.lines(verdict), sep="\n")
    if tables or chosen:
        show("presets", page.corrections_table(replayed, control))
    if tables:
        _show_tables(replayed, page.advice_table(advice.bounds), target)
    print(printable(f"Page: {verdict.page}"))
    return verdict


def _answered(verdict: Verdict, lasting: Lasting, deploy: str | None, notes: list[str]) -> Verdict:
    """Return a verdict with the answer for each deployed policy, the persistence, and the limitations `notes` before its own."""
    rules = records.verdict()
    unknown = [f"Persistence: {lasting.why}."] if lasting.value is None else []
    more = {
        "deployed": answers(verdict, lasting, rules, list(rules) if deploy is None else [deploy]),
        "persistence": lasting.value,
        "persistence_note": lasting.why,
        "limitations": [*unknown, *notes, *verdict.limitations],
    }
    return verdict.model_copy(update=more)


def _references(specs: dict[str, Correction], verdict: Verdict) -> dict[str, list[PresetEffect]]:
    """Effects of the verdict's presets on the sound examples, by title. Left out are dumps that lack what a preset needs."""
    shown = {preset.preset: specs[preset.preset] for preset in verdict.presets}
    references: dict[str, list[PresetEffect]] = {}
    for name in SOUND:
        with suppress(UserError):
            references[EXAMPLES[name]] = listed(collect(Dump(example(name)), shown), None)
    return references


def _folder(path: Path, example_name: str | None) -> Path:
    if example_name:  # never into the installed package
        return Path(f"replay-example-{example_name}")
    return path / "replay" if path.is_dir() else path.with_name(f"{path.stem}-replay")


def _show_tables(replayed: Replayed, advice, target: Target) -> None:
    print(*page.summary(replayed), sep="\n")
    show("grid: share of tokens kept, ESS", page.grid_table(replayed))
    show(f"bounds that keep {target.kept:.2%} of the tokens, or have an ESS of {target.ess:g}", advice)
    if len(replayed.versions) > 1:
        show(page.BY_AGE, replayed.versions)
    for name, reason in replayed.skipped.items():
        print(printable(f"{name}: {reason}, so it is left out"))
