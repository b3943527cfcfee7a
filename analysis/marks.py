"""The colour, marker and dash of each arm, used by every figure, every table of a page and `faultline watch`.

The control is black. Any other arm has the hue of its source of mismatch, usually its rollout precision. Its marker shows its
correction; a circle means none. A precision has the same hue on every page. If there are more sources than hues, those that
share a hue differ in their markers and dashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.labels import coarseness

CONTROL = "#000000"
NEUTRAL = "#505050"
"""Colour of reference lines, and of the trainer's own precision under a correction."""
HUES = {
    "fp32": NEUTRAL,
    "bf16": "#0072B2",
    "fp16": "#56B4E9",
    "fp8_block_w8a16": "#443300",
    "fp8_channel": "#FFD98C",
    "fp8_block": "#8A4B00",
    "fp8_tensor": "#E69F00",
    "mxfp8": "#3322AA",
    "int8": "#CC79A7",
    "nvfp4": "#009E73",
    "nvfp4_w4a4": "#D55E00",
}
"""Precision -> colour, from Okabe and Ito's palette with indigo instead of yellow, which print loses. The kinds of FP8 share a
hue and differ in lightness. All stay distinct to a reader without red or green cones: tests/analysis/test_marks.py."""
SPARE = ("#CC79A7", "#009E73", "#0072B2", "#E69F00", "#56B4E9", "#D55E00", "#3322AA", "#8A4B00", "#443300", "#FFD98C")
"""Colours of sources of mismatch other than a precision, such as noise. Those that no precision of the sweep has come first."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
"""Markers of corrections in matplotlib's notation; the first one means no correction."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (1, 2)), (0, (8, 2)))
"""Dashes of lines, so that lines differ on a grey print too."""

Dash = str | tuple[int, tuple[int, ...]]


class Mark(NamedTuple):
    """The look of an arm. colour: #RRGGBB. marker, dash: in matplotlib's notation."""

    colour: str
    marker: str
    dash: Dash

    @property
    def line(self) -> dict[str, Any]:
        """matplotlib's keyword arguments for a line without markers."""
        return {"color": self.colour, "linestyle": self.dash}


class Styled(NamedTuple):
    """The properties of an arm that determine its look. source: see analysis.sources."""

    arm: str
    precision: str
    source: str
    correction: str
    control: bool


@dataclass(frozen=True)
class Marks:
    """The looks of a sweep. arms: look by name of an arm. sources: look of each source of mismatch without a correction.
    corrections: markers of each correction; the first is for sources with a hue of their own, others for shared hues."""

    arms: Mapping[str, Mark]
    sources: Mapping[str, Mark]
    corrections: Mapping[str, tuple[str, ...]]

    def source(self, name: str) -> Mark:
        """The look of a source of mismatch, or of a precision that is no arm's only source."""
        return self.sources.get(name) or Mark(HUES.get(name, NEUTRAL), MARKERS[0], DASHES[0])


def marks(arms: Iterable[Styled]) -> Marks:
    """The looks of the arms of a sweep; an arm may be given more than once."""
    arms = sorted(set(arms), key=lambda arm: (coarseness(arm.precision), arm.precision, arm.source, arm.arm))
    own = {arm.source for arm in arms if arm.control}
    names = dict.fromkeys(arm.source for arm in arms)
    used = {HUES[name] for name in names if name in HUES and name not in own}
    spare = [hue for hue in SPARE if hue not in used] + [hue for hue in SPARE if hue in used]
    others = [name for name in names if name not in own and name not in HUES]
    hues = HUES | {name: spare[place % len(spare)] for place, name in enumerate(others)} | dict.fromkeys(own, CONTROL)
    dashes = {name: DASHES[place % len(DASHES)] for place, name in enumerate(sorted(names, key=lambda name: name not in own))}
    corrections = ["none", *sorted({arm.correction for arm in arms} - {"none"})]
    turns = _turns([*(name for name in names if name in HUES and name not in own), *others], hues) | dict.fromkeys(own, 0)
    every, rounds = len(corrections), range(max(turns.values(), default=0) + 1)
    markers = {
        name: tuple(MARKERS[(place + turn * every) % len(MARKERS)] for turn in rounds) for place, name in enumerate(corrections)
    }
    looks = {}
    for arm in arms:
        grey = arm.source in own and not arm.control  # the control alone is black
        marker = markers[arm.correction][turns[arm.source]]
        looks[arm.arm] = Mark(NEUTRAL if grey else hues[arm.source], marker, dashes[arm.source])
    return Marks(looks, {name: Mark(hues[name], markers["none"][turns[name]], dashes[name]) for name in names}, markers)


def _turns(sources: list[str], hues: Mapping[str, str]) -> dict[str, int]:
    """Source of mismatch -> the number of earlier sources with its hue."""
    seen: Counter[str] = Counter()
    turns = {}
    for name in sources:
        turns[name] = seen[hues[name]]
        seen[hues[name]] += 1
    return turns
