"""The steps of docs/migration.md, as an administrator reads them: commands, and ways back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from qmd.migration.drain import drain_plan

MANUAL = Path(__file__).parents[2] / "docs" / "migration.md"
_COMMENT = re.compile(r"\s{2,}#.*")
_COMMAND = re.compile(r"(?:qmd |\.\\|[GS]et-Msmq|DIRECT=)\S.*")
_INLINE = re.compile(r"`([^`]+)`")
CUT_BACK = 8


class Part(NamedTuple):
    """One step: its commands in their order, and those of its way back."""

    commands: list[str]
    back: list[str]


def read_steps() -> dict[int, Part]:
    """Return the steps by number; `CUT_BACK` is the way back from the last one."""
    text = MANUAL.read_text().partition("## Replace a host\n")[2].partition("\n## ")[0]
    text = re.sub(r"\n### Cut back\n", f"\n**{CUT_BACK}. Cut back**", text)
    parts = re.split(r"(?m)^\*\*(\d)\. ", text)
    return {int(number): _part(part) for number, part in zip(parts[1::2], parts[2::2], strict=True)}


def _part(text: str) -> Part:
    forward, _, back = text.partition("Way back: ")
    return Part(_commands(forward), [each for each in _INLINE.findall(back) if each[:4] == "qmd "])


def _commands(text: str) -> list[str]:
    """Return the lines of code; a destination in the text of a step is a command to senders."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            found.append(_COMMENT.sub("", line.strip()))
        else:
            found += [each for each in _INLINE.findall(line) if each.startswith("DIRECT=")]
    unknown = [each for each in found if not _COMMAND.fullmatch(each)]
    assert not unknown, f"no command that this test understands: {unknown}"
    return found


def printed_steps() -> dict[int, Part]:
    """Return the steps as `qmd migrate windows drain hosta hostn orders` prints them."""
    steps = drain_plan("hosta", "hostn", ["orders"])
    found = {}
    for number, step in enumerate(steps, 1):
        here = [each for part in ("windows", "senders", "commands") for each in step[part]]
        commands, back = _only_commands(here), _only_commands(step["back"])
        found[number] = Part(commands, back if number < len(steps) else [])
        if number == len(steps):
            found[CUT_BACK] = Part(back, [])
    return found


def _only_commands(texts: list[str]) -> list[str]:
    return [each for each in texts if _COMMAND.fullmatch(each)]
