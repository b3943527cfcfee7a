"""What a sweep says in words and tables: counts, comparisons, what is too few to say anything."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import tables, words
from analysis.figures import FIGURES
from analysis.load import load
from analysis.performance import rewards
from analysis.report import report
from analysis.words import _warned
from tests.analysis.synthetic import FP8, FP32, write


def test_the_answer_counts_what_was_put_into_the_sweep(made):
    text = (made[0] / "report.md").read_text()
    for expected in (
        "- 6 of 50 runs collapsed, in 2 of 10 arms.",
        "- The fp32 control never collapsed in 10 runs; 10 of them reached a held-out reward of 0.95 in at least one evaluation.",
        "- Uncorrected bf16 rollouts: 0 of 10 collapsed.",
        "- Uncorrected fp8_tensor rollouts: 4 of 10 collapsed (ppo 4 of 5).",
        "- Collapsed with a correction under fp8_tensor: sequence-mask 0 of 10; token-truncate 2 of 10 (ppo 2 of 5).",
        # 1 - 0.025^(1/5)
        "- No collapse in 5 runs of an arm, the fewest here, leaves open that up to 52% would (95 % interval).",
        # Four collapses, all in one of two arms of five: 12 of C(10, 5) subsets hold them all or none. Only one pair has any.
        "collapses told from chance in 1 of 1 comparison (fp8_tensor ppo -27 steps without collapse (-41 to -12) on fp32 ppo, "
        "Holm p = 0.048); last rewards not told from chance (least Holm p of 4 comparisons: 0.19).",
        # Four against none once more, but times two: the pair of the truncation has collapses too.
        "corrected arms against uncorrected ones): collapses not told from chance (least Holm p of 2 comparisons: 0.095)",
        "- Never learned, which is another outcome than a collapse: 1 of 50 runs (fp8_tensor pg sequence-mask 1).",
        "- 6 of these collapses are dated by a drawdown of the reward; 12 definitions of drawdown count 5 to 6 runs, none of ",
        "- 6 collapses are too few to say which diagnostic warns best; the table has what each saw.",
    ):
        assert expected in text, text[:3000]


def test_outcomes_by_hand(made):
    """fp8 ppo: seeds 0..3 collapse at 40, 50, 60, 70 as put; their onsets are the evaluations at 50, 60, 70, 80, so times 51, 61,
    71, 81 and one of 100 (all watched to 100): RMST 72.8. With truncation seeds 0, 1 at 61, 71: 86.4; 13.6 steps gained."""
    table = tables.outcomes(load(made[0])).set_index("arm")
    plain, truncated = table.loc["fp8_tensor ppo"], table.loc["fp8_tensor ppo token-truncate"]
    assert plain["RMST (steps)"] == pytest.approx((51 + 61 + 71 + 81 + 100) / 5)
    assert truncated["steps gained"] == pytest.approx((61 + 71 + 300) / 5 - 72.8)
    assert truncated.reference == "fp8_tensor ppo" and plain.reference == "fp32 ppo" and bool(truncated["paired by seed"])
    assert table.loc["fp8_tensor pg sequence-mask", "never learned"] == 1
    assert plain["Holm p"] >= plain["exact p"] and table.loc["fp32 ppo", "said"] == "no reference arm"


@pytest.mark.slow
def test_many_seeds_tell_an_effect_from_chance(tmp_path):
    """8 collapse at different steps, 8 do not: p = 2/C(16, 8) = 1.6e-4."""
    for seed in range(8):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed, collapse=40 + seed)
    report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "collapses told from chance in 1 of 1 comparison (fp8_tensor ppo -" in text and "Holm p = 0.00016" in text


@pytest.mark.slow
def test_of_few_seeds_no_interval_is_called_95_percent(tmp_path):
    """Five seeds stand in parentheses, six in brackets; a bar in a metric's name does not split a cell."""
    for seed in range(6):
        write(tmp_path, FP32, seed=seed)
        if seed < 5:
            write(tmp_path, FP8, seed=seed, collapse=40 + seed)
    shown = words.readable(tables.outcomes(load(tmp_path))).set_index("arm")
    assert re.fullmatch(r"0\.9\d\d \[0\.9\d\d, 0\.9\d\d\]", shown.loc["fp32 ppo", "mean"])
    assert re.fullmatch(r"0\.\d{3} \(0\.\d{3} to 0\.\d{3}\)", shown.loc["fp8_tensor ppo", "mean"])
    report(tmp_path)
    table = (tmp_path / "report.md").read_text().split("## What warned")[1].split("##")[0]
    bars = [line.replace(r"\|", "").count("|") for line in table.splitlines() if line.startswith("|")]
    assert len(bars) > 5 and len(set(bars)) == 1


def test_a_diagnostic_without_skill_is_not_praised():
    row = {
        "diagnostic": "K3",
        "detected": 1.0,
        "false alarms": 1.0,
        "collapsed runs": 10,
        "other runs": 6,
        "median lead (steps)": 2,
    }
    assert _warned(pd.DataFrame([row])).startswith("No diagnostic saw collapses more often")
    assert _warned(pd.DataFrame([row | {"false alarms": 0.5}])).startswith(
        "Of 1 diagnostics, K3 warned best in these runs: it saw"
    )


def test_the_mismatch_of_a_collapsed_run_is_that_before(made):
    """K3 stays high after the fall, which says nothing of what led to it: of the rows up to the onset the median is lower."""
    sweep = load(made[0])
    run = sweep.runs[(sweep.runs.arm == "fp8_tensor ppo") & (sweep.runs.seed == 0)].iloc[0]
    rows = sweep.steps[sweep.steps.run == run.name].set_index("step")["rollout_corr/k3_kl"]
    found = tables.measures(sweep)["K3 (nats)"]
    assert found[run.name] == rows[rows.index <= run.onset].median() < rows.median()
    healthy = sweep.runs.index[sweep.runs.outcome == "survived"][0]
    whole = sweep.steps[sweep.steps.run == healthy]["rollout_corr/k3_kl"].median()
    assert found[healthy] == whole


def test_losses_and_corrections_by_hand(made):
    """fp8 ppo: four of five end near 0.05, of the control none: its mean last reward less the control's, over the same seeds."""
    sweep = load(made[0])
    table = tables.combinations(sweep).set_index(["down", "across"])
    assert list(table.index.get_level_values(0).unique()) == [
        "fp32",
        "bf16",
        "fp8_tensor",
        "fp8_tensor sequence-mask",
        "fp8_tensor token-truncate",
    ]
    final = sweep.runs.join(rewards(sweep.runs, sweep.steps)).set_index(["arm", "seed"]).final
    row = table.loc["fp8_tensor", "ppo"]
    assert (row.collapsed, row.known, row["mean"]) == (4, 5, pytest.approx(final["fp8_tensor ppo"].mean()))
    assert row["from control"] == pytest.approx(final["fp8_tensor ppo"].mean() - final["fp32 ppo"].mean())
    assert np.isnan(table.loc["fp32", "ppo"]["from control"])
    assert table.loc["fp8_tensor sequence-mask", "pg"]["never learned"] == 1
    cells = [text.get_text() for text in FIGURES["heatmaps"].draw(sweep).axes[0].texts]
    assert sorted(cells) == ["0/5"] * 7 + ["0/5 †", "2/5", "4/5"]
    shown = words.matrix(sweep).set_index("")
    apart = re.escape(f"{row['from control']:+.2f}")
    assert re.fullmatch(rf"4/5; 0\.2\d \(0\.0\d to 0\.9\d\); {apart}", shown.loc["fp8_tensor", "ppo"])
    assert re.fullmatch(r"0/5; 0\.9\d \(0\.9\d to 0\.9\d\)", shown.loc["fp32", "ppo"])
    assert shown.loc["fp8_tensor sequence-mask", "pg"].startswith("0/5 (1 never learned); ")


def test_robustness_shrinks_with_delta_and_m(made):
    grid = tables.robustness(load(made[0])).loc["fp8_tensor ppo"]
    assert grid["δ=0.5 m=3"] == 4  # as the runs' own detector found
    by_m = [grid[f"δ=0.5 m={m}"] for m in tables.LENGTHS]
    assert by_m == sorted(by_m, reverse=True)


def test_lost_events_do_not_pass_for_another_outcome(tmp_path):
    """The rows fall from step 60; without its events the run would have survived, or never learned."""
    folder = write(tmp_path, FP8, seed=0, collapse=60)
    write(tmp_path, FP8, seed=1, collapse=60)
    assert tables.disagreements(load(tmp_path)) == []
    (folder.path / "events.jsonl").unlink()
    learned, fell = sorted(tables.disagreements(load(tmp_path)), reverse=True)
    assert fell == "fp8_tensor ppo seed 0: the event of drawdown is at step 70 by its rows and none by its events."
    assert learned.startswith("fp8_tensor ppo seed 0: the event of learning is at step")


def answered(sweep):
    return "\n".join(words.answer(sweep, tables.outcomes(sweep), tables.warnings(sweep)))


def test_a_sweep_under_way_counts_what_has_ended(tmp_path):
    """fp32: one ended, one waits, one failed at 30. fp8: one collapsed, at 61, one runs. bf16 waits, and does not set τ."""
    write(tmp_path, FP32, seed=0)
    write(tmp_path, FP32, seed=1, until=0, state="queued")
    write(tmp_path, FP32, seed=2, until=31, state="failed", error="disk full")
    write(tmp_path, FP8, seed=0, collapse=50)
    write(tmp_path, FP8, seed=1, until=40, state="running")
    write(tmp_path, "rollout/precision=bf16", seed=0, until=0, state="queued")
    sweep = load(tmp_path)
    table = tables.outcomes(sweep).set_index("arm")
    fp32, fp8, bf16 = table.loc["fp32 ppo"], table.loc["fp8_tensor ppo"], table.loc["bf16 ppo"]
    assert (fp32.known, fp32.collapsed, fp32.unfinished, fp8.known, fp8.share) == (1, 0, 2, 1, 1)
    assert fp8["τ (steps)"] == 100 and fp32["RMST (steps)"] == 100
    assert bf16.known == 0 and pd.isna(bf16["RMST (steps)"]) and pd.isna(bf16["exact p"]) and pd.isna(bf16.share)
    assert fp8.said == "1 against 1 runs: p ≥ 1, too few to carry an order"
    text = answered(sweep)
    assert "1 of 2 runs collapsed, in 1 of 2 arms; 4 more have not ended, counted in no share." in text
    assert "Uncorrected fp8_tensor rollouts: 1 of 1 (" in text and "0 of 0" not in text


def test_a_run_that_never_learned_is_no_success_of_its_arm(tmp_path):
    for seed in range(8):
        write(tmp_path, FP8, seed=seed, collapse=40 + seed)
        write(tmp_path, FP8, "correction=sequence_mask", seed=seed, learns=seed > 2)
    sweep = load(tmp_path)
    table = tables.outcomes(sweep).set_index("arm")
    assert table.loc["fp8_tensor ppo sequence-mask", "said"] == "3 never learned, which counts as no collapse"
    assert "(3 of its runs never learned) on fp8_tensor ppo, Holm p = 0.00016" in answered(sweep)


def test_the_largest_arms_decide_whether_seeds_are_too_few(tmp_path):
    """Eight seeds of fp8, two of bf16: p of 2/C(16, 8) could be reached, times two comparisons of the last reward; nothing
    collapsed, so there are no collapses to compare."""
    for seed in range(8):
        write(tmp_path, FP32, seed=seed, steps=30)
        write(tmp_path, FP8, seed=seed, steps=30)
        if seed < 2:
            write(tmp_path, "rollout/precision=bf16", seed=seed, steps=30)
    text = answered(load(tmp_path))
    assert "control of the same loss): last rewards not told from chance (least Holm p of 2 comparisons: 1)." in text


def test_what_is_a_control(tmp_path):
    """Rollouts in the trainer's own precision: neither fp32 with noise or an 8-bit cache, nor fp32 to a trainer of bf16."""
    own, noise, cache = FP32, "rollout.engine.noise=0.01", "rollout.kv_cache=fp8_e4m3"
    for overrides in ((own,), (own, noise), (own, cache), ("rollout/precision=bf16",)):
        write(tmp_path / "fp32", *overrides, collapse=50 if noise in overrides else None)
        write(tmp_path / "bf16", *overrides, "actor.dtype=bf16")
    fp32, bf16 = (load(tmp_path / dtype).runs for dtype in ("fp32", "bf16"))
    assert list(fp32.source[fp32.control]) == ["fp32"] and list(bf16.source[bf16.control]) == ["bf16"]
    assert sorted(fp32.source) == ["bf16", "fp32", "fp32, fp8_e4m3 cache", "fp32, noise 0.01"]
    text = answered(load(tmp_path / "fp32"))
    assert "The fp32 control never collapsed in 1 run;" in text and "Uncorrected fp32, noise 0.01 rollouts: 1 of 1" in text
    assert "The bf16 control never collapsed" in answered(load(tmp_path / "bf16"))


def test_staleness_is_a_source_of_mismatch_of_its_own(tmp_path):
    for stale in (0, 1, 4):
        write(tmp_path, FP32, f"rollout.staleness={stale}", collapse=50 if stale else None)
    assert sorted(load(tmp_path).runs.source) == ["fp32", "fp32, 1 step stale", "fp32, 4 steps stale"]


def test_rewards_are_pooled_within_losses_that_all_rows_have(made):
    """Over ppo and pg, five seeds each: the mean of all ten last rewards of a row; the interval draws five of each loss."""
    sweep = load(made[0])
    table = tables.pooled(sweep).set_index(["precision", "correction"])
    final = rewards(sweep.runs, sweep.steps).final
    mine = (sweep.runs.precision == "fp8_tensor") & (sweep.runs.correction == "none")
    row = table.loc[("fp8_tensor", "none")]
    assert (row.strata, row.runs) == (2, 10) and row["final mean"] == pytest.approx(final[mine].mean())
    least = final[mine & (sweep.runs.loss == "ppo")].min() / 2 + final[mine & (sweep.runs.loss == "pg")].min() / 2
    assert least <= row["mean low"] < row["mean high"]


def test_the_reward_gained_is_paired_by_seed(made):
    sweep = load(made[0])
    table, runs = tables.outcomes(sweep).set_index("arm"), sweep.runs.join(rewards(sweep.runs, sweep.steps))
    one, other = (runs[runs.arm == arm].set_index("seed").final for arm in ("fp8_tensor ppo", "fp32 ppo"))
    row = table.loc["fp8_tensor ppo"]
    assert row["reward gained"] == pytest.approx((one - other).mean())
    theirs = stats.permutation_test((one, other), lambda a, b, axis: a.mean(axis) - b.mean(axis), n_resamples=np.inf)
    assert row["reward p"] == pytest.approx(theirs.pvalue)
