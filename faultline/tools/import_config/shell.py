"""Read shell recipes, commands of TRL and lists of Hydra overrides as keys. A script is parsed, never executed.

The parser knows variables with defaults, arrays, integer arithmetic, quotes, line continuations, comments and here-documents.
A value that only an execution would show stays as ${NAME}: outputs of commands, environment variables other than HOME, and
variables that a branch or a loop sets.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from faultline.tools.import_config import trl
from faultline.tools.import_config.translation import check_bounds
from harness.errors import UserError

LARGEST_SCRIPT = 2**16
"""Maximum size of a script in bytes. The longest recipe of verl is a quarter of this size."""
LARGEST_VALUE = 2**16
"""Maximum number of characters in a script's variable, since a script could double a variable a thousand times."""
DEEPEST = 100
"""Maximum depth of nested branches and loops in a script."""
LONGEST_SUM = 200
"""Maximum number of characters in a script's arithmetic expression."""

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
OVERRIDE = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w@/-]*(?:\.[\w@/-]+)+=|(?:\+\+?|~)[A-Za-z_][\w@/-]*=|~[A-Za-z_][\w@/.-]*$")
"""Pattern of a word that sets or removes a config key. A key without a dot needs a +, because NAME=value sets a variable."""
LISTED = re.compile(r"(?:\+\+?)?[A-Za-z_][\w@/.-]*=|~[A-Za-z_]")
"""Pattern of a line in a list of overrides."""
PARAMETER = re.compile(r"([A-Za-z_]\w*|[@*#?$!]|\d+)(\[[@*]\])?(?:(:?)([-=+?])(.*))?", re.S)
CLOSED_BY = {"if": "fi", "case": "esac", "{": "}", "(": ")"} | dict.fromkeys(("for", "while", "until", "select"), "done")
KEYWORDS = ("then", "else", "elif", "do", "time", "!", "function", "fi", "done", "esac", "}")
DECLARING = ("export", "declare", "local", "readonly", "typeset")


def _quotient(a: int, b: int) -> int:
    """a divided by b, rounded towards 0 as bash does."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
}


class Statement(NamedTuple):
    """A simple shell command, split into words as written.

    certain: whether it stands outside every branch, loop, function and subshell.
    """

    words: list[str]
    certain: bool


def read_script(path: Path, text: str) -> dict[str, Any]:
    """Read key -> value from the one command in a script that sets keys of a config, or from a list of overrides.

    If there are no overrides, a command whose words are keys of TRL's GRPOConfig is read. path: named in errors. Raises
    UserError if no command or several set keys, if an override is not a single value, and on an unclosed quote or bracket.
    """
    script = _Script()
    try:
        for statement in _statements(text):
            script.run(statement)
    except (IndexError, RecursionError):
        raise UserError(f"{path}: a quote or a bracket is not closed, or brackets are nested too deeply") from None
    if script.too_large:
        raise UserError(f"{path}: a variable grows beyond {LARGEST_VALUE} characters; that is no recipe")
    commands = [overrides for program, overrides in script.commands if program]
    listed = [word for program, overrides in script.commands if not program for word in overrides]
    if commands and listed:
        raise UserError(f"{path}: {listed[0]} stands outside of the command; the line before it lacks its backslash")
    if not commands and not listed:
        return _keys_of_trl(path, script.others)
    if any(overrides != commands[0] for overrides in commands):
        raise UserError(f"{path}: {len(commands)} commands set keys; leave one of them in a copy of the script")
    return parse_overrides(path, commands[0] if commands else listed)


def _keys_of_trl(path: Path, commands: list[list[str]]) -> dict[str, Any]:
    """Read key -> value from the one command of `commands`, as words, that sets keys of TRL's GRPOConfig."""
    read = [keys for keys in map(trl.read_words, commands) if trl.recognises(keys) or "config" in keys]
    if not read:
        verl = "no command sets a key, as `python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo` does"
        raise UserError(f"{path}: {verl}. {trl.GIVE}, or a command with --use_vllm true")
    if any(keys != read[0] for keys in read):
        raise UserError(f"{path}: {len(read)} commands set keys; leave one of them in a copy of the script")
    if "config" in read[0]:
        raise UserError(f"{path}: --config {read[0]['config']}: import that file, with the command's keys added to it")
    return read[0]


def parse_overrides(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Read key -> value from Hydra overrides. The last of equal keys wins, and ~key removes a key.

    path: named in errors. A value outside Hydra's grammar stays a string. Raises UserError on an override with several values.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, values = OverridesParser.create(), dict[str, Any]()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:  # a preset with parameters, which Hydra takes for a function, or a value of another grammar
            key, _, values[key] = text.lstrip("+").partition("=")
            continue
        if override.is_sweep_override():
            raise UserError(f"{path}: {text}: a sweep; leave one value, and sweep over the imported experiment")
        if override.is_delete():
            values = {k: v for k, v in values.items() if not f"{k}.".startswith(f"{override.key_or_group}.")}
        else:
            check_bounds(override.key_or_group, text.partition("=")[2])
            values[override.key_or_group] = override.value()
    return values


class _Script:
    """State of a shell script while it is read: its variables, and its commands with overrides.

    A command is (whether a program precedes the overrides, the overrides). `others` has the words of each command without
    overrides. A variable whose value is unknown has the value None.
    """

    def __init__(self) -> None:
        self.variables: dict[str, list[str] | None] = {"HOME": [str(Path.home())]}
        self.commands: list[tuple[bool, list[str]]] = []
        self.others: list[list[str]] = []
        self.too_large = False

    def run(self, statement: Statement) -> None:
        words = statement.words
        if words[0] in ("for", "select"):
            self.variables |= dict.fromkeys(words[1:])
            return
        if words[0] in DECLARING:
            words = [word for word in words[1:] if not word.startswith("-")]
        while words and (assigned := ASSIGNMENT.fullmatch(words[0])):
            self._assign(assigned, statement.certain)
            words = words[1:]
        expanded = [field for word in words for field in self.fields(word)]
        overrides = [word for word in expanded if OVERRIDE.match(word)]
        if overrides:
            self.commands.append((len(overrides) < len(expanded), overrides))
        else:
            self.others.append(expanded)

    def _assign(self, assigned: re.Match[str], certain: bool) -> None:
        name, plus, raw = assigned.groups()
        array = raw.startswith("(")
        value = [field for word in _words(raw[1:-1]) for field in self.fields(word)] if array else [self.text(raw)]
        before = self.variables.get(name)
        if plus and before:
            value = [*before, *value] if array else ["".join([*before[:1], *value]), *before[1:]]
        if sum(map(len, value)) + len(value) > LARGEST_VALUE:
            value, self.too_large = [""], True
        self.variables[name] = value if certain else None

    def text(self, raw: str) -> str:
        """Expand the right side of an assignment, as written, into one string without splitting it."""
        return " ".join(self.fields(raw, quoted=True))

    def fields(self, raw: str, quoted: bool = False) -> list[str]:
        """Expand a word as written into the words that the shell makes of it. quoted: the word stands in double quotes."""
        out: list[str] = []
        current: str | None = None
        i = 0
        while i < len(raw):
            end = _end(raw, i)
            part = raw[i:end]
            if part[0] == "\\":
                current = (current or "") + part[1:].replace("\n", "")
            elif part[0] == "'":
                current = (current or "") + part[1:-1]
            elif part[0] == '"':
                inner = self._quoted(part[1:-1])
                current = (current or "") + inner[0] if inner else current
                for field in inner[1:]:
                    out.append(current or "")
                    current = field
            elif (part[0] == "$" and len(part) > 1) or part[0] == "`":
                values = self._expansion(part)
                pieces = [" ".join(values)] if quoted else [piece for value in values for piece in value.split()]
                for place, piece in enumerate(pieces):
                    if place:
                        out.append(current or "")
                        current = ""
                    current = (current or "") + piece
            else:
                current = (current or "") + part
            i = end
        return out if current is None else [*out, current]

    def _quoted(self, text: str) -> list[str]:
        """Expand text in double quotes into the shell's words: one word, or one per element of an array."""
        out = [""]
        i = 0
        while i < len(text):
            if text[i] == "\\":
                out[-1] += text[i + 1 : i + 2] if text[i + 1 : i + 2] in '$`"\\' else text[i : i + 2]
                i += 2
                continue
            end = _end(text, i) if text[i] in "$`" else i + 1
            values = self._expansion(text[i:end]) if end > i + 1 else [text[i]]
            if not values and len(out) == 1 and text == text[i:end]:
                return []  # "${EMPTY[@]}" is no word
            out[-1] += values[0] if values else ""
            out += values[1:]
            i = end
        return out

    def _expansion(self, part: str) -> list[str]:
        if part.startswith("$(("):
            return [self._sum(part[3:-2])]
        if part[0] == "`" or part.startswith("$("):
            return ["${command}"]
        body = part[2:-1] if part.startswith("${") else part[1:]
        match = PARAMETER.fullmatch(body)
        if match is None:
            return ["${" + re.sub(r"\W.*", "", body, flags=re.S) + "}"]
        name, array, colon, action, word = match.groups()
        if name in "@*":
            return []  # the script is read as it is run without arguments
        known = name in self.variables
        value = self.variables.get(name)
        if known and value is None:
            return ["${" + name + "}"]
        empty = not known or (bool(colon) and not "".join(value or []))
        if action == "+":
            return [] if empty else [self.text(word)]
        if empty and action in ("-", "="):
            value = [self.text(word)]
            if action == "=":
                self.variables[name] = value
        elif not known:
            return ["${" + name + "}"]
        return (value or []) if array else (value or [""])[:1]

    def _sum(self, text: str) -> str:
        """Return the value of an arithmetic expression on whole numbers as text, or ${sum} if it cannot be computed."""
        plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: (self.variables.get(match[1]) or ["unknown"])[0], text.strip())
        try:
            return str(_evaluate(ast.parse(plain, mode="eval").body)) if len(plain) <= LONGEST_SUM else "${sum}"
        except (SyntaxError, ValueError, ArithmeticError):
            return "${sum}"


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError


def _end(text: str, start: int) -> int:
    """Index behind the quoted part, expansion or character that begins at `start`. Raises IndexError if it does not end."""
    first, i = text[start], start + 1
    if first == "\\":
        return min(start + 2, len(text))
    if first in "'`":
        while text[i] != first:
            i += 2 if first == "`" and text[i] == "\\" else 1
        return i + 1
    if first == '"':
        while text[i] != '"':
            i = _end(text, i) if text[i] in "\\$`" else i + 1
        return i + 1
    if first != "$" or i == len(text):
        return i
    if text[i] in "({":
        opened, closing = text[i], {"(": ")", "{": "}"}[text[i]]
        i += 1
        while text[i] != closing:
            i = _brackets(text, i) if text[i] == opened == "(" else _end(text, i)
        return i + 1
    match = re.compile(r"[A-Za-z_]\w*|[@*#?$!\d]").match(text, i)
    return match.end() if match else i


def _brackets(text: str, start: int) -> int:
    """Index behind the bracket that closes the bracket at `start`."""
    i = start + 1
    while text[i] != ")":
        i = _brackets(text, i) if text[i] == "(" else _end(text, i)
    return i + 1


def _statements(text: str) -> Iterator[Statement]:
    """Split a script into its simple commands, without keywords and without the brackets of conditions."""
    open_: list[str] = []  # what each branch, loop, function and subshell around the command ends with
    for words, joined in _commands(text):
        while words:
            first = words[0]
            if first in open_:
                del open_[len(open_) - 1 - open_[::-1].index(first) :]
            elif first in CLOSED_BY:
                open_.append(CLOSED_BY[first])
                if len(open_) > DEEPEST:
                    raise RecursionError
            elif first not in KEYWORDS and not first.endswith("()"):
                break
            if first in ("for", "select"):
                yield Statement(words[:2], False)
            words = words[1 if first not in ("for", "select", "case", "function") else len(words) :]
            if first == "function":
                open_.append("}")
        if words and words != [")"]:
            yield Statement(words, not open_ and not joined)


def _commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield (words as written, whether && or || precedes) for each simple command; "(" and ")" of a subshell stand alone."""
    words: list[str] = []
    word, joined, redirected, heredocs, i = "", False, False, list[str](), 0

    def close() -> None:
        nonlocal word, redirected
        if word and not redirected:
            words.append(word)
        redirected = redirected and not word
        word = ""

    while i < len(text):
        letter = text[i]
        if letter == "\\" and text[i + 1 : i + 2] == "\n":
            i += 2
        elif letter in " \t\r":
            close()
            i += 1
        elif letter == "#" and not word:
            i = (text.find("\n", i) + len(text) + 1) % (len(text) + 1)
        elif letter == "(" and ASSIGNMENT.fullmatch(word) and word.endswith("="):
            end = _brackets(_without_comments(text, i), i)
            word, i = word + text[i:end], end
        elif letter == "(" and text[i : i + 2] == "()":
            word, i = word + "()", i + 2
        elif letter in "<>":
            word = "" if word.isdigit() else word
            close()
            operator_ = re.compile(r"<<<|<<-?|[<>]+[&|]?").match(text, i)
            assert operator_ is not None
            i = operator_.end()
            redirected = True
            if operator_[0] in ("<<", "<<-"):
                delimiter = re.compile(r"\s*(['\"]?)([\w.-]+)\1").match(text, i)
                if delimiter:
                    heredocs.append(delimiter[2])
                    i, redirected = delimiter.end(), False
        elif letter in "\n;&|()":
            close()
            redirected = False
            yield words, joined
            words = []
            if letter in "()":
                yield [letter], joined
            doubled = text[i : i + 2]
            joined = doubled in ("&&", "||")
            i += 2 if doubled in ("&&", "||", ";;") else 1
            if letter == "\n":
                for delimiter_ in heredocs:
                    body = re.compile(rf"^\s*{re.escape(delimiter_)}$", re.M).search(text, i)
                    i = body.end() if body else len(text)
                heredocs = []
        else:
            end = _end(text, i)
            word, i = word + text[i:end], end
    close()
    yield words, joined


def _without_comments(text: str, start: int) -> str:
    """Replace the comments of `text` from `start` on with blanks, because an apostrophe in a comment opens no quote."""
    return text[:start] + re.sub(r"(?m)(?<=[\s(])#[^\n]*", lambda match: " " * len(match[0]), text[start:])


def _words(text: str) -> list[str]:
    """Split a shell array, as written between its brackets, into its words, across lines and comments."""
    return [word for words, _ in _commands(_without_comments(text, 0)) for word in words]
