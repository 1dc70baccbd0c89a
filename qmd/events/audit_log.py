"""The audit log: which operator requested what, from where, and with which result.

A request is recorded in the commit of its first change, or in an earlier one, so that no change of
an operator is on disk without its entry.  The result follows in a later commit: an entry without
one belongs to a request during which the daemon ended.  docs/audit-log.md
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from storage.tables import audit

if TYPE_CHECKING:
    import asyncio
    import sqlite3

    from qmd.runtime.services import Services

TRIMMED_ROWS = 1000  # in one commit
TEXT_MAX = 500  # characters of one value
ITEMS_MAX = 50  # of one list
CONTENTS = ("body", "label", "extension")  # of messages

_encode = msgspec.json.Encoder(enc_hook=repr).encode


class AuditLog:
    """The audit log of one queue manager."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._count = 0
        self._run = services.environment.urandom(4).hex()  # requests of two runs have other ids

    def requested(self, verb: str, who: str, place: str, arguments: dict[str, Any]) -> str:
        """Record a request with the open batch; return its id, for `ended`."""
        self._count += 1
        request = f"{self._run}-{self._count}"
        shown = {name: _shown(name, value) for name, value in arguments.items()}
        self._append(
            {
                "kind": "request",
                "request": request,
                "verb": verb,
                "who": who,
                "from": place,
                "arguments": shown,
            }
        )
        return request

    def ended(self, request: str, result: str, code: str = "") -> None:
        """Record the result of a request: done, refused or failed.

        It causes no commit of its own: the next request of a client that waits for each answer
        would wait for that one too.
        """
        with self._services.storage.patience(True):
            self._append({"kind": "result", "request": request, "result": result, "code": code})

    async def page(self, start: int, rows_max: int) -> tuple[audit.Anchor, list[audit.AuditRow]]:
        """Return entries from number `start` on, or the last `-start` ones, and the anchor."""
        await self._services.storage.batch.barrier()  # results wait for other changes
        read = partial(audit.page, start=start, rows_max=rows_max)
        return await self._services.storage.read(read)

    async def forget_old(self) -> None:
        """Drop the oldest entries beyond the configured size."""
        drop = partial(
            audit.trim,
            bytes_max=self._services.settings.audit_log.size_bytes,
            rows_max=TRIMMED_ROWS,
            at_ms=self._now_ms(),
        )
        while await self._services.storage.batch.run(drop, can_wait=True) == TRIMMED_ROWS:
            pass

    def _append(self, facts: dict[str, Any]) -> None:
        text = _text({"at_ms": self._now_ms(), **facts})
        future = self._services.storage.batch.run(partial(_insert, entry=text))
        future.add_done_callback(_retrieve)

    def _now_ms(self) -> int:
        return int(self._services.environment.time() * 1000)


def _insert(db: sqlite3.Connection, entry: str) -> int:
    return audit.append(db, entry)


def _retrieve(done: asyncio.Future[int]) -> None:
    """Mark the exception as seen: the storage reports its failure itself."""
    if not done.cancelled():
        done.exception()


def _text(facts: dict[str, Any]) -> str:
    try:
        return _encode(facts).decode()
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair, a huge integer
        return _encode({key: ascii(value) for key, value in facts.items()}).decode()


def _shown(name: str, value: Any) -> Any:
    """Return a value for the log: contents of messages and long values by their length only."""
    if isinstance(value, bytes) or (name in CONTENTS and isinstance(value, str)):
        return f"<{len(value)} long>" if value else ""
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}... <{len(value)} long>"
    if isinstance(value, msgspec.Struct):
        return {key: _shown(key, each) for key, each in msgspec.structs.asdict(value).items()}
    if isinstance(value, dict):
        return {str(key): _shown(str(key), each) for key, each in list(value.items())[:ITEMS_MAX]}
    if isinstance(value, list | tuple | set | frozenset):
        items = [_shown(name, each) for each in list(value)[:ITEMS_MAX]]
        return items if len(value) <= ITEMS_MAX else [*items, f"... <{len(value)} in all>"]
    return value
