"""The words of comments, docstrings and manuals: the rules of docs/architecture.md, section Words.

Two counts per 1,000 words, for each part of the repository.  Text in backquotes does not count, nor
does code.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.5  # for each 1,000 words
PARTS = {
    "protocol": ("protocol",),
    "storage": ("storage",),
    "qmd": ("qmd",),
    "pipeline": ("pipeline", "pyspark_qmd.py"),
    "benchmarks": ("benchmarks", "model", "release"),
    "tests": ("tests",),
    "manuals": ("docs", "deploy", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
}
EXCLUDED = ("tests/data",)

PERSONS = re.compile(
    r"\b(who|whom|whose|whoever|somebody|someone|nobody|anybody|anyone|everybody|everyone)\b",
    re.IGNORECASE,
)
HEADLESS = re.compile(
    r"(?:^|[.!?:;]\s+|\n\s*\n|\n\s*[-*|]\s*)"
    r"(What(?:ever)?\b[^.!?\n]*(?:\n(?!\s*\n)[^.!?\n]*)*[.!?]?)"
)
WORD = re.compile(r"[A-Za-z']+")
# Only a line like this can have an offence in a comment.  Few files do, and tokens are slow.
SUSPECT = re.compile(rf"#.*((?i:{PERSONS.pattern})|\bWhat)")
COMMENT = re.compile(r"(?:^[ \t]*|  )#(.*)", re.MULTILINE)


def _without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "x", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def _comments(source: str) -> Iterator[str]:
    """Blocks of comment lines that follow each other, each as one text.

    Without an offence, the lines count only for their words, so that they need not be exact.
    """
    if not SUSPECT.search(source):
        yield from COMMENT.findall(source)
        return
    block: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield "\n".join(block)
                block = []
            block.append(token.string.lstrip("#: "))
            last = token.start[0]
    if block:
        yield "\n".join(block)


def texts(path: Path) -> Iterator[str]:
    """Return the prose of a file: a manual, or the docstrings and comments of a module."""
    source = path.read_text()
    if path.suffix == ".md":
        yield _without_code(source)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield _without_code(docstring)
    yield from _comments(source)


def offences(text: str) -> tuple[list[str], list[str]]:
    """Return the sentences of a text that begin with What, and its words for persons."""
    headless = [found for found in HEADLESS.findall(text) if not found.rstrip().endswith("?")]
    return headless, PERSONS.findall(text)


def _files(part: str) -> Iterator[Path]:
    for name in PARTS[part]:
        path = ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for each in found:
            is_excluded = each.relative_to(ROOT).as_posix().startswith(EXCLUDED)
            if each.suffix in (".py", ".md") and not is_excluded:
                yield each


@pytest.mark.parametrize("part", PARTS)
def test_sentences_name_their_subjects(part: str) -> None:
    words = 0
    headless: list[str] = []
    persons: list[str] = []
    for path in _files(part):
        if path == Path(__file__):
            continue
        for text in texts(path):
            words += len(WORD.findall(text))
            found = offences(text)
            where = path.relative_to(ROOT)
            headless += [f"{where}: {each[:80]}" for each in found[0]]
            persons += [f"{where}: {each}" for each in found[1]]
    assert words > 1000, "there is prose to be judged"
    assert len(headless) * 1000 <= LIMIT * words, "\n".join(headless)
    assert len(persons) * 1000 <= LIMIT * words, "\n".join(persons)


def test_names_of_tests_name_their_subjects() -> None:
    first = re.compile(r"^\s*(?:async )?def test_(?:what|whatever|who|whoever|whose|nobody)_", re.M)
    found = [
        f"{path.relative_to(ROOT)}: {each.strip()}"
        for path in _files("tests")
        if path.suffix == ".py"
        for each in first.findall(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "headless", "persons"),
    [
        ("What a stranger sends counts.", 1, 0),
        ("It is so: what matters. What is this?", 0, 0),
        ("First.  Whatever comes next waits.", 1, 0),
        ("Notify the reader that waits.", 0, 0),
        ("Whoever waits is notified; nobody else.", 0, 2),
        ("`who` is a column.", 0, 0),
    ],
)
def test_offences_are_counted(text: str, headless: int, persons: int) -> None:
    found = offences(_without_code(text))
    assert (len(found[0]), len(found[1])) == (headless, persons)
