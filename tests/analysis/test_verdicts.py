"""The words and tables of a sweep: counts, comparisons, and where there are too few of them."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import tables, verdicts
from analysis.figures import FIGURES
from analysis.load import load
from analysis.report import report
from analysis.statistics import definitions
from analysis.verdicts import _warned
from harness.collapse import detect
from tests.analysis.synthetic import FP8, FP32, write


@pytest.mark.slow
def test_the_answer_counts_what_was_put_into_the_sweep(made):
    text = (made[0] / "report.md").read_text()
    for expected in (
        "- 6 of 50 runs collapsed, in 2 of 10 arms. 43 survived, 1 never learned.",
        "- The fp32 control never collapsed in 10 runs. 10 of them reached a held-out reward of 0.95 in at least one evaluation.",
        "- Uncorrected bf16 rollouts: 0 of 10 runs collapsed.",
        "# study\n\n- fp8_tensor rollouts collapsed 4 of 10 (ppo 4 of 5), with sequence-mask 0 of 10, with token-truncate 2 of "
        "10 (ppo 2 of 5).\n",
        # 1 - 0.025^(1/5)
        "- No collapse in 5 runs of an arm is compatible with a collapse rate of up to 52% (95% interval).",
        # Four collapses, all in one of two arms of five: 12 of C(10, 5) subsets hold them all or none. Only one pair has any.
        "- Precision against the control, time to collapse: 1 of 1 comparison was significant (fp8_tensor ppo against fp32 ppo "
        "-27 optimizer steps (-41 to -12), Holm-adjusted p 0.048).",
        "- Precision against the control, last reward: no comparison was significant (4 tested, smallest Holm-adjusted p 0.19).",
        # Four against none once more, but times two: the pair of the truncation has collapses too.
        "- Correction against no correction, time to collapse: no comparison was significant (2 tested, smallest Holm-adjusted p "
        "0.095).",
        "- 1 of 50 runs never learned (fp8_tensor pg sequence-mask 1). They do not count as collapsed.",
        "- A drawdown of the reward dated 6 of these collapses. Under 12 definitions of a drawdown, 5 to 6 runs collapse, none ",
        "- 6 collapses are too few to rank the diagnostics.",
    ):
        assert expected in text, text[:3000]


def test_outcomes_by_hand(made):
    """fp8 ppo: seeds 0..3 collapse at 40, 50, 60, 70 as put; their onsets are the evaluations at 50, 60, 70, 80, so times 51, 61,
    71, 81 and one of 100 (all watched to 100): RMST 72.8. With truncation seeds 0, 1 at 61, 71: 86.4; 13.6 steps gained."""
    table = load(made[0]).outcomes.set_index("arm")
    plain, truncated = table.loc["fp8_tensor ppo"], table.loc["fp8_tensor ppo token-truncate"]
    assert plain.rmst == pytest.approx((51 + 61 + 71 + 81 + 100) / 5)
    assert truncated.steps_gained == pytest.approx((61 + 71 + 300) / 5 - 72.8)
    assert truncated.reference == "fp8_tensor ppo" and plain.reference == "fp32 ppo" and bool(truncated.paired_by_seed)
    assert table.loc["fp8_tensor pg sequence-mask", "never_learned"] == 1
    assert plain.collapse_holm_p >= plain.collapse_p and table.loc["fp32 ppo", "note"] == "no reference arm"


@pytest.mark.slow
def test_many_seeds_tell_an_effect_from_chance(tmp_path):
    """8 collapse at different steps, 8 do not: p = 2/C(16, 8) = 1.6e-4."""
    for seed in range(8):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed, collapse=40 + seed)
    report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "1 of 1 comparison was significant (fp8_tensor ppo against fp32 ppo -" in text and "Holm-adjusted p 0.00016" in text


@pytest.mark.slow
def test_of_few_seeds_no_interval_is_called_95_percent(tmp_path):
    """Five seeds stand in parentheses, six in brackets; a bar in a metric's name does not split a cell."""
    for seed in range(6):
        write(tmp_path, FP32, seed=seed)
        if seed < 5:
            write(tmp_path, FP8, seed=seed, collapse=40 + seed)
    shown = tables.outcomes(load(tmp_path)).set_index("arm")
    assert re.fullmatch(r"0\.9\d\d \[0\.9\d\d, 0\.9\d\d\]", shown.loc["fp32 ppo", "final_mean"])
    assert re.fullmatch(r"0\.\d{3} \(0\.\d{3} to 0\.\d{3}\)", shown.loc["fp8_tensor ppo", "final_mean"])
    report(tmp_path)
    table = (tmp_path / "report.md").read_text().split("## Warnings")[1].split("##")[0]
    bars = [line.replace(r"\|", "").count("|") for line in table.splitlines() if line.startswith("|")]
    assert len(bars) > 5 and len(set(bars)) == 1


def test_a_diagnostic_without_skill_is_not_praised():
    """10 of 10: Clopper and Pearson's lower limit is 0.025^(1/10) = 0.69."""
    row = {
        "diagnostic": "rollout_corr/k3_kl",
        "detected": 1.0,
        "false_alarms": 1.0,
        "collapsed_runs": 10,
        "other_runs": 6,
        "median_lead": 2,
    }
    assert _warned(pd.DataFrame([row])).startswith("No diagnostic detected a larger share")
    assert _warned(pd.DataFrame([row | {"false_alarms": 0.5}])).startswith(
        "Of 1 diagnostic, K3 separated collapsed from other runs best. It detected 100% of 10 collapses (95% interval 69% to "
        "100%), a median of 2 RL steps ahead. It raised false alarms in 3 of 6 other runs"
    )


def test_the_mismatch_of_a_collapsed_run_is_that_before(made):
    """K3 stays high after the fall, which says nothing of what led to it: of the rows up to the onset the median is lower."""
    results = load(made[0])
    run = results.runs[(results.runs.arm == "fp8_tensor ppo") & (results.runs.seed == 0)].iloc[0]
    rows = results.steps[results.steps.run == run.name].set_index("step")["rollout_corr/k3_kl"]
    found = results.measures.k3
    assert found[run.name] == rows[rows.index <= run.onset].median() < rows.median()
    healthy = results.runs.index[results.runs.outcome == "survived"][0]
    whole = results.steps[results.steps.run == healthy]["rollout_corr/k3_kl"].median()
    assert found[healthy] == whole


def test_losses_and_corrections_by_hand(made):
    """fp8 ppo: four of five end near 0.05, of the control none: its mean last reward less the control's, over the same seeds."""
    results = load(made[0])
    table = results.combinations.set_index(["down", "across"])
    assert list(table.index.get_level_values(0).unique()) == [
        "fp32",
        "bf16",
        "fp8_tensor",
        "fp8_tensor sequence-mask",
        "fp8_tensor token-truncate",
    ]
    final = results.runs.join(results.rewards).set_index(["arm", "seed"]).final
    row = table.loc["fp8_tensor", "ppo"]
    assert (row.collapsed, row.known, row["mean"]) == (4, 5, pytest.approx(final["fp8_tensor ppo"].mean()))
    assert row.from_control == pytest.approx(final["fp8_tensor ppo"].mean() - final["fp32 ppo"].mean())
    assert np.isnan(table.loc["fp32", "ppo"]["from_control"])
    assert table.loc["fp8_tensor sequence-mask", "pg"]["never_learned"] == 1
    cells = [text.get_text() for text in FIGURES["heatmaps"].draw(results).axes[0].texts]
    assert sorted(cells) == ["0/5"] * 7 + ["0/5 †", "2/5", "4/5"]
    shown = tables.matrix(results).set_index("")
    apart = re.escape(f"{row.from_control:+.2f}")
    assert re.fullmatch(rf"4/5; 0\.2\d \(0\.0\d to 0\.9\d\); {apart}", shown.loc["fp8_tensor", "ppo"])
    assert re.fullmatch(r"0/5; 0\.9\d \(0\.9\d to 0\.9\d\)", shown.loc["fp32", "ppo"])
    assert shown.loc["fp8_tensor sequence-mask", "pg"].startswith("0/5 (1 never learned); ")


def test_robustness_shrinks_with_delta_and_m(made):
    grid = load(made[0]).robustness.loc["fp8_tensor ppo"]
    assert grid[(0.5, 3)] == 4  # as the runs' own detector found
    by_m = [grid[(0.5, m)] for m in definitions.LENGTHS]
    assert by_m == sorted(by_m, reverse=True)


def test_every_definition_counts_what_its_own_detector_finds():
    """Random walks of 40 evaluations, of which some fall for good, some for a while and some never; one run has none recorded."""
    rng = np.random.default_rng(0)
    detector = {"delta": 0.5, "consecutive": 3, "warm": 2, "floor": 0.0}
    config = {"collapse": {"detectors": {"drawdown": detector}}}
    rewards = np.clip(0.5 + rng.normal(0, [[0.02], [0.08], [0.15]], (20, 3, 40)).cumsum(2), 0, 1).reshape(60, 40)
    walks = {
        f"run{i}": [{"step": 10 * j, "eval/reward": float(r), "eval/stderr": 0.02} for j, r in enumerate(walk)]
        for i, walk in enumerate(rewards)
    }
    same = {"control": False, "precision": "bf16", "loss": "ppo", "correction": "none", "setting": ""}
    runs = pd.DataFrame({"arm": ["a", "b", "c"] * 20 + ["d"]} | same, index=[*walks, "lost"])
    counted = definitions.robustness(runs, dict.fromkeys(runs.index, config), walks)
    assert counted.loc["d"].isna().all()
    for (delta, m), column in counted.items():
        own = {"drawdown": detector | {"delta": delta, "consecutive": m}}
        fired = pd.Series({run: bool(detect(rows, own)) for run, rows in walks.items()})
        assert column.drop("d").to_dict() == fired.groupby(runs.arm.drop("lost")).sum().to_dict()
    assert counted[(0.2, 1)].sum() > 2 * counted[(0.7, 5)].sum() > 0 and counted[(0.2, 1)].sum() < 60


def test_lost_events_do_not_pass_for_another_outcome(tmp_path):
    """The rows fall from step 60; without its events the run would have survived, or never learned."""
    folder = write(tmp_path, FP8, seed=0, collapse=60)
    write(tmp_path, FP8, seed=1, collapse=60)
    assert load(tmp_path).disagreements == []
    (folder.path / "events.jsonl").unlink()
    learned, fell = sorted(load(tmp_path).disagreements, reverse=True)
    assert fell == "fp8_tensor ppo seed 0: drawdown has its onset at step 70 by the rows and no onset by the events."
    assert learned.startswith("fp8_tensor ppo seed 0: learning has its onset at step")


def answered(results):
    return "\n".join(verdicts.answer(results))


def test_a_sweep_under_way_counts_what_has_ended(tmp_path):
    """fp32: one ended, one waits, one failed at 30. fp8: one collapsed, at 61, one runs. bf16 waits, and does not set τ."""
    write(tmp_path, FP32, seed=0)
    write(tmp_path, FP32, seed=1, until=0, state="queued")
    write(tmp_path, FP32, seed=2, until=31, state="failed", error="disk full")
    write(tmp_path, FP8, seed=0, collapse=50)
    write(tmp_path, FP8, seed=1, until=40, state="running")
    write(tmp_path, "rollout/precision=bf16", seed=0, until=0, state="queued")
    results = load(tmp_path)
    table = results.outcomes.set_index("arm")
    fp32, fp8, bf16 = table.loc["fp32 ppo"], table.loc["fp8_tensor ppo"], table.loc["bf16 ppo"]
    assert (fp32.known, fp32.collapsed, fp32.unfinished, fp8.known, fp8.collapsed_share) == (1, 0, 2, 1, 1)
    assert fp8.horizon == 100 and fp32.rmst == 100
    assert bf16.known == 0 and pd.isna(bf16.rmst) and pd.isna(bf16.collapse_p) and pd.isna(bf16.collapsed_share)
    assert fp8.note == "1 against 1 runs: p ≥ 1, too few for significance"
    text = answered(results)
    assert "1 of 2 runs collapsed, in 1 of 2 arms. 1 survived." in text
    assert "Another 4 runs count in no share: 1 failed, 2 queued, 1 running." in text
    assert "fp8_tensor rollouts collapsed 1 of 1; 1 seed proves nothing" in text and "0 of 0" not in text


def test_the_first_sentence_says_what_happened(tmp_path):
    """Two arms of one seed: both never learn, both survive, one of each, one fails, neither has ended."""
    said = {}
    for name, (learned, other) in {
        "never": ({"learns": False}, {"learns": False}),
        "survived": ({}, {}),
        "mixed": ({"learns": False}, {}),
        "failed": ({}, {"until": 30, "state": "failed"}),
        "unfinished": ({"until": 30, "state": "running"}, {"until": 0, "state": "queued"}),
    }.items():
        write(tmp_path / name, FP32, **learned)
        write(tmp_path / name, FP8, **other)
        said[name] = verdicts.answer(load(tmp_path / name))
    assert {name: sentences[0] for name, sentences in said.items()} == {
        "never": "2 of 2 runs never learned: no held-out reward rose by three standard errors. None collapsed.",
        "survived": "0 of 2 runs collapsed: 2 survived.",
        "mixed": "0 of 2 runs collapsed: 1 survived, 1 never learned.",
        "failed": "0 of 1 runs collapsed: 1 survived. Another 1 run counts in no share: 1 failed.",
        "unfinished": "No run has ended: 1 queued, 1 running.",
    }
    told = {name: " ".join(sentences) for name, sentences in said.items()}
    assert "The fp32 control never learned in 1 of 1 runs." in told["never"] and "compatible" not in told["never"]
    assert told["never"].count("never learned") == 2  # of all runs, and of the control
    assert "The control has not ended: 1 running." in told["unfinished"] and "has no control" not in told["unfinished"]


@pytest.mark.parametrize(("until", "told"), [(10, "2 evaluations"), (15, "3 evaluations"), (20, None)])
def test_runs_with_too_few_evaluations_are_said_to_show_nothing(tmp_path, until, told):
    """An evaluation every 5 steps, the first before a step is done. Learning takes the median of three after the first."""
    write(tmp_path, FP32, learns=False, until=until, state="done")
    results = load(tmp_path)
    few = f"1 run ended too early to tell: no more than {told} each, of 4."
    never = "1 of 1 runs never learned: no held-out reward rose by three standard errors. None collapsed."
    assert verdicts.answer(results)[0] == (few if told else never)
    assert list(tables.runs(results).outcome) == ["too short to tell" if told else "never learned"]


@pytest.mark.parametrize("seeds", [1, 2])
def test_arms_of_one_seed_that_nothing_compares_are_said_to_show_no_difference(tmp_path, seeds):
    """A corrected arm beside the control alone: no question compares the two."""
    for seed in range(seeds):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, "correction=token_truncate", seed=seed)
    said = "Each arm has one seed, so no difference between arms is evidence: give more, as seed=0,1,2,3,4."
    assert (said in verdicts.answer(load(tmp_path))) == (seeds == 1)


def test_a_run_without_any_gradient_is_said_to_have_trained_nothing(tmp_path):
    """One run of three has a gradient of 0 in each step. A second has one in a single step, and is not named."""
    write(tmp_path, FP32)
    for seed, last in ((0, 0.0), (1, 0.2)):
        path = write(tmp_path, FP8, seed=seed, learns=False).path / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row |= {"actor/grad_norm": last if row["step"] == 99 else 0.0} if "actor/grad_norm" in row else {}
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = [line for line in verdicts.answer(load(tmp_path)) if "gradient" in line]
    assert said == ["No step had a gradient, so nothing was trained: fp8_tensor ppo 1. All advantages or all weights were 0."]


def test_the_finding_comes_first_and_nothing_repeats_it(tmp_path):
    """Two seeds an arm: fp8 collapses with both, a truncation with one, a mask with none. The two comparisons of the
    corrections share Holm's adjustment, so 2·2/C(2n, n) ≤ 0.05 is asked: 4/70 = 0.057 of four seeds, 4/252 = 0.016 of five."""
    for seed in (0, 1):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed, collapse=50)
        write(tmp_path, FP8, "correction=token_truncate", seed=seed, collapse=None if seed else 60)
        write(tmp_path, FP8, "correction=sequence_mask", seed=seed)
    finding, *others = verdicts.answer(load(tmp_path))
    assert finding == (
        "fp8_tensor rollouts collapsed 2 of 2, with sequence-mask 0 of 2, with token-truncate 1 of 2; "
        "2 seeds prove nothing, at least 5 are needed."
    )
    assert not any("rollouts:" in sentence or "could be significant" in sentence for sentence in others)
    write(tmp_path, FP32, seed=2, collapse=50)
    assert verdicts.answer(load(tmp_path))[0].startswith("fp8_tensor rollouts collapsed 2 of 2 and the control 1 of 3, with ")


def test_sentences_have_the_short_names_of_arms(tmp_path):
    """A caveat, a comparison and a list of arms drop the groups of keys; what a run wrote as its error stays."""
    for bound in (2, 3):
        for seed in range(4):
            more = {"until": 30, "state": "failed", "error": "actor.lr=3 is too much"} if (bound, seed) == (3, 3) else {}
            options = ("correction=token_truncate", f"correction.weight.upper={bound}")
            write(tmp_path, FP8, *options, seed=seed, learns=bound == 3 or seed > 0, **more)
    results = load(tmp_path)
    caveat, answer = "\n".join(results.caveats), answered(results)
    assert "token-truncate upper=3.0 seed 3: failed at step 29; the steps before count. actor.lr=3 is too much" in caveat
    assert "(fp8_tensor ppo token-truncate upper=2.0 1)" in answer and "correction.weight" not in answer + caveat


def test_a_run_that_never_learned_is_no_success_of_its_arm(tmp_path):
    for seed in range(8):
        write(tmp_path, FP8, seed=seed, collapse=40 + seed)
        write(tmp_path, FP8, "correction=sequence_mask", seed=seed, learns=seed > 2)
    results = load(tmp_path)
    table = results.outcomes.set_index("arm")
    assert table.loc["fp8_tensor ppo sequence-mask", "note"] == "3 never learned, counted as not collapsed"
    assert ", 3 runs never learned, Holm-adjusted p 0.00016" in answered(results)


def test_the_largest_arms_decide_whether_seeds_are_too_few(tmp_path):
    """Eight seeds of fp8, two of bf16: p of 2/C(16, 8) could be reached, times two comparisons of the last reward; nothing
    collapsed, so there are no collapses to compare."""
    for seed in range(8):
        write(tmp_path, FP32, seed=seed, steps=30)
        write(tmp_path, FP8, seed=seed, steps=30)
        if seed < 2:
            write(tmp_path, "rollout/precision=bf16", seed=seed, steps=30)
    told = "Precision against the control, last reward: no comparison was significant (2 tested, smallest Holm-adjusted p 1)."
    assert told in answered(load(tmp_path))


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
    assert "The fp32 control never collapsed in 1 run." in text and "fp32, noise 0.01 rollouts collapsed 1 of 1; " in text
    assert "The bf16 control never collapsed" in answered(load(tmp_path / "bf16"))


def test_staleness_is_a_source_of_mismatch_of_its_own(tmp_path):
    for stale in (0, 1, 4):
        write(tmp_path, FP32, f"rollout.staleness={stale}", collapse=50 if stale else None)
    write(tmp_path, FP32, "rollout.partial_tokens=2")
    sources = ["fp32", "fp32, 1 step stale", "fp32, 4 steps stale", "fp32, parts of 2 tokens"]
    assert sorted(load(tmp_path).runs.source) == sources


def test_rewards_are_pooled_within_losses_that_all_rows_have(made):
    """Over ppo and pg, five seeds each: the mean of all ten last rewards of a row; the interval draws five of each loss."""
    results = load(made[0])
    table = results.pooled.set_index(["precision", "correction"])
    final = results.rewards.final
    mine = (results.runs.precision == "fp8_tensor") & (results.runs.correction == "none")
    row = table.loc[("fp8_tensor", "none")]
    assert (row.strata, row.runs) == (2, 10) and row.final_mean == pytest.approx(final[mine].mean())
    least = final[mine & (results.runs.loss == "ppo")].min() / 2 + final[mine & (results.runs.loss == "pg")].min() / 2
    assert least <= row.final_mean_low < row.final_mean_high


def test_the_reward_gained_is_paired_by_seed(made):
    results = load(made[0])
    table, runs = results.outcomes.set_index("arm"), results.runs.join(results.rewards)
    one, other = (runs[runs.arm == arm].set_index("seed").final for arm in ("fp8_tensor ppo", "fp32 ppo"))
    row = table.loc["fp8_tensor ppo"]
    assert row.reward_gained == pytest.approx((one - other).mean())
    theirs = stats.permutation_test((one, other), lambda a, b, axis: a.mean(axis) - b.mean(axis), n_resamples=np.inf)
    assert row.reward_p == pytest.approx(theirs.pvalue)
