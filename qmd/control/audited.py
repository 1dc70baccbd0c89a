"""Requests of operators: those that change something are recorded in the audit log.

Their handlers get a connection that notices the end of the work.  Other verbs are not touched, so
that sends and receives pay nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from protocol.errors import InvalidName
from qmd.access.demands import ADMIN
from qmd.control import verb_rights
from qmd.control_protocol import access as access_frames
from qmd.control_protocol import audit as audit_frames
from qmd.control_protocol import messages as frames
from qmd.control_protocol import transactions as transaction_frames
from qmd.control_protocol.bulk import MarkShipped
from qmd.core.principals import ALL_LOCAL
from qmd.errors import Refusal

if TYPE_CHECKING:
    from qmd.control.handler import Handler
    from qmd.control.server import ControlConnection

#: Verbs that need the scope admin and are no acts of an operator: the login of a user of a door,
#: the steps of a distributed transaction, the mark of a periodic program, and mere questions.
NOT_AUDITED = {
    access_frames.ActFor,
    access_frames.ExportAccess,
    audit_frames.AuditEntries,
    MarkShipped,
    transaction_frames.Enlist,
    transaction_frames.ListBranches,
}


def is_audited(verb: type) -> bool:
    """Return whether the requests of a verb are recorded."""
    row = verb_rights.TABLE.get(verb)
    needs_admin = row is not None and any(need.scope == ADMIN for need in row.needs)
    return needs_admin and verb not in NOT_AUDITED


def audited(handlers: Mapping[type, Handler]) -> dict[type, Handler]:
    """Return the handlers, those of audited verbs with the record of their requests."""
    return {
        verb: _recording(verb, handler) if is_audited(verb) else handler
        for verb, handler in handlers.items()
    }


def _recording(verb: type, handler: Handler) -> Handler:
    name = frames.verb_of(verb)

    def handle(connection: ControlConnection, request: Any) -> None:
        if getattr(request, "dry_run", False):
            handler(connection, request)
            return
        watched = _Watched(connection, name, request)
        try:
            # Changes that it makes now are in the batch that gets the entry below; others come
            # later.  If it must ask the directory first, it is called again.
            handler(cast("ControlConnection", watched), request)
        except (Refusal, InvalidName) as error:
            watched.requested()
            watched.ended("refused", getattr(error, "code", "name_not_understood"))
            raise
        watched.requested()

    return handle


class _Watched:
    """The connection of a request: it notices when the work of the request ends."""

    def __init__(self, connection: ControlConnection, verb: str, request: Any) -> None:
        self._connection = connection
        self._verb = verb
        self._request = request
        self._id = ""
        self._early: tuple[str, str] | None = None  # the result, if it is known before the entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def requested(self) -> None:
        """Record the request, and its result if that is known."""
        connection = self._connection
        arguments = msgspec.structs.asdict(self._request)
        arguments.pop("number")
        principal, place = connection.rights.principal, connection.reader.who
        # An administrator of this host is known by the user of its process.
        who = place if principal == ALL_LOCAL else str(principal)
        audit_log = connection.components.audit_log
        self._id = audit_log.requested(self._verb, who, place, arguments)
        if self._early is not None:
            self.ended(*self._early)

    def ended(self, result: str, code: str = "") -> None:
        """Record the result, after the request."""
        if self._id:
            self._connection.components.audit_log.ended(self._id, result, code)
        else:
            self._early = result, code

    def done(self, number: int, result: object = None) -> None:
        """Answer the request: it is done."""
        self.ended("done")
        self._connection.done(number, result)

    def look(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        """Start work that changes nothing."""
        self._connection.look(number, self._noticed(work))

    def change(self, number: int, work: Coroutine[Any, Any, object]) -> None:
        """Start work that waits in the middle of a change."""
        self._connection.change(number, self._noticed(work))

    async def _noticed(self, work: Coroutine[Any, Any, object]) -> object:
        try:
            result = await work
        except Refusal as refusal:
            self.ended("refused", refusal.code)
            raise
        except BaseException as error:
            self.ended("failed", type(error).__name__)
            raise
        self.ended("done")
        return result
