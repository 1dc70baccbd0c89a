"""The sizes of functions, modules and classes: what a reader can take in at once."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "model", "pipeline", "protocol", "qmd", "storage", "tests")
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
PUBLIC_METHODS_MAX = 20

# Modules that only declare data, one entry after the other.
DECLARED_DATA = {"tests/simulation/mutant_list.py"}
# Written by a program.
DERIVED = ROOT / "protocol" / "derived"
# The client's facade: a method for each verb, a property for each property of a message.
FACADE = {"Administration", "Message", "QueueManager"}


class Outline(NamedTuple):
    """The parts of a module whose sizes are limited."""

    lines: int
    functions: list[tuple[str, int]]  # the name and the number of lines
    classes: list[tuple[str, int]]  # the name and the number of public methods


@cache
def _outlines() -> dict[str, Outline]:
    """Return name -> outline of each module; their syntax trees need not stay in memory."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    paths = [path for path in paths if path.parent != DERIVED]
    return {path.relative_to(ROOT).as_posix(): _outline(path.read_text()) for path in paths}


def _outline(source: str) -> Outline:
    nodes = list(ast.walk(ast.parse(source)))
    return Outline(
        source.count("\n"),
        [
            (node.name, node.end_lineno - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.end_lineno is not None
        ],
        [
            (node.name, len(_public_methods(node)))
            for node in nodes
            if isinstance(node, ast.ClassDef)
        ],
    )


def test_modules_are_short_unless_they_declare_data() -> None:
    found = {name: outline.lines for name, outline in _outlines().items()}
    long = {name for name, lines in found.items() if lines > MODULE_LINES_MAX}
    assert long == DECLARED_DATA, {name: found[name] for name in long ^ DECLARED_DATA}


def test_functions_are_short() -> None:
    found = [
        f"{module}: {name} has {lines} lines"
        for module, outline in _outlines().items()
        for name, lines in outline.functions
        if lines > FUNCTION_LINES_MAX
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
        (module, name): methods
        for module, outline in _outlines().items()
        for name, methods in outline.classes
        if not module.startswith("tests/")  # a machine of a property test has one for each step
        and methods > PUBLIC_METHODS_MAX
    }
    facade = {each for each in found if each[0].startswith("qmd/client/") and each[1] in FACADE}
    assert found.keys() == facade, found
    assert {name for _, name in facade} == FACADE, "the list names only what is there"
