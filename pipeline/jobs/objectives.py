"""Service level objectives: their file, and which messages they are about.  docs/jobs.md, "slo"

[[objective]]
name = "orders are stored"
stage = "accepted"        # or "received": by an application
within = "5s"
percent = 99.9
days = 30                 # the time over which the percentage counts
from = "*"                # names of hosts and queues: * stands for any part
to = "*"
queue = "orders"
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.jobs.small_files import read_small
from qmd.config.units import parse_duration

STAGES = ("accepted", "received")
_KEYS = ("name", "stage", "within", "percent", "days", "from", "to", "queue")


class WrongObjective(Exception):
    """The file of objectives cannot be used; the text says what is wrong, and where."""


@dataclass(frozen=True)
class Objective:
    name: str
    stage: str
    within_ms: int
    percent: float
    days: int
    sender: str
    receiver: str
    queue: str

    @property
    def id(self) -> str:
        """A name that changes with every part of the definition but its window and percentage."""
        parts = {k: v for k, v in asdict(self).items() if k not in ("days", "percent")}
        return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]

    def is_about(self, sender: str, receiver: str, queue: str) -> bool:
        """Return whether a message between these hosts, for this queue, counts."""
        return (
            _matches(self.sender, sender)
            and _matches(self.receiver, receiver)
            and (_matches(self.queue, queue) or _matches(self.queue, queue.rpartition("\\")[2]))
        )


def _matches(pattern: str, text: str) -> bool:
    return fnmatchcase(text.casefold(), pattern.casefold())


def read_objectives(path: Path) -> list[Objective]:
    """Read a file of objectives.  Raises WrongObjective."""
    try:
        content = tomllib.loads(read_small(path))
    except OSError as error:
        raise WrongObjective(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise WrongObjective(f"{path} is no TOML: {error}") from error
    listed = content.get("objective")
    if not isinstance(listed, list) or not listed or content.keys() != {"objective"}:
        raise WrongObjective(f"{path} has to consist of sections [[objective]]")
    found = [_objective(each, f"{path}, objective {n}") for n, each in enumerate(listed, 1)]
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise WrongObjective(f"{path}: two objectives have the name {sorted(twice)[0]!r}")
    return found


def _objective(given: dict[str, Any], where: str) -> Objective:
    if unknown := sorted(given.keys() - set(_KEYS)):
        raise WrongObjective(f"{where}: there is no {unknown[0]!r}; there are {', '.join(_KEYS)}")
    if missing := [key for key in ("name", "within", "percent") if key not in given]:
        raise WrongObjective(f"{where}: {missing[0]!r} is missing")
    texts = {
        key: given.get(key, default)
        for key, default in (
            ("name", ""),
            ("stage", "accepted"),
            ("from", "*"),
            ("to", "*"),
            ("queue", "*"),
        )
    }
    if wrong := [key for key, value in texts.items() if not isinstance(value, str) or not value]:
        raise WrongObjective(f"{where}: {wrong[0]!r} has to be a text")
    if texts["stage"] not in STAGES:
        known = " or ".join(STAGES)
        raise WrongObjective(f"{where}: 'stage' is {texts['stage']!r}; it is {known}")
    percent, days = given["percent"], given.get("days", 30)
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 < percent < 100:
        raise WrongObjective(f"{where}: 'percent' has to be between 0 and 100, as 99.9")
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 366:
        raise WrongObjective(f"{where}: 'days' has to be a whole number from 1 to 366")
    try:
        within_s = parse_duration(str(given["within"]))
    except ValueError as error:
        raise WrongObjective(f"{where}: 'within': {error}") from error
    if within_s <= 0:
        raise WrongObjective(f"{where}: 'within' has to be above 0")
    return Objective(
        texts["name"], texts["stage"], round(within_s * 1000), float(percent), days,
        texts["from"], texts["to"], texts["queue"],
    )  # fmt: skip
