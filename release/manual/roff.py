"""The language of man pages: text that is escaped, and the macros of man(7)."""

from __future__ import annotations

import re

_ESCAPES = {"\\": r"\(rs", "-": r"\-", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti", "`": r"\(ga"}
_CODE_OR_PAGE = re.compile(r"`([^`\n]+)`|\b(qmd[\w.-]*)(?=\(\d\))")


def escape(text: str) -> str:
    """Return `text` so that groff prints exactly its characters; a line is one line."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return re.sub(r"^(?=\.)", r"\\&", escaped, flags=re.MULTILINE)


def prose(text: str) -> str:
    """Return a sentence: code in backquotes and names of pages become bold."""
    # Of three parts, the first is plain, and one of the others is None.
    parts = _CODE_OR_PAGE.split(" ".join(text.split()))
    marked = (bold(part) if index % 3 else escape(part) for index, part in enumerate(parts) if part)
    return "".join(marked)


def bold(text: str) -> str:
    """Return `text` in bold."""
    return rf"\fB{escape(text)}\fR"


def paragraphs(text: str) -> list[str]:
    r"""Return the lines of a page for the paragraphs of a help text of click.

    A paragraph that begins with \b keeps its lines.
    """
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip().partition("\f")[0]):
        if block.lstrip(" ").startswith("\b"):
            kept = block.lstrip(" ").removeprefix("\b").strip("\n").split("\n")
            lines += [".PP", ".nf", *map(escape, kept), ".fi"]
        elif block.strip():
            lines += [".PP", prose(block)]
    return lines


def page(name: str, section: int, *, title: str, body: list[str], at: str, source: str) -> str:
    """Return a page; `title` is its line below NAME, `at` a date or "", `source` the version."""
    head = f'.TH "{name.upper()}" "{section}" "{at}" "{source}" "qmd manual"'
    # Neither hyphenation nor stretched lines: commands are copied from these pages.
    return "\n".join(
        [head, ".nh", ".ad l", ".SH NAME", rf"{escape(name)} \- {prose(title)}", *body, ""]
    )
