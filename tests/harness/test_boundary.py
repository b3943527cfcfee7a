"""Errors at the edge: one line and exit code 2 for what a user can mend, its traceback for a bug."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import yaml
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.boundary import command, refusing
from harness.compose import compose
from harness.errors import UserError
from harness.yaml_file import LARGEST_CONTENT, LARGEST_FILE, read_yaml
from tests.waiting import PATIENCE


def refused(capsys, act) -> str:
    with pytest.raises(SystemExit) as left, command(given="what was written"):
        act()
    assert left.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, shown
    return shown.err.strip()


def wrong():
    raise UserError("steps=x: a number")


class Broken:
    """A plug-in with a bug, and one that refuses a value."""

    def __init__(self, number: int):
        if number > 5:
            raise UserError(f"number={number}: at most 5")
        self.number = 1 / 0


def broken(**keys):
    return lambda: instantiate({"_target_": f"{__name__}.Broken", **keys})


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (wrong, "steps=x: a number"),
        (Path("/nosuch/file").read_text, "/nosuch/file: No such file or directory; give a path that can be read"),
        (lambda: os.makedirs("/proc/version/x"), "/proc/version/x: Not a directory; give a path"),
        (lambda: yaml.safe_load("a: b: c"), "mapping values are not allowed here"),
        (lambda: OmegaConf.to_container(OmegaConf.create({"a": "${b}"}), resolve=True), "Interpolation key 'b' not found"),
        (lambda: OmegaConf.create(yaml.safe_load("[" * 400 + "]" * 400)), "what was written: a value is nested too deeply"),
        (broken(number=6), "number=6: at most 5"),
        (broken(nosuch=6), "unexpected keyword argument 'nosuch'"),
    ],
)
def test_what_a_user_can_mend_is_one_line(capsys, act, message):
    assert message in refused(capsys, act)


def test_a_strangers_text_commands_no_terminal(capsys):
    def read():
        raise UserError("key\x1b[2J=x\rnothing is wrong\nsecond line, é")

    with pytest.raises(SystemExit), command():
        read()
    assert capsys.readouterr().err == "key\\x1b[2J=x\\rnothing is wrong\nsecond line, é\n"


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda: 1 / 0, ZeroDivisionError),
        (lambda: [].pop(), IndexError),
        (lambda: json.loads("{"), ValueError),  # raised in Python's own library, called from here
        (lambda: os.write(10**6, b""), OSError),  # no file is named
        (broken(number=1), Exception),
    ],
)
def test_a_bug_keeps_its_traceback(act, kind):
    with pytest.raises(kind), command():
        act()


def test_ctrl_c_is_130(capsys):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as left, command("stopped; go on"):
        interrupt()
    assert left.value.code == 130 and capsys.readouterr().err == "stopped; go on\n"


def test_within_a_program_it_is_an_error_to_catch():
    with pytest.raises(UserError, match="nosuch: No such file"), refusing():
        Path("nosuch").read_text()


BOMB = "\n".join(["k0: &k0 [x]", *(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 12))])
MERGES = "\n".join(["m0: &m0 {x: 1}", *(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12))])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB, f"its aliases stand for more than {LARGEST_CONTENT} values"),
        (MERGES, f"its aliases stand for more than {LARGEST_CONTENT} values"),
        ("a: &a [*a]", "its aliases stand for more than"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a" * (LARGEST_FILE + 1), "larger than 1048576 bytes"),
        ("a: b: c", ": neither YAML nor JSON (line 1: mapping values are not allowed here)"),
        ("a: 1\na: 2", ": neither YAML nor JSON (line 2: found duplicate key a)"),
        ("a: !!binary aGVsbG8=", "holds a bytes; accepted are texts, numbers, lists and dictionaries"),
        ("? [1, 2]\n: 3", "neither YAML nor JSON (line 1: found unhashable key)"),
        ("a: !!python/object/apply:os.system ['true']", "neither YAML nor JSON (line 1: could not determine a constructor"),
        ("a: \x00", "neither YAML nor JSON"),
        (r'{"a": "\ud83d"}', "holds half of a surrogate pair; write the whole character"),
    ],
)
def test_a_file_is_refused_with_its_name(tmp_path, content, message):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(UserError) as error:
        read_yaml(tmp_path / "a.yaml")
    assert str(error.value).startswith(f"{tmp_path}/a.yaml") and message in str(error.value)


def test_a_file_is_read_as_hydra_reads_it(tmp_path):
    """1e-3 is a number, which YAML 1.1 takes for a text; an alias stands for what it names; a date is a text."""
    (tmp_path / "a.yaml").write_text("a: 1e-3\nb: &b [1, null, true]\nc: *b\nd: 2001-01-01\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 0.001, "b": [1, None, True], "c": [1, None, True], "d": "2001-01-01"}
    (tmp_path / "a.json").write_text(r'{"\ud83d\ude00": ["\u00e9", "\ud83d\ude00"]}')
    assert read_yaml(tmp_path / "a.json") == {"\U0001f600": ["é", "\U0001f600"]}
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "empty.yaml") is None
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}: not a regular file; write its content to a file")):
        read_yaml(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        read_yaml(tmp_path / "binary.yaml")


def test_a_pipe_is_refused_before_it_is_opened():
    """A FIFO without a writer would never be opened. The one here has its content, so that a failure does not hang."""
    reader, writer = os.pipe()
    os.write(writer, b"a: 1")
    os.close(writer)
    with pytest.raises(UserError, match=f"^/dev/fd/{reader}: not a regular file; write its content to a file$"):
        read_yaml(Path(f"/dev/fd/{reader}"))
    os.close(reader)


def test_a_pipe_that_nobody_reads_ends_the_command_quietly():
    """Like `| head`: 100,000 lines are more than a pipe holds, and one is less, which is noticed at the flush."""
    for lines in (1, 100_000):
        script = f"from harness.boundary import command\nwith command():\n    input()\n    print('line\\n' * {lines})"
        child = subprocess.Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        child.stdout.close()
        assert child.communicate("go\n", timeout=PATIENCE)[1] == "" and child.returncode == 128 + signal.SIGPIPE


def test_another_broken_pipe_is_a_bug():
    def broken_pipe():
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError), command():
        broken_pipe()


def test_an_empty_config_of_the_user_is_refused_before_a_run(tmp_path):
    """`import-config run.sh > mine.yaml` that failed leaves one, and Hydra would train the defaults in its place."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# nothing\n")
    with pytest.raises(UserError, match="empty; write the command's output into it again"):
        compose("+experiment=mine", config_dir=tmp_path)
    (tmp_path / "experiment" / "mine.yaml").write_text("{}\n")
    assert compose("+experiment=mine", config_dir=tmp_path)["steps"] == compose()["steps"]
