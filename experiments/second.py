"""The tests of the second study: `python -m experiments.second FOLDER [SWEEP ...]`.

The plan is in docs/study.md. The command writes three files. FOLDER/endpoints.csv has a row per run and policy,
FOLDER/long.csv the held-out rewards of the long runs, and FOLDER/table.md the results and tests. Existing rows of
endpoints.csv are kept, so that the plan's lists of runs may be made one after another and on several machines.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from analysis.judged import DEPLOYED
from analysis.load import load
from analysis.statistics import dose
from analysis.statistics.tests import difference_p, equivalent_p, non_inferior_p
from experiments.plan import Comparisons, StudyPlan, Test, interval, publish, record, recorded
from harness.boundary import command
from harness.errors import UserError
from harness.run.folder import FINISHED

OWN, SAMPLING = DEPLOYED["trainer"], DEPLOYED["rollout"]
ARM = ["precision", "noise", "persistence", "correction", "setting"]
KEYS = ["policy", *ARM, "seed"]
LATER = {45, 46, 47}
"""Further seeds of the exact control and of the kinds of runs in list 9 of docs/study.md."""
PERSISTENT = 0.5
"""Correlation of the tokens' log ratios (log π − log μ) before and after 20 weight syncs. Above it a precision counts as
persistent: it is compared only with runs whose injected noise is the same at every sync."""
START = 0.484375
"""Held-out reward, at step 0 of long.csv, of the supervised policy from which the study's runs on its base task begin."""


def arm(
    precision: str = "fp32", noise: float = 0.0, persistence: float = 0.0, correction: str = "none", setting: str = "base"
) -> str:
    """Name of an arm. setting: its difference from the study's base, such as a loss or task. noise: size of the
    noise on the engine's weights, relative to them. persistence: its correlation from one weight sync to the next.
    """
    noisy = f"noise {noise:g}, persistence {persistence:g}" if noise else ""
    return ", ".join(filter(None, [setting.replace("base", ""), precision, noisy, correction.replace("none", "")]))


def noisy(size: float, persistence: float, correction: str = "none", setting: str = "base") -> str:
    return arm("fp32", size, persistence, correction, setting)


CONTROL, BF16 = arm(), arm("bf16")
NOISES, TWO = (0.02, 0.05, 0.1, 0.2, 0.4), (0.1, 0.2)
PRECISIONS = [arm(name) for name in ("fp16", "bf16", "fp8_block", "fp8_tensor", "int8", "nvfp4", "nvfp4_w4a4")]
REMEDIES, OTHERS = ("token-truncate", "sequence-truncate", "sequence-mask"), ("reject-geo_rs", "token-mask")
LIST_9 = [noisy(size, persistence) for size in TWO for persistence in (1, 0)]
LIST_9 += [noisy(size, 1, name) for size in TWO for name in ("token-truncate", "sequence-truncate")]

Pairs = list[tuple[str, str]]


def remedied(persistence: float, corrections: tuple[str, ...]) -> Pairs:
    return [(noisy(size, persistence, name), noisy(size, persistence)) for size in TWO for name in corrections]


def continued(setting: str) -> dict[str, tuple[str, str]]:
    """The planned comparisons (arm, reference arm), by name, under one difference from the study's base, such as a loss."""
    control, fresh, fixed = arm(setting=setting), noisy(0.2, 0, setting=setting), noisy(0.2, 1, setting=setting)
    truncated = noisy(0.2, 1, "token-truncate", setting)
    return {"harm": (fixed, control), "fresh": (fresh, control), "persistence": (fixed, fresh), "remedy": (truncated, fixed)}


def judged(name: str, pairs: Pairs, test: Test = difference_p, policy: str = OWN) -> Comparisons:
    return Comparisons(name, pairs, test, {"policy": policy})


PPO, CISPO, WIDE, LONG = (continued(setting) for setting in ("ppo", "cispo", "modulus 20", "2800 steps"))
PLAN = StudyPlan(
    families=[
        judged("F1 persistence", [(noisy(size, 1), noisy(size, 0)) for size in NOISES]),
        judged("F2 fresh noise", [(noisy(size, 0), CONTROL) for size in NOISES]),
        judged("F3 fixed noise", [(noisy(size, 1), CONTROL) for size in NOISES]),
        judged("F4 remedies, own", remedied(1, REMEDIES)),
        judged("F5 remedies, sampling", remedied(1, REMEDIES), policy=SAMPLING),
        judged("F6 other remedies", remedied(1, OTHERS)),
        judged("F7 remedies of fresh noise", remedied(0, REMEDIES)),
        judged("F8 precision", [(name, CONTROL) for name in PRECISIONS]),
        judged("F9 precision, sampling", [(name, CONTROL) for name in PRECISIONS], policy=SAMPLING),
        judged("F10 no worse by 0.05", [(name, CONTROL) for name in PRECISIONS], partial(non_inferior_p, margin=0.05)),
        judged(
            "F11 equivalent within 0.02",
            [(arm("bf16", correction=name), BF16) for name in (*REMEDIES, *OTHERS)],
            partial(equivalent_p, margin=0.02),
        ),
        judged("F12 between", [(noisy(size, 0.5), noisy(size, other)) for size in TWO for other in (0, 1)]),
        judged("F13 losses, fixed noise", [PPO["harm"], CISPO["harm"]]),
        judged("F14 losses, persistence", [PPO["persistence"], CISPO["persistence"]]),
        judged("F15 losses, token truncation", [PPO["remedy"], CISPO["remedy"]]),
        judged("F16 larger vocabulary", [WIDE[name] for name in ("harm", "persistence", "remedy")]),
        judged("F17 horizon", [LONG[name] for name in ("harm", "fresh", "persistence")]),
    ],
    seeds=range(40, 45),
    more={CONTROL: LATER},
    together=[(LIST_9, LATER)],
)


def setting(config: dict[str, Any]) -> str:
    """The difference of a run's config from the study's base, such as a loss, in the words of the tables; `base` if none."""
    loss, modulus, steps = config["loss"]["name"], config["task"]["modulus"], config["steps"]
    found = [(loss, "pg", "{}"), (modulus, 7, "modulus {}"), (steps, 280, "{} steps")]
    return ", ".join(words.format(value) for value, base, words in found if value != base) or "base"


def endpoints(sweep: Path) -> pd.DataFrame:
    """Table with a row per finished run and policy: KEYS (policy, seed and the arm's parts), reward, k3, measured, outcome.

    reward: mean of the last three held-out evaluations. k3: nats per token. measured: correlation of the log ratios over 20
    syncs. k3 and measured are medians over steps. Unfinished runs are left out, even after a collapse. Raises UserError if two
    runs have equal KEYS.
    """
    results = load(sweep)
    finished = results.runs.index[results.runs.state.isin(FINISHED)]
    runs = results.dosed[results.dosed.index.isin(finished)].rename(columns={"response": "reward"})
    runs["setting"] = [setting(results.configs[run]) for run in runs.index]
    if runs.duplicated(KEYS).any():
        varied = "precision, noise, correction, loss, modulus and steps"
        raise UserError(f"{sweep}: two runs of one arm and seed; the study varies only {varied}")
    return runs.join(results.ended.outcome, how="left")[[*KEYS, "reward", "k3", "measured", "outcome"]]


def long_curves(sweep: Path) -> pd.DataFrame:
    """A row per evaluation of the runs of 2,800 steps: noise, persistence, seed, step, and held-out rewards of both policies."""
    results = load(sweep)
    runs = results.dosed[results.dosed.policy == OWN][["noise", "persistence", "seed"]]
    runs = runs[[setting(results.configs[run]) == "2800 steps" for run in runs.index]]
    rewards = {"eval/reward": "own", "eval/rollout_reward": "sampling"}
    rows = results.steps.assign(run=results.steps.run.astype(str)).reindex(columns=["run", "step", *rewards])
    rows = rows.rename(columns=rewards).dropna(subset="own").join(runs, on="run", how="inner")
    columns = ["noise", "persistence", "seed", "step"]
    return rows[[*columns, "own", "sampling"]].sort_values(columns)


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the table of runs with a further column `arm`, a name that runs share if they differ only in seed."""
    return runs.assign(arm=[arm(*key) for key in runs[ARM].itertuples(index=False)])


def arms(runs: pd.DataFrame) -> pd.DataFrame:
    """The table for display, a row per arm with all its seeds: K3, persistence, rewards of both policies by seed, collapses."""
    rows = []
    for _, part in PLAN.complete(named(runs)).groupby(ARM):
        measured = part.measured.dropna()  # none where every ratio is exactly 1
        row = {"arm": part.arm.iloc[0], "K3": f"{part.k3.median():.1e}"}
        row |= {"persistence": f"{measured.median():.2f}" if len(measured) else "–"}
        for policy, name in ((OWN, "trainer's own"), (SAMPLING, "sampling")):
            rewards = part[part.policy == policy].sort_values("seed").reward
            row |= {f"{name}, mean": f"{rewards.mean():.3f}", name: " ".join(f"{value:.2f}" for value in rewards)}
        rows.append(row | {"collapsed": f"{(part[part.policy == OWN].outcome == 'collapsed').sum()}/{part.seed.nunique()}"})
    return pd.DataFrame(rows)


def points(runs: pd.DataFrame) -> pd.DataFrame:
    """Rows of arms with all their seeds and the base loss, task and steps, with the columns that `dose.curves` reads."""
    own = PLAN.complete(named(runs))
    own = own[own.setting == "base"].rename(columns={"reward": "response"})
    return own.assign(loss="pg", setting="", control=own.arm == CONTROL)


def placed(runs: pd.DataFrame) -> pd.DataFrame:
    """The test of hypothesis H3 (real precisions lie on synthetic noise's curves of reward over K3), by policy and precision.

    A row has the precision's mean reward with its 95 % interval (Student's t). Columns `fresh` and `fixed` have the curves'
    rewards at the precision's K3, with 95 % bands, for noise redrawn at each sync and noise kept. `on the curve` says whether the
    interval overlaps the range of both bands. A precision whose mismatch persists is compared with fixed noise only.
    """
    table = points(runs)
    curves = {(curve.policy, curve.persistence): curve for curve in dose.curves(table) if curve.correction == "none"}
    rows = []
    for real in dose.precisions(table):
        beside = [curves.get((real.policy, persistence)) for persistence in (0.0, 1.0)]
        if real.correction != "none" or any(curve is None or curve.level is None for curve in beside):
            continue
        mean, count = real.responses.mean(), len(real.responses)
        half = student.ppf(0.975, count - 1) * real.responses.std(ddof=1) / count**0.5
        fresh, fixed = (curve.at(real.k3) for curve in beside if curve is not None)
        against = [fixed] if real.measured > PERSISTENT else [fresh, fixed]
        low, high = min(band[1] for band in against), max(band[2] for band in against)
        row = {"policy": real.policy, "precision": real.precision, "K3": f"{real.k3:.1e}", "persistence": f"{real.measured:.2f}"}
        row |= {"reward": f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"}
        row |= {name: f"{band[0]:.3f} ({band[1]:.3f} to {band[2]:.3f})" for name, band in (("fresh", fresh), ("fixed", fixed))}
        rows.append(row | {"on the curve": "yes" if mean - half <= high and low <= mean + half else "no"})
    return pd.DataFrame(rows)


def shares(runs: pd.DataFrame) -> pd.DataFrame:
    """The cost of each mismatch without correction as a share of the control's gain: a row per arm with all its seeds.

    cost = (control − arm)/(control − START), with the mean final held-out rewards of the exact control (no mismatch) and of the
    runs with the mismatch (arm). Its interval is Welch's 95 % interval of the difference over that gain, without the gain's own
    error. K3·τ, in nats, has τ = 1 + 2·Σ ρᵏ over k = 1 to 20 syncs, with ρ the persistence of the noise; for real precisions it
    is not recorded.
    """
    table = points(runs)
    table = table[table.correction == "none"]
    rows = []
    for name, part in table[~table.control].groupby("arm"):
        noise, persistence, k3 = part.noise.iloc[0], part.persistence.iloc[0], part.k3.median()
        tau = 1 + 2 * sum(persistence**lag for lag in range(1, 21))
        row = {"arm": name, "K3": f"{k3:.1e}", "K3·τ": f"{k3 * tau:.1e}" if noise else "–"}
        for policy, judged_by in ((OWN, "trainer's own"), (SAMPLING, "sampling")):
            ours, reference = (some[some.policy == policy].response for some in (part, table[table.control]))
            if len(ours) and len(reference):
                gain = reference.mean() - START
                cost = np.array([reference.mean() - ours.mean(), *interval(reference, ours, paired=False)]) / gain
                row[f"cost, {judged_by}"] = "{:.0%} ({:.0%} to {:.0%})".format(*cost)
        rows.append((k3, row))
    return pd.DataFrame([row for _, row in sorted(rows, key=lambda one: one[0])])


def unchanged(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per correction that ran without mismatch: number of runs, and largest difference from the uncorrected reward."""
    exact = runs[(runs.precision == "fp32") & (runs.noise == 0) & (runs.setting == "base")]
    control = exact[exact.correction == "none"].set_index(["policy", "seed"]).reward
    rows = []
    for correction, part in exact[exact.correction != "none"].groupby("correction"):
        away = (part.set_index(["policy", "seed"]).reward - control).dropna().abs().max()
        rows.append({"correction of the exact control": correction, "runs": part.seed.nunique(), "largest difference": away})
    return pd.DataFrame(rows)


def compared(runs: pd.DataFrame) -> pd.DataFrame:
    """The table for display, a row per planned comparison whose runs have all planned seeds: difference, interval and p."""
    table = PLAN.compared(named(runs))
    ends = ["difference", "low", "high"]
    difference = [f"{d:+.3f} ({low:+.3f} to {high:+.3f})" for d, low, high in zip(*(table[name] for name in ends), strict=True)]
    shown = table[["family", "arm", "reference"]].assign(difference=difference)
    return shown.assign(p=table.p.map("{:.4f}".format), **{"Holm's p": table.holm_p.map("{:.3f}".format)})


def main(out: Path, sweeps: list[Path]) -> None:
    tables = [endpoints(sweep) for sweep in sweeps]
    if not sweeps or (out / "endpoints.csv").exists():
        tables.insert(0, recorded(out, "name sweeps after the folder, as runs/second"))
    runs = pd.concat(tables).drop_duplicates(KEYS).sort_values(KEYS).reset_index(drop=True)
    record(out, runs)
    curves = [curve for curve in map(long_curves, sweeps) if len(curve)]
    if curves:
        pd.concat(curves).to_csv(out / "long.csv", index=False)
    publish(out, arms(runs), compared(runs), placed(runs), shares(runs), unchanged(runs))


if __name__ == "__main__":
    with command():
        main(Path(*sys.argv[1:2]), [Path(sweep) for sweep in sys.argv[2:]])
