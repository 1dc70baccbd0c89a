"""Pushes: queues of which the messages are delivered to a URL; their definitions in a file.

The command line and the door replace the file; the door reads it when it has changed.
"""

from __future__ import annotations

import base64
import secrets
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from qmd.runtime.definition_file import DefinitionFile

SECRET_PREFIX = "whsec_"  # nosec B105: of Standard Webhooks
SECRET_BYTES = 32
PUSHES_MAX = 1000


class PushError(Exception):
    """A definition that is not valid; `code` is that of the catalogue."""

    def __init__(self, text: str, *, code: str = "push_not_valid") -> None:
        super().__init__(text)
        self.code = code


class Push(Struct, kw_only=True, forbid_unknown_fields=True):
    """A queue that is delivered to a URL, in order."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    queue: Annotated[str, Meta(min_length=1, max_length=600)]
    url: Annotated[str, Meta(min_length=8, max_length=2000)]
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    first_pause_s: Annotated[float, Meta(ge=0.01, le=3600)] = 1.0
    last_pause_s: Annotated[float, Meta(ge=0.01, le=86_400)] = 300.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 30.0
    paused: bool = False


class StoredPush(Push, kw_only=True):
    """A push with the key of its signatures."""

    secret: str

    @property
    def key(self) -> bytes:
        """The key of the signatures."""
        return base64.b64decode(self.secret.removeprefix(SECRET_PREFIX))


def parse(given: dict[str, object]) -> Push:
    """Return the push with these fields.  Raises PushError."""
    try:
        return msgspec.convert(given, Push)
    except msgspec.ValidationError as error:
        raise PushError(str(error)) from error


def facts(push: StoredPush, *, with_secret: bool = False) -> dict[str, object]:
    """Return the fields of a push."""
    found = msgspec.structs.asdict(push)
    if not with_secret:
        del found["secret"]
    return found


def new_secret() -> str:
    """Return a random key of signatures, as Standard Webhooks write it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check(push: Push) -> None:
    """Check the URL of a push.  Raises PushError."""
    check_url(push.url)


def check_url(url: str) -> None:
    """Check a URL that messages are delivered to.  Raises PushError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise PushError(f"the URL is not valid: {error}") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise PushError("the URL must begin with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise PushError("the URL must have no user, no password and no fragment")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise PushError("the URL must be ASCII without spaces; encode other characters")


class PushFile:
    """The definitions of all pushes."""

    def __init__(self, path: Path) -> None:
        self._file = DefinitionFile(path, StoredPush, partial(PushError, code="push_file"))

    def read(self) -> dict[str, StoredPush]:
        """Return the pushes by name; none if the file does not exist.  Raises PushError."""
        return self._file.read()

    def create(self, push: Push, secret: str = "") -> StoredPush:  # nosec B107: empty makes one
        """Add a push, durably; return it with its key.  Raises PushError."""
        check(push)
        stored = StoredPush(**msgspec.structs.asdict(push), secret=secret or new_secret())

        def add(pushes: dict[str, StoredPush]) -> None:
            if push.name in pushes:
                raise PushError(f"there is a push {push.name} already", code="push_exists")
            if len(pushes) >= PUSHES_MAX:
                raise PushError(f"there are {PUSHES_MAX} pushes already")
            pushes[push.name] = stored

        self._file.change(add)
        return stored

    def delete(self, name: str) -> None:
        """Remove a push, durably.  Raises PushError."""

        def remove(pushes: dict[str, StoredPush]) -> None:
            if pushes.pop(name, None) is None:
                raise _unknown(name)

        self._file.change(remove)

    def pause(self, name: str, *, paused: bool) -> None:
        """Pause or resume a push, durably.  Raises PushError."""

        def change(pushes: dict[str, StoredPush]) -> None:
            if name not in pushes:
                raise _unknown(name)
            pushes[name] = msgspec.structs.replace(pushes[name], paused=paused)

        self._file.change(change)


def _unknown(name: str) -> PushError:
    return PushError(f"there is no push {name}", code="no_such_push")
