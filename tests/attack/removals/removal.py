"""The form of a removal: a protection of SECURITY.md, and how to take it out of the code."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """A change of the code: `old`, which `file` has once, becomes `new`."""

    file: str
    old: str
    new: str


class Removal(NamedTuple):
    """A protection that is taken out: `old`, which `file` has once, becomes `new`.

    `more` are further changes, where several layers protect.
    """

    attack: str  # the first cell of its row in SECURITY.md, or the beginning of it
    file: str
    old: str
    new: str
    test: str  # `file::function` of the row, which fails then
    more: tuple[Change, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes."""
        return (Change(self.file, self.old, self.new), *self.more)
