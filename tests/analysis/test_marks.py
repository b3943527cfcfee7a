"""The one map of looks: an arm looks the same wherever it is drawn, and no two hues are alike to any eye on any paper."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from analysis.colours import LINE, PAPER, SHADES, TEXT, contrast, dark, ink, readable, shade
from analysis.figures import FIGURES
from analysis.labels import PRECISIONS
from analysis.load import load
from analysis.marks import CONTROL, HUES, MARKERS, NEUTRAL, SPARE, Styled, marks
from analysis.page import swatch
from analysis.report import report
from sweeps.watch.follow import Follower
from tests.analysis.synthetic import FP8, FP32, write

# Machado, Oliveira and Fernandes 2009, table 1, severity 1: linear RGB as readers without red and green cones have it.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def lab(colour: str, eye) -> np.ndarray:
    """CIELAB (D65) of an sRGB colour as an eye sees it: IEC 61966-2-1 and CIE 15."""
    srgb = np.array(to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(eye) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ seen / np.array([0.9505, 1.0, 1.0890])
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def sweep(folder):
    """The control, FP8 with two remedies and collapses, and weights with noise that lasts."""
    for seed in range(2):
        write(folder, FP32, seed=seed)
        write(folder, FP8, seed=seed, collapse=40 + seed)
        write(folder, FP8, "correction=token_truncate", seed=seed, collapse=50 + seed)
        write(folder, FP8, "correction=sequence_mask", seed=seed)
        write(folder, FP32, "rollout.engine.noise=0.1", "rollout.engine.noise_persistence=1.0", seed=seed)
    return folder


VARIANTS = {"light": lambda colour: colour, "dark": dark}
"""Scheme -> the colour that a page of this scheme shows."""


def test_contrast_is_that_of_the_guidelines():
    """21 of black and white, the range's ends (WCAG 2.1). #777777 on white: ((0x77/255 + 0.055)/1.055)^2.4 = 0.1845, so
    1.05/0.2345 = 4.478, which the guidelines' own technique G18 rejects for text."""
    assert contrast("#000000", "#ffffff") == contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3) and contrast("#777777", "#777777") == 1
    assert (ink("#c47d03"), ink("#3f007f")) == ("black", "white")


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("hue", [CONTROL, *HUES.values()])
def test_every_shade_is_legible_on_both_papers(hue, scheme):
    """Level AA: 3 of a line and 4.5 of a text with its background."""
    shades = [hue] if hue == CONTROL else [shade(hue, place) for place in range(SHADES)]
    for colour in shades:
        assert contrast(VARIANTS[scheme](colour), PAPER[scheme]) >= LINE
        assert contrast(VARIANTS[scheme](readable(colour)), PAPER[scheme]) >= TEXT


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("hue", HUES.values())
def test_shades_of_a_hue_are_apart_to_every_eye(hue, eye, scheme):
    """Shades differ in lightness, which every eye has: three times just noticeable. Grey has no hue; to an eye with all cones
    the shades of every other colour are as far apart as two precisions."""
    shades = [lab(VARIANTS[scheme](shade(hue, place)), EYES[eye]) for place in range(SHADES)]
    least = 14 if eye == "all cones" and hue != NEUTRAL else 7
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(shades, 2)) > least


@pytest.mark.parametrize("scheme", VARIANTS)
@pytest.mark.parametrize("eye", EYES)
def test_no_two_hues_are_alike(eye, scheme):
    """Just noticeable is a distance of about 2.3 in CIELAB; six times that tells thin lines apart."""
    colours = [VARIANTS[scheme](colour) for colour in (CONTROL, *HUES.values())]
    apart = {(a, b): np.linalg.norm(lab(a, EYES[eye]) - lab(b, EYES[eye])) for a, b in itertools.combinations(colours, 2)}
    assert min(apart.values()) > 14, min(apart, key=apart.__getitem__)


def test_every_precision_has_a_hue_and_no_source_of_a_sweep_takes_it():
    assert set(HUES) == set(PRECISIONS) and set(SPARE) <= set(HUES.values())
    arms = [Styled("a", "int8", "int8", "none", False), Styled("b", "fp32", "fp32, noise 0.1", "none", False)]
    looks = marks([*arms, Styled("c", "fp32", "fp32", "none", True), Styled("d", "fp32", "fp32", "icepop", False)]).arms
    assert looks["a"].colour == HUES["int8"] == SPARE[0] and looks["b"].colour == SPARE[1]
    assert looks["c"].colour == CONTROL and looks["d"].colour == shade(NEUTRAL, 1)  # only the control is black
    assert looks["c"].marker == MARKERS[0] != looks["d"].marker == MARKERS[1]
    assert marks(arms[:1]).source("fp8_tensor").colour == HUES["fp8_tensor"]  # of a precision that no arm has


def test_corrections_of_a_precision_differ_in_shade_dash_and_marker():
    """Four arms of a precision, of which the uncorrected one has the precision's hue. Another precision has other dashes."""
    arms = [Styled(f"{name} {how}", name, name, how, False) for name in ("int8", "nvfp4") for how in ("none", "a", "b", "c")]
    looks = marks(arms).arms
    mine, others = ([looks[f"{name} {how}"] for how in ("none", "a", "b", "c")] for name in ("int8", "nvfp4"))
    assert all(len(set(part)) == 4 for part in zip(*mine, strict=True))
    assert mine[0].colour == HUES["int8"] and [look.marker for look in mine] == [look.marker for look in others]
    assert all(look.dash != other.dash for look, other in zip(mine, others, strict=True))


def test_sources_that_share_a_hue_have_another_marker():
    """Beside bf16 and the control nine hues are spare: of fourteen noises the tenth shares one, and so do its remedies."""
    noises = [f"fp32, noise 0.{place:02}" for place in range(1, 15)]
    arms = [Styled("control", "fp32", "fp32", "none", True), Styled("bf16", "bf16", "bf16", "none", False)]
    arms += [Styled(f"{name} {how}", "fp32", name, how, False) for name in noises for how in ("none", "icepop")]
    found = marks(arms)
    looks = [(mark.colour, mark.marker) for mark in found.arms.values()]
    assert len(set(looks)) == len(arms) == 30
    assert found.sources[noises[8]].marker == MARKERS[0] and found.sources[noises[9]].marker == MARKERS[2]
    assert found.corrections == {"none": MARKERS[0:3:2], "icepop": MARKERS[1:4:2]}
    assert all(found.sources[name] == found.arms[f"{name} none"] for name in noises)


@pytest.mark.slow
def test_an_arm_looks_alike_in_two_figures_the_table_and_watch(tmp_path):
    folder = sweep(tmp_path / "s")
    results = load(folder)
    wanted = {arm: (mark.colour.lower(), mark.marker) for arm, mark in results.marks.arms.items()}
    assert len(set(wanted.values())) == 5
    reward, arm_of = FIGURES["reward"].draw(results), results.runs.arm
    lines = [line for axis in reward.axes for line in axis.lines if line.get_marker() != "None"]
    assert {arm_of[line.get_gid()]: (to_hex(line.get_color()), line.get_marker()) for line in lines} == wanted
    (ends,) = FIGURES["ends"].draw(results).axes
    points = [line for line in ends.lines if line.get_marker() not in ("|", "None")]
    assert {(to_hex(line.get_color()), line.get_marker()) for line in points} == set(wanted.values())
    filled = {(line.get_marker(), line.get_markerfacecolor() != "none") for line in points}
    assert filled == {("o", True), ("o", False), ("s", False), ("^", True)}  # collapsed without and with the truncation
    page = report(folder, tmp_path / "out").read_text()
    cells = dict(re.findall(r'<td>(<svg class="mark".*?</svg>)([^<]+)</td>', page)[::-1])
    in_table = {arm.strip(): svg for svg, arm in cells.items()}
    assert in_table == {arm: str(swatch(mark)) for arm, mark in results.marks.arms.items()}
    follower = Follower(folder)
    follower.look()
    assert follower.marks == results.marks


def test_the_control_is_black(tmp_path):
    for seed in range(2):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, "correction=token_truncate", seed=seed)
        write(tmp_path, FP8, seed=seed)
    results = load(tmp_path)
    axes = FIGURES["reward"].draw(results).axes
    control = set(results.runs.index[results.runs.control])
    assert [axis.get_title("left") for axis in axes] == ["no correction", "fp8_tensor"]
    for axis in axes:  # its own panel, and behind the others
        drawn = [line for line in axis.lines if line.get_gid() in control]
        assert len(drawn) == 2 and {to_hex(line.get_color()) for line in drawn} == {CONTROL}


@pytest.mark.slow
def test_below_ten_collapses_nothing_is_drawn_of_them(tmp_path):
    """Nine collapses, then ten."""
    names = ("survival", "forest", "dose", "aligned", "lead")
    for seed in range(10):
        write(tmp_path, FP32, seed=seed)
        write(tmp_path, FP8, seed=seed, collapse=40 if seed < 9 else None)
    nine = load(tmp_path)
    assert {FIGURES[name].draw(nine) for name in names} == {"it takes 10 collapses, and there are 9"}
    write(tmp_path, FP8, "correction=token_truncate", seed=0, collapse=50)
    ten = load(tmp_path)
    assert not any(isinstance(FIGURES[name].draw(ten), str) for name in names)


def test_what_is_not_drawn_is_named_in_one_line(tmp_path):
    write(tmp_path / "s", FP32)
    write(tmp_path / "s", FP8, collapse=50)
    page = report(tmp_path / "s", tmp_path / "out").read_text()
    said = re.search(r'<section id="not-drawn">.*?<p class="note">(.*?)</p>', page, re.S)[1]
    assert "Survival of the arms, Steps gained on the reference arm, Early mismatch and time to collapse" in said
    assert "(it takes 10 collapses, and there is 1)" in said and said.endswith(").")
