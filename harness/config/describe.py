"""Description of each config key for `--help`: its meaning and the values that it accepts."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from algos.corrections import spec
from harness import config
from harness.config.run import Config

LARGE = 10**6
"""Smallest upper bound that is not shown to users, because a bound so large only excludes nonsense."""


class ConfigKey(NamedTuple):
    """A config key as a dotted path, with its value, the values that it accepts, and its meaning ("" if undocumented)."""

    name: str
    value: Any
    accepted: str
    meaning: str


def keys(values: dict[str, Any]) -> list[ConfigKey]:
    """Describe the keys of the nested `values` of a config, in their order."""
    schemas = _schemas()
    return list(_keys(values, schemas["Config"], schemas, ""))


def all_keys() -> dict[str, ConfigKey]:
    """Describe every key that a config may have, by dotted path, with its default. NAME stands for a name that users choose."""
    schemas = _schemas()
    found: dict[str, ConfigKey] = {}
    for key in _possible(schemas["Config"], schemas, ""):
        found.setdefault(key.name, key)
    return found


def _possible(schema: dict[str, Any], sections: dict[str, Any], prefix: str) -> Iterator[ConfigKey]:
    for key, field in schema["properties"].items():
        name, inner = f"{prefix}{key}", field.get("additionalProperties")
        yield ConfigKey(name, field.get("default", ""), _accepted(field), " ".join(field["description"].split()))
        for section in _sections(field, sections):
            yield from _possible(section, sections, f"{name}.")
        for section in _sections(inner, sections) if isinstance(inner, dict) else ():
            yield from _possible(section, sections, f"{name}.NAME.")


def _schemas() -> dict[str, dict[str, Any]]:
    """Map the name of each section class to its JSON schema, with the docstrings below its fields as descriptions."""
    whole = Config.model_json_schema()
    return {name: _explained(name, schema) for name, schema in {"Config": whole, **whole["$defs"]}.items()}


def _sections(field: dict[str, Any], sections: dict[str, Any]) -> list[dict[str, Any]]:
    """JSON schemas of the sections that a field can hold. field: its own schema. sections: class name -> schema."""
    either = [field, *field.get("oneOf", []), *field.get("anyOf", [])]
    return [sections[one["$ref"].rpartition("/")[2]] for one in either if "$ref" in one]


def _keys(values: dict[str, Any], schema: dict[str, Any], sections: dict[str, Any], prefix: str) -> Iterator[ConfigKey]:
    for key, value in values.items():
        field = schema.get("properties", {}).get(key) or schema.get("additionalProperties") or {}
        field = field if isinstance(field, dict) else {}
        section = _section(field, value, sections)
        if isinstance(value, dict) and value:
            yield from _keys(value, section, sections, f"{prefix}{key}.")
        else:
            yield ConfigKey(prefix + key, value, _accepted(field), " ".join(field.get("description", "").split()))


def _section(field: dict[str, Any], value: Any, sections: dict[str, Any]) -> dict[str, Any]:
    """Schema of the section `value`: the first alternative of `field` that accepts the value's name and keys, else `field`."""
    if "$ref" in field:
        return _sections(field, sections)[0]
    return next((one for one in _sections(field, sections) if isinstance(value, dict) and _fits(one, value)), field)


def _fits(section: dict[str, Any], value: dict[str, Any]) -> bool:
    name = section["properties"].get("name", {})
    names = name.get("enum") or ([name["const"]] if "const" in name else [value.get("name")])
    extra = section.get("additionalProperties", False)
    return value.get("name") in names and (bool(extra) or value.keys() <= section["properties"].keys())


def _accepted(field: dict[str, Any]) -> str:
    """Describe in words the values that a field of a JSON schema accepts."""
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " | ".join(filter(None, map(_accepted, field["anyOf"])))
    if "prefixItems" in field:
        return f"[{', '.join(map(_accepted, field['prefixItems']))}]"
    kinds = {"boolean": "true | false", "string": "text", "null": "null", "integer": "integer", "number": "number"}
    kind = kinds.get(field.get("type", ""), "")
    return " ".join(filter(None, [kind, _bounds(field)]))


def _bounds(field: dict[str, Any]) -> str:
    above, least = field.get("exclusiveMinimum"), field.get("minimum")
    low = f"{least if above is None else above:g}" if (above, least) != (None, None) else ""
    for key, bracket in (("exclusiveMaximum", ")"), ("maximum", "]")):
        if low and field.get(key, LARGE) < LARGE:
            return f"in {'[' if above is None else '('}{low}, {field[key]:g}{bracket}"
    multiple = f"multiple of {field['multipleOf']}" if "multipleOf" in field else ""
    return multiple or (f"{'≥' if above is None else '>'} {low}" if low else "")


def _explained(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of the section class `name`, with the docstrings below its fields added as descriptions."""
    section = getattr(config, name, None) or getattr(spec, name)
    own = [kind for kind in section.__mro__ if kind.__module__.partition(".")[0] in ("harness", "algos")]
    meanings = {key: text for kind in reversed(own) for key, text in _docstrings(kind).items()}  # a base's fields are its fields
    fields = schema["properties"].items()
    return schema | {"properties": {key: {**field, "description": meanings.get(key, "")} for key, field in fields}}


def _docstrings(kind: type) -> dict[str, str]:
    """Map each field of a class to the docstring below it."""
    return {
        field.target.id: str(text.value.value)
        for field, text in pairwise(_classes(kind.__module__)[kind.__name__].body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Syntax trees of the classes of a module, by name. `inspect.getsource` of a class would parse the module anew for each."""
    source = inspect.getsource(sys.modules[module])
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
