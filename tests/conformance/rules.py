"""Rules of the specification, their code and their tests: the source of docs/conformance.md.

The files in `rules/` have one row for each sentence with MUST or SHOULD of [MS-MQQB] 2 and 3, of
[MC-MQSRM] 2 and 3, and of [MS-MQMQ] 2.2.18 to 2.2.20, in the words of this project.
Their grammar, line by line:

    # a comment
    alias NAME = a module, or a file of tests
    [MS-MQQB 2.2.1]              a clause
    code: NAME:Symbol, ...       the code of the rows that follow in this clause
    test: NAME::words, ...       their tests, without `test_`
    12. A sentence.              a row
    13-16. A sentence.           four rows: the text has the same sentence four times
    17. A sentence. {differs: reason; test: NAME::words}

A row without a verdict works, and must have code and a test.  The other verdicts, each with a
reason of one line, are `reading` (the text is ambiguous; docs/protocol-notes.md), `differs`
(deliberately) and `unused` (of an option that qmd does not use: it needs neither code nor test).
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "rules"
VERDICTS = ("reading", "differs", "unused")
_ROW = re.compile(r"(\d+)(?:-(\d+))?\. (.+?)(?: \{(.+)\})?")
_CHANGE = re.compile("; (?=(?:code|test|reading|differs|unused): )")


class Rule(NamedTuple):
    """One sentence: `code` are `module:symbol`, `tests` are `file::function`."""

    document: str
    clause: str
    number: int
    summary: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    verdict: str = "works"
    reason: str = ""

    @property
    def name(self) -> str:
        """The name of the row, such as `MS-MQQB 2.2.1 #12`."""
        return f"{self.document} {self.clause} #{self.number}"


class BadRules(Exception):
    """A line of a file of rules that breaks the grammar."""


def read_rules(folder: Path = FOLDER) -> list[Rule]:
    """Return the rules of all files, by document and number.  Raises BadRules."""
    rules = [rule for file in sorted(folder.glob("*.txt")) for rule in _read(file)]
    return sorted(rules, key=lambda rule: (rule.document != "MS-MQQB", rule.document, rule.number))


def faults(rules: list[Rule]) -> list[str]:
    """Return the faults of the rules: missing sentences, code, tests or reasons."""
    found = []
    for document in {rule.document for rule in rules}:
        numbers = [rule.number for rule in rules if rule.document == document]
        if numbers != list(range(1, len(numbers) + 1)):
            seen = set(numbers)
            missing = sorted(set(range(1, max(numbers) + 1)) - seen)
            found.append(f"{document}: sentences are missing or doubled, such as {missing[:5]}")
    for rule in rules:
        if rule.verdict != "works" and len(rule.reason) < 10:
            found.append(f"{rule.name}: {rule.verdict} without a reason")
        if rule.verdict == "unused":
            continue
        if not rule.code:
            found.append(f"{rule.name}: no code")
        if not rule.tests:
            found.append(f"{rule.name}: no test")
        found += [f"{rule.name}: no symbol {each}" for each in rule.code if not _has_symbol(each)]
        found += [f"{rule.name}: no test {each}" for each in rule.tests if not _has_test(each)]
    return found


def _read(file: Path) -> Iterator[Rule]:
    aliases: dict[str, str] = {}
    place: tuple[str, str] = ("", "")
    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    for at, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("alias "):
                name, target = line.removeprefix("alias ").split(" = ")
                aliases[name] = target
            elif line.startswith("["):
                document, clause = line.strip("[]").split(" ")
                place, code, tests = (document, clause), (), ()
            elif line.startswith("code: "):
                code = _listed(line.removeprefix("code: "), aliases, ":")
            elif line.startswith("test: "):
                tests = _listed(line.removeprefix("test: "), aliases, "::")
            else:
                yield from _rows(line, place, code, tests, aliases)
        except (ValueError, KeyError) as error:
            raise BadRules(f"{file.name}, line {at}: {line!r}: {error!r}") from error


def _rows(
    line: str,
    place: tuple[str, str],
    code: tuple[str, ...],
    tests: tuple[str, ...],
    aliases: dict[str, str],
) -> Iterator[Rule]:
    match = _ROW.fullmatch(line)
    if match is None or not place[0]:
        raise ValueError("neither a row nor a clause")
    first, last, summary, changes = match.groups()
    verdict, reason = "works", ""
    for change in _CHANGE.split(changes or ""):
        key, _, value = change.partition(": ")
        if key == "code":
            code = _listed(value, aliases, ":")
        elif key == "test":
            tests = _listed(value, aliases, "::")
        elif key in VERDICTS:
            verdict, reason = key, value
        elif key:
            raise ValueError(f"{key} is no part of a row")
    if verdict == "unused":
        code, tests = (), ()
    for number in range(int(first), int(last or first) + 1):
        yield Rule(*place, number, summary, code, tests, verdict, reason)


def _listed(text: str, aliases: dict[str, str], mark: str) -> tuple[str, ...]:
    found = []
    for each in text.split(", "):
        name, _, rest = each.partition(mark)
        head = "test_" if mark == "::" else ""
        found.append(f"{aliases[name]}{mark}{head}{rest}")
    return tuple(found)


def _has_symbol(target: str) -> bool:
    module, _, path = target.partition(":")
    tree = _tree_of_module(module)
    return tree is not None and _find(tree, path.split(".")) is not None


def _has_test(target: str) -> bool:
    file, _, name = target.partition("::")
    path = ROOT / file
    return path.exists() and name in _functions(path)


@cache
def _tree_of_module(module: str) -> ast.Module | None:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def _find(tree: ast.Module | ast.ClassDef, path: list[str]) -> ast.AST | None:
    """Return the definition of a name, or of a name in a class."""
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [
                each.id
                for target in node.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            ]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        if path[0] in names:
            if len(path) == 1:
                return node
            return _find(node, path[1:]) if isinstance(node, ast.ClassDef) else None
    return None
