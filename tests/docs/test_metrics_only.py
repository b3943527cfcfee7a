"""docs/metrics-only.md: its identities and numbers, on the shipped example."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

import faultline
from algos.faults.base import broken

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/metrics-only.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def logged():
    """The metrics that verl would log of the example as one batch."""
    return faultline.replay(ROOT / "faultline/example/fp8.parquet", corrections=["token_truncate"]).mismatch


def test_k3_less_k1_is_the_mean_ratio_less_one(logged):
    """The verdict's first line says 1.0005, from log-probabilities alone."""
    away = logged["rollout_corr/k3_kl"] - logged["rollout_corr/kl"]
    assert away == pytest.approx(0.0005, abs=5e-5)
    assert [f"{logged[name]:.4f}" for name in ("rollout_corr/kl", "rollout_corr/k3_kl")] == ["0.0387", "0.0392"]
    assert "`kl` is 0.0387 and `k3_kl` 0.0392" in PAGE


def test_the_ess_follows_from_three_metrics(logged):
    away = logged["rollout_corr/k3_kl"] - logged["rollout_corr/kl"]
    assert (1 + away) ** 2 / (1 + logged["rollout_corr/chi2_token"]) == pytest.approx(0.914, abs=5e-4)
    assert f"{logged['rollout_corr/chi2_token']:.4f}" == "0.0957"


def printed(number: int, columns: dict, folder: Path, monkeypatch, capsys) -> str:
    """What a snippet of the page prints of a file with these columns; `number` counts its blocks of Python from 0."""
    pd.DataFrame(columns).to_csv(folder / "wandb_export.csv")
    monkeypatch.chdir(folder)
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.S)[number], {})
    return capsys.readouterr().out


def test_the_snippet_takes_its_error_from_ten_blocks(tmp_path, monkeypatch, capsys):
    """20 steps, each value twice: 0, 0.01 to 0.09, whose mean is 0.045 and whose variance is 1e-4·82.5/9, over ten blocks. The
    standard error of single steps would be 0.0066."""
    steps = {"rollout_corr/k3_kl": [n // 2 / 100 + 0.02 for n in range(20)], "rollout_corr/kl": 0.02}
    out = printed(1, steps, tmp_path, monkeypatch, capsys)
    assert out == f"mean ratio − 1: 0.04500 ± {(1e-4 * 82.5 / 9 / 10) ** 0.5:.5f} no fault shown\n"


@pytest.mark.parametrize(
    ("away", "noise", "fault"),
    [
        (-0.0025, 1e-6, False),
        (-0.0045, 1e-6, True),
        (0.0045, 1e-6, True),
        (0.0045, 0.01, False),
        (0.02, 0.01, False),
        (0.1, 0.01, True),
    ],
)
def test_the_snippet_applies_the_test_of_the_diagnosis(tmp_path, monkeypatch, capsys, away, noise, fault):
    """`broken` of algos/faults/base.py: a normal deviate of 4 and a distance of 0.004. Noise that alternates by blocks of two
    steps has a standard error of noise/3 over ten blocks, 0.0033 for 0.01. Six of these are p = 1e-4 by Student's t, and that
    is a deviate of 3.7."""
    steps = {"rollout_corr/k3_kl": [0.02 + away + noise * (-1) ** (n // 2) for n in range(20)], "rollout_corr/kl": 0.02}
    statistics = {"identity/mean": 1 + away, "identity/z": stats.norm.isf(stats.t.sf(abs(away) / (noise / 3), 9))}
    assert (broken(statistics) is not None) == fault
    out = printed(1, steps, tmp_path, monkeypatch, capsys)
    assert out == f"mean ratio − 1: {away:.5f} ± {noise / 3:.5f} {'FAULT' if fault else 'no fault shown'}\n"


@pytest.mark.parametrize(("away", "fault"), [(-0.4, False), (0.0025, False), (0.0045, True)])
def test_the_snippet_for_trl_accuses_a_mean_weight_above_1_alone(tmp_path, monkeypatch, capsys, away, fault):
    """Steps without a value, as those of an evaluation, are left out. K3 of a = 0.187: at least 0.0164, or 0.0275 by the rule."""
    keys = ("train/sampling/importance_sampling_ratio/mean", "train/sampling/sampling_logp_difference/mean")
    steps = dict(zip(keys, ([1 + away] * 20 + [None], [0.187] * 20 + [None]), strict=True))
    out = printed(3, steps, tmp_path, monkeypatch, capsys).splitlines()
    assert out == [
        f"mean weight − 1: {away:.5f} ± 0.00000 {'FAULT' if fault else 'no fault shown'}",
        "K3 at least 0.0164, about 0.0275 if log ρ is normal",
    ]


@pytest.fixture(scope="module")
def rows():
    """The responses of the FP8 example."""
    return pq.read_table(ROOT / "faultline/example/fp8.parquet").to_pylist()


def missing(words: list[str]) -> list[str]:
    """Those of the words that the page does not have, line breaks aside."""
    flat = " ".join(PAGE.split())
    return [word for word in words if word not in flat]


def least_by_probabilities(d: np.ndarray) -> float:
    """The page's lower bound of K3, of the differences of verl's rollout_probs_diff."""
    r = np.hypot(d.mean(), d.std())
    return -r - np.log1p(-r)


def test_what_verl_logs_of_probabilities_bounds_k3_from_below(rows):
    old, rollout = (np.concatenate([row[name] for row in rows]) for name in ("logp_old", "logp_rollout"))
    d, k3 = np.abs(np.exp(old) - np.exp(rollout)), (np.exp(old - rollout) - 1 - old + rollout).mean()
    least = least_by_probabilities(d)
    assert least <= k3
    assert not missing([f"a mean of {d.mean():.3f} and a std of {d.std():.3f}, so K3 is at least {least:.4f}. It is {k3:.3f}"])
    assert not missing([f"has {d.max():.2f} without a fault"])


def test_the_bound_by_probabilities_is_attained_by_a_certain_token():
    """π = 1 − d against μ = 1 gives it exactly, equal for all tokens. Random pairs stay above it."""
    assert least_by_probabilities(np.full(3, 0.3)) == pytest.approx((1 - 0.3) - 1 - np.log(1 - 0.3))
    pi, mu = np.random.default_rng(0).uniform(1e-6, 1, (2, 500, 8))
    k3 = (pi / mu - 1 - np.log(pi / mu)).mean(1)
    assert all(least_by_probabilities(d) <= k for d, k in zip(np.abs(pi - mu), k3, strict=True))


def test_what_skyrl_logs_bounds_k3_from_both_sides(rows):
    ratios = np.concatenate([np.subtract(row["logp_old"], row["logp_rollout"]) for row in rows])
    size, k3 = np.abs(ratios), (np.exp(ratios) - 1 - ratios).mean()
    q, m = size.mean() ** 2 + size.std() ** 2, size.max()
    least, most = (q * (np.exp(s * m) - 1 - s * m) / m**2 for s in (-1, 1))
    assert least <= k3 <= most
    assert not missing([f"q/2 of {q / 2:.3f} and bounds of {least:.3f} and {most:.2f}. K3 is {k3:.3f}"])


def test_what_trl_logs_bounds_k3_and_shows_the_cut(rows):
    """On the FP8 example, from the log ratios themselves."""
    ratios = [np.subtract(row["logp_old"], row["logp_rollout"]) for row in rows]
    tokens = np.concatenate(ratios)
    a, m = np.abs(tokens).mean(), np.abs(tokens).max()
    k3 = (np.exp(tokens) - 1 - tokens).mean()
    assert np.exp(-a) - 1 + a <= k3 <= a * (np.exp(m) - 1 - m) / m
    words = [f"a = {a:.3f}", f"at least {np.exp(-a) - 1 + a:.3f}", f"{0.785 * a**2:.3f} by the rule", f"It is {k3:.3f}"]
    whole = np.exp([ratio.sum() for ratio in ratios])
    mean = np.where(whole <= 3, whole, 0).mean()
    words += [
        f"of {mean:.3f} on the FP8",
        f"it took {1 - mean:.3f}, with {(whole > 3).mean():.0%}".replace("%", " %"),
        f"has {m:.1f}",
    ]
    assert not missing(words)
