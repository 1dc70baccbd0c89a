"""Users of the console: a file with one line for each, `NAME:ROLE:VERIFIER`.

The verifier is that of the users of doors.  The file is read again when it has changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from qmd.console.roles import Role, parse_role
from qmd.doors.users import BadUsers, Verifier, checked_name, parse_verifier
from qmd.runtime.replaced_file import replace_file


class User(NamedTuple):
    """One user of the file."""

    role: Role
    verifier: Verifier


class Users:
    """The users of a file; without a file there are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}

    def find(self, name: str) -> User | None:
        """Return a user, or None.  Raises BadUsers."""
        return self.all().get(name)

    def all(self) -> dict[str, User]:
        """Return all users by name.  Raises BadUsers."""
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._users = read_users(self._path.read_text(encoding="utf-8"))
                self._stamp = stamp
        except FileNotFoundError:
            self._users, self._stamp = {}, None
        except (OSError, ValueError) as error:
            raise BadUsers(
                f"the users in {self._path} cannot be read: {error}", "correct or remove the file"
            ) from error
        return self._users


def read_users(text: str) -> dict[str, User]:
    """Return the users of a file.  Raises ValueError with the number of a wrong line."""
    found: dict[str, User] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, role, proof = line.split(":", 2)
            found[checked_name(name)] = User(parse_role(role), parse_verifier(proof.strip()))
        except (ValueError, BadUsers) as error:
            raise ValueError(f"line {number}: {error}") from error
    return found


def change_users(path: Path, name: str, user: User | None) -> bool:
    """Add or replace a user, or remove it (None); return whether it was there.

    The file is replaced as a whole, and only its owner can read it: that of its folder,
    if root writes it.  Raises BadUsers, OSError.
    """
    try:
        users = read_users(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        users = {}
    except ValueError as error:
        raise BadUsers(
            f"the users in {path} cannot be read: {error}", "correct the file"
        ) from error
    was_there = users.pop(name, None) is not None
    if user is not None:
        users[checked_name(name)] = user
    lines = [
        f"{each}:{found.role.word}:{found.verifier}\n" for each, found in sorted(users.items())
    ]
    replace_file(path, "".join(lines).encode())
    return was_there
