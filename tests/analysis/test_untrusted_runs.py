"""Runs that are not as a run writes them: each is a named problem, and the report of the others stands."""

import copy
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from wandb.proto import wandb_internal_pb2 as proto

from analysis.frames import csv
from analysis.load import load
from analysis.report import report
from analysis.wandb_runs import BLOCK, HEADER
from harness.errors import UserError
from tests.analysis.synthetic import FP8, FP32, write

BAD: list[Any] = [None, True, "x", "", -1, 0.5, 2**70, 10**400, 1e308, float("nan"), [], [1], {}, {"x": 1}]
BAD += ["$\\frac$ $", "\ud800", "<script>alert(1)</script>", "a\nb|c", "antigravity:fly"]
FILES = ("config.json", "status.json", "provenance.json", "events.jsonl", "metrics.jsonl")


def leaves(values: Any, place: tuple = ()) -> Iterator[tuple]:
    """The place of each value in nested JSON, sections and lists included."""
    yield place
    parts = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in parts:
        yield from leaves(value, (*place, key))


def replaced(values: Any, place: tuple, by: Any) -> Any:
    if not place:
        return by
    values = copy.copy(values)
    values[place[0]] = replaced(values[place[0]], place[1:], by)
    return values


def damaged(sweep: Path, name: str, places: int | None, rng: random.Random) -> int:
    """Runs under `sweep`, of seeds of their own, each with one bad value in its file `name`. How many they are."""
    made = write(sweep, FP8, seed=0, steps=8, collapse=4)
    lines = (made.path / name).read_text().splitlines() if name.endswith("l") else [(made.path / name).read_text()]
    chosen = [(place, bad) for place in leaves(json.loads(lines[-1])) for bad in BAD]
    chosen = chosen if places is None else rng.sample(chosen, min(places, len(chosen)))
    for number, (place, bad) in enumerate(chosen, 1):
        text = json.dumps(replaced(json.loads(lines[-1]), place, bad))
        run = sweep / f"run-{number}"
        run.mkdir()
        for file in FILES:
            content = (made.path / file).read_bytes()
            run.joinpath(file).write_bytes(content)
        if name != "config.json":  # a run of its own
            config = json.loads((run / "config.json").read_text()) | {"seed": number}
            run.joinpath("config.json").write_text(json.dumps(config))
        run.joinpath(name).write_text("\n".join([*lines[:-1], text]))
    return len(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_bad_value_anywhere_in_a_record_is_a_named_problem(tmp_path, name):
    """Every place of every file, but of a config and of a row, which have many: a sample of these."""
    count = damaged(tmp_path / "sweep", name, 150 if name in ("config.json", "metrics.jsonl") else None, random.Random(0))
    found = load(tmp_path / "sweep")
    assert found.runs.index.isin({f"run-{i}" for i in range(1, count + 1)} | {"fp8_tensor-0"}).all()
    assert "fp8_tensor-0" in found.runs.index and "fp8_tensor-0" not in found.damaged
    assert all(isinstance(caveat, str) for caveat in found.caveats)
    for run in found.damaged.keys() - set(found.runs.index):
        assert found.damaged[run]


KINDS = {
    "a seed that is a word": ("config.json", ("seed",), "x", "seed='x'"),
    "detectors that are a list": ("config.json", ("collapse", "detectors"), [1], "collapse.detectors"),
    "a formula in a name": ("config.json", ("rollout", "precision", "name"), "$\\frac$ $x^$", "letters, digits"),
    "markup in a name": ("config.json", ("loss", "name"), "<script>alert(1)</script>", ""),
    "code in a name": ("config.json", ("collapse", "detectors"), {"antigravity:fly": {}}, "would import"),
    "a lone surrogate": ("config.json", ("loss", "name"), "\ud800", "config.json: unreadable"),
    "epochs that overflow": ("config.json", ("actor", "epochs"), 10**9, ""),
    "a state of its own": ("status.json", ("state",), "flying", "status.json"),
    "a step that is a word": ("status.json", ("step",), "x", "step='x'"),
    "a step beyond 64 bit": ("status.json", ("step",), 2**70, "step="),
    "an error that is a list": ("status.json", ("error",), [1], "error=[1]"),
    "processes that are none": ("provenance.json", ("processes",), [1], "does not say which code made the run"),
    "packages that are a list": ("provenance.json", ("processes", 0, "packages"), [1], "packages"),
    "packages without torch": ("provenance.json", ("processes", 0, "packages"), {}, "torch: missing"),
    "an onset that is null": ("events.jsonl", ("onset",), None, "onset=None"),
    "an onset beyond 64 bit": ("events.jsonl", ("onset",), 2**70, "onset="),
    "a detector that is a list": ("events.jsonl", ("detector",), [1], "detector=[1]"),
    "a detector of another run": ("events.jsonl", ("detector",), "antigravity:fly", "is not one of the run's"),
    "a row beyond 64 bit": ("metrics.jsonl", ("step",), 2**70, "1 of its lines unreadable"),
    "a row before the first": ("metrics.jsonl", ("step",), -1, "1 of its lines unreadable"),
    "a number beyond floats": ("metrics.jsonl", ("actor/loss",), 10**400, ""),
    "a row of words": ("metrics.jsonl", ("actor/loss",), "x", ""),
}
"""Kind of damage -> file, place, value, and what is said of it; "" where the value is odd but sound."""


@pytest.mark.slow
def test_the_report_stands_whatever_one_run_holds(tmp_path):
    sweep = tmp_path / "sweep"
    for seed in (0, 1):
        write(sweep, "rollout/precision=fp32", seed=seed, steps=20)
        write(sweep, FP8, seed=seed, steps=20, collapse=10)
    for seed, (name, place, bad, _) in enumerate(KINDS.values(), 10):
        folder = write(sweep, FP8, seed=seed, steps=20, collapse=10, error="")
        path = folder.path / name
        lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
        number = 5 if name == "metrics.jsonl" else -1
        lines[number] = json.dumps(replaced(json.loads(lines[number]), place, bad))
        path.write_text("\n".join(lines) + "\n")
    page = report(sweep).read_text(encoding="utf-8")
    problems = load(sweep).damaged
    for seed, (what, (*_, said)) in enumerate(KINDS.items(), 10):
        assert said in problems.get(f"fp8_tensor-{seed}", ""), (what, problems)
        assert bool(said) == (f"fp8_tensor-{seed}" in problems), (what, problems.get(f"fp8_tensor-{seed}"))
    assert "<script>alert(1)" not in page


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00", b"[" * 5000, b'{"a": ' * 5000, b"1" * 5000, b"null"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_anything_is_a_named_problem(tmp_path, name, content):
    write(tmp_path / "s", "rollout/precision=fp32", steps=4)
    bad = write(tmp_path / "s", FP8, steps=4)
    (bad.path / name).write_bytes(content)
    found = load(tmp_path / "s")
    assert "fp32-0" in found.runs.index and "fp32-0" not in found.damaged
    assert bad.path.name in found.damaged or (name == "events.jsonl" and not found.runs.onsets[bad.path.name])


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_the_place_of_a_file_is_a_named_problem(tmp_path, name):
    write(tmp_path / "s", "rollout/precision=fp32", steps=4)
    bad = write(tmp_path / "s", FP8, steps=4)
    (bad.path / name).unlink()
    (bad.path / name).mkdir()
    assert "fp32-0" not in (found := load(tmp_path / "s")).damaged and name in found.damaged[bad.path.name]


def test_deleted_rows_are_counted(tmp_path):
    """Rows 0 to 8: of a file without its rows 3 and 4, of one without its last row, and of an empty one."""
    holes, short, empty = (write(tmp_path / "s", FP8, seed=seed, steps=8) for seed in range(3))
    for folder, kept in ((holes, [0, 1, 2, 5, 6, 7, 8]), (short, range(8)), (empty, [])):
        lines = (folder.path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder.path / "metrics.jsonl").write_text("".join(lines[i] for i in kept))
    damaged = load(tmp_path / "s").damaged
    assert damaged[holes.path.name] == "metrics.jsonl: 2 of the 9 rows up to step 8 are missing"
    assert damaged[short.path.name] == "metrics.jsonl: ends before step 8, while the run went on to 8"
    assert damaged[empty.path.name] == "metrics.jsonl: ends before step 0, while the run went on to 8"


def test_equal_damage_of_many_runs_is_one_sentence(tmp_path):
    for seed in range(7):
        (write(tmp_path / "s", FP8, seed=seed, steps=4).path / "provenance.json").unlink()
    (caveat,) = load(tmp_path / "s").caveats
    listed = ", ".join(f"fp8_tensor-{seed}" for seed in range(5))
    assert caveat == f"Runs {listed} and 2 more: provenance.json: does not say which code made the run."


def test_a_copied_run_is_left_out_and_named(tmp_path):
    first = write(tmp_path / "s", FP8, steps=4)
    write(tmp_path / "s", "rollout/precision=fp32", steps=4)
    (tmp_path / "s" / "copy").mkdir()
    for name in FILES:
        (tmp_path / "s" / "copy" / name).write_bytes((first.path / name).read_bytes())
    found = load(tmp_path / "s")
    assert set(found.runs.index) == {"copy", "fp32-0"} and "copy is seed 0 of fp8_tensor ppo too" in found.damaged["fp8_tensor-0"]


LINKED = ("report.html", "report.md", "report.png", "arms.csv", "runs.csv", "evaluations.csv")


@pytest.mark.slow
def test_a_report_writes_through_no_link(tmp_path):
    """Each name of the report is a link to the user's file, which keeps its words; a linked folder of figures is refused."""
    (mine := tmp_path / "mine").write_text("mine")
    sweep = tmp_path / "sweep"
    write(sweep, FP8, until=3, state="failed", error="$(touch pwned)")
    for name in LINKED:
        (sweep / name).symlink_to(mine)
    report(sweep)
    assert mine.read_text() == "mine" and not any((sweep / name).is_symlink() for name in LINKED)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (sweep / "figures").symlink_to(elsewhere)
    with pytest.raises(UserError, match="figures: a link, and nothing is written through it"):
        report(sweep, pictures=True)
    assert not list(elsewhere.iterdir())
    (tmp_path / "linked").symlink_to(sweep)
    with pytest.raises(UserError, match="linked: is a link"):
        report(tmp_path / "linked")


def test_control_characters_and_formulas_of_a_run_command_nothing(tmp_path, capsys):
    """The name of the sweep, a run's error and a metric: what a terminal would obey is shown escaped, and no CSV cell or
    column begins a formula."""
    sweep = tmp_path / "s\x1b[2Jweep"
    write(sweep, FP32, steps=10)
    write(sweep, FP8, steps=10, until=8, state="failed", error="=HYPERLINK(1)\x1b]0;title\x07\nnext\x9b31m")
    report(sweep)
    shown = capsys.readouterr().out
    assert r"s\x1b[2Jweep" in shown and r"=HYPERLINK(1)\x1b]0;title\x07\nnext\x9b31m" in "".join(shown.split("\n"))
    for text in (shown, *((sweep / name).read_text() for name in ("runs.csv", "report.md", "report.html"))):
        assert all(letter.isprintable() for line in text.split("\n") for letter in line)
    assert pd.read_csv(sweep / "runs.csv").error.dropna().tolist() == [r"'=HYPERLINK(1)\x1b]0;title\x07\nnext\x9b31m"]


def test_no_cell_of_a_csv_begins_a_formula():
    """Numbers stay numbers, below zero too; text, an index and a column's name that a spreadsheet would run get an apostrophe."""
    table = pd.DataFrame({"=a": ["@x", "b-c"], "n": [-1.5, np.nan]}, index=pd.Index(["-2+3", "r"], name="run"))
    assert csv(table, index=True) == "run,'=a,n\n'-2+3,'@x,-1.5\nr,b-c,\n"


# --- W&B ------------------------------------------------------------------------------------------------------------


def offline(path: Path, *records: proto.Record | bytes) -> None:
    """An offline file of W&B: its header, then a piece a record: checksum, length, kind 1 for a whole one, content."""
    data = b":W&B\xde\xbe\x00"
    for record in records:
        content = record if isinstance(record, bytes) else record.SerializeToString()
        assert len(data) % BLOCK + HEADER.size + len(content) < BLOCK
        data += HEADER.pack(zlib.crc32(content, zlib.crc32(b"\x01")), len(content), 1) + content
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


def record(kind: str, **values: Any) -> proto.Record:
    """A record that updates config, summary or history; a text that begins with ! is written as it is, not as JSON."""
    message = proto.Record()
    items = {"config": message.config.update, "summary": message.summary.update, "history": message.history.item}[kind]
    for key, value in values.items():
        text = value[1:] if isinstance(value, str) and value.startswith("!") else json.dumps(value)
        items.add(key=key.replace("__", "/"), value_json=text)
    return message


def test_metrics_named_as_the_columns_of_the_analysis_change_no_run(tmp_path):
    """A well-formed forgery, in W&B's format and as a folder: metrics named run and step, of numbers and of text."""
    honest = write(tmp_path / "s", FP32, steps=4)
    forged = write(tmp_path / "s", FP8, steps=4)
    rows = [json.loads(line) | {"run": 3.0} for line in (forged.path / "metrics.jsonl").read_text().splitlines()]
    (forged.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for folder, more in ((honest, {}), (forged, {"run": 3.0, "step": "\x1b[2J"})):
        config = json.loads((folder.path / "config.json").read_text())
        kept = record("config", record=json.dumps({"config": config, "provenance": []}))
        history = [record("history", _step=step, actor__loss=0.5, **more) for step in range(5)]
        path = tmp_path / "w" / f"offline-run-1-{folder.path.name}" / f"run-{folder.path.name}.wandb"
        offline(path, kept, *history, record("summary", state="done"))
    for source in (tmp_path / "s", f"wandb-offline:{tmp_path / 'w'}"):
        steps = load(source).steps
        assert steps.groupby("run", observed=True).step.apply(list).to_dict() == {
            run: list(range(5)) for run in ("fp32-0", "fp8_tensor-0")
        }


def test_wandb_files_that_are_not_what_they_should_be_are_named_problems(tmp_path):
    config = json.loads((write(tmp_path / "s", "rollout/precision=fp32", steps=4).path / "config.json").read_text())
    whole = {"config": config, "provenance": []}

    def run(name: str, *records: proto.Record | bytes, kept: Any = None, seed: int = 0) -> None:
        content = kept if kept is not None else json.dumps(whole | {"config": config | {"seed": seed}})
        offline(tmp_path / "w" / f"offline-run-1-{name}" / f"run-{name}.wandb", record("config", record=content), *records)

    rows = [record("history", _step=step, actor__loss=0.5) for step in range(3)]
    run("sound", *rows, record("summary", state="done"), seed=0)
    run("garbage", b"\xff\xff\xff", *rows, seed=1)
    run("no-json", record("history", _step="!{", actor__loss=1), *rows, seed=2)
    run("deep", record("history", _step="!" + "[" * 5000), *rows, seed=3)
    run("no-step", record("history", actor__loss=1), *rows, seed=4)
    run(
        "word",
        record("history", _step="x"),
        record("history", _step=1e400),
        record("history", _step=2**70),
        *rows,
        seed=5,
    )
    run("state", *rows, record("summary", state=[1]), seed=6)
    run("error", *rows, record("summary", error={"x": 1}), seed=7)
    run("onset", *rows, record("summary", onset__drawdown=None), seed=8)
    run("code", *rows, record("summary", **{"onset__antigravity:fly": 1}), seed=9)
    run(
        "provenance",
        *rows,
        kept=json.dumps(whole | {"config": config | {"seed": 10}, "provenance": [1, {"commit": 1}]}),
    )
    for number, kept in enumerate(([1], "[", "[" * 5000, "[]", '{"config": {}}', '{"config": 1, "provenance": []}')):
        run(f"kept{number}", *rows, kept=kept)
    found = load(f"wandb-offline:{tmp_path / 'w'}")
    said = {
        **dict.fromkeys(("garbage", "no-json", "deep"), "1 records are none of W&B's"),
        "no-step": "1 of its rows have no step",
        "word": "3 of its rows have no step",
        "state": "state=[1]",
        "error": "error=",
        "onset": "onset=None",
        "code": "is not one of the run's",
        "provenance": "provenance",
        **{f"kept{number}": "no config of this harness" for number in range(6)},
    }
    assert found.damaged.keys() == said.keys()
    for name, words in said.items():
        assert words in found.damaged[name], (name, found.damaged[name])
    assert set(found.runs.index) == {"sound", *(name for name in said if not name.startswith("kept"))}
    assert (found.steps.groupby("run", observed=True).size() == 3).all()
