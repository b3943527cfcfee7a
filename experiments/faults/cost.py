"""`python -m experiments.faults.cost [SWEEP]`: print what the bug of `trained.py` cost, and draw the figures, from the record.

With the folder SWEEP its runs are read and recorded first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import png, subplots
from analysis.frames import markdown
from analysis.load import load
from analysis.marks import HUES, NEUTRAL
from analysis.statistics.dose import LAST
from analysis.statistics.tests import difference_p, holm
from experiments.faults.read import batch
from harness.boundary import command
from harness.diagnosis import run_facts

RECORD = Path(__file__).parents[1] / "study" / "bug"
PICTURE, LINES = Path("docs/bug-cost.png"), Path("docs/bug-cost-lines.png")
TITLE = "In a toy, vLLM's default logging took PPO in bypass mode from 0.85 to 0.10. The first batch showed it."
LINES_TITLE = "With raw log-probabilities a toy lost a quarter, half or far more of RL's gain: ten seeds"
SETTINGS = {"rollout": "PPO in verl's bypass mode", "sequence": "TRL's sequence mask", "token": "verl's token weights"}
"""Key of a setting of the plan, the level of its weight or else the loss' proximal policy -> its name."""
COLOURS = {False: NEUTRAL, True: HUES["fp8_tensor"]}
"""Whether a run has the bug -> its colour."""
HARMED = {"rollout": COLOURS[True], "sequence": HUES["int8"], "token": HUES["nvfp4"]}
"""Setting -> its colour with the bug, where all are in one picture."""
APART = 0.09
"""Least distance of two labels at the ends of lines, in reward."""


def runs(sweep: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the sweep: (held-out rewards of the trainer's policy, a row an evaluation; first dumps diagnosed, a row a run)."""
    results = load(sweep)
    rewards, dumps = [], []
    for run, config in results.configs.items():
        setting = config["correction"]["weight"]["level"] or config["proximal"]
        key = {"setting": setting, "bug": config["rollout"]["engine"]["name"] != "local", "seed": config["seed"]}
        steps = results.steps[results.steps.run == run].dropna(subset=["eval/reward"])
        rewards += [key | {"step": step, "reward": reward} for step, reward in zip(steps.step, steps["eval/reward"], strict=True)]
        dumps.append(key | _first(sweep / run, config))
    order = ["setting", "bug", "seed"]
    return pd.DataFrame(rewards).sort_values([*order, "step"]), pd.DataFrame(dumps).sort_values(order)


def _first(run: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What replay says of a run's first dump, before its first update."""
    own, _, tokens = batch(min((run / "dumps").glob("step-*.parquet")))
    found = run_facts(config).diagnose(own, None, tokens)
    numbers = {"k3": found.statistics["tails/k3"], "mean_ratio": found.statistics["identity/mean"]}
    return {"kind": found.kind, "named": found.fault or ""} | numbers


def recorded() -> tuple[pd.DataFrame, pd.DataFrame]:
    """What `runs` returned when it was recorded."""
    rewards, dumps = (pd.read_csv(RECORD / name, keep_default_na=False) for name in ("rewards.csv", "first.csv"))
    return rewards, dumps


def endpoints(rewards: pd.DataFrame) -> pd.DataFrame:
    """Endpoint of each run, the mean of its last LAST rewards: a row per setting and seed, a column per value of `bug`."""
    ends = rewards.groupby(["setting", "bug", "seed"])["reward"].apply(lambda values: values.tail(LAST).mean())
    return ends.unstack("bug")


def table(rewards: pd.DataFrame, dumps: pd.DataFrame) -> pd.DataFrame:
    """Rows for the page: per setting the mean endpoints, their difference with its p, and what the first dumps say."""
    ends = endpoints(rewards)
    ps = [
        difference_p(ends.loc[setting, True].to_numpy(), ends.loc[setting, False].to_numpy(), paired=True) for setting in SETTINGS
    ]
    rows = []
    for (setting, name), p, adjusted in zip(SETTINGS.items(), ps, holm(np.array(ps)), strict=True):
        right, bug = ends.loc[setting, False].to_numpy(), ends.loc[setting, True].to_numpy()
        own = dumps[dumps["setting"] == setting]
        rows.append(
            {
                "setting": name,
                "right": f"{right.mean():.2f}",
                "with the bug": f"{bug.mean():.2f}",
                "difference": f"{(bug - right).mean():+.3f}",
                "range over seeds": f"{(bug - right).min():+.3f}, {(bug - right).max():+.3f}",
                "p, Holm": f"{p:.3f}, {adjusted:.3f}",
                "first batch named": f"{(own[own.bug].named == 'raw_logprobs').sum()} of {own.bug.sum()}",
                "right ones consistent": f"{(own[~own.bug].kind == 'consistent').sum()} of {(~own.bug).sum()}",
            }
        )
    return pd.DataFrame(rows)


def _seeds(rewards: pd.DataFrame, setting: str, bug: bool) -> pd.DataFrame:
    """Held-out rewards of a setting, without the bug or with it: a row a step, a column a seed."""
    own = rewards[(rewards["setting"] == setting) & (rewards["bug"] == bug)]
    return own.pivot(index="step", columns="seed", values="reward")


def _draw(axis: Axes, rewards: pd.DataFrame, setting: str) -> None:
    """Draw a setting's held-out reward along the run, each seed thin and their mean thick, without the bug and with it."""
    for bug, colour in COLOURS.items():
        seeds = _seeds(rewards, setting, bug)
        axis.plot(seeds, color=colour, linewidth=0.7, alpha=0.5)
        axis.plot(seeds.mean(axis=1), color=colour, linewidth=2.5, label=f"with{'' if bug else 'out'} the bug, mean")


def picture(rewards: pd.DataFrame) -> Figure:
    """Draw the held-out rewards, a panel per setting."""
    figure, (axes,) = subplots(1, len(SETTINGS), 3.2, sharey=True)
    ends = endpoints(rewards)
    for axis, (setting, name) in zip(axes, SETTINGS.items(), strict=True):
        _draw(axis, rewards, setting)
        right, bug = (ends.loc[setting, bug].mean() for bug in (False, True))
        axis.set_title(f"{name}: {right:.2f} → {bug:.2f}", fontsize=9)
        axis.set_xlabel("RL step, temperature 0.7")
    axes[0].set_ylabel("held-out reward, ten seeds")
    axes[1].legend(loc="lower left")
    figure.suptitle(TITLE, fontsize=12, x=0.01, ha="left")
    return figure


def lines(rewards: pd.DataFrame) -> Figure:
    """Draw the mean reward of each setting with the bug, the first's without it, and as thin lines its seeds with the bug."""
    figure, ((axis,),) = subplots(1, 1, 3.0)
    ends = endpoints(rewards).groupby("setting").mean()
    axis.plot(_seeds(rewards, "rollout", True), color=HARMED["rollout"], linewidth=0.7, alpha=0.6)
    drawn = {"without the bug, in all three": ("rollout", False, NEUTRAL)}
    drawn |= {name: (setting, True, HARMED[setting]) for setting, name in SETTINGS.items()}
    height = 1.0
    for name, (setting, bug, colour) in sorted(drawn.items(), key=lambda item: -ends.loc[item[1][:2]]):
        axis.plot(_seeds(rewards, setting, bug).mean(axis=1), color=colour, linewidth=2.5)
        end = ends.loc[setting, bug]
        height = min(end, height - APART)
        said = f"{end:.2f}  {name}"
        axis.annotate(said, (1.01, height), xycoords=("axes fraction", "data"), va="center", color=colour, weight="bold")
    axis.margins(x=0)
    axis.set(ylim=(-0.04, 1), xlabel="RL step", ylabel="held-out reward")
    axis.set_title(LINES_TITLE, fontsize=11)
    return figure


def main(words: list[str]) -> None:
    if words:
        RECORD.mkdir(exist_ok=True)
        for name, frame in zip(("rewards.csv", "first.csv"), runs(Path(words[0])), strict=True):
            frame.to_csv(RECORD / name, index=False, float_format="%.6g", lineterminator="\n")
    rewards, dumps = recorded()
    print(markdown(table(rewards, dumps)))
    PICTURE.write_bytes(png(picture(rewards), dpi=130))
    LINES.write_bytes(png(lines(rewards), dpi=130))


if __name__ == "__main__":
    with command("interrupted; the same command starts again"):
        main(sys.argv[1:])
