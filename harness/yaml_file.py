"""Reading of YAML and JSON files from users, with bounds, so that no file can hang a command or crash a library."""

from __future__ import annotations

import re
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from harness.errors import UserError, first_line

LARGEST_FILE = 2**20
"""Maximum size of a file in bytes, ten times the largest config of a known framework. Parsing takes 10 s per megabyte."""
LARGEST_CONTENT = 100_000
"""Maximum number of values in a file, YAML aliases resolved. Nine levels of nine aliases make 400 million."""

MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-3 as a number and refuses duplicate keys. PyYAML (YAML 1.1) does neither."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"found duplicate key {key.value}", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_EXPONENT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_Loader.yaml_implicit_resolvers = {  # a date is a text
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
    for first, known in _Loader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML or JSON file. Raises UserError, naming the file, if it is broken or has types JSON lacks."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):  # to open a pipe may take for ever
            raise UserError(f"{path}: not a regular file; write its content to a file")
        if status.st_size > LARGEST_FILE:
            raise UserError(f"{path}: larger than {LARGEST_FILE} bytes; that is no config")
        loader = _Loader(path.read_text(encoding="utf-8"))
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _size(node, {}) > LARGEST_CONTENT:
                raise UserError(f"{path}: its aliases stand for more than {LARGEST_CONTENT} values; write them out")
            content = loader.construct_document(node)
        finally:
            loader.dispose()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a YAML or JSON file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: cannot be read (not a text file); give a YAML or JSON file") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply; that is no config") from None
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:  # all but the first: of one scalar
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{path}: neither YAML nor JSON ({where}{reason})") from None
    return _plain(path, content)


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Number of values in a YAML node, counting each alias as its full content. A node that contains itself is too large."""
    if id(node) not in sizes:
        sizes[id(node)] = LARGEST_CONTENT + 1  # while its content is counted
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in children)
    return sizes[id(node)]


def _plain(path: Path, content: Any) -> Any:
    """Return `content` with surrogate pairs joined. Raises UserError, naming `path`, on types that JSON does not have."""
    if isinstance(content, str):
        try:
            return content.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise UserError(f"{path}: holds half of a surrogate pair; write the whole character") from None
    if isinstance(content, dict):
        return {_plain_key(path, key): _plain(path, value) for key, value in content.items()}
    if isinstance(content, list):
        return [_plain(path, value) for value in content]
    if not isinstance(content, int | float | bool | None):
        raise UserError(f"{path}: holds a {type(content).__name__}; accepted are texts, numbers, lists and dictionaries")
    return content


def _plain_key(path: Path, key: Any) -> Any:
    if not isinstance(key, str | int | float | bool | None):
        raise UserError(f"{path}: a key is a {type(key).__name__}; accepted are texts and numbers")
    return _plain(path, key)
