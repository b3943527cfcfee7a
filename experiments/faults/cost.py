"""`python -m experiments.faults.cost [SWEEP]`: print what the bug of `trained.py` cost, and draw the figures, from the records.

With the folder of a sweep, runs/bug or runs/bug_smollm2, its runs are read and recorded first.
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
from experiments.plan import interval
from harness.boundary import command
from harness.diagnosis import run_facts
from harness.errors import UserError
from harness.run.folder import FINISHED

RECORDS = Path(__file__).parents[1] / "study"
TOY, SMOLLM2 = "bug", "bug_smollm2"
"""Sweeps of docs/bug-cost.md, and the folders of their records."""
PICTURE, LINES = Path("docs/bug-cost.png"), Path("docs/bug-cost-lines.png")
TITLE = "In a toy, vLLM's default logging took PPO in bypass mode from 0.85 to 0.10. The first batch showed it."
LINES_TITLE = "RL teaches SmolLM2-135M sums; PPO with raw log-probabilities falls below its start"
SETTINGS = {"rollout": "PPO in verl's bypass mode", "sequence": "TRL's sequence mask", "token": "verl's token weights"}
"""Key of a setting of the plan, the level of its weight or else the loss' proximal policy -> its name."""
COLOURS = {False: NEUTRAL, True: HUES["fp8_tensor"]}
"""Whether a run has the bug -> its colour."""
HARMED = {"rollout": COLOURS[True], "sequence": HUES["int8"], "token": HUES["nvfp4"]}
"""Setting -> its colour with the bug, where all are in one picture."""
APART = 0.09
"""Least distance of two labels at the ends of lines, in reward."""


def runs(sweep: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read the sweep: (held-out rewards of the trainer's policy, a row an evaluation; first dumps diagnosed, a row a run).

    Only of finished runs. With each dump: the mean ratio in the last step, and in the first and the last the share of tokens
    that the correction dropped, and that of responses cut at their longest. The toy's record is older than these.
    """
    results = load(sweep)
    rewards, dumps = [], []
    for run, config in results.configs.items():
        if results.runs.loc[run].state not in FINISHED:
            continue
        setting = config["correction"]["weight"]["level"] or config["proximal"]
        key = {"setting": setting, "bug": config["rollout"]["engine"]["name"] != "local", "seed": config["seed"]}
        steps = results.steps[results.steps.run == run]
        judged, trained = steps.dropna(subset=["eval/reward"]), steps.dropna(subset=["mismatch/ratio_mean"])
        pairs = zip(judged.step, judged["eval/reward"], strict=True)
        rewards += [key | {"step": step, "reward": reward} for step, reward in pairs]
        first, last = trained.iloc[0], trained.iloc[-1]
        seen = {"last_ratio": last["mismatch/ratio_mean"]}
        for name, metric in {"dropped": "correction/weight_zero", "truncated": "rollout/truncated"}.items():
            seen |= {name: first[metric], f"last_{name}": last[metric]}
        dumps.append(key | _first(sweep / run, config) | seen)
    order = ["setting", "bug", "seed"]
    return pd.DataFrame(rewards).sort_values([*order, "step"]), pd.DataFrame(dumps).sort_values(order)


def _first(run: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What replay says of a run's first dump, before its first update."""
    own, _, tokens = batch(min((run / "dumps").glob("step-*.parquet")))
    found = run_facts(config).diagnose(own, None, tokens)
    numbers = {"k3": found.statistics["tails/k3"], "mean_ratio": found.statistics["identity/mean"]}
    return {"kind": found.kind, "named": found.fault or ""} | numbers


def recorded(sweep: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What `runs` returned of a sweep, bug or bug_smollm2, when it was recorded. SmolLM2's settings share PPO's control."""
    rewards, dumps = (pd.read_csv(RECORDS / sweep / name, keep_default_na=False) for name in ("rewards.csv", "first.csv"))
    return (controlled(rewards), controlled(dumps)) if sweep == SMOLLM2 else (rewards, dumps)


def controlled(frame: pd.DataFrame) -> pd.DataFrame:
    """Give settings without runs without the bug those of PPO: they are the one control of SmolLM2's three settings."""
    shared = frame[(frame.setting == "rollout") & ~frame.bug]
    lacking = sorted(set(SETTINGS) - set(frame[~frame.bug].setting))
    return pd.concat([frame, *(shared.assign(setting=name) for name in lacking)])


def endpoints(rewards: pd.DataFrame) -> pd.DataFrame:
    """Endpoint of each run, the mean of its last LAST rewards: a row per setting and seed, a column per value of `bug`."""
    ends = rewards.groupby(["setting", "bug", "seed"])["reward"].apply(lambda values: values.tail(LAST).mean())
    return ends.unstack("bug")


def table(rewards: pd.DataFrame, dumps: pd.DataFrame) -> pd.DataFrame:
    """Rows for the page: per setting the mean endpoints, their difference with its p, and what the first dumps say.

    95 %: Student's t interval of the paired difference, not adjusted.
    """
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
                "95 %": "{:+.3f}, {:+.3f}".format(*interval(bug, right, paired=True)),
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
    """Draw the mean reward of each setting with the bug, the control's without it, and their seeds as thin lines."""
    figure, ((axis,),) = subplots(1, 1, 3.0)
    drawn = {f"{name}, with the bug": (setting, True, HARMED[setting]) for setting, name in SETTINGS.items()}
    drawn["PPO, without the bug"] = ("rollout", False, NEUTRAL)
    seeds = {name: _seeds(rewards, setting, bug) for name, (setting, bug, _) in drawn.items()}
    means = {name: rewards.mean(axis=1).round(9) for name, rewards in seeds.items()}  # 0.115 is not 0.114999…
    height = 1.0
    for name in sorted(drawn, key=lambda name: -means[name].iloc[-1]):
        colour, end = drawn[name][-1], means[name].iloc[-1]
        height = min(end, height - APART)
        place = {"xytext": (1.05, height), "textcoords": "axes fraction", "va": "center", "color": colour, "weight": "bold"}
        axis.annotate(
            f"{end:.2f}  {name}",
            (seeds[name].index[-1], end),
            arrowprops={"arrowstyle": "-", "color": colour, "relpos": (0, 0.5)},
            **place,
        )
    for name, (*_, colour) in drawn.items():  # the control last, over the others
        axis.plot(seeds[name], color=colour, linewidth=0.7, alpha=0.5)
        axis.plot(
            means[name], color=colour, linewidth=2.5, marker="o", markersize=4, linestyle="--" if colour == NEUTRAL else "-"
        )
    axis.margins(x=0)
    number = seeds["PPO, without the bug"].shape[1]
    axis.set(ylim=(0, 1), xlabel=f"RL step; thick: mean of {number} seeds", ylabel="share of held-out sums solved")
    axis.set_title(LINES_TITLE, fontsize=10.5)
    return figure


def main(words: list[str]) -> None:
    if words:
        sweep = Path(words[0])
        if sweep.resolve().name not in (TOY, SMOLLM2):
            raise UserError(f"{sweep}: give the folder of a sweep of docs/bug-cost.md, runs/{TOY} or runs/{SMOLLM2}")
        folder = RECORDS / sweep.resolve().name
        folder.mkdir(exist_ok=True)
        for name, frame in zip(("rewards.csv", "first.csv"), runs(sweep), strict=True):
            frame.to_csv(folder / name, index=False, float_format="%.6g", lineterminator="\n")
    for name in (TOY, SMOLLM2):
        print(markdown(table(*recorded(name))), end="\n\n")
    PICTURE.write_bytes(png(picture(recorded(TOY)[0]), dpi=130))
    LINES.write_bytes(png(lines(recorded(SMOLLM2)[0]), dpi=130))


if __name__ == "__main__":
    with command("interrupted; the same command starts again"):
        main(sys.argv[1:])
