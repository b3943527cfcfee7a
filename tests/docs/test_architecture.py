"""docs/architecture.md says how many lines the core has: what its own commands print, within 3 %."""

import re
from pathlib import Path

import pytest

PAGE = Path("docs/architecture.md")


def lines(pattern: str) -> int:
    """Lines of the files that a pattern of the shell names; braces list alternatives."""
    before, found, rest = pattern.partition("{")
    inside, _, after = rest.partition("}")
    names = [f"{before}{name}{after}" for name in inside.split(",")] if found else [pattern]
    return sum(len(file.read_text().splitlines()) for name in names for file in Path().glob(name))


def test_the_core_has_as_many_lines_as_its_page_says():
    text = PAGE.read_text()
    (core,) = re.findall(r"\nwc -l (.*?)\n```", text, re.S)
    (options,) = re.findall(r"`wc -l (harness/train/options\S+)`", text)
    (core_lines,) = re.findall(r"It prints ([\d,]+) lines", text)
    (option_lines,) = re.findall(r"(\d+) lines beside the core", text)
    assert sum(map(lines, core.replace("\\\n", " ").split())) == pytest.approx(
        int(core_lines.replace(",", "")), rel=0.03
    )  # a docstring may grow by a line
    assert lines(options) == pytest.approx(int(option_lines), rel=0.03)
