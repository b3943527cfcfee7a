"""`faultline replay DUMP`."""

from __future__ import annotations

from pathlib import Path

import torch

from analysis.frames import show
from faultline.tools.replay import page
from faultline.tools.replay.advice import Advisor, Target
from faultline.tools.replay.collect import collect
from faultline.tools.replay.presets import presets
from faultline.tools.replay.sources import Dump
from harness.errors import UserError


def replay_command(
    path: Path,
    *,
    corrections: list[str] | None = None,
    null: Path | None = None,
    recommend: bool = False,
    keep: float | None = None,
    ess: float | None = None,
    skip_bad: bool = False,
    out: Path | None = None,
) -> Path:
    """Print what the corrections would have done to the dump at `path` and write page and CSV files; the page's path.

    corrections: names of presets or YAML files, all presets if None. null: a dump of the control, for false rejections.
    recommend: propose bounds that keep the share `keep` (0.99) of the tokens, or have an ESS of `ess` (0.9). out: folder of the
    files; by default `replay` in the dump's folder, or `<file>-replay` beside a file. Raises UserError on keep or ess without
    recommend.
    """
    for key, value in {"keep": keep, "ess": ess}.items():
        if value is not None and not recommend:
            raise UserError(f"--{key} {value:g} has no effect without --recommend; add it or leave --{key} out")
    target = Target(0.99 if keep is None else keep, 0.9 if ess is None else ess)
    torch.set_num_threads(1)
    specs = {name: preset.correction for name, preset in presets(corrections).items()}
    advisor = Advisor(target) if recommend else None
    print(f"reading {path}", flush=True)
    replayed = collect(Dump(path, skip_bad=skip_bad), specs, advisor)
    control = None if null is None else collect(Dump(null, skip_bad=skip_bad), specs)
    for line in page.summary(replayed):
        print(line)
    show("presets", page.corrections_table(replayed, control))
    show("grid: share of tokens kept, ESS", page.grid_table(replayed))
    advice = None
    if advisor is not None:
        advice = advisor.propose(None if control is None else control.thresholds)
        title = f"bounds that keep {target.kept:.2%} of the tokens, or have an ESS of {target.ess:g}"
        show(title, page.advice_table(advice))
    for name, reason in replayed.skipped.items():
        print(f"{name}: {reason}, so it is left out")
    print("drawing the page", flush=True)
    out = out or (path / "replay" if path.is_dir() else path.with_name(f"{path.stem}-replay"))
    return page.write(out, path.name, replayed, control, advice)
