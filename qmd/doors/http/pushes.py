"""Pushes: queues of which the messages are delivered to a URL; their definitions in a file.

The command line and the door replace the file atomically; the door reads it when it has changed.
Only its owner may read it, because it contains the keys of signatures.
"""

from __future__ import annotations

import base64
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

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
    try:
        parts = urlsplit(push.url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise PushError(f"the URL is not valid: {error}") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise PushError("the URL must begin with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise PushError("the URL must have no user, no password and no fragment")
    if not push.url.isascii() or not push.url.isprintable() or " " in push.url:
        raise PushError("the URL must be ASCII without spaces; encode other characters")


class PushFile:
    """The definitions of all pushes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int, int] | None = None
        self._found: dict[str, StoredPush] = {}

    def read(self) -> dict[str, StoredPush]:
        """Return the pushes by name; none if the file does not exist.  Raises PushError."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._state, self._found = None, {}
            return {}
        except OSError as error:
            raise PushError(f"{self._path} cannot be read: {error}", code="push_file") from error
        state = found.st_mtime_ns, found.st_size, found.st_ino
        if state != self._state:
            try:
                pushes = msgspec.json.decode(self._path.read_bytes(), type=list[StoredPush])
            except (OSError, msgspec.DecodeError) as error:
                text = f"{self._path} cannot be read: {error}"
                raise PushError(text, code="push_file") from error
            self._state, self._found = state, {each.name: each for each in pushes}
        return dict(self._found)

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

        self._change(add)
        return stored

    def delete(self, name: str) -> None:
        """Remove a push, durably.  Raises PushError."""

        def remove(pushes: dict[str, StoredPush]) -> None:
            if pushes.pop(name, None) is None:
                raise _unknown(name)

        self._change(remove)

    def pause(self, name: str, *, paused: bool) -> None:
        """Pause or resume a push, durably.  Raises PushError."""

        def change(pushes: dict[str, StoredPush]) -> None:
            if name not in pushes:
                raise _unknown(name)
            pushes[name] = msgspec.structs.replace(pushes[name], paused=paused)

        self._change(change)

    def _change(self, change: Callable[[dict[str, StoredPush]], None]) -> None:
        try:
            with self._locked():
                pushes = self.read()
                change(pushes)
                self._replace(msgspec.json.format(msgspec.json.encode(list(pushes.values()))))
        except OSError as error:
            text = f"{self._path} cannot be written: {error}"
            raise PushError(text, code="push_file") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path.with_name(f"{self._path.name}.lock"), flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _replace(self, data: bytes) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if os.geteuid() == 0:  # the user of the door must be able to read it
                    owner = self._path.parent.stat()
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _unknown(name: str) -> PushError:
    return PushError(f"there is no push {name}", code="no_such_push")
