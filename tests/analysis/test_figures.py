"""Figures: what is drawn, of few seeds and of many arms; the tails of what runs dumped."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import labels, tables
from analysis.figures import FIGURES
from analysis.figures.dumped import Dumped, by_position, exceedance, hill
from analysis.figures.style import apart, chunks, draw, grid, key, label_outer, legend_below, short, subplots
from analysis.load import load
from analysis.marks import DASHES, NEUTRAL, Mark
from tests.analysis.synthetic import FP8, FP32, write


def test_a_picture_is_drawn_once(monkeypatch):
    """Matplotlib draws a figure with a layout engine twice: for the layout, and for the file."""
    drawn, once = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda figure, renderer: drawn.append(figure) or once(figure, renderer))
    figure, _ = subplots(1, 1, 2.0)
    assert draw(figure, "x").svg.startswith("<svg") and drawn == [figure]


def test_of_few_seeds_each_is_drawn(tmp_path):
    """One of three collapses: a median would hide it."""
    for seed in range(3):
        write(tmp_path, FP8, seed=seed, collapse=50 if seed == 1 else None)
    (axis,) = FIGURES["reward"].draw(load(tmp_path)).axes
    assert sorted(line.get_ydata()[-1] > 0.9 for line in axis.lines) == [False, True, True]


def test_the_interval_of_a_survival_curve(tmp_path):
    """Ten of twelve collapse. The interval at the end is Clopper and Pearson's of two in twelve (0.0209 to 0.4841)."""
    for seed in range(12):
        write(tmp_path, FP8, seed=seed, collapse=50 if seed > 1 else None)
    (axis,) = FIGURES["survival"].draw(load(tmp_path)).axes
    band = next(line.get_ydata() for line in axis.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2)
    assert list(band) == pytest.approx([0.0209, 0.4841], abs=1e-4)
    assert [text.get_text() for text in axis.texts] == ["12", "12", "12", "2", "2"]  # at risk at 0, 25, 50, 75, 100 of the steps


def test_every_run_that_ended_is_a_point(tmp_path):
    """Three of fp8, one of them collapsed, one of fp32, and one that goes on: four points, one of them filled, a mean per arm."""
    write(tmp_path, FP32, seed=0)
    write(tmp_path, FP32, seed=1, until=30, state="running")
    for seed in range(3):
        write(tmp_path, FP8, seed=seed, collapse=50 if seed == 1 else None)
    sweep = load(tmp_path)
    (axis,) = FIGURES["ends"].draw(sweep).axes
    kinds = {"open": ("o", True), "filled": ("o", False)}
    looks = [(line, (line.get_marker(), line.get_markerfacecolor() == "none")) for line in axis.lines]
    last = {name: sorted(x for line, look in looks if look == kind for x in line.get_xdata()) for name, kind in kinds.items()}
    means = [x for line in axis.lines if line.get_marker() == "|" for x in line.get_xdata()]
    final = sweep.rewards.final[sweep.runs.outcome != "unfinished"]
    assert [len(last["open"]), len(last["filled"]), len(means)] == [3, 1, 2] and last["filled"][0] == final.min()
    assert sorted(last["open"] + last["filled"]) == sorted(final)
    assert final[sweep.runs.arm == "fp8_tensor ppo"].mean() in means


def test_the_tail_of_the_log_ratios_holds_its_largest():
    """The largest of 100000 values are a point each: at rank k the share is k/n. No line is drawn over a gap."""
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
    assert sweep.caveats == []
    figure = FIGURES["gap"].draw(sweep)
    left = figure.axes[1].collections[0].get_offsets()[0][0]
    assert left == pytest.approx(0.99)  # half of the tokens weighted 0 at 2 of 100 steps, though every sequence is kept
    assert figure.axes[2].collections[0].get_offsets().tolist() == [[15.0, 30.0]]


def test_more_than_eight_arms_in_a_panel_stay_apart(tmp_path):
    """Nine sizes of noise under one correction: two panels, each line of a panel with a colour and a dash of its own."""
    for noise in range(9):
        write(tmp_path, FP32, f"rollout.engine.noise={0.1 + noise / 100:g}", steps=20)
    figure = FIGURES["reward"].draw(load(tmp_path))
    assert [len(axis.lines) for axis in figure.axes] == [4, 5]
    for axis in figure.axes:
        assert len({(line.get_color(), str(line.get_linestyle())) for line in axis.lines}) == len(axis.lines)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [f"fp32, noise {0.1 + noise / 100:g}" for noise in range(9)]

    titles = [axis.get_title("left") for axis in figure.axes]
    assert titles == ["(1 of 2)", "(2 of 2)"]
    write(tmp_path, FP32, steps=20)
    assert FIGURES["response"].draw(load(tmp_path)) == "K3 is exactly 0 in arms with noise, so that they have no dose"


def test_every_dash_of_a_legend_shows_its_gap():
    """A handle of 4 x 8 points holds two periods of the longest dash, 10 widths of 1.6 points."""
    figure, ((axis,),) = subplots(1, 1, 3.0)
    legend_below(figure, [axis], {str(dash): key(Mark(NEUTRAL, "o", dash)) for dash in DASHES})
    (legend,) = figure.legends
    longest = max(sum(dash[1]) for dash in DASHES if isinstance(dash, tuple))
    assert legend.handlelength * legend.prop.get_size() >= 2 * longest * legend.legend_handles[0].get_linewidth() == 32


@pytest.mark.slow
def test_a_caption_names_what_is_drawn_and_nothing_else(tmp_path):
    """Without a collapse, a correction or a control; then with all of them, and with a run that never learned."""
    for loss in ("ppo", "pg"):
        write(tmp_path / "plain", FP8, f"loss={loss}")
        write(tmp_path / "plain", "rollout/precision=bf16", f"loss={loss}")
        write(tmp_path / "all", FP32, f"loss={loss}")
    write(tmp_path / "all", FP8, "correction=token_truncate", learns=False)
    write(tmp_path / "all", FP8, collapse=50)
    for folder, there in (("plain", False), ("all", True)):
        results = load(tmp_path / folder)
        told = {name: FIGURES[name].explain(FIGURES[name].draw(results)) for name in ("heatmaps", "ends", "reward", "gap")}
        assert [word in told["heatmaps"] for word in ("Left:", "Below it:", "†")] == [there] * 3
        assert ["control" in told[name] for name in ("ends", "reward", "gap")] == [there] * 3
        assert ("Tokens used" in told["gap"]) is there and "Length of dropped" not in told["gap"]


def test_a_run_under_way_has_no_last_reward(tmp_path):
    """One of two corrected runs has ended: one point."""
    for seed in (0, 1):
        write(tmp_path, FP8, "correction=token_truncate", seed=seed, **({"state": "running", "until": 50} if seed else {}))
    figure = FIGURES["gap"].draw(load(tmp_path))
    (tokens,) = [axis for axis in figure.axes if axis.get_title("left") == "Tokens used and last reward"]
    assert [len(points.get_offsets()) for points in tokens.collections] == [1]


@pytest.mark.slow
def test_a_column_per_bound_of_a_correction(tmp_path):
    """20 bounds: the share of the one run at each. As 20 corrections of one precision they take three panels of 6 or 7."""
    for upper in range(20):
        at = 40 + upper if upper % 3 == 0 else None
        write(tmp_path, FP8, "correction=token_truncate", f"correction.weight.upper={1.5 + upper}", collapse=at, steps=80)
    sweep = load(tmp_path)
    assert [len(axis.lines) for axis in FIGURES["reward"].draw(sweep).axes] == [6, 7, 7]
    cells = [text.get_text() for text in FIGURES["bounds"].draw(sweep).axes[0].texts]
    assert sorted(cells) == ["0/1"] * 13 + ["1/1"] * 7  # threshold x level, with the number of seeds


def test_a_label_loses_the_groups_of_its_keys_and_nothing_of_their_values():
    assert short("fp8_tensor ppo actor.lr=0.0003 correction.weight.upper=2.5", 99) == "fp8_tensor ppo lr=0.0003 upper=2.5"


def test_names_lose_what_all_of_them_share():
    assert apart(["pg noise=0.1 lr=1", "pg noise=0.2 lr=1"]) == ["noise=0.1", "noise=0.2"]
    assert apart(["fp32 pg", "fp32 pg icepop"]) == ["fp32 pg", "icepop"] and apart(["fp32 pg"]) == ["fp32 pg"]
    assert short("noise=0.1 noise_persistence=1", 16) == "noise=0.1\nnoise_persistence=1"  # a word is never broken


def test_chunks_are_even():
    assert [len(part) for part in chunks(list(range(20)))] == [6, 7, 7] and chunks([1, 2]) == [[1, 2]]


@pytest.mark.slow
def test_five_hundred_runs_make_a_page_below_five_megabytes(made, tmp_path):
    """500 runs in 10 arms: the runs of the study under 50 names of seeds."""
    sweep = load(made[0])
    copies = [sweep.runs.assign(seed=sweep.runs.seed + 5 * k).rename(index=lambda run, k=k: f"{run}-{k}") for k in range(10)]
    steps = [sweep.steps.assign(run=sweep.steps.run.astype(str) + f"-{k}") for k in range(10)]
    many = replace(
        sweep,
        runs=pd.concat(copies),
        steps=pd.concat(steps, ignore_index=True).astype({"run": "category"}),
        configs={f"{run}-{k}": config for run, config in sweep.configs.items() for k in range(10)},
    )
    assert len(many.runs) == 500
    drawn = [output.draw(many) for output in FIGURES.values()]
    size = sum(len(draw(figure, "f").svg) for figure in drawn if not isinstance(figure, str)) + len(tables.runs(many).to_html())
    assert size < 5_000_000, size


@pytest.mark.parametrize(("count", "lowest", "first"), [(4, {1, 2, 3}, {0, 3}), (6, {3, 4, 5}, {0, 3}), (2, {0, 1}, {0})])
def test_the_lowest_panel_of_each_column_is_labelled(count, lowest, first):
    """Four panels in rows of three: below the second and the third there is none, so their own ticks and label are shown."""
    figure, axes = grid(count, 3, 1.0, sharex=True, sharey=True)
    label_outer(axes, "step", "reward")
    figure.canvas.draw()
    ticked = {i for i, axis in enumerate(axes) if any(tick.label1.get_visible() for tick in axis.xaxis.get_major_ticks())}
    assert ticked == {i for i, axis in enumerate(axes) if axis.get_xlabel()} == lowest
    assert {i for i, axis in enumerate(axes) if axis.get_ylabel()} == first


def test_every_precision_of_a_config_has_its_place():
    folder = Path(__file__).parents[2] / "experiments" / "conf" / "rollout" / "precision"
    assert set(labels.PRECISIONS) == {path.stem for path in folder.glob("*.yaml")}


def test_the_two_parts_of_k3_and_the_flips_by_layer_are_drawn(tmp_path):
    """Two arms over two steps with routing: K3 of 0.03 is 0.01 of routing and 0.02 of rest; layer 1 flips twice as often."""
    for overrides, size in ((FP32, 0.0), (FP8, 1.0)):
        folder = write(tmp_path, overrides, steps=4)
        rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
        for row in rows[:2]:
            row |= {"routing/k3_routing": 0.01 * size, "routing/k3_rest": 0.02 * size}
            row |= {"routing/flip_layer_0": 0.1 * size, "routing/flip_layer_1": 0.2 * size}
        (folder.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts, flips = FIGURES["routing"].draw(load(tmp_path)).axes
    assert [list(line.get_ydata()) for line in parts.lines] == [[0.0, 0.0], [0.0, 0.0], [0.01, 0.01], [0.02, 0.02]]
    assert [list(line.get_ydata()) for line in flips.lines] == [[0.0, 0.0], pytest.approx([10.0, 20.0])]


def test_without_a_mixture_there_is_no_routing_to_draw(tmp_path):
    write(tmp_path, FP8, steps=4)
    assert FIGURES["routing"].draw(load(tmp_path)).startswith("no run has recorded routing")
