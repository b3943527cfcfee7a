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
from analysis.frames import markdown
from experiments.faults import cost, edits, real
from experiments.faults.mean_ratio import BUGS, TITLE
from experiments.faults.plan import FORMER, HELD_OUT
from experiments.faults.report import MOVING, NAMES, answers, read
from faultline.cli import main
from faultline.tools.replay import page as replay_page
from tests.faultline.tools.replay.cases import unwritten
from tests.oracles.first_batches import recorded, table, told
from tests.oracles.skyrl_batches import SKYRL
from tests.oracles.trl_batches import TRL
from tests.oracles.verl_batches import VERL

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN = README.split("\n## ")[0]
"""What a reader sees first: up to the first heading below the title."""
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
    """The command above the block prints its lines, in their order; "..." stands for some that are left out."""
    printed = replayed("raw", code=3)
    shown = blocks("text")[0].splitlines()
    assert "\nfaultline replay --example raw " in blocks("bash")[0] and shown[0] == printed[0]
    assert "VERDICT  No correction is proposed." in printed
    rest = iter(printed)
    assert all(line == "..." or line in rest for line in shown)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/getting-started.md", "docs/replay.md"])
def test_the_shown_lines_are_the_real_output_in_its_order(verdict, page):
    """From the verdict's first line on a block has its lines in its order; "..." stands for some that are left out."""
    (block,) = [body for body in blocks("text", (ROOT / page).read_text(encoding="utf-8")) if SOUND in body]
    printed = iter(verdict)
    for line in block[block.index(SOUND) :].splitlines():
        assert line == "..." or line.startswith("Page: ") or line in printed, f"not printed there: {line}"


@pytest.mark.slow
def test_the_defaults_that_it_names_are_printed(verdict):
    named = "token weights cut at 2 if you deploy the trainer's weights, none if the engine's"
    assert named in " ".join(README.split())
    assert "IF YOU DEPLOY THE TRAINER'S WEIGHTS: truncate token weights at 2 (set below)" in verdict
    assert "IF YOU DEPLOY THE ENGINE'S WEIGHTS: no correction" in verdict


@pytest.mark.slow
def test_the_snippet_prints_what_its_comment_says(tmp_path):
    """ρ is e¹ and e⁰, and the cap is 2."""
    (snippet,) = blocks("python", (ROOT / "algos/README.md").read_text(encoding="utf-8"))
    said = re.search(r"print\(.*\)  # (.*)", snippet)[1]
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == said == "[[2.0, 1.0]]", done.stderr


@pytest.mark.parametrize(
    "word", ["TIS", "arm", "arms", "control", "pg", "baseline", "IcePop", "R3", "W4A4", "NVFP4", "geometric", "door"]
)
def test_the_first_screen_needs_no_glossary(word):
    assert not re.search(rf"\b{word}\b", SCREEN)


def test_k3_is_explained_where_it_is_first_named():
    prose = " ".join(re.sub(r"^```.*?^```|\[K3 of[^)]*\)|`[^`]*`", "", README, flags=re.M | re.S).split())
    assert prose.index("K3") == prose.index("K3, the estimated KL(engine ‖ trainer) per token")


def test_nothing_was_left_to_be_filled_in():
    """A word of four capitals or more outside the blocks is a name that the README uses, not a placeholder."""
    prose = re.sub(r"^```.*?^```|`[^`]*`|^    .*?$", "", README, flags=re.M | re.S)
    assert set(re.findall(r"\b[A-Z]{4,}\b", prose)) <= {"FAULT", "JSON", "RESULTS", "UNKNOWN"}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/getting-started.md"])
def test_the_three_ways_are_the_same_everywhere(page):
    text = (ROOT / page).read_text(encoding="utf-8").lower()
    places = [text.index(way) for way in ("replay a dump of my run", "run the demo, then a sweep", "import my config")]
    assert places == sorted(places)


def test_the_versions_of_package_citation_and_changelog_are_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1]
    assert project == cited == latest


def test_its_one_picture_is_of_the_recorded_runs():
    """Below it stands what the bug cost each setting, and that the first batches named it."""
    assert re.findall(r"!\[.*\]\((.*)\)", README) == [str(cost.OF_PPO)]
    said = " ".join(README.split())
    rewards, dumps = cost.recorded()
    ends = cost.endpoints(rewards).groupby("setting").mean()
    bug, right = ends[True], ends[False]
    title = cost.of_ppo(rewards).axes[0].get_title(loc="left")
    assert f"ended at {bug['rollout']:.2f}, not {right['rollout']:.2f}" in title
    first = rewards.query("step == 0").groupby("setting")["reward"].mean()
    began, ended = ({f"{reward:.2f}" for reward in means} for means in (first, right))
    assert len(began) == len(ended) == 1
    assert f"RL raised the reward from {min(began)} to {min(ended)}. With `raw_logprobs`" in said
    assert f"it ended at {bug['token']:.2f} with verl's `rollout_is=token`, at {bug['sequence']:.2f} with TRL's default" in said
    assert f"and at {bug['rollout']:.2f} with PPO in bypass mode:" in said
    named = dumps[dumps["bug"]].groupby("seed")["named"].unique()
    assert len(named) == 10 and all(list(names) == ["raw_logprobs"] for names in named)
    assert "Faultline named the bug from the first batch, in all ten seeds." in said
    every = cost.endpoints(rewards)
    assert (every[True] < every[False]).all()


def test_the_page_of_its_picture_has_the_table_that_the_command_prints():
    page = (ROOT / "docs/bug-cost.md").read_text(encoding="utf-8")
    assert markdown(cost.table(*cost.recorded())) in page


def test_its_table_is_printed_by_the_command_of_the_record(record):
    table = answers(record)
    for row in (table.columns, *table.to_numpy()):
        assert f"| {' | '.join(map(str, row))} |" in README


def test_its_table_counts_the_record(record):
    """At all sizes. Known bugs of a running sampler or trainer are those with a rule that are no edit of a sound dump."""
    unnamed = record["fault"].isin([*HELD_OUT, *FORMER])
    whole = (record["fault"] == "swapped") & (record["size"] == 1)
    edit = record["fault"].isin(edits.SIZES.keys() - real.SIZES.keys()) | whole
    clean, shown = record["fault"] == "clean", record["fault"].isin(MOVING)
    known = ~clean & ~unnamed & ~edit & ~shown
    named, silent, alarms = {}, {}, {}
    for prefix in ("plain_", ""):
        kind = record[f"{prefix}kind"]
        for name, part in {"shown": shown, "known": known, "unnamed": unnamed}.items():
            named[name, prefix] = (part & record[f"{prefix}right"]).sum()
            silent[name, prefix] = (part & (kind == "consistent")).sum()
            alarms[name, prefix] = (part & (kind != "consistent")).sum()
    every = " | ".join(f"{named['shown', prefix]} named" for prefix in ("plain_", ""))
    assert f"| {shown.sum()} | {every} |" in README and not any(silent["shown", prefix] for prefix in ("plain_", ""))
    cells = [
        f"{named['known', prefix]} named, {alarms['known', prefix] - named['known', prefix]} other alarms, "
        f"{silent['known', prefix]} **missed**"
        for prefix in ("plain_", "")
    ]
    assert f"| 8 other known bugs | {known.sum()} | {cells[0]} | {cells[1]} |" in README
    other = {prefix: (unnamed & (record[f"{prefix}kind"] == "fault")).sum() for prefix in ("plain_", "")}
    cells = [
        f"{alarms['unnamed', prefix] - other[prefix]} `UNKNOWN`, {other[prefix]} called another bug, "
        f"{silent['unnamed', prefix]} **missed**"
        for prefix in ("plain_", "")
    ]
    assert f"| {unnamed.sum()} | {cells[0]} | {cells[1]} |" in README
    quiet = (record[clean]["plain_kind"] == "consistent").sum()
    assert set(record[clean]["plain_kind"]) == {"consistent", "unknown"} and set(record[clean]["kind"]) == {"consistent"}
    assert f"| {clean.sum()} | {clean.sum() - quiet} `UNKNOWN`, {quiet} no alarm | {clean.sum()} no alarm |" in README
    said = " ".join(README.split())
    assert f"The {clean.sum()} are from about 35 sources" in said
    missed = sum(silent[name, "plain_"] for name in ("shown", "known", "unnamed"))
    assert f"it [missed {missed} of {(shown | known | unnamed).sum()} in our tests]" in said
    ruled, edited = ({NAMES.get(name, name) for name in record[part]["fault"]} for part in (shown | known, edit))
    assert len(ruled) == 10 and len(edited - ruled) == 5 and set(FAULTS.names()) - ruled - edited == {"cache", "routing"}
    assert "Five more of the 16 were tested on edited columns, `cache` never" in said
    assert len(FAULTS.names()) - 1 == 16 and "[16 known bugs]" in said  # beside the note `routing`
    called = record[record["plain_named"] == "raw_logprobs"]["fault"].value_counts()
    assert called.to_dict() == {"raw_logprobs": 25, "swapped": 7}
    assert "Of 32 called `raw_logprobs`, 7 had swapped columns" in said


@pytest.mark.parametrize("trainer", [TRL, VERL, SKYRL], ids=lambda trainer: trainer.name)
def test_the_answers_in_other_trainers_are_those_of_their_records(trainer):
    """Each of the page's tables is what its command prints."""
    assert markdown(table(trainer, recorded(trainer))) in (ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8")


def test_the_count_of_answers_in_other_trainers_is_that_of_their_records():
    """The README and the findings tell it alike. Answers where no fault has a name do not count."""
    frames = []
    for trainer in (TRL, VERL, SKYRL):
        frame = recorded(trainer).assign(trainer=trainer.name)
        frames.append(frame.assign(expected=frame["setting"].map(lambda name, of=trainer: of.settings[name].expected)))
    frame = pd.concat(frames)
    named = frame[frame["expected"] != ""]
    right = told(named) == named["expected"]
    counts = named["expected"].value_counts()
    said = " ".join(README.split())
    bugs = counts["raw_logprobs"] + counts["truncated_sampling"]
    named_all = f"**the bug in {bugs} of {bugs} batches with raw log-probabilities or a cut, and none in"
    assert f"{named_all} {counts['consistent']} sound ones**" in said
    assert right.all() and "Of six with another bug it missed three, and misnamed one" in said
    cuts, raw = counts["truncated_sampling"], counts["raw_logprobs"]
    without = frame[frame["expected"] == ""]
    passed = (without["kind"] == "consistent").sum()
    assert (len(without), passed) == (6, 3)
    unseen = without[without["kind"] == "consistent"]
    assert unseen[["trainer", "setting"]].drop_duplicates().values.tolist() == [["SkyRL", "top_p 0.9"]]
    findings, metrics_only = (
        " ".join((ROOT / f"docs/{page}.md").read_text(encoding="utf-8").split()) for page in ("findings", "metrics-only")
    )
    assert f"{right.sum()} of {len(right)} answers were right" in findings
    assert f"{counts['consistent']} sound batches, {raw} of raw log-probabilities and {cuts} of a cut" in findings
    means = frame.groupby(["trainer", "setting"])["mean_ratio"].mean()
    for setting, words in {"top_p 0.9": "`top_p=0.9`", "top_k 20": "`top_k=20`", "min_p 0.1": "`min_p=0.1`"}.items():
        assert f"{means['TRL', setting]:.2f} with {words}" in findings
    raw_means = means["verl", "temperature 0.7, raw log-probabilities"], means["SkyRL", "temperature 0.7"]
    assert "mean ratio was {:.2f} in verl and {:.2f} in SkyRL".format(*raw_means) in findings
    assert f"`top_p=0.9` it was {means['verl', 'top_p 0.9']:.2f} in verl" in findings
    of_trl = without[without["trainer"] == "TRL"]["kind"]
    assert of_trl.tolist() == ["unknown", "unknown", "fault"] and "two were `UNKNOWN`" in findings
    assert recorded(VERL)["logged_off"].abs().max() < 1e-6 and "gave the dump's mean ratio to 1e-6" in metrics_only


OF_TRAINERS = {
    ("temperature 1", "the default", "`consistent`"): tuple((trainer, "temperature 1", True) for trainer in (VERL, SKYRL, TRL)),
    ("temperature 0.7", "`raw_logprobs`", "`FAULT raw_logprobs`"): (
        (VERL, "temperature 0.7, raw log-probabilities", False), (SKYRL, "temperature 0.7", True),
        (TRL, "temperature 0.7, raw log-probabilities", False),
    ),
    ("`top_p=0.9`", "`processed_logprobs`", "`FAULT truncated_sampling`"): (
        (VERL, "top_p 0.9", True), (SKYRL, "top_p 0.9, processed log-probabilities", False), (TRL, "top_p 0.9", True),
    ),
    ("`top_p=0.9`", "`raw_logprobs`", "nothing: **missed**"): (None, (SKYRL, "top_p 0.9", True), None),
}  # fmt: skip
"""First cells and answer of a row of the README's table -> per trainer its setting, and whether it logs so by default."""


@pytest.mark.parametrize("row", OF_TRAINERS)
def test_its_table_of_trainers_has_the_recorded_means_and_answers(row):
    """A cell is the mean ratio over three seeds, which all had the answer of the row."""
    sampled, mode, answer = row
    cells = []
    for cell in OF_TRAINERS[row]:
        if cell is None:
            cells.append("not run")
            continue
        trainer, setting, default = cell
        batches = recorded(trainer).groupby("setting").get_group(setting)
        assert len(batches) == 3
        assert told(batches).unique().tolist() == ["consistent" if "FAULT" not in answer else answer.strip("`").split()[1]]
        mean = f"{batches['mean_ratio'].mean():.2f}"
        cells.append(f"**{mean}**" if default else mean)
    assert f"| {' | '.join([sampled, mode, *cells, answer])} |" in README


@pytest.fixture(scope="module")
def record() -> pd.DataFrame:
    return read(ROOT / "experiments/study/faults/record-6.csv")


def bugs(record: pd.DataFrame) -> pd.DataFrame:
    """The dumps with a bug that the picture shows."""
    assert [fault for faults, *_ in BUGS.values() for fault in faults] == list(MOVING)
    return record[record["fault"].isin(MOVING)]


def test_the_figure_of_the_record_has_its_finding_as_its_title(record):
    """The bugs of the figure are all beyond the bound of an alarm, at K3 as sound dumps in FP8 have. No sound dump is."""
    sound, shown = record[record["fault"] == "clean"], bugs(record)
    assert sound["z"].abs().max() < SURE < shown["z"].abs().min()
    fp8 = sound[sound["precision"].str.startswith("fp8")]["k3"]
    assert shown["k3"].between(fp8.min(), fp8.max()).mean() > 0.9
    assert f"all {len(shown)} batches" in TITLE and f"none of {len(sound)} without" in TITLE
    assert f"![{TITLE}](mean_ratio.png)" in (ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8")
