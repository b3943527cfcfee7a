"""The report: what it says, that its page opens in a real browser, what it does with sweeps that are uneven, large or empty."""

import math
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis import tables, words
from analysis.figures import FIGURES
from analysis.figures.dumped import Dumped, by_position, exceedance, hill
from analysis.figures.style import chunks, short, svg
from analysis.load import load
from analysis.performance import rewards
from analysis.report import BEGIN, END, insert, report
from analysis.words import _warned
from harness.errors import UserError
from tests.analysis.synthetic import study, write

FP32, FP8 = "rollout/precision=fp32", "rollout/precision=fp8_tensor"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The sweep of synthetic.study with five seeds, and its report."""
    sweep = study(tmp_path_factory.mktemp("sweeps") / "study")
    return sweep, report(sweep)


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
        "too few seeds to carry an order, so read this as a description of these runs.",
        # 2/2^5, over two precisions and two corrections of two losses
        "from the reference's is told from chance: 5 shared seeds can give p = 0.062 at the least, times 8 comparisons: too few.",
        "- Never learned, which is another outcome than a collapse: 1 of 50 runs (fp8_tensor pg sequence-mask 1).",
        "warned best in these runs: it saw 100% of 6 collapses (95 % interval 54% to 100%)",
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


def test_many_seeds_tell_an_effect_from_chance(tmp_path):
    """8 collapse at different steps, 8 do not: p = 2/C(16, 8) = 1.6e-4."""
    for seed in range(8):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed, collapse=40 + seed)
    report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "Told from chance: fp8_tensor ppo against fp32 ppo" in text and "Holm p = 0.00016" in text


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
        "collapsed runs": 2,
        "other runs": 6,
        "median lead (steps)": 2,
    }
    assert _warned(pd.DataFrame([row])).startswith("No diagnostic saw collapses more often")
    assert _warned(pd.DataFrame([row | {"false alarms": 0.5}])).startswith(
        "Of 1 diagnostics, K3 warned best in these runs: it saw"
    )


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


def test_more_arms_than_a_panel_holds_are_first_shown_as_a_map(made, tmp_path):
    """Ten arms: the first screen is loss x correction; four arms: the curves of survival."""
    page = made[1].read_text()
    assert "which loss and correction survive, against the control?" in page
    assert page.index('id="heatmaps"') < page.index('id="survival"')
    for seed in (0, 1):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed, collapse=50)
    page = report(tmp_path).read_text()
    assert page.index('id="survival"') < page.index('id="heatmaps"')


def test_of_few_seeds_each_is_drawn(tmp_path):
    """One of three collapses: a median would hide it. The interval at the end is Clopper and Pearson's of two in three."""
    for seed in range(3):
        write(tmp_path, FP8, seed=seed, collapse=50 if seed == 1 else None)
    sweep = load(tmp_path)
    (axis,) = FIGURES["reward"].draw(sweep).axes
    assert sorted(line.get_ydata()[-1] > 0.9 for line in axis.lines) == [False, True, True]
    (axis,) = FIGURES["survival"].draw(sweep).axes
    band = next(line.get_ydata() for line in axis.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2)
    assert list(band) == pytest.approx([0.0943, 0.9916], abs=1e-4)


def test_robustness_shrinks_with_delta_and_m(made):
    grid = tables.robustness(load(made[0])).loc["fp8_tensor ppo"]
    assert grid["δ=0.5 m=3"] == 4  # as the runs' own detector found
    by_m = [grid[f"δ=0.5 m={m}"] for m in tables.LENGTHS]
    assert by_m == sorted(by_m, reverse=True)


def test_the_page_needs_nothing_else_and_is_small(made):
    page = made[1].read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page.replace("xlink:href", "")) and "<script" not in page
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+|http://purl\.org/\S+|http://creativecommons\.org/\S+", "", page)
    assert len(page) < 1_500_000
    assert page.count("<svg") == len(FIGURES) - 4  # no bounds, dumps or learning rates to compare in this sweep
    assert "Not drawn: One learning rate only" in page


def browser(page, shot, height=900):
    """A screenshot by Debian's chromium, and what its console said."""
    program = shutil.which("chromium")
    assert program, "chromium is missing: apt-get install chromium (make test does it as root)"
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size=1280,{height}",
        "--enable-logging=stderr",
    ]
    where = [f"--user-data-dir={shot.parent / 'profile'}", f"--screenshot={shot}", f"file://{page}"]
    done = subprocess.run([program, *options, *where], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return Image.open(shot).convert("L"), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_real_browser_shows_words_and_a_figure_on_the_first_screen(made, tmp_path):
    image, console = browser(made[1], tmp_path / "first.png")
    assert image.size == (1280, 900) and console == []
    dark = pd.Series([sum(v < 128 for v in image.crop((0, y, 1280, y + 50)).tobytes()) for y in range(0, 900, 50)])
    assert dark[:6].min() > 100  # lines of text
    assert dark[9:].sum() > 3000  # axes and curves below them


def test_a_real_browser_lays_out_every_figure_and_table(made, tmp_path):
    """The document as the browser has it: each figure has a size, and nothing is wider than the window."""
    copy = tmp_path / "measured.html"
    script = """<script>onload = () => { const r = e => e.getBoundingClientRect();
      document.title = JSON.stringify({ svg: [...document.querySelectorAll("svg")].map(e => [r(e).width, r(e).height]),
      wide: document.documentElement.scrollWidth, tables: document.querySelectorAll("table").length }) }</script>"""
    copy.write_text(made[1].read_text().replace("</body>", f"{script}</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'p'}", f"file://{copy}"], capture_output=True, text=True, timeout=120
    )
    import html
    import json

    found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert len(found["svg"]) == len(FIGURES) - 4 and all(w > 800 and h > 100 for w, h in found["svg"])
    assert found["wide"] <= 1280 and found["tables"] == 8


def test_an_uneven_sweep_is_told_of_and_not_averaged_away(tmp_path):
    for seed in (0, 1):
        write(tmp_path, FP32, seed=seed)
    write(tmp_path, FP8, seed=0, drop=("eval/stderr", "mismatch/ess_sequence"), commit="b" * 40)
    write(tmp_path, FP8, seed=1, until=30, state="failed", error="disk full <&>")
    (write(tmp_path, FP8, seed=2).path / "config.json").write_text("{")
    page = report(tmp_path).read_text()
    assert "fp8_tensor ppo seed 1: failed at step 29, counted until there. disk full &lt;&amp;&gt;" in page
    assert "did not record" in page and "2 versions of the code" in page and "config.json: unreadable" in page
    table = tables.outcomes(load(tmp_path)).set_index("arm").loc["fp8_tensor ppo"]
    assert (table.runs, table.unfinished, table.collapsed) == (2, 1, 0)


def test_lost_events_do_not_pass_for_another_outcome(tmp_path):
    """The rows fall from step 60; without its events the run would have survived, or never learned."""
    folder = write(tmp_path, FP8, seed=0, collapse=60)
    write(tmp_path, FP8, seed=1, collapse=60)
    assert tables.disagreements(load(tmp_path)) == []
    (folder.path / "events.jsonl").unlink()
    learned, fell = sorted(tables.disagreements(load(tmp_path)), reverse=True)
    assert fell == "fp8_tensor ppo seed 0: the event of drawdown is at step 70 by its rows and none by its events."
    assert learned.startswith("fp8_tensor ppo seed 0: the event of learning is at step")


def test_runs_that_recorded_nothing_yet(tmp_path):
    write(tmp_path, FP32, until=0, state="running")
    assert "running at step 0" in report(tmp_path).read_text()


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
    assert fp8.said == "1 against 1 runs: p ≥ 1, too few to carry an order; reward by 1 shared seed: p ≥ 1, too few"
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
    assert "(3 of its runs never learned), Holm p = 0.00016" in answered(sweep)


def test_the_largest_arms_decide_whether_seeds_are_too_few(tmp_path):
    """Eight seeds of fp8, two of bf16: p of 2/C(16, 8) could be reached, times two comparisons; nothing collapsed."""
    for seed in range(8):
        write(tmp_path, FP32, seed=seed, steps=30)
        write(tmp_path, FP8, seed=seed, steps=30)
        if seed < 2:
            write(tmp_path, "rollout/precision=bf16", seed=seed, steps=30)
    said = "8 seeds fully apart from those of the reference give p = 0.00016, times 2 comparisons): what is seen may be chance."
    assert said in answered(load(tmp_path))


def test_the_control_alone_is_asked_where_it_is_stable(tmp_path):
    """Two rates x two numbers of mini-batches: of (1e-3, 4) both seeds collapse. Nothing is pooled over the mini-batches."""
    for rate in ("1e-4", "1e-3"):
        for parts in (1, 4):
            for seed in (0, 1):
                at = 20 if rate == "1e-3" and parts == 4 else None
                write(tmp_path, FP32, f"actor.lr={rate}", f"actor.minibatches={parts}", seed=seed, collapse=at)
    sweep = load(tmp_path)
    page = report(tmp_path).read_text()
    assert "where is the control stable?" in page and page.index('id="frontier"') < page.index('id="survival"')
    assert (
        "of 4 settings with a run that has ended (2 seeds each), every seed reached a held-out reward of 0.95 in at least one "
        "evaluation in 3, some in 0 and none in 1"
        in page
    )
    cells = [text.get_text() for text in FIGURES["frontier"].draw(sweep).axes[0].texts]
    assert sorted(cells) == ["0/2", "0/2", "0/2", "2/2"]


def test_an_8_bit_cache_is_a_source_of_mismatch_of_its_own(tmp_path):
    """Of two seeds each: the words pool no run with a cache of 8 bits with one without."""
    for cache in ("compute", "fp8_e4m3"):
        for seed in (0, 1):
            write(tmp_path, "rollout/precision=bf16", f"rollout.kv_cache={cache}", seed=seed)
    told = report(tmp_path).with_suffix(".md").read_text()
    assert "Uncorrected bf16 rollouts: 0 of 2" in told and "Uncorrected bf16, fp8_e4m3 cache rollouts: 0 of 2" in told


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
    for stale in (0, 4):
        write(tmp_path, FP32, f"rollout.staleness={stale}", collapse=50 if stale else None)
    assert sorted(load(tmp_path).runs.source) == ["fp32", "fp32, 4 steps stale"]


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
    # Four seeds fell, the fifth is the same in both: of 2^5 signs those of the four alike, times two for the fifth: 4/32.
    assert row["reward p"] == pytest.approx(4 / 32) and row["reward Holm p"] >= 4 / 32


def test_the_tail_of_the_log_ratios_holds_its_largest():
    """Of 100000 values the largest are each a point: at rank k the share is k/n, and no line is drawn over a gap between them."""
    values = np.arange(1, 100_001) / 1e5
    x, share = exceedance(values)
    assert list(x[:3]) == [1, 0.99999, 0.99998] and list(share[:3]) == [1e-5, 2e-5, 3e-5] and share[-1] == 1
    assert np.diff(np.log(share)).max() < 0.7  # the first two ranks are ln 2 apart


def test_the_tail_index_of_exact_quantiles():
    """log w_(i) = k log(n/i), the quantiles of a Pareto of index k: k̂_m = k (log(m + 1) − log(m!)/m), which tends to k."""
    n, k = 5000, 0.6
    m, estimate = hill(k * np.log(n / np.arange(1, n + 1))[::-1])
    assert m[0] == 1 and m[-1] == 499
    expected = [k * (math.log(i + 1) - math.lgamma(i + 1) / i) for i in m]
    assert estimate == pytest.approx(expected, abs=1e-12) and estimate[-1] == pytest.approx(k, abs=0.01)


def test_k3_by_position():
    """A token's own place while there are few; then bins: the last is the mean of the places above the edge before."""
    ratio = np.log([2.0, 1.0, 0.5])
    tokens = Dumped(np.zeros(3), ratio, np.array([1, 1, 3]), np.zeros(1))
    place, k3 = by_position(tokens)
    assert list(place) == [1, 2, 3] and np.isnan(k3[1])
    assert k3[[0, 2]] == pytest.approx([(1 - math.log(2)) / 2, math.log(2) - 0.5])
    place, k3 = by_position(Dumped(np.zeros(1000), np.linspace(0, 1, 1000), np.arange(1, 1001), np.zeros(1)))
    assert place[0] == 1 and place[-1] == 1000 and len(place) < 64
    last = np.linspace(0, 1, 1000)[place[-2] :]
    assert k3[-1] == pytest.approx((np.exp(last) - 1 - last).mean())


def test_the_lengths_of_what_a_correction_drops(tmp_path):
    """Dropped at 30 tokens, used at 10 and 20, at one step each; of another run all are used, which is no damage to it."""
    for seed in (0, 1):
        folder = write(tmp_path, FP8, "correction=sequence_mask", seed=seed)
        for row, used in zip(folder.metrics()[3:5], (10.0, 20.0), strict=True):
            dropped = {} if seed else {"correction/dropped_length": 30.0}
            zero = {"correction/weight_zero": 0.5, "correction/used_length": used}
            folder._append("metrics.jsonl", {**row, **zero, **dropped})
    sweep = load(tmp_path)
    assert sweep.problems == []
    figure = FIGURES["gap"].draw(sweep)
    left = figure.axes[1].collections[0].get_offsets()[0][0]
    assert left == pytest.approx(0.99)  # half of the tokens weighted 0 at 2 of 100 steps, though every sequence is kept
    assert figure.axes[2].collections[0].get_offsets().tolist() == [[15.0, 30.0]]


def test_no_collapse_anywhere(tmp_path):
    for seed in (0, 1):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed)
    page = report(tmp_path).read_text()
    assert "Not drawn: No run collapsed" in page and page.index('id="reward"') < page.index("Not drawn")


def test_more_than_eight_arms_in_a_panel_stay_apart(tmp_path):
    """20 bounds of one correction: panels of at most eight lines, each line of a panel with a colour and a dash of its own."""
    for upper in range(20):
        at = 40 + upper if upper % 3 == 0 else None
        write(tmp_path, FP8, "correction=token_truncate", f"correction.weight.upper={1.5 + upper}", collapse=at, steps=80)
    sweep = load(tmp_path)
    for name in ("survival", "reward"):
        figure = FIGURES[name].draw(sweep)
        assert len(figure.axes) == 3
        for axis in figure.axes:
            lines = [line for line in axis.lines if not line.get_label().startswith("_")]
            assert 6 <= len(lines) <= 8 and len({(line.get_color(), str(line.get_linestyle())) for line in lines}) == len(lines)
    cells = [text.get_text() for text in FIGURES["bounds"].draw(sweep).axes[0].texts]
    assert sorted(cells) == ["0/1"] * 13 + ["1/1"] * 7  # threshold x level, with the number of seeds


def test_a_label_loses_the_groups_of_its_keys_and_nothing_of_their_values():
    assert short("fp8_tensor ppo actor.lr=0.0003 correction.weight.upper=2.5", 99) == "fp8_tensor ppo lr=0.0003 upper=2.5"


def test_chunks_are_even():
    assert [len(part) for part in chunks(list(range(20)))] == [6, 7, 7] and chunks([1, 2]) == [[1, 2]]


def test_five_hundred_runs_make_a_page_below_five_megabytes(made, tmp_path):
    """500 runs in 10 arms: the runs of the study under 50 names of seeds."""
    sweep = load(made[0])
    copies = [sweep.runs.assign(seed=sweep.runs.seed + 5 * k).rename(index=lambda run, k=k: f"{run}-{k}") for k in range(10)]
    steps = [sweep.steps.assign(run=sweep.steps.run.astype(str) + f"-{k}") for k in range(10)]
    many = sweep._replace(
        runs=pd.concat(copies),
        steps=pd.concat(steps, ignore_index=True).astype({"run": "category"}),
        configs={f"{run}-{k}": config for run, config in sweep.configs.items() for k in range(10)},
    )
    assert len(many.runs) == 500
    drawn = [output.draw(many) for output in FIGURES.values()]
    size = sum(len(svg(figure)) for figure in drawn if not isinstance(figure, str)) + len(tables.arms(many).to_html())
    assert size < 5_000_000, size


def test_the_regime_tells_what_other_precisions_would_have_had(tmp_path):
    """Two control runs with probes: K3 the median of 1e-4 and 3e-4 over both, ESS the lowest; both reached 0.95."""
    for seed, k3 in ((0, 1e-4), (1, 3e-4)):
        folder = write(tmp_path, FP32, seed=seed)
        probe = {"probe/bf16/k3_kl": k3, "probe/bf16/ess_sequence": 1 - k3, "probe/bf16/log_ratio_max_abs": 0.1 + k3}
        folder._append("metrics.jsonl", {**folder.metrics()[-1], **probe})
    (row,) = tables.probes(load(tmp_path), 0.95).to_dict("records")
    assert row["reached 0.95"] == "2/2" and row["bf16 K3"] == pytest.approx(2e-4) and row["bf16 lowest ESS"] == 1 - 3e-4
    report(tmp_path)
    assert "## What mismatch other precisions would have had" in (tmp_path / "report.md").read_text()


def test_the_results_go_between_the_marks(made, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"# Title\n\n{BEGIN}\nstale words\n{END}\n\n## After\n")
    report(made[0], out=tmp_path / "out", into=readme)
    text = readme.read_text()
    assert (
        text.startswith(f"# Title\n\n{BEGIN}\n- 6 of 50 runs")
        and "| fp8_tensor token-truncate | 0/5; " in text.replace("  ", "")
        and text.endswith(f"{END}\n\n## After\n")
        and "stale words" not in text
    )
    assert "faultline report" in text and (tmp_path / "out" / "arms.csv").exists()
    report(made[0], out=tmp_path / "out", into=readme)
    assert readme.read_text() == text  # the same sweep gives the same words
    readme.write_text("# No marks\n")
    with pytest.raises(UserError, match="needs the line <!-- results: begin --> once"):
        insert(readme, "x")


def test_csv_holds_the_numbers(made):
    arms, runs = pd.read_csv(made[0] / "arms.csv"), pd.read_csv(made[0] / "runs.csv")
    assert len(arms) == 10 and len(runs) == 50 and arms["collapsed"].sum() == runs["event"].sum() == 6
    assert runs.loc[runs.event, "onset drawdown"].notna().all()
    survived = runs[runs.outcome == "survived"]
    assert (survived["best eval"] >= survived["final eval"]).all() and (survived["final eval"] > 0.5).all()
    assert (runs.loc[runs.event, "final eval"] < 0.5 * runs.loc[runs.event, "best eval"]).all()


def test_the_command_line(made, tmp_path):
    command = [sys.executable, "-m", "experiments.cli", "report"]
    done = subprocess.run([*command, str(made[0]), "--out", str(tmp_path / "r")], capture_output=True, text=True)
    assert done.returncode == 0 and f"Page: {tmp_path}/r/report.html" in done.stdout, done.stderr
    for wrong, said in (
        ([str(tmp_path / "none")], "no run folder in it"),
        (["wandb-offline:" + str(tmp_path)], "no offline W&B run below it"),
        ([str(made[0]), "--into", str(tmp_path / "no.md")], "needs the line"),
    ):
        done = subprocess.run([*command, *wrong], capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
