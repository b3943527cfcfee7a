"""Damage done to files by a seed: to their bytes, to the words in their text, and to the tree of their JSON or YAML."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import yaml

TOKENS = [
    "NaN", "Infinity", "-Infinity", "nan", ".inf", "1e999", "-1e999", "1" + 400 * "0", "9223372036854775808", "-1",
    "0", "1e-320", "", "null", "true", '"x"', "[]", "{}", "[[]]", '"1"', "\x00", "\u2028", "é", "'", '"', "{", "]",
    "!!python/name:os.system", "*a", "&a", "!!binary x", "!!timestamp x", "!!int x", "? [1]", "<<: [1]", "${x}",
    "???", "2001-99-99", "0x", "1_000", "~", "%", "\t",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e300, -1e300, float("nan"), float("inf"), -float("inf"), 2**63,
    -(2**63) - 1, 10**400, "", "x", "1", "nan", "<script>", "$x_1$", "os:system", "../x", "\x00", "\n", 5000 * "y",
    [], [1], [None], [[]], ["x"], [True], {}, {"x": 1}, {"": {}}, {"name": "x"}, {"name": None}, [float("nan")],
    [1e400], [1, [2]],
]  # fmt: skip


def nested(depth: int) -> Any:
    """A list in a list, `depth` times."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def whole_files(rng: random.Random) -> bytes:
    """Files that are damaged as a whole."""
    levels = [f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 12)]
    merges = [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12)]
    return rng.choice(
        [
            b"", b"\n", b"\x00", b"null", b"[]", b"{}", b"x", b"- 1", b"1", b'"x"', b"\xff\xfe\x00\x01",
            b"\xef\xbb\xbf{}", rng.randbytes(500), "a: é".encode("latin-1"), "a: 1".encode("utf-16"),
            b"a" * 3_000_000,
            b"[" * 5000, b"[" * 5000 + b"]" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
            "\n".join(["k0: &k0 [x]", *levels]).encode(), "\n".join(["m0: &m0 {x: 1}", *merges]).encode(),
            b"a: &a [*a]", b"a: &a {b: *a}", b"!!binary aGVsbG8=", b"a: !!binary aGVsbG8=", b"a: !!set {x}",
            b"a: 2001-01-01", b"a: 2001-99-99", b"? [1, 2]\n: 3", b"a: 1\na: 2", b"{? {a: 1} : 2}", b"a: b: c",
            b"!!python/object/apply:os.system ['true']", b"%YAML 9.9\n---\na: 1", b"---\na: 1\n---\nb: 2",
        ]
    )  # fmt: skip


def bytes_damaged(rng: random.Random, content: bytes) -> bytes:
    """A few bytes cut off, changed, put in, taken out or doubled."""
    place, length = rng.randrange(len(content) + 1), rng.choice((1, 1, 4, 30, 300))
    match rng.randrange(6):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + rng.randbytes(length) + content[place + length :]
        case 2:
            return content[:place] + rng.randbytes(length) + content[place:]
        case 3:
            return content[:place] + content[place + length :]
        case 4:
            return content[: place + length] + content[place:]
        case _:
            return content[place:]


def text_damaged(rng: random.Random, content: bytes) -> bytes:
    """A number or a word replaced."""
    text = content.decode("utf-8", "surrogateescape")
    words = list(re.finditer(r"[\w.+-]+", text))
    for word in sorted(rng.sample(words, min(rng.choice((1, 1, 2, 5)), len(words))), key=lambda match: -match.start()):
        text = text[: word.start()] + rng.choice(TOKENS) + text[word.end() :]
    return text.encode("utf-8", "surrogateescape")


def tree_damaged(rng: random.Random, tree: Any) -> Any:
    """A value replaced, or a key taken away, renamed or added, somewhere in lists and dictionaries."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        here, places = tree, []
        while isinstance(here, dict | list) and here:
            key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
            places.append((here, key))
            here = here[key]
        if not places:
            return rng.choice(VALUES)
        parent, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(("x", "", "name", "é", "a.b"))] = parent.pop(key)
            case 2 if isinstance(parent, dict):
                parent[rng.choice(("x", "", "name"))] = rng.choice(VALUES)
            case 3:
                parent[key] = nested(rng.choice((3, 50)))
            case _:
                parent[key] = rng.choice(VALUES)
    return tree


def damaged(rng: random.Random, content: bytes, kind: str) -> bytes:
    """`content`, a file of this kind (json, jsonl, yaml, or binary), damaged in one of these ways."""
    way = rng.random()
    if way < 0.15:
        return whole_files(rng)
    if way < 0.35 or kind == "binary":
        return bytes_damaged(rng, content)
    if way < 0.6:
        return text_damaged(rng, content)
    if kind == "yaml":
        return yaml.safe_dump(tree_damaged(rng, yaml.safe_load(content)), allow_unicode=True).encode()
    if kind == "json":
        return json.dumps(tree_damaged(rng, json.loads(content))).encode()
    rows = content.splitlines()
    row = rng.randrange(len(rows))
    rows[row] = json.dumps(tree_damaged(rng, json.loads(rows[row]))).encode()
    return b"\n".join(rows) + b"\n"
