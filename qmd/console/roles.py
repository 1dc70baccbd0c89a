"""Roles of the console, and the identity of a login."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """The pages and actions that a user may use; each role includes those before it.

    A queue manager checks the rights of the connection besides.
    """

    VIEWER = 1
    OPERATOR = 2
    ADMINISTRATOR = 3

    @property
    def word(self) -> str:
        """The role as it is written in files and on pages."""
        return self.name.lower()


def parse_role(word: str) -> Role:
    """Return the role of a word.  Raises ValueError."""
    try:
        return Role[word.upper()]
    except KeyError:
        raise ValueError(f"{word!r} is none of viewer, operator, administrator") from None


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A user: of the file of users, of a token, or the user that started the console."""

    name: str
    role: Role
    proof: str = ""  # the verifier of its password
    token: str = ""  # the one that it has logged in with
    is_own: bool = False  # it logged in by the link that the console has printed
