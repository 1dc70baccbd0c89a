"""Rights of senders on other hosts: may the sender of a message send to its queue?

Without entries about it everyone may, and then nothing is decided for a message.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from protocol import UserMessage
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from protocol.security_marks import principals
from qmd.access.register import key_of
from qmd.core.access import SEND, Caller, Verdict, decide
from qmd.core.principals import HOST, PEER, UNPROVEN, Principal, parse_principal
from qmd.transfer.decision import Decision, refused
from qmd.transfer.security_gate import security_refusal
from storage.tables.access import ALL_QUEUES

if TYPE_CHECKING:
    from qmd.access.register import AccessRegister
    from qmd.message_security.checking import Checked
    from qmd.queues.local_queue import LocalQueue
    from qmd.queues.peer_session import PeerSession

KEPT_MAX = 10_000  # decisions, of all queues and senders

#: Queue, source, address of the session, whether it is proven to be the source, verified signers,
#: principals that a door has proven.
_Key = tuple[int, bytes, str, bool, tuple[str, ...], frozenset[Principal]]


class Origins(Protocol):
    """The origins of queue managers: `Origins` of qmd/peers."""

    def primary(self, guid: bytes) -> str | None: ...
    def is_proven(self, guid: bytes, origin: str) -> bool: ...


class SenderAccess:
    """The decisions about senders, which are kept until an entry changes."""

    def __init__(
        self,
        register: AccessRegister,
        origins: Origins,
        is_listed: Callable[[UserMessage], bool],
    ) -> None:
        """`is_listed` returns whether the list of a message has the queue of its packet."""
        self._register = register
        self._is_listed = is_listed
        self._origins = origins
        self._kept: dict[_Key, Verdict] = {}
        self._generation = -1

    def refusal(
        self,
        connection: PeerSession,
        message: UserMessage,
        queue: LocalQueue,
        security: Checked | None,
    ) -> Decision | None:
        """Return the refusal of a message that is not secure enough, or not permitted; or None."""
        insecure = security_refusal(queue, message, security)
        if insecure is not None:
            return insecure
        if security is not None and security.is_authenticated:
            copied = self._copied(connection, message)
            if copied:
                return refused(MessageClass.NACK_BAD_SIGNATURE, queue, detail=copied)
        restricted = self._register.restricted
        if not restricted or not (key_of(queue) in restricted or ALL_QUEUES in restricted):
            return None
        if self._generation != self._register.generation or len(self._kept) >= KEPT_MAX:
            self._generation = self._register.generation
            self._kept.clear()
        source = message.user.source_queue_manager
        signers = principals(message) if security and security.is_authenticated else ()
        is_source = self._is_proven_source(connection, source)
        key = (queue.id, source, connection.host, is_source, signers, connection.principals)
        verdict = self._kept.get(key)
        if verdict is None:
            verdict = decide(
                _caller(connection, source, signers, is_source=is_source),
                SEND,
                self._register.of_queue(queue),
            )
            self._kept[key] = verdict
        if verdict.allowed:
            return None
        return refused(MessageClass.NACK_ACCESS_DENIED, queue, detail=verdict.reason)

    def _copied(self, connection: PeerSession, message: UserMessage) -> str:
        """Return why a message with a valid signature is a copy of another one, or "".

        A signature covers neither the session nor, in a message to several queues, the queue.
        """
        if not self._is_listed(message):
            return "its signature is that of a message to other queues"
        source, session = message.user.source_queue_manager, connection.session
        if session is None or session.remote_id != source:
            return ""  # a relay brings it
        primary = self._origins.primary(source)
        if primary is None or primary == connection.origin:
            return ""
        if not self._origins.is_proven(source, primary):
            return ""
        return f"its source {guid_text(source)} has proven a key, and {connection.host} has not"

    def _is_proven_source(self, connection: PeerSession, source: bytes) -> bool:
        """Return whether a session has proven to be with the source of a message.

        Any program has a key, and any key can be used with any GUID: it proves the GUID only as
        long as no other origin is the primary one.  An operator may have joined a key to the origin
        of an address: another program at that address has not proven it.
        """
        session, origin = connection.session, connection.origin
        if session is None or session.remote_id != source:
            return False
        return self._origins.primary(source) in (None, origin) and connection.has_proof


def _caller(
    connection: PeerSession, source: bytes, signers: tuple[str, ...], *, is_source: bool
) -> Caller:
    """Return the sender of a message of a session.

    The GUID of the source is proven if `is_source`.
    """
    peer = Principal(PEER, guid_text(source))
    proven = {*map(parse_principal, signers), *connection.principals} or {UNPROVEN}
    with contextlib.suppress(ValueError):  # an address with a zone: no entry can name it
        proven.add(Principal(HOST, str(ipaddress.ip_network(connection.host))))
    if is_source:
        proven.add(peer)
    return Caller(f"{connection.host} ({peer})", frozenset(proven), frozenset({peer}))
