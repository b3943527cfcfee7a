"""README.md is short, and what it shows is what its commands print."""

import io
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import pandas as pd
import pytest

from algos.faults import FAULTS
from algos.faults.base import SURE
from experiments.faults import edits, real
from experiments.faults.mean_ratio import BUGS, TITLE
from experiments.faults.plan import FORMER, HELD_OUT
from experiments.faults.report import MOVING, answers, read
from faultline.cli import main
from faultline.tools.replay import page as replay_page
from tests.faultline.tools.replay.cases import unwritten

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN = README.split("```text")[0]
"""What a reader sees first: up to what the two commands print."""
SOUND = "LOG-PROBABILITIES  consistent"
"""Begin of what replay prints on a sound dump."""


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
    block, _ = blocks("text")
    command, *faulty = block.split("$ faultline replay --example\n")[0].splitlines()
    assert command == "$ faultline replay --example raw" and faulty[0] == printed[0]
    assert "VERDICT  No correction is proposed." in printed
    rest = iter(printed)
    assert all(line == "..." or line in rest for line in faulty)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/replay.md"])
def test_the_shown_lines_are_the_real_output_in_its_order(verdict, page):
    """From the verdict's first line on a block has its lines in its order; "..." stands for some that are left out."""
    (block,) = [body for body in blocks("text", (ROOT / page).read_text(encoding="utf-8")) if SOUND in body]
    printed = iter(verdict)
    for line in block[block.index(SOUND) :].splitlines():
        assert line == "..." or line.startswith("Page: ") or line in printed, f"not printed there: {line}"


@pytest.mark.slow
def test_the_verdict_that_it_quotes_is_printed(verdict):
    _, answer = blocks("text")
    assert set(answer.splitlines()) <= set(verdict) and answer.startswith("VERDICT")


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
    assert set(re.findall(r"\b[A-Z]{4,}\b", prose)) <= {"FAULT", "JSON", "YAML", "DAPO", "RESULTS", "README"}


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
    assert re.findall(r"!\[.*\]\((.*)\)", README) == ["docs/mean_ratio.png"] and f"\n**{TITLE}**" in README


def test_its_table_is_printed_by_the_command_of_the_record(record):
    for row in answers(record).to_dict("records"):
        assert f"| {' | '.join(map(str, row.values()))} |" in README


def test_its_table_counts_the_record(record):
    """At all sizes. Known bugs of a running sampler or trainer are those with a rule that are no edit of a sound dump."""
    unnamed = record["fault"].isin([*HELD_OUT, *FORMER])
    whole = (record["fault"] == "swapped") & (record["size"] == 1)
    edit = record["fault"].isin(edits.SIZES.keys() - real.SIZES.keys()) | whole
    clean = record["fault"] == "clean"
    known, unnamed, sound = record[~clean & ~unnamed & ~edit], record[unnamed], record[clean]

    shown = bugs(record)
    other = known[~known.index.isin(shown.index)]

    def told(dumps: pd.DataFrame, part: str, named: bool = True) -> str:
        right = dumps[f"{part}right"] & named
        kinds = dumps[~right][f"{part}kind"].value_counts()
        words = {"unknown": "`UNKNOWN`", "fault": "misnamed", "consistent": "missed"}
        counted = [f"{right.sum()} named"] * named + [f"{kinds[kind]} {word}" for kind, word in words.items() if kind in kinds]
        return ", ".join(counted)

    for name, dumps, *has_names in (
        ("the two bugs above", shown),
        ("other known bugs of a running sampler or trainer", other),
        ("bugs that it has no rule for", unnamed, False),
    ):
        assert f"| {name} | {len(dumps)} | {told(dumps, 'plain_', *has_names)} | {told(dumps, '', *has_names)} |" in README
    unknown = (sound["plain_kind"] == "unknown").sum()
    assert set(sound["plain_kind"]) == {"consistent", "unknown"} and set(sound["kind"]) == {"consistent"}
    assert f"| {len(sound)} | {len(sound) - unknown} consistent, {unknown} `UNKNOWN` | {len(sound)} consistent |" in README
    others = record[~clean & ~record.index.isin(shown.index)]
    assert (others["z"].abs() < SURE).mean() > 0.75  # they "mostly leave the mean ratio at 1"


@pytest.fixture(scope="module")
def record() -> pd.DataFrame:
    return read(ROOT / "experiments/study/faults/record-6.csv")


def bugs(record: pd.DataFrame) -> pd.DataFrame:
    """The dumps with a bug that the picture shows."""
    assert [fault for faults, *_ in BUGS.values() for fault in faults] == list(MOVING)
    return record[record["fault"].isin(MOVING)]


def test_the_first_finding_is_what_the_record_holds(record):
    """The bugs of the picture are all beyond the bound of an alarm, at K3 as sound dumps in FP8 have. No sound dump is.

    Beside the two bugs and the note `routing`, fourteen faults are known.
    """
    sound, shown = record[record["fault"] == "clean"], bugs(record)
    assert sound["z"].abs().max() < SURE < shown["z"].abs().min()
    fp8 = sound[sound["precision"].str.startswith("fp8")]["k3"]
    assert shown["k3"].between(fp8.min(), fp8.max()).mean() > 0.9
    assert len(FAULTS.names()) - 3 == 14 and "[fourteen others]" in " ".join(README.split()) and "for 16 known bugs" in README
    assert f"all {len(shown)} batches" in TITLE and f"none of {len(sound)} without" in TITLE


@pytest.mark.slow
def test_the_finding_is_what_replay_prints(verdict):
    """Four filters keep at most a fifth of the FP8 batch, token weights nearly all."""
    said, fp8 = " ".join(README.split()), effects(verdict)
    kept = sorted(share for share, _, _ in fp8.values() if share < 25)
    assert len(kept) == 4 and f"four filters leave {kept[0]:.0f} to {kept[-1]:.0f} %" in said
    assert f"token weights cut at 2 leave {100 * fp8['verl, SkyRL token TIS, 2'][1]:.0f} %" in said


def effects(lines: list[str]) -> dict[str, tuple[float, float, float]]:
    """Preset -> (tokens kept in percent, ESS, agreement) of the lines that replay prints."""
    rows = [row for line in lines for row in re.findall(r"  (\S.{28}) +([\d.]+)% ([\d.]+) ([\d.]+)", line)]
    return {name.strip(): tuple(map(float, numbers)) for name, *numbers in rows}
