"""The colour, marker and dash of each arm (runs alike but for the seed), used by all figures, tables and `faultline watch`.

The control, uncorrected in the trainer's own precision, is black. Any other uncorrected arm has the colour of its source of
mismatch, usually its rollout precision. A precision has the same colour on every page. Corrected arms of a source have shades of
its colour, and differ in dash and marker; a circle means no correction. Sources that share a colour differ in marker and dash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.colours import shade
from analysis.labels import coarseness

CONTROL = "#000000"
NEUTRAL = "#505050"
"""Colour of reference lines, and of the trainer's own precision under a correction."""
HUES = {
    "fp32": NEUTRAL,
    "bf16": "#1675ce",
    "fp16": "#02a0b9",
    "fp8_block_w8a16": "#8e9468",
    "fp8_channel": "#625f36",
    "fp8_block": "#532301",
    "fp8_tensor": "#c47d03",
    "mxfp8": "#3f007f",
    "int8": "#91337f",
    "nvfp4": "#218970",
    "nvfp4_w4a4": "#ab3f03",
}
"""Precisions' colours on a light page. A random search chose them: blue for 16 bits, yellow to brown for FP8, red for W4A4. All
are distinct to a reader without red or green cones, and legible on light and dark pages: tests/analysis/test_marks.py."""
SPARE = tuple(
    HUES[name]
    for name in (
        "int8",
        "nvfp4",
        "bf16",
        "fp8_tensor",
        "fp16",
        "nvfp4_w4a4",
        "mxfp8",
        "fp8_block",
        "fp8_channel",
        "fp8_block_w8a16",
    )
)
"""Colours for sources of mismatch that are no precision, such as noise. Colours that no precision of the sweep has are used
first."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
"""Markers of corrections in matplotlib's notation; the first one means no correction."""
SOLID = "-"
DASHES = (
    SOLID,
    (0, (3.7, 1.6)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (1, 1.6)),
    (0, (5, 1, 1, 1)),
    (0, (3, 1)),
    (0, (1, 2)),
    (0, (8, 2)),
)
"""Dashes of lines in matplotlib's notation, by which lines differ on a grey print too."""

Dash = str | tuple[int, tuple[float, ...]]


class Mark(NamedTuple):
    """The look of an arm (runs alike but for the seed) in figures. colour: #rrggbb. marker, dash: in matplotlib's notation."""

    colour: str
    marker: str
    dash: Dash

    @property
    def line(self) -> dict[str, Any]:
        """matplotlib's keyword arguments for a line without markers."""
        return {"color": self.colour, "linestyle": self.dash}


class Styled(NamedTuple):
    """The properties of runs that decide their colour, marker and dash. source: source of mismatch in words, such as `fp8`."""

    arm: str
    precision: str
    source: str
    correction: str
    control: bool


@dataclass(frozen=True)
class Marks:
    """The marks (colour, marker, dash) of a sweep's arms (runs alike but for the seed).

    arms: marks of the arms, by name. sources: marks of the uncorrected arms, by source of mismatch, such as `fp8`. corrections:
    markers of each correction, by name. If n sources share a hue, the arms of the i-th source have marker i.
    """

    arms: Mapping[str, Mark]
    sources: Mapping[str, Mark]
    corrections: Mapping[str, tuple[str, ...]]

    def source(self, name: str) -> Mark:
        """The mark of uncorrected runs with the source of mismatch `name`; for a precision that no run has, its usual colour."""
        return self.sources.get(name) or Mark(HUES.get(name, NEUTRAL), MARKERS[0], DASHES[0])


def marks(arms: Iterable[Styled]) -> Marks:
    """Choose the marks of a sweep. arms: the properties of each arm (runs alike but for the seed), in any order."""
    arms = sorted(set(arms), key=lambda arm: (coarseness(arm.precision), arm.precision, arm.source, arm.arm))
    own = {arm.source for arm in arms if arm.control}
    names = dict.fromkeys(arm.source for arm in arms)
    used = {HUES[name] for name in names if name in HUES and name not in own}
    spare = [hue for hue in SPARE if hue not in used] + [hue for hue in SPARE if hue in used]
    others = [name for name in names if name not in own and name not in HUES]
    hues = HUES | {name: spare[place % len(spare)] for place, name in enumerate(others)} | dict.fromkeys(own, CONTROL)
    lines = {name: place for place, name in enumerate(sorted(names, key=lambda name: name not in own))}
    corrections = ["none", *sorted({arm.correction for arm in arms} - {"none"})]
    turns = _turns([*(name for name in names if name in HUES and name not in own), *others], hues) | dict.fromkeys(own, 0)
    every, rounds = len(corrections), range(max(turns.values(), default=0) + 1)
    markers = {
        name: tuple(MARKERS[(place + turn * every) % len(MARKERS)] for turn in rounds) for place, name in enumerate(corrections)
    }

    def look(source: str, correction: str, control: bool) -> Mark:
        hue = NEUTRAL if source in own and not control else hues[source]  # the control alone is black
        place = corrections.index(correction)
        return Mark(shade(hue, place), markers[correction][turns[source]], DASHES[(lines[source] + place) % len(DASHES)])

    looks = {arm.arm: look(arm.source, arm.correction, arm.control) for arm in arms}
    return Marks(looks, {name: look(name, "none", name in own) for name in names}, markers)


def _turns(sources: list[str], hues: Mapping[str, str]) -> dict[str, int]:
    """For each source of mismatch, the number of sources before it that have the same hue. hues: #rrggbb of each source."""
    seen: Counter[str] = Counter()
    turns = {}
    for name in sources:
        turns[name] = seen[hues[name]]
        seen[hues[name]] += 1
    return turns
