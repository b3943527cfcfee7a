"""Colours that stay legible on a light and on a dark background: their contrast, their shades and their dark variants.

Lightness, chroma and hue are those of OKLab (Ottosson 2020), in which equal steps of lightness look equal.
"""

from __future__ import annotations

import functools

import numpy as np
from matplotlib.colors import to_hex, to_rgb

PAPER = {"light": "#ffffff", "dark": "#16181c"}
"""Background of a page in each colour scheme."""
LINE, TEXT = 3.0, 4.5
"""Minimum contrast ratios of a line and of text with their background: WCAG 2.1, criteria 1.4.11 and 1.4.3, level AA."""
DARKEST, LIGHTEST = 0.30, 0.65
"""Range of the OKLab lightness of a colour's shades. It gives each shade, and its variant for dark pages, a contrast ≥ 3."""
ROTATIONS = (0, 70, -50, 120)
"""Rotation of the hue of each shade of a colour, in degrees. A search chose them: the shades of each precision's colour are
distinct to readers with all cones, and to those without red or green ones (tests/analysis/test_marks.py)."""
SHADES = len(ROTATIONS)
"""Number of shades of a colour. Their lightness differs by equal steps, within the range DARKEST to LIGHTEST."""
READABLE = 0.52
"""Maximum lightness of coloured text on a light background."""
TURN = 1.2
"""Sum of the lightness of a colour and of its variant for a dark background. White thus becomes nearly black."""

LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
"""Matrix from linear sRGB to the responses of the eye's three kinds of cones."""
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
"""Matrix from the cube roots of the cones' responses to lightness and the two colour axes of OKLab."""


def linear(colour: str) -> np.ndarray:
    """Linear light of a colour's red, green and blue, in 0..1 (IEC 61966-2-1)."""
    srgb = np.array(to_rgb(colour))
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    """Relative luminance of a colour (WCAG 2.1): 0 for black, 1 for white."""
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours (WCAG 2.1): (L₁ + 0.05) / (L₂ + 0.05) with L₁ the larger luminance; from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(colour: str) -> str:
    """Black or white, whichever has the higher contrast as text on the background `colour`."""
    return "black" if contrast("black", colour) > contrast("white", colour) else "white"


def shade(colour: str, place: int) -> str:
    """Shade number `place` of a colour, with a different lightness and hue. Shade 0 is the colour; shade SHADES + i is shade i.

    Neighbouring shades differ by hue in colour, and by lightness on a grey print.
    """
    lightness = _oklab(colour)[0] - DARKEST
    span = LIGHTEST - DARKEST
    place %= SHADES
    return _moved(colour, DARKEST + (lightness + place * span / SHADES) % span, ROTATIONS[place]) if place else colour


def readable(colour: str) -> str:
    """The colour, darkened if text in it would be too pale on white. On a dark background, `dark` of the result is legible."""
    return _moved(colour, min(_oklab(colour)[0], READABLE))


@functools.cache
def dark(colour: str) -> str:
    """Variant of a colour for a dark background. It has the same hue, and `TURN` minus the colour's lightness."""
    return _moved(colour, min(TURN - _oklab(colour)[0], 1.0))


def _oklab(colour: str) -> np.ndarray:
    return LAB @ np.cbrt(LMS @ linear(colour))


def _moved(colour: str, lightness: float, rotation: float = 0) -> str:
    """The colour with the given lightness, its hue rotated by `rotation` degrees. Chroma that sRGB cannot show is cut."""
    _, a, b = _oklab(colour)
    cos, sin = np.cos(np.deg2rad(rotation)), np.sin(np.deg2rad(rotation))
    a, b = a * cos - b * sin, a * sin + b * cos
    for chroma in np.linspace(1, 0, 101):
        rgb = np.linalg.solve(LMS, np.linalg.solve(LAB, [lightness, chroma * a, chroma * b]) ** 3)
        if rgb.min() > -1e-4 and rgb.max() < 1 + 1e-4:
            break
    rgb = np.clip(rgb, 0, 1)
    red, green, blue = np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb ** (1 / 2.4) - 0.055)
    return to_hex((red, green, blue))
