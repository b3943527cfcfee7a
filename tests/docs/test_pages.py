"""Everything that the pages name exists: files and headings behind links, and commands that their programs take."""

import os
import re
import shlex
import subprocess
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from faultline.cli import COMMANDS, build_parser
from harness.compose import compose
from harness.config import parse
from sweeps.launchers.options import SlurmOptions

ROOT = Path(__file__).parents[2]
PAGES = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split()
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
ITEM = re.compile(r"(- |\* |\d+\. )")
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
FOLDERS = "algos|analysis|docs|experiments|faultline|harness|slurm|sweeps|tests"
MAKEFILE = (ROOT / "Makefile").read_text()


def text(page):
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page):
    return FENCED.sub("", text(page))


# --- links -----------------------------------------------------------------------------------------------------------------


@cache
def anchors(page):
    """The anchors of its headings, as code hosts and the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = os.path.relpath((ROOT / page).parent / path, ROOT) if path else page
        assert (ROOT / target).is_file(), f"{link}: no such file (a folder opens on a code host, and not in the site)"
        assert not anchor or anchor in anchors(target), f"{link}: {target} has no such heading"


def test_the_index_leads_to_every_page():
    linked = {link.partition("#")[0] for link in LINK.findall(text("docs/index.md"))}
    assert {path.name for path in ROOT.glob("docs/*.md")} - linked == {"index.md"}


@pytest.mark.parametrize("page", PAGES)
def test_paths_in_the_text_exist(page):
    if page == "CHANGELOG.md":
        return  # names what was
    for path in INLINE.findall(prose(page)):
        if re.fullmatch(rf"({FOLDERS})/[\w./*-]+", path) and not path.startswith("slurm/local/state"):
            assert list(ROOT.glob(path)), f"{path}: named by {page}, and not there"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("experiments/study/")])
def test_a_list_stands_apart(page):
    """Python-Markdown, which makes the site, takes a list that follows a paragraph without an empty line for the paragraph."""
    lines = prose(page).splitlines()
    for before, line in pairwise(lines):
        if ITEM.match(line) and before.strip():
            assert re.match(r"\s|#", before) or ITEM.match(before), f"an empty line is missing before {line!r}"


# --- commands --------------------------------------------------------------------------------------------------------------

LEFT_ALONE = {
    "apptainer", "cd", "do", "docker", "done", "eval", "export", "for", "git", "grep", "gzip", "mkdir", "optuna-dashboard", "pip",
    "source", "ssh", "wc",
}  # fmt: skip
"""Programs of others, and the shell's own words."""
PLACEHOLDER = re.compile(r"^\.\.\.$|\$|=[A-Z]{4,}$")
"""A variable of a loop, or a value that the reader knows."""
LAUNCHERS = {"torchrun", "srun", "deepspeed"}


def fenced(page):
    """The blocks without a language, which hold commands."""
    return [body for language, body in FENCED.findall(text(page)) if language in ("", "bash", "sh")]


def indented(page):
    """The blocks that may hold commands, equations or rows."""
    return [re.sub(r"^    ", "", body, flags=re.M) for body in re.findall(r"(?:^    .*\n)+", prose(page), re.M)]


def shell_lines(blocks):
    """Their lines, joined where they are continued, with the variables of these blocks filled in."""
    variables = {}
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        line = re.sub(r"\$(\w+)", lambda found: variables.get(found[1], found[0]), line.strip())
        if assigned := re.fullmatch(r'(\w+)="([^"]*)"', line):
            variables[assigned[1]] = assigned[2]
        elif re.match(r"[\w./-]+( |$)|\w+=", line):
            yield line


def is_command(line):
    program = line.split()[0]
    return program in {"make", "faultline", "python", "pytest", "sbatch", *LAUNCHERS} or program.startswith("slurm/")


COMMAND_LINES = [(page, line) for page in PAGES for line in shell_lines(fenced(page) + indented(page)) if is_command(line)]


def test_blocks_hold_commands_that_are_checked_or_known():
    """A block that is no command names its language: text, json, yaml, python."""
    pages = [page for page in PAGES if page.startswith(("README", "CONTRIBUTING", "docs", "slurm"))]
    programs = {line.split()[0] for page in pages for line in shell_lines(fenced(page))}
    unknown = {word for word in programs if re.fullmatch(r"[a-z][\w-]*", word) and not is_command(f"{word} x")} - LEFT_ALONE
    assert not unknown and len(COMMAND_LINES) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), COMMAND_LINES, ids=[f"{page[:60]}-{line[:60]}" for page, line in COMMAND_LINES])
def test_a_command_is_one_that_its_program_takes(page, line):
    words = re.split(r" > | \| | && ", line)[0]
    words = [word for word in shlex.split(words, comments=True) if not PLACEHOLDER.search(word)]
    program, *rest = words
    if program == "make":
        make(rest)
    elif program == "faultline":
        faultline(rest)
    elif program == "pytest":
        files = [word.partition("::")[0] for word in rest if word.startswith("tests/")]
        assert all((ROOT / file).exists() for file in files), line
    elif program.startswith("slurm/"):
        assert os.access(ROOT / program, os.X_OK), line
    elif program == "sbatch":
        script = next(n for n, word in enumerate(rest) if word.endswith(".sbatch"))
        assert (ROOT / rest[script]).exists()
        train(rest[script + 1 :])
    else:  # python, or a launcher of ranks
        module = next((n for n, word in enumerate(words) if word in ("-m", "--module")), None)
        assert module is not None, line
        if words[module + 1] == "experiments.train":
            train(words[module + 2 :])
        else:
            assert words[module + 1] in ("http.server", "venv") or find_spec(words[module + 1]), line


def make(words):
    for word in words:
        target = re.escape(word.replace(".venv", "$(VENV)"))
        pattern = rf"^{word.partition('=')[0]} \?=" if "=" in word else rf"^{target}:"
        assert re.search(pattern, MAKEFILE, re.M), f"make {word}"


def faultline(words):
    if words[0] == "train":
        train(words[1:])
    elif not {"--help", "--version"} & set(words):
        build_parser().parse_args(words)  # SystemExit(2) where it does not take them


def train(words):
    """Each value of each override composes, and makes a config that is accepted, beside the first value of the others."""
    if "--config-dir" in words or any(word.startswith(("/", "~")) for word in words):
        return
    words = [word for word in words if word not in ("-m", "--multirun", "--help")]
    launcher = [word for word in words if word.startswith(("hydra/launcher=", "hydra.launcher.", "+hydra.launcher."))]
    for word in launcher:
        key = word.partition("=")[0].lstrip("+").removeprefix("hydra.launcher.").partition(".")[0]
        known = {"hydra/launcher", "parallel", "retry_failed", "extend", *SlurmOptions.__dataclass_fields__}
        assert key in known, word
    overrides = [word for word in words if word not in launcher]
    values = [expand(word) for word in overrides]
    first = [choice[0] for choice in values]
    for n, choices in enumerate(values):
        for value in choices:
            accepted(*first[:n], value, *first[n + 1 :])


@cache
def accepted(*overrides):
    """A line with several keys has its first values once for each."""
    return parse(compose(*overrides))


def expand(word):
    """`a=1,2` as `a=1` and `a=2`."""
    (override,) = OverridesParser.create().parse_overrides([word])
    if not override.is_sweep_override():
        return [word]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist(page):
    for code in INLINE.findall(prose(page)):
        program, *rest = code.split()
        if program == "make" and rest:
            make(rest)
        if program == "faultline" and rest and not rest[0].startswith("-"):
            assert rest[0] in COMMANDS, code
