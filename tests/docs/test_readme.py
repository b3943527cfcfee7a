"""README.md is short, and what it shows is what its commands print."""

import io
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from algos.faults import FAULTS
from algos.faults.base import SURE
from experiments.faults.mean_ratio import BUGS, TITLE
from experiments.faults.report import read
from faultline.cli import main
from faultline.tools.replay import page as replay_page
from tests.faultline.tools.replay.cases import unwritten

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN = README.split("## ")[0]
"""What a reader sees first."""


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
    assert not re.search(rf"\b{word}\b", SCREEN)


@pytest.mark.parametrize(
    ("word", "said"), [("ESS", "ESS, the share that counts"), ("K3", "K3, the estimated KL(engine ‖ trainer) per token")]
)
def test_a_size_is_explained_where_it_is_first_named(word, said):
    prose = " ".join(re.sub(r"^```.*?^```|\[K3 of[^)]*\)|`[^`]*`", "", README, flags=re.M | re.S).split())
    assert prose.index(word) == prose.index(said)


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


def test_its_pictures_have_the_finding_as_their_title():
    pictures = {file: title for title, file in re.findall(r"!\[(.*)\]\((.*)\)", README)}
    assert [*pictures] == ["docs/mean_ratio.png", "docs/replay.png"] and pictures["docs/mean_ratio.png"] == TITLE
    assert all(f"\n**{title}**" in README for title in pictures.values())


def test_the_first_finding_is_what_the_record_holds():
    """The bugs of the picture are all beyond the bound of an alarm, at K3 as sound dumps in FP8 have. No sound dump is.

    Beside the two bugs and the note `routing`, fourteen faults are known.
    """
    record = read(ROOT / "experiments/study/faults/record-6.csv")
    sound = record[record["fault"] == "clean"]
    bugs = record[record["fault"].isin([fault for faults, *_ in BUGS.values() for fault in faults])]
    assert sound["z"].abs().max() < SURE < bugs["z"].abs().min()
    fp8 = sound[sound["precision"].str.startswith("fp8")]["k3"]
    assert bugs["k3"].between(fp8.min(), fp8.max()).mean() > 0.9 and bugs["plain_right"].all()
    assert len(FAULTS.names()) - 3 == 14 and "[Fourteen other faults]" in README


@pytest.mark.slow
def test_the_finding_is_what_replay_prints(verdict):
    """Four filters keep at most a fifth of the FP8 batch. Sequence weights agree most with the exact ones."""
    said, fp8 = " ".join(README.split()), effects(verdict)
    filters = sorted(name for name, (kept, _, _) in fp8.items() if kept < 25)
    kept = sorted(fp8[name][0] for name in filters)
    token = fp8["verl, SkyRL token TIS, 2"]
    sequence = [fp8[f"{name} sequence TIS, {cut}"] for name, cut in (("verl", 2), ("SkyRL", 5))]
    assert len(filters) == 4 and f"throw away {100 - kept[-1]:.0f} to {100 - kept[0]:.0f} % of this FP8 batch" in said
    assert f"token weights cut at 2 keep {100 * token[1]:.0f} %" in said
    nearest, left = ([100 * row[i] for row in sequence] for i in (2, 1))
    assert "nearest, {:.0f} to {:.0f} %, and leave ".format(*nearest) + "{1:.0f} to {0:.0f} %".format(*left) in said


def effects(lines: list[str]) -> dict[str, tuple[float, float, float]]:
    """Preset -> (tokens kept in percent, ESS, agreement) of the lines that replay prints."""
    rows = [row for line in lines for row in re.findall(r"  (\S.{28}) +([\d.]+)% ([\d.]+) ([\d.]+)", line)]
    return {name.strip(): tuple(map(float, numbers)) for name, *numbers in rows}
