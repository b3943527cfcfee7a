"""The tests of the second study: `python -m experiments.second FOLDER [SWEEP ...]`.

The plan is in docs/study.md. Written are FOLDER/endpoints.csv, a row per run and policy, FOLDER/long.csv, the held-out rewards
of the long runs, and FOLDER/table.md, arms and tests. Rows that the first already has stay, so that the lists of the plan may
run one after another and on several machines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student
from scipy.stats import ttest_ind

from analysis.frames import markdown
from analysis.judged import DEPLOYED
from analysis.load import load
from analysis.statistics import dose
from analysis.statistics.equivalence import equivalent_p, non_inferior_p
from analysis.statistics.survival import difference_p, holm_of_planned
from harness.boundary import command
from harness.errors import UserError
from harness.run.folder import FINISHED

SEEDS, LATER = {40, 41, 42, 43, 44}, {45, 46, 47}
"""Of every arm; and of the control, and of the arms that list 9 names."""
OWN, SAMPLING = DEPLOYED["trainer"], DEPLOYED["rollout"]
ARM = ["precision", "noise", "persistence", "correction", "setting"]
KEYS = ["policy", *ARM, "seed"]


class Arm(NamedTuple):
    precision: str = "fp32"
    noise: float = 0.0
    persistence: float = 0.0
    correction: str = "none"
    setting: str = "base"  # or what a list of the continuation varies: a loss, the task or the steps

    def __str__(self) -> str:
        noise = f"noise {self.noise:g}, persistence {self.persistence:g}" if self.noise else ""
        parts = [self.setting.replace("base", ""), self.precision, noise, self.correction.replace("none", "")]
        return ", ".join(filter(None, parts))


class Family(NamedTuple):
    """Comparisons that share Holm's adjustment. p: of the values of an arm and of its reference."""

    name: str
    policy: str
    p: Callable[[np.ndarray, np.ndarray], float]
    pairs: list[tuple[Arm, Arm]]


def no_worse(x: np.ndarray, y: np.ndarray) -> float:
    return non_inferior_p(x, y, 0.05, np.random.default_rng(0))


def equivalent(x: np.ndarray, y: np.ndarray) -> float:
    return equivalent_p(x, y, 0.02, np.random.default_rng(0))


PERSISTENT = 0.5
"""Persistence over 20 syncs above which a precision is held against fixed noise alone."""
CONTROL, BF16 = Arm(), Arm("bf16")
NOISES, TWO = (0.02, 0.05, 0.1, 0.2, 0.4), (0.1, 0.2)
PRECISIONS = [Arm(name) for name in ("fp16", "bf16", "fp8_block", "fp8_tensor", "int8", "nvfp4", "nvfp4_w4a4")]
REMEDIES, OTHERS = ("token-truncate", "sequence-truncate", "sequence-mask"), ("reject-geo_rs", "token-mask")


def noisy(size: float, persistence: float, correction: str = "none", setting: str = "base") -> Arm:
    return Arm("fp32", size, persistence, correction, setting)


LIST_9 = [noisy(size, persistence) for size in TWO for persistence in (1, 0)]
LIST_9 += [noisy(size, 1, name) for size in TWO for name in ("token-truncate", "sequence-truncate")]


def remedied(persistence: float, corrections: tuple[str, ...]) -> list[tuple[Arm, Arm]]:
    return [(noisy(size, persistence, name), noisy(size, persistence)) for size in TWO for name in corrections]


def continued(setting: str) -> dict[str, tuple[Arm, Arm]]:
    """The comparisons of the continuation's plan in one setting, by name."""
    control, fresh, fixed = Arm(setting=setting), noisy(0.2, 0, setting=setting), noisy(0.2, 1, setting=setting)
    truncated = noisy(0.2, 1, "token-truncate", setting)
    return {"harm": (fixed, control), "fresh": (fresh, control), "persistence": (fixed, fresh), "remedy": (truncated, fixed)}


PPO, CISPO, WIDE, LONG = (continued(setting) for setting in ("ppo", "cispo", "modulus 20", "2800 steps"))

FAMILIES = [
    Family("F1 persistence", OWN, difference_p, [(noisy(size, 1), noisy(size, 0)) for size in NOISES]),
    Family("F2 fresh noise", OWN, difference_p, [(noisy(size, 0), CONTROL) for size in NOISES]),
    Family("F3 fixed noise", OWN, difference_p, [(noisy(size, 1), CONTROL) for size in NOISES]),
    Family("F4 remedies, own", OWN, difference_p, remedied(1, REMEDIES)),
    Family("F5 remedies, sampling", SAMPLING, difference_p, remedied(1, REMEDIES)),
    Family("F6 other remedies", OWN, difference_p, remedied(1, OTHERS)),
    Family("F7 remedies of fresh noise", OWN, difference_p, remedied(0, REMEDIES)),
    Family("F8 precision", OWN, difference_p, [(arm, CONTROL) for arm in PRECISIONS]),
    Family("F9 precision, sampling", SAMPLING, difference_p, [(arm, CONTROL) for arm in PRECISIONS]),
    Family("F10 no worse by 0.05", OWN, no_worse, [(arm, CONTROL) for arm in PRECISIONS]),
    Family(
        "F11 equivalent within 0.02", OWN, equivalent, [(Arm("bf16", correction=name), BF16) for name in (*REMEDIES, *OTHERS)]
    ),
    Family("F12 between", OWN, difference_p, [(noisy(size, 0.5), noisy(size, other)) for size in TWO for other in (0, 1)]),
    Family("F13 losses, fixed noise", OWN, difference_p, [PPO["harm"], CISPO["harm"]]),
    Family("F14 losses, persistence", OWN, difference_p, [PPO["persistence"], CISPO["persistence"]]),
    Family("F15 losses, token truncation", OWN, difference_p, [PPO["remedy"], CISPO["remedy"]]),
    Family("F16 larger vocabulary", OWN, difference_p, [WIDE[name] for name in ("harm", "persistence", "remedy")]),
    Family("F17 horizon", OWN, difference_p, [LONG[name] for name in ("harm", "fresh", "persistence")]),
]


def setting(config: dict[str, Any]) -> str:
    """What a run has otherwise than the second study's base, as `Arm.setting` names it."""
    loss, modulus, steps = config["loss"]["name"], config["task"]["modulus"], config["steps"]
    found = [(loss, "pg", "{}"), (modulus, 7, "modulus {}"), (steps, 280, "{} steps")]
    return ", ".join(words.format(value) for value, base, words in found if value != base) or "base"


def endpoints(sweep: Path) -> pd.DataFrame:
    """A row per finished run and policy: policy, the columns of an arm, seed, reward (mean of the last three held-out
    evaluations), k3, measured (persistence over 20 syncs), outcome. A run that has collapsed and goes on is none yet."""
    results = load(sweep)
    finished = results.runs.index[results.runs.state.isin(FINISHED)]
    runs = results.dosed[results.dosed.index.isin(finished)].rename(columns={"response": "reward"})
    runs["setting"] = [setting(results.configs[run]) for run in runs.index]
    if runs.duplicated(KEYS).any():
        varied = "precision, noise, correction, loss, modulus and steps"
        raise UserError(f"{sweep}: two runs of one arm and seed; the study varies only {varied}")
    return runs.join(results.ended.outcome, how="left")[[*KEYS, "reward", "k3", "measured", "outcome"]]


def long_curves(sweep: Path) -> pd.DataFrame:
    """A row per evaluation of the runs of 2,800 steps: noise, persistence, seed, step, own and sampling policy's reward."""
    results = load(sweep)
    runs = results.dosed[results.dosed.policy == OWN][["noise", "persistence", "seed"]]
    runs = runs[[setting(results.configs[run]) == "2800 steps" for run in runs.index]]
    rewards = {"eval/reward": "own", "eval/rollout_reward": "sampling"}
    rows = results.steps.assign(run=results.steps.run.astype(str)).reindex(columns=["run", "step", *rewards])
    rows = rows.rename(columns=rewards).dropna(subset="own").join(runs, on="run", how="inner")
    columns = ["noise", "persistence", "seed", "step"]
    return rows[[*columns, "own", "sampling"]].sort_values(columns)


def complete(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the arms that have all seeds of their list. Those of list 9 count once all of its arms have them."""
    seeds = {Arm(*key): set(part.seed) for key, part in runs.groupby(ARM)}
    own = SEEDS | LATER if all(seeds.get(arm, set()) >= SEEDS | LATER for arm in LIST_9) else SEEDS
    wanted = {arm: SEEDS | LATER if arm == CONTROL else own if arm in LIST_9 else SEEDS for arm in seeds}
    arm = pd.Series([Arm(*key) for key in runs[ARM].itertuples(index=False)], runs.index, dtype=object)
    keep = [seeds[one] >= wanted[one] and seed in wanted[one] for one, seed in zip(arm, runs.seed, strict=True)]
    return runs[keep]


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per comparison whose two arms are complete: family, policy, arm, reference, their means, the difference with its 95 %
    interval (Welch's t), p and Holm's p. One that was planned and has no runs counts in its family, with p = 1."""
    arms = {key: part.reward for key, part in complete(runs).groupby(["policy", *ARM])}
    rows = []
    for family in FAMILIES:
        found = []
        for arm, reference in family.pairs:
            if not {(family.policy, *arm), (family.policy, *reference)} <= arms.keys():
                continue
            x, y = arms[family.policy, *arm], arms[family.policy, *reference]
            names = {"family": family.name, "policy": family.policy, "arm": str(arm), "reference": str(reference)}
            low, high = ttest_ind(x, y, equal_var=False).confidence_interval()
            means = {"mean": x.mean(), "of reference": y.mean(), "difference": x.mean() - y.mean(), "low": low, "high": high}
            found.append(names | means | {"p": family.p(x.to_numpy(), y.to_numpy())})
        adjusted = holm_of_planned([row["p"] for row in found], len(family.pairs))
        rows += [row | {"holm_p": p} for row, p in zip(found, adjusted, strict=True)]
    columns = ["family", "policy", "arm", "reference", "mean", "of reference", "difference", "low", "high", "p", "holm_p"]
    return pd.DataFrame(rows, columns=columns)


def arms(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per complete arm, as people read it: its K3, persistence and rewards of both policies by seed."""
    rows = []
    for key, part in complete(runs).groupby(ARM):
        measured = part.measured.dropna()  # none where every ratio is exactly 1
        row = {"arm": str(Arm(*key)), "K3": f"{part.k3.median():.1e}"}
        row |= {"persistence": f"{measured.median():.2f}" if len(measured) else "–"}
        for policy, name in ((OWN, "trainer's own"), (SAMPLING, "sampling")):
            rewards = part[part.policy == policy].sort_values("seed").reward
            row |= {f"{name}, mean": f"{rewards.mean():.3f}", name: " ".join(f"{value:.2f}" for value in rewards)}
        rows.append(row | {"collapsed": f"{(part[part.policy == OWN].outcome == 'collapsed').sum()}/{part.seed.nunique()}"})
    return pd.DataFrame(rows)


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """`analysis.statistics.dose.points` of the second study's own complete arms."""
    own = complete(runs)
    own = own[own.setting == "base"].rename(columns={"reward": "response"})
    control = (own.precision == CONTROL.precision) & (own.noise == 0) & (own.correction == "none")
    return own.assign(loss="pg", setting="", control=control)


def placed(runs: pd.DataFrame) -> pd.DataFrame:
    """H3, a row per policy and real precision: its mean reward with its 95 % interval (Student's t), the curves of fresh and of
    fixed noise at its K3 with their bands, and whether the interval meets what they span. A precision that persists is held
    against fixed noise alone."""
    table = points(runs)
    curves = {(curve.policy, curve.persistence): curve for curve in dose.curves(table) if curve.correction == "none"}
    rows = []
    for arm in dose.precisions(table):
        beside = [curves.get((arm.policy, persistence)) for persistence in (0.0, 1.0)]
        if arm.correction != "none" or any(curve is None or curve.level is None for curve in beside):
            continue
        mean, runs_of_arm = arm.responses.mean(), len(arm.responses)
        half = student.ppf(0.975, runs_of_arm - 1) * arm.responses.std(ddof=1) / runs_of_arm**0.5
        fresh, fixed = (curve.at(arm.k3) for curve in beside if curve is not None)
        against = [fixed] if arm.measured > PERSISTENT else [fresh, fixed]
        low, high = min(band[1] for band in against), max(band[2] for band in against)
        row = {"policy": arm.policy, "precision": arm.precision, "K3": f"{arm.k3:.1e}", "persistence": f"{arm.measured:.2f}"}
        row |= {"reward": f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"}
        row |= {name: f"{band[0]:.3f} ({band[1]:.3f} to {band[2]:.3f})" for name, band in (("fresh", fresh), ("fixed", fixed))}
        rows.append(row | {"on the curve": "yes" if mean - half <= high and low <= mean + half else "no"})
    return pd.DataFrame(rows)


def unchanged(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per correction of the exact control: its runs, and how far their rewards are from the control's of the same seed."""
    exact = runs[(runs.precision == CONTROL.precision) & (runs.noise == 0) & (runs.setting == CONTROL.setting)]
    control = exact[exact.correction == "none"].set_index(["policy", "seed"]).reward
    rows = []
    for correction, part in exact[exact.correction != "none"].groupby("correction"):
        away = (part.set_index(["policy", "seed"]).reward - control).dropna().abs().max()
        rows.append({"correction of the exact control": correction, "runs": part.seed.nunique(), "largest difference": away})
    return pd.DataFrame(rows)


def as_read(table: pd.DataFrame) -> pd.DataFrame:
    ends = ["difference", "low", "high"]
    difference = [f"{d:+.3f} ({low:+.3f} to {high:+.3f})" for d, low, high in zip(*(table[name] for name in ends), strict=True)]
    shown = table[["family", "arm", "reference"]].assign(difference=difference)
    return shown.assign(p=table.p.map("{:.4f}".format), **{"Holm's p": table.holm_p.map("{:.3f}".format)})


def main(out: Path, sweeps: list[Path]) -> None:
    kept = out / "endpoints.csv"
    recorded = [pd.read_csv(kept, float_precision="round_trip")] if kept.exists() else []
    if not recorded and not sweeps:
        raise UserError(f"{out}: it has no endpoints.csv, and no sweep is named; name sweeps after it, as runs/second")
    out.mkdir(parents=True, exist_ok=True)
    runs = pd.concat(recorded + [endpoints(sweep) for sweep in sweeps])
    runs = runs.drop_duplicates(KEYS).sort_values(KEYS).reset_index(drop=True)
    runs.to_csv(kept, index=False)  # to the last bit: rewards that are equal must stay so
    curves = [curve for curve in map(long_curves, sweeps) if len(curve)]
    if curves:
        pd.concat(curves).to_csv(out / "long.csv", index=False)
    text = "\n\n".join(markdown(table) for table in (arms(runs), as_read(compared(runs)), placed(runs), unchanged(runs))) + "\n"
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with command():
        main(Path(*sys.argv[1:2]), [Path(sweep) for sweep in sys.argv[2:]])
