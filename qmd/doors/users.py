"""Users of doors: a file with one line for each, `NAME:VERIFIER`.

The verifier is that of SCRAM-SHA-256 (RFC 5803, RFC 7677), in the form of PostgreSQL:

    SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY

It proves a password and does not contain it.  The file is read again when it has changed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path
from typing import NamedTuple

from qmd.client.errors import ClientError
from qmd.runtime.replaced_file import replace_file

ITERATIONS, ITERATIONS_MAX = 15_000, 1_000_000
SALT_BYTES = 16
NAME_CHARACTERS_MAX = 200
PASSWORD_BYTES_MAX = 1024


class BadUsers(ClientError):
    """The file of users cannot be read, or a name cannot be one of a user."""

    code = "door_users_bad"


class Verifier(NamedTuple):
    """The proof of one password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        salt, stored, server = [
            base64.b64encode(each).decode()
            for each in (self.salt, self.stored_key, self.server_key)
        ]
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"

    def is_of(self, password: bytes) -> bool:
        """Return whether it is the proof of a password.  This takes milliseconds."""
        made = verifier(password, self.salt, self.iterations)
        return hmac.compare_digest(made.stored_key, self.stored_key)


def verifier(password: bytes, salt: bytes = b"", iterations: int = ITERATIONS) -> Verifier:
    """Return the proof of a password; without a salt, of a new one."""
    salt = salt or os.urandom(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return Verifier(iterations, salt, hashlib.sha256(client_key).digest(), server_key)


def parse_verifier(text: str) -> Verifier:
    """Return the verifier of a text.  Raises ValueError."""
    scheme, parameters, keys = text.split("$")
    if scheme != "SCRAM-SHA-256":
        raise ValueError("it is not one of SCRAM-SHA-256")
    count, salt = parameters.split(":")
    stored, server = keys.split(":")
    found = Verifier(
        int(count), *[base64.b64decode(each, validate=True) for each in (salt, stored, server)]
    )
    if not 4096 <= found.iterations <= ITERATIONS_MAX or not found.salt:
        raise ValueError(f"its iterations are not between 4096 and {ITERATIONS_MAX}")
    if (len(found.stored_key), len(found.server_key)) != (32, 32):
        raise ValueError("its keys do not have 32 bytes")
    return found


class Users:
    """The users of a file; without a file there are none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._users: dict[str, Verifier] = {}
        # A verifier for names that do not exist: an answer must not show whether there is one.
        self._secret = os.urandom(32)

    def find(self, name: str) -> Verifier | None:
        """Return the verifier of a user, or None.  Raises BadUsers."""
        self._refresh()
        return self._users.get(name)

    def decoy(self, name: str) -> Verifier:
        """Return a verifier of no password, always the same for a name."""
        salt = hmac.digest(self._secret, name.encode("utf-8", "replace"), "sha256")[:SALT_BYTES]
        return Verifier(ITERATIONS, salt, os.urandom(32), os.urandom(32))

    def names(self) -> list[str]:
        """Return the names, in order.  Raises BadUsers."""
        self._refresh()
        return sorted(self._users)

    def _refresh(self) -> None:
        if self._path is None:
            return
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


def read_users(text: str) -> dict[str, Verifier]:
    """Return the users of a file.  Raises ValueError with the number of a wrong line."""
    found: dict[str, Verifier] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, proof = line.partition(":")
        try:
            found[checked_name(name)] = parse_verifier(proof.strip())
        except (ValueError, BadUsers) as error:
            raise ValueError(f"line {number}: {error}") from error
    return found


def checked_name(name: str) -> str:
    """Return the name of a user.  Raises BadUsers."""
    if (
        not name
        or len(name) > NAME_CHARACTERS_MAX
        or not name.isprintable()
        or name != name.strip()
        or set(name) & set(":,=")
        or name.startswith("#")
    ):
        raise BadUsers(
            f"{name!r} is not the name of a user", "use letters, digits, and characters such as @"
        )
    return name


def change_users(path: Path, name: str, proof: Verifier | None) -> bool:
    """Add or replace a user, or remove it (None); return whether it was there.

    The file is replaced as a whole, and is readable for its owner and its group only.  Raises
    BadUsers, OSError.
    """
    try:
        users = read_users(path.read_text(encoding="utf-8"))
        mode = path.stat().st_mode & 0o660
    except FileNotFoundError:
        users, mode = {}, 0o640
    except ValueError as error:
        raise BadUsers(
            f"the users in {path} cannot be read: {error}", "correct the file"
        ) from error
    was_there = users.pop(name, None) is not None
    if proof is not None:
        users[checked_name(name)] = proof
    text = "".join(f"{each}:{users[each]}\n" for each in sorted(users))
    replace_file(path, text.encode(), mode=mode)
    return was_there
