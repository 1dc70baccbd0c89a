"""The declaration of one key of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from qmd.config.value_types import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of one section, as in the file."""

    section: str
    key: str
    attribute: str
    kind: Kind[object]
    default: object
    meaning: str


def setting(kind: Kind[T], default: object, meaning: str) -> T:
    """Return a field of a section; `default` is its value as written in the file."""
    return field(default=kind.parse(default), metadata={"setting": (kind, default, meaning)})
