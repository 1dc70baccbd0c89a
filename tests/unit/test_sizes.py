"""The sizes of functions, modules and classes: what a reader can take in at once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "model", "pipeline", "protocol", "qmd", "storage", "tests")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
PUBLIC_METHODS_MAX = 20

# Modules that only declare data, one entry after the other.
DECLARED_DATA = {"tests/simulation/mutant_list.py"}
# The client's facade: a method for each verb, a property for each property of a message.
FACADE = {"Administration", "Message", "QueueManager"}


@cache
def _modules() -> list[tuple[str, str, ast.Module]]:
    """Return the name, the text and the syntax tree of each module."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]
    return [(name, text, ast.parse(text)) for name, text in texts]


def test_modules_are_short_unless_they_declare_data() -> None:
    found = {name: source.count("\n") for name, source, _ in _modules()}
    long = {name for name, lines in found.items() if lines > MODULE_LINES_MAX}
    assert long == DECLARED_DATA, {name: found[name] for name in long ^ DECLARED_DATA}


def test_functions_are_short() -> None:
    found = [
        f"{name}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for name, _, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not found, "\n".join(found)


def _public_methods(node: ast.ClassDef) -> set[str]:
    return {
        each.name
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and not each.name.startswith("_")
    }


def test_classes_have_few_public_methods_but_the_facade_of_the_client() -> None:
    found = {
        (name, node.name): len(_public_methods(node))
        for name, _, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and not name.startswith("tests/")  # a machine of a property test has a method for each step
        and len(_public_methods(node)) > PUBLIC_METHODS_MAX
    }
    facade = {each for each in found if each[0].startswith("qmd/client/") and each[1] in FACADE}
    assert found.keys() == facade, found
    assert {name for _, name in facade} == FACADE, "the list names only what is there"
