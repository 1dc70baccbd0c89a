"""Tokens of clients that use the control protocol remotely: their hashes in a file.

    # name   scopes  queues           made        SHA-256 of the token  expires
    archive  read    orders,orders;*  2026-01-31  9f86d081884c7d65...   2027-01-31T00:00:00Z

Lines without an expiry lack the last column.  A token is 32 random bytes.  It cannot be guessed, so
a fast hash is enough, and the content of the file is of no use to log in.  The command line writes
the file; the daemon reads it when it has changed.  The daemon records the last use of each token in
a file of its own (`Uses`).
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from qmd.runtime.replaced_file import replace_file

PREFIX = "qmd_"
TOKEN_CHARACTERS_MAX = 200
SCOPES = ("read", "write", "admin")
NEVER = ""
USES = "token-uses"  # the file in the data folder
USES_MAX = 10_000
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_HEAD = "# Tokens of the remote control protocol; made by `qmd remote token create`.\n"


class TokenFileError(Exception):
    """A token file that cannot be read, or that does not have the format of this module."""


class Grant(NamedTuple):
    """The scopes and the queues of a token."""

    name: str
    scopes: frozenset[str]
    queues: tuple[str, ...]  # patterns; ("*",): all of them
    made: str
    digest: str
    expires: str = NEVER  # as "2027-01-31T00:00:00Z", in UTC

    @property
    def everywhere(self) -> bool:
        return "*" in self.queues

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def has_expired(self, now_s: float) -> bool:
        """Return whether it is no longer valid at this time, in seconds since 1970 UTC."""
        return self.expires != NEVER and parse_time(self.expires) <= now_s

    def reaches(self, queue: str) -> bool:
        r"""Return whether a pattern fits a queue: its key `private$\orders`, or `orders`."""
        bare = queue.removeprefix("private$\\")
        # A bracket is a character of names, and begins no set of characters.
        patterns = [pattern.replace("[", "[[]") for pattern in self.queues]
        return any(fnmatchcase(queue, each) or fnmatchcase(bare, each) for each in patterns)


def parse_time(text: str) -> float:
    """Return a time in seconds since 1970 UTC.  Raises ValueError."""
    return datetime.datetime.strptime(text, _TIME).replace(tzinfo=datetime.UTC).timestamp()


def format_time(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime(_TIME)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """The tokens that are in the file now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int, int] | None = None
        self._grants: tuple[Grant, ...] = ()

    def grants(self) -> tuple[Grant, ...]:
        """Return all grants; none if the file does not exist.  Raises TokenFileError."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._state, self._grants = None, ()
            return ()
        except OSError as error:
            raise TokenFileError(f"{self._path} cannot be read: {error.strerror}") from error
        state = found.st_mtime_ns, found.st_size, found.st_ino
        if state != self._state:
            self._grants = tuple(read(self._path))
            self._state = state
        return self._grants

    def find(self, token: str, now_s: float) -> Grant | None:
        """Return the grant of `token`; None if there is none, or it has expired.

        Raises TokenFileError.

        All grants are compared, so that the duration discloses nothing about them.
        """
        wanted = digest_of(token[:TOKEN_CHARACTERS_MAX])
        found: Grant | None = None
        for grant in self.grants():
            if hmac.compare_digest(grant.digest, wanted):
                found = grant
        return None if found is None or found.has_expired(now_s) else found

    def still_has(self, grant: Grant, now_s: float) -> bool:
        """Return whether a grant is still valid.  Raises TokenFileError."""
        return not grant.has_expired(now_s) and grant in self.grants()


def read(path: Path) -> list[Grant]:
    """Return the grants in a file; none if it does not exist.  Raises TokenFileError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(f"{path} cannot be read: {error}") from error
    grants = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, scopes, queues, made, digest, *more = line.split("\t")
            (expires,) = more or (NEVER,)
            if expires != NEVER:
                parse_time(expires)
        except ValueError:
            # Not chained: the cause would quote the line.
            raise TokenFileError(
                f"{path}, line {number}: five columns are required, and perhaps the time of expiry"
            ) from None
        chosen = frozenset(scopes.split(","))
        if not chosen <= set(SCOPES) or len(digest) != 64:
            raise TokenFileError(f"{path}, line {number}: it is not the line of a token")
        grants.append(Grant(name, chosen, tuple(queues.split(",")), made, digest, expires))
    return grants


def create(
    path: Path,
    name: str,
    scopes: frozenset[str],
    queues: tuple[str, ...],
    *,
    today: str = "",
    expires: str = NEVER,
) -> str:
    """Add a token and return it; only its hash is stored.  Raises TokenFileError, OSError."""
    import base64  # a daemon, which loads this module, adds no tokens

    grants = read(path)
    if any(grant.name == name for grant in grants):
        raise TokenFileError(f"a token {name} exists already")
    text = name + "".join(queues)
    # Not only \n ends a line of the file, and characters that end one are not printable.
    if not name or "#" in text or not text.isprintable():
        raise TokenFileError("the name or a queue has characters that the file does not allow")
    token = PREFIX + base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
    made = today or datetime.datetime.now(datetime.UTC).date().isoformat()
    folded = tuple(queue.casefold() for queue in queues) or ("*",)
    _write(path, [*grants, Grant(name, scopes, folded, made, digest_of(token), expires)])
    return token


def revoke(path: Path, name: str) -> bool:
    """Remove a token; return whether there was one.  Raises TokenFileError, OSError."""
    grants = read(path)
    left = [grant for grant in grants if grant.name != name]
    if len(left) == len(grants):
        return False
    _write(path, left)
    return True


def _write(path: Path, grants: list[Grant]) -> None:
    """Replace the file atomically; only its owner can read it.  Raises TokenFileError, OSError."""
    lines = [
        "\t".join(
            (
                each.name,
                ",".join(sorted(each.scopes)),
                ",".join(each.queues),
                each.made,
                each.digest,
                *((each.expires,) if each.expires else ()),
            )
        )
        for each in grants
    ]
    _replace(path, _HEAD + "".join(f"{line}\n" for line in lines), is_durable=True)


def _replace(path: Path, text: str, *, is_durable: bool) -> None:
    """Replace a file atomically; only its owner can read it.  Raises TokenFileError, OSError."""
    try:
        owner = path.lstat()
    except FileNotFoundError:
        owner = path.parent.stat()
    if not (stat.S_ISREG(owner.st_mode) or stat.S_ISDIR(owner.st_mode)):
        raise TokenFileError(
            f"{path} is not a regular file: remove it, or name another in [remote]"
        )
    replace_file(path, text.encode(), owner=owner, is_durable=is_durable)


class Use(NamedTuple):
    at: str  # as "2027-01-31T00:00:00Z", in UTC
    host: str


class Uses:
    """The last login or request of each token, by name: kept in the data folder.

    They are informative: after a crash a time may be some minutes old.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = read_uses(path)

    def record(self, name: str, host: str, now_s: float) -> None:
        """Record a use in memory."""
        self._found.pop(name, None)
        self._found[name] = Use(format_time(now_s), host)
        if len(self._found) > USES_MAX:
            del self._found[next(iter(self._found))]

    def write(self, names: Iterable[str]) -> None:
        """Write the uses of the tokens with these names.  Raises TokenFileError, OSError."""
        wanted = set(names)
        lines = [f"{name}\t{at}\t{host}\n" for name, (at, host) in self._found.items()
                 if name in wanted]  # fmt: skip
        _replace(self._path, "".join(lines), is_durable=False)


def read_uses(path: Path) -> dict[str, Use]:
    """Return the recorded uses; none if the file does not exist or cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    parts = [line.split("\t") for line in lines]
    return {each[0]: Use(each[1], each[2]) for each in parts if len(each) == 3}
