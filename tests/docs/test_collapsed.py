"""docs/collapsed.md: its two files are what its settings say, and its table is what replay computes with them."""

import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

import faultline
from faultline.tools.import_config import import_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/collapsed.md").read_text(encoding="utf-8")
NAMES = {
    "verl with `0.5_2.0`, its preset `decoupled_seq_is_rs`": "verl/decoupled_seq_is_rs",
    "SkyRL with 0.5 and 2, its defaults, and no weight": "skyrl/product_mask",
    "the mask that we tested": "sequence_mask",
    "SkyRL with 0 and 2, as above": str(ROOT / "docs/masks/skyrl.yaml"),
    "verl with `0.5_1000000.0`, as above": str(ROOT / "docs/masks/verl.yaml"),
    "for comparison: the token weight, cut at 2": "token_truncate",
}
"""Row of the table of masks -> name of the correction."""
ARMS = ("none", "token", "sequence", "mask")
"""Columns of the table of collapses."""
COLLAPSED = {("long32", "stale_2"), ("long32", "fixed_0.4"), ("ppo", "fixed_0.4")}
"""(Bed, source) of the regimes in that table."""


@pytest.mark.parametrize(("row", "file"), [("verl 0.9.1", "verl"), ("SkyRL 0.3.0", "skyrl")])
def test_the_files_are_the_settings_of_the_page(tmp_path, row, file):
    (line,) = re.findall(rf"^\| {row} \| (.*)$", PAGE, re.M)
    recipe = tmp_path / "theirs.yaml"
    recipe.write_text("\n".join(key.replace("=", ": ") for key in re.findall(r"`([^`]+=[^`]+)`", line)))
    expected = yaml.safe_load(import_config(recipe))["correction"]
    assert yaml.safe_load((ROOT / f"docs/masks/{file}.yaml").read_text()) == expected


@pytest.mark.parametrize(
    ("column", "dump"), [(0, "faultline/example/fp8.parquet"), (1, "experiments/study/smollm2/long/local-fp8_channel.parquet")]
)
def test_the_table_is_what_replay_computes(column, dump):
    effects = faultline.replay(ROOT / dump, corrections=list(NAMES.values())).corrections.set_index("correction")
    for row, name in NAMES.items():
        (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \| (.*) \|$", PAGE, re.M)
        kept, ess = effects.loc[name, ["effect/kept_tokens", "effect/ess"]]
        assert cells[column] == f"{100 * kept:.0f} %, {ess:.2f}"


@pytest.mark.parametrize(
    ("row", "bed", "source"),
    [
        ("FP8 by weights two syncs old, 32 tokens", "long32", "stale_2"),
        ("synthetic fixed noise 0.4, 32 tokens", "long32", "fixed_0.4"),
        ("synthetic fixed noise 0.4, PPO", "ppo", "fixed_0.4"),
    ],
)
def test_the_table_of_collapses_is_of_the_study(row, bed, source):
    """They are all regimes of the study of which an uncorrected run collapsed, judged by the trainer's policy."""
    runs = pd.read_csv(ROOT / "experiments/study/verdict/endpoints.csv").query("policy == 'trainer'")
    fallen = runs[(runs["arm"] == "none") & (runs["outcome"] == "collapsed")]
    assert set(zip(fallen["bed"], fallen["source"], strict=True)) == COLLAPSED
    own = runs[(runs["bed"] == bed) & (runs["source"] == source)].groupby("arm")
    cells = [f"{(own.get_group(arm)['outcome'] == 'collapsed').sum()}, {own.get_group(arm)['end'].mean():.2f}" for arm in ARMS]
    assert f"| {row} | {' | '.join(cells)} |" in PAGE.replace("**", "")
