"""The effective configuration: values with their sources, and what can change while running."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from qmd.config.file import Effective, read_effective
from qmd.config.settings import SECTIONS, Settings, settings_of
from qmd.config.units import format_duration, format_size

__all__ = ["LIVE", "Effective", "Merged", "merge", "read_effective", "texts"]

#: Keys that a running daemon takes over when it reads the configuration again (SIGHUP).
LIVE: frozenset[str] = frozenset(
    {
        "peers.allow",
        "peers.acknowledge_to",
        "peers.relays",
        "routing.routes",
        "quotas.computer",
        "quotas.queue",
        "quotas.journal",
        "consequences.age",
        "consequences.dead_letter_age",
        "events.size",
        "events.age",
        "events.keep_unshipped",
        "events.ask",
        "events.answer",
        "log.level",
    }
)


class Merged(NamedTuple):
    """The settings of a running daemon after it has read its configuration again."""

    settings: Settings
    changed: list[str]  # keys that it has taken over
    waiting: list[str]  # keys that need a restart


def merge(running: Settings, read: Settings) -> Merged:
    """Take over the keys of LIVE from the configuration that was read."""
    changed: list[str] = []
    waiting: list[str] = []
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        old, new = getattr(running, section), getattr(read, section)
        taken = {}
        for key, setting in settings_of(section).items():
            value = getattr(new, setting.attribute)
            if value == getattr(old, setting.attribute):
                continue
            name = f"{section}.{key}"
            if name in LIVE:
                taken[setting.attribute] = value
                changed.append(name)
            else:
                waiting.append(name)
        if taken:
            sections[section] = replace(old, **taken)
    return Merged(replace(running, **sections) if sections else running, changed, waiting)


def texts(settings: Settings) -> dict[str, str]:
    """Return all values as text that can be compared, by `section.key`."""
    return {
        f"{section}.{key}": _text(
            getattr(getattr(settings, section), setting.attribute), setting.kind.attribute_suffix
        )
        for section in SECTIONS
        for key, setting in settings_of(section).items()
    }


def differences(running: Mapping[str, str], read: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the keys with different values, and what each needs: `reload` or `restart`."""
    for name in sorted(running.keys() | read.keys()):
        if running.get(name) != read.get(name):
            yield name, "reload" if name in LIVE else "restart"


def _text(value: object, unit: str = "") -> str:
    """Return a value as the file has it; `unit` is the end of its attribute's name."""
    match value:
        case None:
            return ""
        case float() | int() if unit == "_s" and math.isfinite(value):
            return format_duration(value)
        case int() if unit == "_bytes":
            return format_size(value)
        case bool():
            return str(value).lower()
        case Path() | str() | int():
            return str(value)
        case float():
            return f"{value:g}"
        case list() | tuple() if type(value) in (list, tuple):
            return ", ".join(_text(each, unit) for each in value)
    return str(value)
