"""README.md is short, and what it shows is what its commands print."""

import io
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from faultline.cli import main
from faultline.tools.replay import page as replay_page
from tests.faultline.tools.replay.cases import unwritten

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN = 26
"""Lines that a reader sees first."""


def blocks(language: str, page: str = README) -> list[str]:
    """The blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)


def replayed(*words: str, code: int | None = None) -> list[str]:
    """The lines that `faultline replay --example` prints, where it writes no page."""
    printed, left = io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(replay_page, "write", unwritten)
        try:
            main(["replay", "--example", *words])
        except SystemExit as end:
            left = end.code
    assert left == code
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def test_it_is_short():
    assert len(README.splitlines()) < 90
    assert len(README.split()) < 900


@pytest.fixture(scope="module")
def verdict():
    return replayed()


@pytest.mark.slow
def test_the_first_block_is_the_faulty_example():
    printed = replayed("raw", code=3)
    assert blocks("text")[0].startswith(printed[0]) and "VERDICT  No correction is proposed." in printed
    rest = iter(printed)
    assert all(line == "..." or line in rest for line in blocks("text")[0].splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/replay.md"])
def test_the_shown_lines_are_the_real_output_in_its_order(verdict, page):
    """A block that begins with the verdict's first line has its lines in its order; "..." stands for some that are left out."""
    shown = [body.splitlines() for body in blocks("text", (ROOT / page).read_text(encoding="utf-8"))]
    (lines,) = [body for body in shown if "18,962 tokens" in "".join(body[:2])]
    printed = iter(verdict)
    for line in lines:
        assert line == "..." or line.startswith("Page: ") or line in printed, f"not printed there: {line}"


@pytest.mark.slow
def test_the_snippet_prints_what_its_comment_says(tmp_path):
    """ρ is e¹ and e⁰, and the cap is 2."""
    (snippet,) = blocks("python", (ROOT / "algos/README.md").read_text(encoding="utf-8"))
    said = re.search(r"print\(.*\)  # (.*)", snippet)[1]
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == said == "[[2.0, 1.0]]", done.stderr


@pytest.mark.parametrize(
    "word", ["TIS", "arm", "arms", "control", "pg", "baseline", "IcePop", "R3", "W4A4", "NVFP4", "geometric"]
)
def test_the_first_screen_needs_no_glossary(word):
    assert not re.search(rf"\b{word}\b", "\n".join(README.splitlines()[:SCREEN]))


def test_the_size_of_a_mismatch_is_explained_before_the_verdict():
    before, _ = README.split(blocks("text")[-1])
    assert "estimates KL(engine ‖ trainer) per token" in before and "pays in ESS, the share that counts" in " ".join(
        before.split()
    )


def test_nothing_was_left_to_be_filled_in():
    """A word of four capitals or more outside the blocks is a name that the README uses, not a placeholder."""
    prose = re.sub(r"^```.*?^```|`[^`]*`|^    .*?$", "", README, flags=re.M | re.S)
    assert set(re.findall(r"\b[A-Z]{4,}\b", prose)) <= {"FAULT", "JSON", "YAML", "CONTRIBUTING", "CITATION", "RESULTS", "README"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/getting-started.md"])
def test_the_three_doors_are_the_same_everywhere(page):
    text = (ROOT / page).read_text(encoding="utf-8").lower()
    places = [text.index(door) for door in ("replay a dump of my run", "run the demo, then a sweep", "import my config")]
    assert places == sorted(places)


def test_the_versions_of_package_citation_and_changelog_are_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1]
    assert project == cited == latest


def test_its_one_picture_has_the_finding_as_its_title():
    ((title, file),) = re.findall(r"!\[(.*)\]\((.*)\)", README)
    assert file == "docs/replay.png" and f"\n**{title}**" in README


@pytest.mark.slow
def test_the_finding_is_what_replay_prints(verdict):
    """Four filters keep at most a fifth of the FP8 batch, and agree less with exact weights than no correction, whose agreement
    is the ESS of the exact ones. Of the BF16 batch one of the four leaves less than four fifths."""
    said = " ".join(README.split())
    fp8, bf16 = effects(verdict), effects(replayed("bf16"))
    filters = sorted(name for name, (kept, _, _) in fp8.items() if kept < 25)
    assert len(filters) == 4 and all(fp8[name][2] < fp8["no correction"][2] for name in filters)
    kept = sorted(fp8[name][0] for name in filters)
    assert f"drop {100 - kept[-1]:.0f} to {100 - kept[0]:.0f} % of this FP8 batch" in said
    assert f"Exact weights would leave {100 * fp8['no correction'][2]:.0f} %" in said
    token, none = fp8["verl, SkyRL token TIS, 2"], fp8["no correction"]
    assert f"Token weights cut at 2 are cheap, {100 * token[1]:.0f} %, and change little" in said
    assert abs(token[2] - none[2]) < 0.01
    assert [name for name in filters if bf16[name][0] < 80] == ["verl geo_rs, 0.999 to 1.001"]


def effects(lines: list[str]) -> dict[str, tuple[float, float, float]]:
    """Preset -> (tokens kept in percent, ESS, agreement) of the lines that replay prints."""
    rows = [row for line in lines for row in re.findall(r"  (\S.{28}) +([\d.]+)% ([\d.]+) ([\d.]+)", line)]
    return {name.strip(): tuple(map(float, numbers)) for name, *numbers in rows}
