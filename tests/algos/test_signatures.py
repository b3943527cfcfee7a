"""No function of algos takes more than five arguments. A plug-in's own settings, keyword-only, are keys of its config."""

import ast
from pathlib import Path

import pytest

from algos.registry import ADVANTAGES, CORRECTIONS, KL, LOSSES

PLUGINS = {name for registry in (LOSSES, ADVANTAGES, CORRECTIONS, KL) for name in registry.names()}
FUNCTIONS = [
    (path, node)
    for path in sorted(Path("algos").rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.FunctionDef)
]


@pytest.mark.parametrize(("path", "node"), FUNCTIONS, ids=[f"{path}:{node.name}" for path, node in FUNCTIONS])
def test_five_arguments_at_most(path, node):
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    settings = [argument.arg for argument in node.args.kwonlyargs]
    plugin = node.name in PLUGINS or node.name == "select_band"  # the selection of clip_cov has its settings
    taken = len(names) - (names[:1] in (["self"], ["cls"], ["ctx"])) + (0 if plugin else len(settings))
    assert taken <= 5, f"{path}:{node.lineno} {node.name} takes {taken}: {', '.join(names + settings)}"
