"""The tables of the real training, from endpoints by hand."""

import json
from pathlib import Path
from shutil import copy

import pandas as pd
import pytest

from experiments.sums import compared, endpoints, main
from harness.errors import UserError
from tests.analysis.synthetic import FP32, write

ARMS = ("bf16 ppo", "bf16 ppo token-truncate", "fp8_channel ppo", "fp8_channel ppo token-truncate")


def runs(*rewards: list[float], start: float = 0.1) -> pd.DataFrame:
    return pd.DataFrame([
        {"arm": arm, "seed": seed, "start": start, "reward": reward}
        for arm, of_arm in zip(ARMS, rewards, strict=True)
        for seed, reward in enumerate(of_arm)
    ])  # fmt: skip


def test_differences_are_paired_by_seed_and_hypotheses_counted_in_seeds():
    """FP8 ends 0.05, 0.2 and 0.05 below BF16: 0.1 in the mean, within 0.1 in two of three seeds. One run ends at its start."""
    found = compared(runs([0.6, 0.7, 0.8], [0.6, 0.7, 0.8], [0.55, 0.5, 0.75], [0.55, 0.5, 0.1]))
    rows = {(row.hypothesis, row.arm): row for row in found.itertuples()}
    fp8 = rows["H11", "fp8_channel ppo"]
    assert (fp8.difference, fp8.holds) == ("-0.100 (-0.200 to -0.050)", "2 of 3")
    assert rows["H12", "bf16 ppo token-truncate"].holds == "3 of 3"
    assert rows["H12", "fp8_channel ppo token-truncate"].difference == "-0.217 (-0.650 to +0.000)"
    assert rows["H10", "fp8_channel ppo token-truncate"].holds == "2 of 3" and rows["H10", "bf16 ppo"].holds == "3 of 3"


def test_a_runs_endpoint_stands_beside_its_start(tmp_path):
    folder = write(tmp_path / "sweep", FP32, seed=1)
    rows = [row | {"rollout/response_tokens": float(row["step"])} if "reward/rollout" in row else row for row in folder.metrics()]
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluated = [row["eval/reward"] for row in rows if "eval/reward" in row]
    [run] = endpoints(tmp_path / "sweep").itertuples()
    assert (run.start, run.reward) == (evaluated[0], pytest.approx(sum(evaluated[-3:]) / 3))
    sampled = [row["reward/rollout"] for row in rows if "reward/rollout" in row]
    assert run.training_reward == pytest.approx(sum(sampled[-10:]) / 10) and run.step_seconds > 0
    assert (run.tokens_first, run.tokens_last) == (4.5, len(sampled) - 5.5) and run.ess_first == 1


def test_a_folder_without_endpoints_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="name the sweep too"):
        main(tmp_path, [])


def test_the_recorded_tables(tmp_path, capsys):
    recorded = Path(__file__).parents[2] / "experiments/study/smollm2/sums"
    copy(recorded / "endpoints.csv", tmp_path)
    main(tmp_path, [])
    assert (tmp_path / "table.md").read_text() == (recorded / "table.md").read_text() == capsys.readouterr().out
