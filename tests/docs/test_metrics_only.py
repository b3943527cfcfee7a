"""docs/metrics-only.md: its identities and numbers, on the shipped example."""

import re
from pathlib import Path

import pandas as pd
import pytest

import faultline

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


def test_the_snippet_reads_an_exported_table(tmp_path, monkeypatch, capsys):
    """Differences of 0.01 and 0.03: their mean is 0.02 and its standard error 0.01."""
    pd.DataFrame({"rollout_corr/k3_kl": [0.03, 0.04], "rollout_corr/kl": [0.02, 0.01]}).to_csv(tmp_path / "wandb_export.csv")
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(snippet, {})
    assert capsys.readouterr().out == "mean ratio − 1: 0.0200 ± 0.0100\n"
