"""The command line: what every command says of itself, and that its examples can be run."""

import shlex
import subprocess
import sys

import pytest

from faultline.cli import COMMANDS, build_parser, main
from faultline.tools.doctor import driver


def faultline(*words: str, script: bool = False) -> subprocess.CompletedProcess:
    start = [f"{sys.prefix}/bin/faultline"] if script else [sys.executable, "-m", "faultline"]
    return subprocess.run([*start, *words], capture_output=True, text=True)


def examples(name: str) -> list[list[str]]:
    """Its examples as words, those of `faultline` alone."""
    commands = [shlex.split(line, comments=True) for line in COMMANDS[name].EXAMPLES.splitlines()]
    return [words[1:] for words in commands if words[0] == "faultline"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows_its_examples(name, capsys):
    if name != "train":  # Hydra's own help
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        shown = capsys.readouterr().out
        assert left.value.code == 0 and all(line.strip() in shown for line in COMMANDS[name].EXAMPLES.splitlines())
    assert any(words[0] == name for words in examples(name))


@pytest.mark.parametrize("words", [words for name in COMMANDS for words in examples(name) if words[0] != "train"], ids=" ".join)
def test_every_example_is_accepted(words):
    """But those of train: Hydra parses them."""
    arguments = build_parser().parse_args(words)
    assert arguments.command == words[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["repla"], "invalid choice: 'repla' (choose from 'train', 'sweep', "),
        (["replay", "d", "--keep", "2"], "argument --keep: 2: accepted are numbers above 0, up to 1"),
        (["gradient", "--enumerable", "--noise", "x"], "argument --noise: x: accepted are numbers above 0, up to 10"),
        (["gradient", "--enumerable", "--batches", "1"], "argument --batches: 1: accepted are whole numbers of at least 2"),
        (["branch", "runs/a/b", "--seeds", "0"], "argument --seeds: 0: accepted are whole numbers of at least 1"),
        (["report", "runs/a", "--seeds", "3;4"], "--seeds: 3;4: accepted are whole numbers separated by commas, as 3,4,5"),
        (["sweep", "retry", "runs/a", "--code", "old"], "invalid choice: 'old' (choose from 'sweep', 'new')"),
        (["report", "runs/a", "--out", "/proc/version"], "argument --out: /proc/version is a file; name a folder"),
        (["replay", "d", "--out", "/proc/version/x/y"], "argument --out: /proc/version is a file; name a folder"),
        (["gradient", "--enumerable", "--out", "/proc/version"], "argument --out: /proc/version is a file"),
        (["gradient", "--enumerable", "--seed", "-1"], "argument --seed: -1: accepted are whole numbers of at least 0"),
        (["gradient", "--enumerable", "--seed", "9" * 30], "accepted are whole numbers of at least 0"),
        (["branch", "runs/a/b", "--seeds", "²"], "argument --seeds: ²: accepted are whole numbers of at least 1"),
        (["sweep", "logs", "runs/a", "-n", "0"], "argument -n: 0: accepted are whole numbers of at least 1"),
        (["sweep"], "the following arguments are required: action"),
        ([], "the following arguments are required: command"),
    ],
)
def test_a_wrong_argument_names_what_is_accepted(words, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.slow
def test_train_is_the_module(tmp_path):
    """The same composed config, the same refusal, the same help, from a folder of one's own."""
    for words in (["--cfg", "job", "seed=3", "correction=icepop"], ["nosuch=1"], ["--help"], ["loss=nosuch"]):
        module, command = (
            subprocess.run([sys.executable, "-m", *start, *words], cwd=tmp_path, capture_output=True, text=True)
            for start in (["experiments.train"], ["faultline", "train"])
        )
        assert (command.returncode, command.stdout, command.stderr) == (module.returncode, module.stdout, module.stderr), words
    assert "unknown" in faultline("train", "nosuch=1").stderr


def test_the_script_and_the_module_are_one_command():
    for words in (["--version"], ["--help"], ["doctor", "--help"]):
        script, module = faultline(*words, script=True), faultline(*words)
        assert (script.returncode, script.stdout) == (module.returncode, module.stdout) and module.returncode == 0
    assert faultline("--version").stdout.startswith("faultline ")


def test_an_error_of_the_user_is_one_line(tmp_path):
    done = faultline("sweep", "status", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "no sweep of hydra/launcher" in done.stderr


@pytest.mark.slow
def test_doctor_says_cuda_and_driver(tmp_path, capsys):
    """The first line of /proc/driver/nvidia/version, as NVIDIA's driver 550 writes it."""
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    (tmp_path / "version").write_text(line + "GCC version: gcc version 12.2.0\n")
    assert driver(tmp_path / "version") == "550.54.15" and driver(tmp_path / "none") is None
    main(["doctor"])
    shown = capsys.readouterr()
    assert "\nCUDA " in shown.out and "; driver " in shown.out and shown.err.startswith("importing torch")
