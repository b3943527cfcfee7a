"""The engine with the bug `raw_logprobs`, and what is computed of the runs that train on it."""

from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments.faults import cost
from experiments.faults.trained import RawLogprobs
from harness.compose import compose
from harness.config import parse
from harness.models import build, qwen3_config, qwen3_sizes
from harness.run.folder import RunFolder
from harness.run.loop import train
from tests.harness.conftest import TINY
from tests.harness.engines import engine_of, loaded
from tests.harness.train.test_trainer import untimed

BUG = "rollout.engine.name=experiments.faults.trained:RawLogprobs"


def test_it_samples_at_its_temperature_and_logs_at_1():
    net = build(qwen3_config(qwen3_sizes(hidden=32, layers=2, heads=2, kv_heads=1, head=16, mlp=64), 13, 40), seed=1)
    generator = torch.Generator().manual_seed(0)
    prompts, uniforms = torch.randint(0, 13, (6, 5), generator=generator), torch.rand(6, 8, generator=generator)
    faulty = engine_of(RawLogprobs, net.config, temperature=0.5)
    faulty.load_weights(net.named_parameters(), 0)
    drawn, right = faulty.generate(prompts, uniforms), loaded(net, temperature=0.5).generate(prompts, uniforms)
    assert torch.equal(drawn.tokens, right.tokens) and not torch.allclose(drawn.logp, right.logp, atol=0.01)
    assert torch.equal(drawn.logp, loaded(net).score(prompts, drawn.tokens))
    assert torch.equal(faulty.score(prompts, drawn.tokens), right.logp)  # its own temperature again


@pytest.mark.slow
def test_the_bug_costs_nothing_where_no_loss_reads_the_logged_log_probabilities(tmp_path):
    """The mismatch metrics see it; rewards, losses and gradients are the same bits. With a correction they are not."""

    def rows(*settings: str) -> list[dict]:
        config = parse(compose(*TINY, f"run.root={tmp_path}", "rollout.temperature=0.7", "steps=2", *settings))
        train(config)
        learnt = {"reward/rollout", "actor/loss", "actor/grad_norm", "eval/reward"}
        return [{key: row[key] for key in row.keys() & learnt} for row in untimed(RunFolder(config.path).metrics())]

    assert sum(len(row) for row in rows()) >= 8
    assert rows() == rows(BUG)
    assert rows("correction=trl/sequence_mask") != rows("correction=trl/sequence_mask", BUG)


def test_the_table_by_hand():
    """Falls of 0.4, 0.5 and 0.6 in three seeds: of the 2^3 patterns of signs two are as extreme."""
    rewards = [
        {"setting": setting, "bug": bug, "seed": seed, "step": step, "reward": 0.9 - (0.4 + 0.1 * seed) * (bug and step > 0)}
        for setting in cost.SETTINGS
        for bug in (False, True)
        for seed in range(3)
        for step in (0, 25, 50, 75)
    ]
    dumps = [
        {"setting": setting, "bug": bug, "kind": "fault" if bug else "consistent", "named": "raw_logprobs" if bug else ""}
        for setting in cost.SETTINGS
        for bug in (False, True)
        for _ in range(3)
    ]
    row = cost.table(pd.DataFrame(rewards), pd.DataFrame(dumps)).iloc[0]
    assert (row["right"], row["with the bug"], row["difference"]) == ("0.90", "0.40", "-0.500")
    assert row["range over seeds"] == "-0.600, -0.400" and row["p, Holm"] == "0.250, 0.750"
    assert row["95 %"] == "-0.748, -0.252"  # 4.3027 of t with 2 degrees, times 0.1/√3
    assert row["first batch named"] == "3 of 3" and row["right ones consistent"] == "3 of 3"


def test_settings_without_runs_of_their_own_without_the_bug_have_those_of_ppo():
    rows = [("rollout", False, 1), ("rollout", True, 2), ("token", True, 3), ("sequence", True, 4), ("sequence", False, 5)]
    completed = cost.controlled(pd.DataFrame(rows, columns=["setting", "bug", "reward"]))
    right = completed[~completed["bug"]].set_index("setting")["reward"]
    assert right.to_dict() == {"rollout": 1, "token": 1, "sequence": 5} and len(right) == 3
    assert completed[completed["bug"]]["reward"].tolist() == [2, 3, 4]


def test_the_picture_has_each_seed_and_their_mean():
    rows = [
        {"setting": setting, "bug": bug, "seed": seed, "step": step, "reward": seed + step}
        for setting in cost.SETTINGS
        for bug in (False, True)
        for seed in (0, 2)
        for step in (0, 1)
    ]
    for axis in cost.picture(pd.DataFrame(rows)).axes:
        assert [line.get_ydata().tolist() for line in axis.lines] == [[0, 1], [2, 3], [1, 2]] * 2


def test_the_picture_of_lines_has_the_recorded_ends_beside_its_lines():
    """Each thick line is the mean of a setting's seeds, which are thin, and ends at the number of its label. Labels are apart."""
    rewards, _ = cost.recorded(cost.SMOLLM2)
    (axis,) = cost.lines(rewards).axes
    last = rewards[rewards["step"] == rewards["step"].max()].groupby(["setting", "bug"])["reward"].mean().round(9)
    told = {f"{name}, with the bug": last[setting, True] for setting, name in cost.SETTINGS.items()}
    told["PPO, without the bug"] = last["rollout", False]
    texts = {text.get_text(): text for text in axis.texts}
    thick = [line for line in axis.lines if line.get_linewidth() == 2.5]
    assert len(thick) == 4 and len(axis.lines) == 4 * (1 + rewards["seed"].nunique())
    for line, (name, end) in zip(thick, told.items(), strict=True):
        text = texts[f"{end:.2f}  {name}"]
        assert line.get_ydata()[-1] == pytest.approx(end) == text.xy[1] and line.get_color() == text.get_color()
    heights = [text.xyann[1] for text in axis.texts]
    assert all(high - low >= cost.APART - 1e-9 for high, low in pairwise(heights))


def test_smollm2s_title_is_what_the_record_holds():
    """PPO with the bug ended below its start in every seed, and without it above."""
    rewards, _ = cost.recorded(cost.SMOLLM2)
    ppo = rewards[rewards["setting"] == "rollout"].pivot(index=["bug", "seed"], columns="step", values="reward")
    assert (ppo.loc[True][30] < ppo.loc[True][0]).all() and (ppo.loc[False][30] > ppo.loc[False][0]).all()
    assert "PPO with raw log-probabilities falls below its start" in cost.LINES_TITLE
    assert rewards.groupby("seed")["setting"].nunique().eq(3).all()  # whole seeds


def test_what_the_page_says_of_smollm2_is_in_the_record():
    _, dumps = cost.recorded(cost.SMOLLM2)
    said = " ".join(Path("docs/bug-cost.md").read_text(encoding="utf-8").split())
    faulty = dumps[dumps["bug"]].groupby("setting")
    low, high = faulty.min(numeric_only=True), faulty.max(numeric_only=True)
    ends = lambda setting, column: f"{low.loc[setting, column]:.2f}–{high.loc[setting, column]:.2f}"  # noqa: E731
    first, last = ends("sequence", "dropped"), ends("sequence", "last_dropped")
    assert f"**The mask dropped {first} of the first batch's tokens**, and {last} of the last's." in said
    faded = f"went from {ends('token', 'mean_ratio')} to {ends('token', 'last_ratio')} under token weights"
    assert faded in said and f"Under PPO it went to {ends('rollout', 'last_ratio')}" in said
    cut = f"{ends('rollout', 'last_truncated')} were cut at 16 tokens in the end, {ends('rollout', 'truncated')} at first"
    assert cut in said


def test_its_title_is_what_the_record_holds():
    rewards, dumps = cost.recorded(cost.TOY)
    ends = cost.endpoints(rewards).loc["rollout"].mean()
    assert f"from {ends[False]:.2f} to {ends[True]:.2f}" in cost.TITLE
    every = cost.endpoints(rewards)
    assert (every.loc["rollout", True] < 0.01).sum() == 7 and (every[True] < every[False]).all()
    taught = every[False].mean() - rewards[rewards["step"] == 0]["reward"].mean()
    lost = (every[False] - every[True]).groupby("setting").mean()
    assert f"{taught:.2f} {lost['sequence']:.3f}" == "0.11 0.026" and lost["token"] == pytest.approx(0.05025, abs=1e-6)
    assert (dumps[dumps["bug"]]["named"] == "raw_logprobs").all() and (dumps[~dumps["bug"]]["kind"] == "consistent").all()
