"""`make demo`: find the mismatch that harms a small run most, ask for the verdict on it, and train as the verdict proposes.

    python -m experiments.demo 80,81
    python -m experiments.demo 80 steps=40        # with overrides for all runs

Runs without a correction sample in fp32 (the exact control), BF16, FP8 or W4A4, or with a synthetic error of the weights. The
error is drawn anew at each sync (fresh) or kept (fixed). `faultline replay` then reads the first dump of the runs that end
furthest below the control. They train again with the correction that its verdict proposes. The last line compares control,
harmed runs and corrected runs. Ended runs are not repeated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from analysis.load import load
from analysis.results import Results
from analysis.statistics.dose import LAST
from harness.boundary import command
from harness.compose import compose
from harness.config import parse
from harness.errors import UserError

ARMS = {
    "control": "exact control",
    "bf16": "BF16",
    "fp8": "FP8",
    "w4a4": "W4A4",
    "fresh": "synthetic error, fresh",
    "fixed": "synthetic error, fixed",
}
"""Name of each arm in the demo's table. The key of an arm is the ARM of its +experiment=demo/ARM."""
EARLY = 20
"""Number of steps at the start of a run whose median K3 the demo's table shows."""


class End(NamedTuple):
    """Results over an arm's seeds. k3: median over the first EARLY steps, in nats per token. trainer, sampler: mean of the last
    LAST held-out rewards of the trainer's policy and of the policy that samples."""

    k3: float
    trainer: float
    sampler: float


def main(words: list[str]) -> None:
    """Run the demo. words: seeds separated by commas, then config overrides of all runs. Raises UserError without seeds."""
    try:
        seeds = [int(word) for word in words[0].split(",")]
    except (IndexError, ValueError):
        raise UserError("give the seeds first, as in: python -m experiments.demo 80,81") from None
    common = words[1:]
    _train(seeds, ",".join(f"demo/{arm}" for arm in ARMS), *common)
    runs = {arm: paths(arm, seeds, *common) for arm in ARMS}
    sweep = runs["control"][0].parent
    results = load(sweep)
    ends = {arm: end(results, runs[arm]) for arm in ARMS}
    harmed = min(list(ARMS)[1:], key=lambda arm: ends[arm].trainer)
    settings = proposed(_verdict(runs[harmed][0]))
    followed = None
    if settings:
        _train(seeds, f"demo/{harmed}", *common, *settings)
        followed = end(load(sweep), paths(harmed, seeds, *common, *settings))
    _call("faultline", "report", str(sweep))
    print("\n" + "\n".join(table(ends, harmed, followed)))
    print("\n" + outcome(ends["control"], ends[harmed], followed, ARMS[harmed], " ".join(settings), len(seeds)))


def paths(arm: str, seeds: list[int], *settings: str) -> list[Path]:
    """Folders of the runs of experiment demo/`arm` with the overrides `settings`, one per seed, in the order of the seeds."""
    return [parse(compose(f"+experiment=demo/{arm}", f"seed={seed}", *settings)).path for seed in seeds]


def end(results: Results, runs: list[Path]) -> End:
    """Read the median K3 of the first EARLY steps of `runs`, and their mean rewards over the last LAST evaluations."""
    steps = results.steps[results.steps.run.isin([path.name for path in runs])]
    judged = steps.dropna(subset=["eval/reward"]).groupby("run", observed=True).tail(LAST)
    early = steps[steps.step < EARLY]["rollout_corr/k3_kl"].median()
    return End(early, judged["eval/reward"].mean(), judged["eval/rollout_reward"].mean())


def proposed(verdict: dict[str, Any]) -> list[str]:
    """Config overrides that `faultline replay --json` names for deploying the trainer's policy; empty for no correction."""
    (chosen,) = (one for one in verdict["deployed"] if one["policy"] == "trainer")
    return chosen["settings"].get("Faultline", [])


def table(ends: dict[str, End], harmed: str, followed: End | None) -> list[str]:
    """Lines of the demo's table: a row per kind of run, and one for `followed`: kind `harmed` with the proposed correction."""
    rows = {ARMS[arm]: end for arm, end in ends.items()}
    if followed:
        rows[f"{ARMS[harmed]}, as the verdict says"] = followed
    lines = [f"{'held-out reward at the end':<45}{'trainer':>8}{'sampler':>9}{'first K3':>10}"]
    return lines + [f"{name:<45}{end.trainer:8.2f}{end.sampler:9.2f}{end.k3:10.1e}" for name, end in rows.items()]


def outcome(control: End, none: End, followed: End | None, name: str, settings: str, seeds: int) -> str:
    """Sentence on the kind of run `name`: the reward that the trainer lost, the proposed correction, and the reward regained.

    none, followed: results without a correction and with the proposed one, whose config overrides are `settings`.
    """
    lost = control.trainer - none.trainer
    if followed is None:
        return f"The verdict proposed no correction for {name}, which ended {lost:.2f} below the control."
    gained = followed.trainer - none.trainer
    share = f" ({gained / lost:.0%} of what was lost)" if lost > 0 else ""
    came = f"the reward rose by {gained:.2f}{share}" if gained >= 0 else f"the reward fell by {-gained:.2f} further"
    few = f"{seeds} {'seed proves' if seeds == 1 else 'seeds prove'} nothing yet"
    return f"{name} cost {lost:.2f}. The verdict said {settings}; with it {came}. {few[0].upper()}{few[1:]}."


def _verdict(run: Path) -> dict[str, Any]:
    """Print the first block of `faultline replay` for the first dump of a run, and return the parsed output of its --json."""
    dump = str(min((run / "dumps").glob("step-*.parquet")))
    print(f"\nThe verdict on the first step of the arm that was harmed most ({dump}):\n", flush=True)
    text = _faultline("replay", dump, "--deploy", "trainer")
    print(text.partition("\nMismatch before")[0], flush=True)
    return json.loads(_faultline("replay", dump, "--json"))


def _faultline(*words: str) -> str:
    return subprocess.run([sys.executable, "-m", "faultline", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def _train(seeds: list[int], experiments: str, *settings: str) -> None:
    chosen = [f"+experiment={experiments}", f"seed={','.join(map(str, seeds))}", *settings]  # warm starts of two seeds at once
    _call("experiments.train", "-m", "hydra/launcher=local", *chosen)


def _call(module: str, *words: str) -> None:
    """Run a Python module as a command until it ends. Raises SystemExit with its exit code if it fails."""
    if code := subprocess.run([sys.executable, "-m", module, *words]).returncode:
        raise SystemExit(code)


if __name__ == "__main__":
    with command("interrupted; the same command goes on from there"):
        main(sys.argv[1:])
