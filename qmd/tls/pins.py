"""Pins: the keys that an operator has bound to the GUIDs of other queue managers, in a file.

    # GUID                                fingerprint
    2f6d0a5e-8d4e-4a4c-9d2b-0a4b5c6d7e8f  9f86d081884c7d65...

A fingerprint of 64 hexadecimal digits is that of a key for TLS, one of 32 that of the identity key,
which stays the same when the key for TLS is replaced. A queue manager with several pins may use any
of them. The command line writes the file; the daemon reads it when it has changed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from qmd.tls.errors import TlsFilesError

if TYPE_CHECKING:
    from qmd.tls.certificate import Certificate

LENGTHS = (32, 64)  # hexadecimal digits: of an identity key, of a key for TLS
PINS_MAX = 16  # of one queue manager
_HEAD = "# Pinned keys of other queue managers, for TLS; written by `qmd tls pin`.\n"

Pins = dict[bytes, tuple[str, ...]]


class PinFile:
    """The pins that are in the file now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int, int] | None = None
        self._pins: Pins = {}

    def reload(self) -> bool:
        """Read the file if it has changed; return whether it had.

        Raises TlsFilesError, and keeps the previous pins.
        """
        try:
            found = self._path.stat()
            state = (found.st_mtime_ns, found.st_size, found.st_ino)
        except FileNotFoundError:
            state = None
        except OSError as error:
            raise TlsFilesError(f"{self._path} cannot be read: {error.strerror}") from error
        if state == self._state:
            return False
        self._pins = {} if state is None else read(self._path)
        self._state = state
        return True

    def of(self, guid: bytes) -> tuple[str, ...]:
        """Return the pinned fingerprints of a queue manager; none if it has no pin."""
        return self._pins.get(guid, ())


def matches(pins: tuple[str, ...], certificate: Certificate) -> bool:
    """Return whether one of the pins is a key of a certificate."""
    identity = (certificate.origin_key,) if certificate.identity else ()
    return not {certificate.fingerprint, *identity}.isdisjoint(pins)


def check_fingerprint(text: str) -> str:
    """Return a fingerprint in the form of the file.  Raises ValueError."""
    plain = text.replace(":", "").strip().lower()
    if len(plain) not in LENGTHS or set(plain) - set("0123456789abcdef"):
        raise ValueError(f"{text!r} is no fingerprint: 32 or 64 hexadecimal digits")
    return plain


def read(path: Path) -> Pins:
    """Return the pins in a file; none if it does not exist.  Raises TlsFilesError."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise TlsFilesError(f"{path} cannot be read: {error}") from error
    found: Pins = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            guid, fingerprint = line.split()
            key = UUID(guid).bytes_le
            found[key] = (*found.get(key, ()), check_fingerprint(fingerprint))
        except ValueError as error:
            raise TlsFilesError(f"{path}, line {number}: it is not the line of a pin") from error
    return found


def pin(
    path: Path, guid: bytes, fingerprint: str, *, replace: bool, owner: Path | None = None
) -> None:
    """Add a pin; with `replace`, remove the others of its queue manager.

    `owner` is as in `write_atomically`.  Raises TlsFilesError, OSError.
    """
    with _changing(path, owner) as pins:
        before = () if replace else pins.get(guid, ())
        pins[guid] = tuple(dict.fromkeys((*before, fingerprint)))
        if len(pins[guid]) > PINS_MAX:
            raise TlsFilesError(f"a queue manager has at most {PINS_MAX} pins: use --replace")


def unpin(path: Path, guid: bytes, *, owner: Path | None = None) -> bool:
    """Remove the pins of a queue manager; return whether there was one.

    `owner` is as in `write_atomically`.  Raises TlsFilesError, OSError.
    """
    with _changing(path, owner) as pins:
        return pins.pop(guid, None) is not None


@contextmanager
def _changing(path: Path, owner: Path | None) -> Iterator[Pins]:
    """Yield the pins to be changed, and write them; one process at a time does so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{path}.lock", flags, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pins = read(path)
        yield pins
        lines = [
            f"{UUID(bytes_le=guid)} {each}\n" for guid, found in pins.items() for each in found
        ]
        write_atomically(path, (_HEAD + "".join(lines)).encode("ascii"), owner=owner)
    finally:
        os.close(lock)


def write_atomically(path: Path, content: bytes, *, owner: Path | None = None) -> None:
    """Write or replace a file with mode 0600; a reader sees all of it or the previous content.

    Root gives it to the owner of the folder `owner`, the daemon.  That user may own the folder of
    the file, too, and put a link in its place at any moment.
    """
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        if owner is not None and os.geteuid() == 0 and owner.exists():
            found = owner.stat()
            os.fchown(descriptor, found.st_uid, found.st_gid)
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
