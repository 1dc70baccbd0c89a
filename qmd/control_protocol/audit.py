"""Requests of the audit log and of the levels of the log."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

Name = Annotated[str, msgspec.Meta(max_length=200)]
ENTRIES_MAX = 1000  # of one page


class AuditEntries(Request, tag="audit_entries", frozen=True):
    """Read the audit log, from number `start` on; a negative `start` means the last entries.

    -> {anchor: [number, digest], entries: [[number, entry, digest], ...]}.  `entry` is the text of
    a JSON object, of which the digest was made.
    """

    start: Annotated[int, msgspec.Meta(ge=-ENTRIES_MAX, le=1 << 62)] = 0


class LogLevels(Request, tag="log_levels", frozen=True):
    """Return the levels of the log. -> {default, names: {name: level}}"""


class SetLogLevel(Request, tag="set_log_level", frozen=True):
    """Change a level of the log until the daemon ends. -> the same as `LogLevels`

    `name` is a package or a module, such as `qmd.peers`; empty: the default.  An empty `level`
    gives the name the default again.
    """

    name: Name = ""
    level: Name = ""


def chained(before: bytes, number: int, entry: str) -> bytes:
    """Return the digest of an entry of the audit log, which follows one with the digest `before`.

    It is computed here and by the daemon, so that each checks the other.
    """
    return hashlib.sha256(before + number.to_bytes(8, "big") + entry.encode()).digest()


AuditRequest = AuditEntries | LogLevels | SetLogLevel

add_verbs(AuditRequest)
