"""Sweeps written by hand: every metric a report reads, with collapses where they are put, and the events that detectors find."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import numpy as np

from harness.collapse import detect
from harness.compose import compose
from harness.run.folder import RunFolder

EVERY, PROMPTS, SAMPLES = 5, 48, 8
FP32, FP8 = "rollout/precision=fp32", "rollout/precision=fp8_tensor"
LEVELS = {"fp32": 0.0, "bf16": 2e-6, "fp8_tensor": 5e-5}


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict:
    return compose("tracking=disabled", *overrides)


def rows(precision: str, seed: int, steps: int, collapse: int | None = None, learns: bool = True) -> list[dict]:
    """Metrics of a run: it learns from 0.4 to 0.96; at `collapse` the reward falls to 0.05 within 15 steps, and 20 steps before
    it K3 grows and the ESS falls."""
    rng = np.random.default_rng([seed, steps, collapse or 0])
    out = []
    for step in range(steps + 1):
        rise = 0.4 + (0.56 * min(step / (0.4 * steps), 1) if learns else 0)
        fallen = 0.0 if collapse is None else min(max((step - collapse) / 15, 0), 1)
        reward = np.clip((1 - fallen) * rise + fallen * 0.05 + rng.normal(0, 0.01), 0, 1)
        near = 0.0 if collapse is None else min(max((step - collapse + 20) / 20, 0), 1)
        row = {"step": step}
        if step % EVERY == 0 or step == steps:
            error = float(np.sqrt(reward * (1 - reward) / PROMPTS))
            row |= {"eval/reward": float(reward), "eval/stderr": error, "eval/samples": PROMPTS * SAMPLES, "time/evaluate": 0.2}
        if step < steps:
            k3 = LEVELS[precision] * (1 + 100 * near) * float(np.exp(rng.normal(0, 0.3)))
            row |= {
                "reward/rollout": float(np.clip(reward - (k3 > 0) * 0.01, 0, 1)),
                "reward/informative_groups": 0.5,
                "rollout_corr/k3_kl": k3,
                "rollout_corr/kl": k3,
                "mismatch/ess_token": 1 / (1 + k3),
                "mismatch/ess_sequence": 1 - 0.3 * (k3 > 0) * (1 + 2 * near) * float(rng.random()),
                "mismatch/log_ratio_max_abs": float(np.sqrt(2 * k3) * 100),
                "mismatch/dropped": 0.0,
                "correction/weight_mean": 1.0,
                "correction/weight_ess": 1.0,
                "correction/weight_zero": 0.1 * near,
                "correction/kept_tokens": 1 - 0.2 * near,
                "correction/kept_sequences": 1 - 0.2 * near,
                "actor/loss": float(rng.normal(0, 0.01)),
                "actor/grad_norm": 0.3 * float(np.exp(rng.normal(0, 0.2))) * (1 + 3 * near),
                "actor/skipped": 0.0,
                "actor/entropy": 0.3 * (1 - 0.5 * min(step / steps, 1)),
                "rollout/version_lag": 0.0,
                "time/generate": 0.1,
                "time/train": 0.2,
                "time/step": 0.35,
                "throughput/rollout_tokens": 10000.0,
            }
        out.append(row)
    return out


def write(
    sweep: Path,
    *overrides: str,
    seed: int = 0,
    collapse: int | None = None,
    learns: bool = True,
    steps: int = 100,
    state: str | None = None,
    drop: tuple[str, ...] = (),
    until: int | None = None,
    commit: str = "a" * 40,
    **status,
) -> RunFolder:
    """A run's folder. until: the record ends at that step; drop: metrics that were not recorded."""
    config = copy.deepcopy(_composed(overrides)) | {"seed": seed, "steps": steps}
    words = "-".join(override.split("=")[-1] for override in overrides) or "default"
    folder = RunFolder(sweep / f"{words.replace('/', '-')}-{seed}")
    return fill(folder, config, collapse, learns, state, drop, until, commit, **status)


def fill(
    folder: RunFolder,
    config: dict,
    collapse: int | None = None,
    learns: bool = True,
    state: str | None = None,
    drop: tuple[str, ...] = (),
    until: int | None = None,
    commit: str = "a" * 40,
    **status,
) -> RunFolder:
    """The record of a run with this config, as `write` says."""
    precision, seed, steps = config["rollout"]["precision"]["name"], config["seed"], config["steps"]
    kept = [row for row in rows(precision, seed, steps, collapse, learns) if until is None or row["step"] < until]
    if config["evaluation"]["policy"] == "both":  # the sampling policy never learns
        for row in kept:
            row |= {"eval/rollout_reward": 0.3, "eval/rollout_stderr": 0.01} if "eval/reward" in row else {}
    events = detect(kept, config["collapse"]["detectors"])
    with folder.claim():
        folder.write("config.json", config)
        for row in kept:
            folder._append("metrics.jsonl", {key: value for key, value in row.items() if key not in drop})
        for name, event in events.items():
            roles = {"learning": "learned", "distribution": "warning", "entropy": "warning", "length": "warning"}
            folder.log_event(roles.get(name, "collapse"), event["onset"], detector=name, **event)
        process = {
            "commit": commit,
            "diff": "",
            "host": "box",
            "device": "cpu",
            "platform": "Linux",
            "packages": {"torch": "2.13"},
        }
        folder.write("provenance.json", {"processes": [process]})
        ended = "collapsed" if {"drawdown", "numerical"} & events.keys() else "done"
        folder.status(state or ended, step=kept[-1]["step"] if kept else 0, steps=steps, **status)
    return folder


def study(sweep: Path, seeds: int = 5, steps: int = 100) -> Path:
    """Two losses, three precisions; of ppo under fp8 four of five seeds collapse uncorrected, two truncated, none masked."""
    for seed in range(seeds):
        for loss in ("ppo", "pg"):
            for precision in ("fp32", "bf16"):
                write(sweep, f"loss={loss}", f"rollout/precision={precision}", seed=seed, steps=steps)
            fp8 = (f"loss={loss}", "rollout/precision=fp8_tensor")
            at = int(steps * (0.4 + 0.1 * seed))
            write(sweep, *fp8, seed=seed, steps=steps, collapse=at if seed < 4 and loss == "ppo" else None)
            late = at + steps // 10 if seed < 2 and loss == "ppo" else None
            write(sweep, *fp8, "correction=token_truncate", seed=seed, steps=steps, collapse=late)
            write(sweep, *fp8, "correction=sequence_mask", seed=seed, steps=steps, learns=not (seed == 0 and loss == "pg"))
    return sweep
