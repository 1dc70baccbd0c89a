"""The modules of the project, and their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("protocol", "storage", "qmd", "pipeline")
MODULES = ("pyspark_qmd",)  # modules outside packages


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, as a full dotted name.  `for_types` is true under TYPE_CHECKING."""

    name: str
    line: int
    for_types: bool


@cache
def modules() -> dict[str, Path]:
    """Return dotted name -> file of each module of the project."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    files += [ROOT / f"{module}.py" for module in MODULES]
    return {module_name(file.relative_to(ROOT)): file for file in files}


def module_name(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(name: str, source: str, *, is_package: bool, known: Set[str]) -> Iterator[Import]:
    """Yield the imports anywhere in `source`, the text of module `name`; resolve relative names.

    `from a import b` is the module a.b where `known` has it, else a.
    """
    nodes = list(_statements(ast.parse(source)))
    typed = [node for node in nodes if isinstance(node, ast.If) and _is_for_types(node)]
    lines = {line for node in typed for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node.lineno in lines)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, name, is_package=is_package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, node.lineno, node.lineno in lines)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements in `node`: no expression has an import, and most nodes are of one."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, field, ()):
            yield each
            yield from _statements(each)


def _is_for_types(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def _absolute(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    """Return the absolute name of the module that `from ... import` in module `name` names."""
    if node.level == 0:
        assert node.module is not None
        return node.module
    parts = name.split(".")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])
