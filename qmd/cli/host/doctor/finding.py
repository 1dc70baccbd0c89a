"""A finding of the doctor: the result of one check, in sentences."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """How bad a finding is; the greatest one of all decides about the exit code."""

    OK = 0
    NOTE = 1  # could not be checked, or may be meant so
    WARNING = 2
    FAULT = 3


class Finding(NamedTuple):
    """The result of a check: what is the case, and what to do about it."""

    check: str  # its name, which is stable: "disk", "clock", ...
    level: Level
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "check": self.check,
            "level": self.level.name.lower(),
            "text": self.text,
            "remedy": self.remedy,
        }


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check, Level.NOTE, text, remedy)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, text, remedy)


def fault(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.FAULT, text, remedy)
