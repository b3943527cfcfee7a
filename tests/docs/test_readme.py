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
from algos.faults.base import SURE as STANDARD_ERRORS
from analysis.frames import markdown
from experiments.faults import cost, edits, real
from experiments.faults.mean_ratio import BUGS, TITLE
from experiments.faults.plan import FORMER, HELD_OUT
from experiments.faults.report import MOVING, NAMES, answers, read
from experiments.plan import interval
from faultline.cli import main
from faultline.tools.replay import page as replay_page
from tests.faultline.tools.replay.cases import unwritten
from tests.oracles.first_batches import recorded, table, told
from tests.oracles.skyrl_batches import SKYRL
from tests.oracles.together import RECORD, SURE, together
from tests.oracles.trl_batches import TRL
from tests.oracles.verl_batches import VERL

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCREEN = README.split("\n## ")[0]
"""What a reader sees first: up to the first heading below the title."""
SOUND = "LOG-PROBABILITIES  consistent"
"""Begin of what replay prints on a sound dump."""


NUMBERS = {6: "six", 8: "eight"}


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
    printed, shown = replayed("raw", code=3), blocks("text")[0].splitlines()
    assert "\nfaultline replay --example raw " in blocks("bash")[0] and shown[0] == printed[0]
    assert "VERDICT  No correction is proposed." in printed
    rest = iter(printed)
    assert all(line == "..." or line in rest for line in shown)


@pytest.mark.slow
def test_the_mended_example_says_what_the_line_below_says():
    (said,) = re.findall(r"`faultline replay --example processed` says `(.*?)`", " ".join(README.split()))
    assert replayed("processed")[0].startswith(f"LOG-PROBABILITIES  {said} (")


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
    named = "token weights cut at 2 if you deploy the trainer's weights, and no correction if you deploy the engine's"
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


def test_k3_is_named_only_in_the_link_to_the_page_that_explains_it():
    prose = re.sub(r"^```.*?^```|`[^`]*`", "", README, flags=re.M | re.S)
    assert prose.count("K3") == prose.count("[K3 of 2e-2?](docs/k3.md)") == 1


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
    """It shows what the bug cost each setting. The toy's losses are those of its page."""
    assert re.findall(r"!\[.*\]\((.*)\)", README) == [str(cost.LINES)]
    rewards, dumps = cost.recorded(cost.SMOLLM2)
    ends, seeds, said = cost.endpoints(rewards), rewards["seed"].nunique(), " ".join(README.split())
    mean, (began,) = ends.groupby("setting").mean(), rewards[rewards["step"] == 0]["reward"].unique()
    right, bug = mean.loc["rollout", False], mean.loc["rollout", True]
    assert f"from {began:.2f} of held-out sums to {right:.2f} (mean of steps 10 to 30). With the bug PPO in verl's bypass" in said
    assert f"went to {bug:.2f}, below its start in all {NUMBERS[seeds]} seeds of eight planned." in said
    for setting, words in {"token": "Token weights lost nothing that shows", "sequence": "nor did a sequence mask"}.items():
        low, high = interval(ends.loc[setting, True].to_numpy(), ends.loc[setting, False].to_numpy(), paired=True)
        assert low < 0 < high and f"{words} ({low:+.2f} to {high:+.2f})".replace("-", "−") in said
    ppo = rewards[(rewards["setting"] == "rollout") & rewards["bug"]].pivot(index="seed", columns="step", values="reward")
    assert (ppo[30] < ppo[0]).all() and (ends.loc["rollout", True] < ends.loc["rollout", False]).all()
    toy = cost.endpoints(cost.recorded(cost.TOY)[0])
    toy_lost = (toy[False] - toy[True]).groupby("setting").mean()
    assert "[A toy](docs/bug-cost.md) lost 0.05 and 0.03" in said
    assert f"{toy_lost['token']:.2f} {toy_lost['sequence']:.2f}" == "0.05 0.03"
    assert (dumps[dumps["bug"]]["named"] == "raw_logprobs").all() and (dumps[~dumps["bug"]]["kind"] == "consistent").all()


def test_those_who_had_the_bug_stand_with_their_sources():
    """Each is on the page that the README links to, in an item with a link."""
    said = " ".join(README.split())
    assert "[verl, TRL and NeMo RL](docs/diagnosis.md#the-faults) had it." in said
    page = (ROOT / "docs/diagnosis.md").read_text(encoding="utf-8")
    items = page.split("**Seen in public.**")[1].split("`truncated_sampling`")[0].split("\n- ")[1:]
    for name in ("verl before", "TRL's issue", "NeMo RL's issue", "PipelineRL after", "SkyRL 0.3.0, by default"):
        (item,) = [item for item in items if item.startswith(name)]
        assert "](" in item
    assert "four causes" in next(item for item in items if item.startswith("PipelineRL"))


def test_the_page_of_its_picture_has_the_table_that_the_command_prints():
    page = (ROOT / "docs/bug-cost.md").read_text(encoding="utf-8")
    for sweep in (cost.TOY, cost.SMOLLM2):
        assert markdown(cost.table(*cost.recorded(sweep))) in page


@pytest.mark.parametrize("columns", ["plain_", ""])
def test_the_page_of_the_record_has_the_answers_that_its_command_prints(record, columns):
    """Counted here anew: known bugs of a running sampler or trainer have a rule, and are no edit of a sound dump."""
    table = answers(record, columns)
    assert markdown(table) in (ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8")
    parts = groups(record)
    kind, right = record[f"{columns}kind"], record[f"{columns}right"]
    for part, row in zip(parts.values(), table.to_numpy(), strict=True):
        unnamed = part is parts["unruled"]
        named = (part & (kind == "fault") & right).sum() * (not unnamed)
        counts = [(part & (kind == one)).sum() for one in ("fault", "unknown", "consistent")]
        assert [int(count or 0) for count in row[1:]] == [part.sum(), named, counts[0] - named, *counts[1:]]


def groups(record: pd.DataFrame) -> dict[str, pd.Series]:
    """Which dumps of the record are of each row of its answers."""
    unruled = record["fault"].isin([*HELD_OUT, *FORMER])
    whole = (record["fault"] == "swapped") & (record["size"] == 1)
    edit = record["fault"].isin(edits.SIZES.keys() - real.SIZES.keys()) | whole
    clean, moving = record["fault"] == "clean", record["fault"].isin(MOVING)
    known = ~clean & ~unruled & ~edit & ~moving
    ruled, edited = ({NAMES.get(name, name) for name in record[part]["fault"]} for part in (moving | known, edit))
    assert len(ruled) == 10 and len(edited - ruled) == 5 and set(FAULTS.names()) - ruled - edited == {"cache", "routing"}
    assert len(FAULTS.names()) - 1 == 16  # beside the note `routing`
    return {"moving": moving, "known": known, "unruled": unruled, "clean": clean}


def test_its_table_is_that_of_the_record_with_other_trainers():
    """Counted here anew of other trainers: what is right stands in their plans. The page of the record has the table too."""
    plain, both = answers(read(RECORD), "plain_").to_numpy()[:, 1:], together().to_numpy()[:, 1:]
    theirs = [(trainer, batch) for trainer in (TRL, VERL, SKYRL) for batch in recorded(trainer).itertuples()]
    expected = [batch.expected for _, batch in theirs]
    sure, sound, other = (sum(name in names for name in expected) for names in (SURE, ["consistent"], [""]))
    missed = [(trainer.name, batch.setting) for trainer, batch in theirs if batch.kind == "consistent" and batch.named == ""]
    assert len(expected) == sure + sound + other and missed.count(("SkyRL", "top_p 0.9")) == 3
    added = [[sure, sure, 0, 0, 0], [0] * 5, [other, 0, 1, 2, 3], [sound, 0, 0, 0, sound]]
    assert (both - plain).tolist() == added
    assert markdown(together()) in (ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8")
    for row in together().to_numpy():
        assert f"| {' | '.join(map(str, row))} |" in README
    said = " ".join(README.split())
    called = read(RECORD).query("plain_named == 'raw_logprobs'")["fault"].value_counts()
    assert called.to_dict() == {"raw_logprobs": 25, "swapped": 7}
    assert "of 41 answers `raw_logprobs`, 7 were exchanged columns." in said
    assert "as in 7 of 41 tested batches with this answer" in FAULTS["raw_logprobs"].check["columns"]
    theirs_called = [name for name, (_, batch) in zip(expected, theirs, strict=True) if batch.named == "raw_logprobs"]
    assert set(theirs_called) == {"raw_logprobs"}
    page = " ".join((ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8").split())
    assert f"Of {called.sum()} dumps that `plain` called `raw_logprobs` 25 had it, and 7 had exchanged columns" in page
    assert f"With the first batches it is right in {25 + len(theirs_called)} of {called.sum() + len(theirs_called)}." in page
    sizes = read(RECORD).groupby("fault")["size"].agg(set)
    assert (min(sizes["raw_logprobs"]), max(sizes["raw_logprobs"])) == (0.6, 0.9) and "temperatures of 0.6 to 0.9" in said
    assert (min(sizes["top_p"]), max(sizes["top_p"]), set(sizes["top_k"])) == (0.9, 0.98, {5, 20})
    theirs_of = {trainer.settings[batch.setting].keys.get("min_p") for trainer, batch in theirs} - {None}
    assert theirs_of == {0.1} and "`top_p` of 0.9 to 0.98, `top_k` of 5 or 20, or `min_p` of 0.1;" in said
    draws = {(trainer.name, batch.seed) for trainer, batch in theirs}
    drawn = f"{sure} of them are of nine draws of prompts, and the 485 of about 44 sources"  # 35 and these nine
    assert len(draws) == 9 and drawn in said
    assert f"{sure} of the 89 are of nine draws of prompts. The 485 have about 44 independent sources: 35 and these" in page


@pytest.mark.parametrize("trainer", [TRL, VERL, SKYRL], ids=lambda trainer: trainer.name)
def test_the_answers_in_other_trainers_are_those_of_their_records(trainer):
    """Each of the page's tables is what its command prints."""
    assert markdown(table(trainer, recorded(trainer))) in (ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8")


def test_the_count_of_answers_in_other_trainers_is_that_of_their_records():
    """As the findings tell it. Answers where no fault has a name do not count."""
    frame = pd.concat([recorded(trainer).assign(trainer=trainer.name) for trainer in (TRL, VERL, SKYRL)])
    named = frame[frame["expected"] != ""]
    right = told(named) == named["expected"]
    counts = named["expected"].value_counts()
    assert right.all()
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


@pytest.fixture(scope="module")
def record() -> pd.DataFrame:
    return read(RECORD)


def bugs(record: pd.DataFrame) -> pd.DataFrame:
    """The dumps with a bug that the picture shows."""
    assert [fault for faults, *_ in BUGS.values() for fault in faults] == list(MOVING)
    return record[record["fault"].isin(MOVING)]


def test_the_figure_of_the_record_has_its_finding_as_its_title(record):
    """The bugs of the figure are all beyond the bound of an alarm, at K3 as sound dumps in FP8 have. No sound dump is."""
    sound, shown = record[record["fault"] == "clean"], bugs(record)
    assert sound["z"].abs().max() < STANDARD_ERRORS < shown["z"].abs().min()
    fp8 = sound[sound["precision"].str.startswith("fp8")]["k3"]
    assert shown["k3"].between(fp8.min(), fp8.max()).mean() > 0.9
    assert f"all {len(shown)} batches" in TITLE and f"none of {len(sound)} without" in TITLE
    assert f"![{TITLE}](mean_ratio.png)" in (ROOT / "docs/diagnosis-record.md").read_text(encoding="utf-8")
