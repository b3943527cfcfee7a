"""Random command lines, and commands on damaged or hostile folders: python -m tests.fuzz.attack --lines 1000 --folders 500.

Each case is a forked process with a folder of its own. Its number and the seed alone draw it, so the cases can be run in parts:
`--from 450 --lines 550` goes on after 450 lines. Prints a `Tally` and the cases that count in it; exits 0 if all is 0.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from faultline.cli import build_parser, main
from harness.dumps import files
from sweeps.ledger import Sweep
from tests.analysis.synthetic import write
from tests.fuzz.damage import damaged, whole_files

SEED = 35
HANG = 60
"""Seconds of processor time, or ten times as many by the clock, after which a case counts as hung."""
CODES = {0, 1, 2, 3}
"""Exit codes of a command that ended by itself."""
READING = ("report", "replay", "power", "import-config", "sweep", "memory", "gradient", "branch", "search", "watch")
GOOD = {"report": "sweep", "power": "sweep", "replay": "sweep/fp32-1", "import-config": "theirs.yaml", "memory": "steps=3"}
"""Command -> an argument that it takes."""
FOLDERS = [["report", "sweep"]] * 3 + [["replay", "sweep/fp32-1"]] * 3 + [["sweep", "status", "sweep"]] * 2 + [
    ["sweep", "logs", "sweep"], ["power", "sweep"], ["gradient", "sweep/fp32-1"], ["branch", "sweep/fp32-1"]]  # fmt: skip
SHARED = ("analysis.report", "analysis.power", "faultline.tools.gradient.command", "faultline.tools.replay.answer",
          "faultline.tools.import_config", "harness.memory", "sweeps.branch", "sweeps.commands")  # fmt: skip
"""Modules that the commands import, imported once for all cases: that takes longer than the rest of a case."""
SECRET = "the user's own file"
WORDS = ["", "x", "-1", "0", "1e999", "nan", "ü", "--", "-", "a" * 5000, "../..", "/dev/null", "/dev/zero", "[", "$(id)", "%s",
         "sweep", "sweep/fp32-1", "dump.parquet", "theirs.yaml", "nosuch", "\x1b[2J", "ppo,pg", "icepop", "3,4"]  # fmt: skip
NONSENSE = ["--nosuch", "--no such", "--seeds=1=2=x", "--x=\x1b[2J"]


class Tally(NamedTuple):
    """All 0 if nothing went wrong.

    tracebacks: cases that print one. hangs: cases beyond HANG. accepted: cases with exit code 0 although an argument was
    nonsense, or although the only file that the command reads was. codes: other exit codes than CODES. escapes: cases that
    print a control character of a file. changed: cases that changed a file of the user outside of the folder.
    """

    tracebacks: int = 0
    hangs: int = 0
    accepted: int = 0
    codes: int = 0
    escapes: int = 0
    changed: int = 0


class Case(NamedTuple):
    """A command in a folder. nonsense: it must not end with exit code 0."""

    words: list[str]
    nonsense: bool


def line(rng: random.Random) -> Case:
    """A command with arguments of every kind, of which some are nonsense."""
    commands: Any = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    name = rng.choice(READING)
    words, nonsense = [name], False
    for action in commands[name]._actions:
        if not action.option_strings:
            words.append(
                GOOD[name] if name in GOOD and rng.random() < 0.6 else str(rng.choice([*(action.choices or []), *WORDS]))
            )
        elif rng.random() < 0.15 and action.option_strings[-1] not in ("--help", "--watch"):
            takes = [] if action.nargs == 0 else [str(rng.choice([*(action.choices or []), *WORDS]))]
            words += [action.option_strings[-1], *takes]
    if name in ("sweep", "search", "watch"):  # no command that goes on, or starts what does
        words.append(rng.choice(NONSENSE))
        nonsense = True
    elif rng.random() < 0.2:
        words.insert(rng.randrange(1, len(words) + 1), rng.choice(NONSENSE))
        nonsense = "--" not in words[:-1]
    return Case(words, nonsense)


def sound(place: Path) -> None:
    """A sweep of two runs with a dump, its ledger, a dump and a config of another framework, and a file of the user's own."""
    for seed in (0, 1):
        folder = write(place / "sweep", "rollout/precision=fp32", seed=seed, steps=20)
        rng = np.random.default_rng(seed)
        logp = -rng.exponential(1.0, (4, 6))
        arrays = {"mask": np.ones((4, 6), bool), "logp_rollout": logp, "logp_old": logp + rng.normal(0, 0.01, (4, 6))}
        (folder.path / "dumps").mkdir()
        files.write(folder.path / "dumps" / "step-1.parquet", arrays)
        (folder.path / "log.txt").write_text("one line\n")
    shutil.copy(folder.path / "dumps" / "step-1.parquet", place / "dump.parquet")
    sweep = Sweep(place / "sweep")
    for run in ("fp32-0", "fp32-1"):
        sweep.log("planned", [run], arm="fp32", seed=int(run[-1]), steps=20, cost="")
        sweep.log("ended", [run], state="failed", error="why", job="")
    (place / "theirs.yaml").write_text("algorithm:\n  rollout_correction:\n    rollout_is: token\n")
    (place / "mine").write_text(SECRET)


def hostile(place: Path, rng: random.Random) -> Case:
    """Damage a file of the second run or of the sweep, or put something else in its place."""
    words = rng.choice(FOLDERS)
    inside = "fp32-1/*" if words[0] in ("replay", "gradient", "branch") else "**/*"
    path = rng.choice(sorted(path for path in (place / "sweep").glob(inside) if path.is_file() or path.name == "dumps"))
    nonsense = words[0] == "replay" and path.suffix == ".parquet"
    way = rng.randrange(7) if path.is_file() else rng.randrange(2, 6)
    if way in (0, 1):
        kind = {".json": "json", ".jsonl": "jsonl"}.get(path.suffix, "binary")
        content = whole_files(rng) if way else damaged(rng, path.read_bytes(), kind)
        path.write_bytes(content)
        nonsense = nonsense and bool(way)
    else:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    match way:
        case 2:
            path.symlink_to(rng.choice([place / "mine", place, Path("/dev/zero"), Path("nowhere"), path]))
        case 3:
            os.mkfifo(path)
        case 4:
            path.mkdir()
        case 5:
            path.with_name("a\x1b[2Jb\n" + path.name).write_text("\x1b]0;title\x07")
        case 6:
            path.write_text(rng.choice(['{"state": "failed", "error": "\\u001b[2J=1+1"}', "\x1b[2J\n", "9" * 5000, "[" * 10_000]))
    return Case(words, nonsense)


def attack(case: Case, place: Path) -> tuple[int, str, bool]:
    """Exit code, output, and whether it hung, of a command in a forked process whose working folder is `place`."""
    child = os.fork()
    if not child:
        os.chdir(place)
        shown = os.open("shown", os.O_WRONLY | os.O_CREAT)
        for number, at in ((0, os.open(os.devnull, os.O_RDONLY)), (1, shown), (2, shown)):
            os.dup2(at, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", errors="replace") for number in (1, 2))
        resource.setrlimit(resource.RLIMIT_CPU, (HANG, HANG + 1))
        signal.alarm(10 * HANG)
        code = 70
        try:
            main(case.words)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        with_output = (sys.stdout.flush(), sys.stderr.flush())
        os._exit(code if with_output else 70)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, (place / "shown").read_text(errors="replace"), -code in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL)


def judge(case: Case, code: int, shown: str, hung: bool, place: Path) -> Tally:
    mine = place / "mine"
    return Tally(
        tracebacks=int("Traceback" in shown),
        hangs=int(hung),
        accepted=int(case.nonsense and code == 0),
        codes=int(not hung and code not in CODES),
        escapes=int(any(letter in shown and letter not in "".join(case.words) for letter in "\x1b\x07")),
        changed=int(not mine.is_file() or mine.read_text() != SECRET),
    )


def fuzz(lines: int, folders: int, seed: int, root: Path, first: int = 0) -> Tally:
    """Run so many cases of each kind from the case `first` on, print those that count, and add up their tallies."""
    for module in SHARED:
        importlib.import_module(module)
    sound(root / "sound")
    counted: Counter[str] = Counter()
    for kind, count in (("line", lines), ("folder", folders)):
        for number in range(first, first + count):
            rng, place = random.Random(f"{seed} {kind} {number}"), root / f"{kind}-{number}"
            shutil.copytree(root / "sound", place, symlinks=True)
            case = line(rng) if kind == "line" else hostile(place, rng)
            code, shown, hung = attack(case, place)
            tally = judge(case, code, shown, hung, place)
            counted.update(tally._asdict())
            if any(tally):
                wrong = ", ".join(name for name, value in tally._asdict().items() if value)
                print(f"{kind} {number}: {wrong}: {case.words} exit {code}\n{shown[-1500:]!r}", flush=True)
            shutil.rmtree(place)
            if (number + 1) % 50 == 0:
                print(f"{kind} {first} to {number}: {dict(counted)}", flush=True)
    return Tally(**counted)


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--folders", type=int, default=500)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="N", help="number of the first case of each kind")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    with tempfile.TemporaryDirectory() as root:
        tally = fuzz(given.lines, given.folders, given.seed, Path(root), given.first)
    counts = ", ".join(f"{value} {name}" for name, value in tally._asdict().items())
    print(f"{given.lines} lines, {given.folders} folders from {given.first}: {counts}")
    raise SystemExit(any(tally))


if __name__ == "__main__":
    run()
