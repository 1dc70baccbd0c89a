"""Identity conflicts: two machines with the same GUID are detected, reported and refused.

If both ends run qmd, their handshake identifies the run of each (qmd/core/peer_instance.py). The
latest run of each queue manager is stored in the database. A machine that is not a later run of the
stored one gets no session. Machines that do not run qmd are detected only by contradictions: by a
session with the GUID of this queue manager, which is refused, or by two different messages with the
same position in a sequence, of which the second is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from protocol.identifiers import guid_text
from qmd.core.handshake import REFUSED_AS_ANOTHER
from qmd.core.peer_instance import Instance, Verdict, judge
from storage.tables import peer_instances
from storage.tables.peer_instances import PeerInstance

if TYPE_CHECKING:
    from qmd.core.retry import Attempt
    from qmd.peers.connection import PeerConnection
    from qmd.queues.message_id_history import KnownMessages
    from qmd.runtime.services import Services

log = structlog.get_logger()

KNOWN_MAX = 100_000
CONFLICTS_MAX = 100
REMEDY = (
    "One of them was cloned, or runs on an old backup. Give the clone an identity of its own (a new"
    " data folder); then, here: qmd session forget {guid}"
)
OWN_REMEDY = (
    "If this computer was restored from a backup, and the machine that it replaces no longer"
    " runs: on"
    " the computer that refuses it, qmd session forget {guid}; then look at qmd outgoing list here."
    " If this one is a clone, give it a new data folder."
)


class Conflict(NamedTuple):
    """A conflict, as `qmd status` shows it; `at_s` is wall-clock time in seconds since 1970."""

    queue_manager: bytes
    hosts: tuple[str, ...]
    at_s: int
    reason: str
    remedy: str


class EndSessions(Protocol):
    """Ends the sessions with a queue manager `but` one."""

    def __call__(self, guid: bytes, reason: str, *, but: PeerConnection) -> None: ...


class IdentityConflicts:
    """The known runs of other queue managers, and the conflicts between machines."""

    def __init__(self, services: Services, known_messages: KnownMessages, starts: int = 0) -> None:
        self._services = services
        self._known_messages = known_messages
        self.own = Instance(starts, services.environment.urandom(16))
        self._known: dict[bytes, PeerInstance] = {}
        self.conflicts: dict[bytes, Conflict] = {}

    def connect(self, end_sessions: EndSessions) -> None:
        """Set the function that ends the sessions with a queue manager."""
        self._end_sessions = end_sessions

    def restore(self, rows: Iterable[PeerInstance], starts: int) -> None:
        """Restore the stored runs; `starts` counts the starts of this one, including this start."""
        self._known = {row.queue_manager: row for row in rows}
        self.own = self.own._replace(starts=starts)

    def judge(
        self, connection: PeerConnection, guid: bytes, instance: Instance | None
    ) -> str | None:
        """Judge the GUID and the run that the other end of a handshake has given.

        Return why there must be no session, or None. `instance` is None if it does not run qmd.
        """
        host = connection.host
        connection.is_qmd = instance is not None
        if guid == self._services.id:
            if instance is not None and instance.nonce == self.own.nonce:
                return None  # this queue manager has connected to itself
            return self._found(guid, (host,), f"a queue manager at {host} has the GUID of this one")
        if instance is None:
            return None
        known = self._known.get(guid)
        met = None if known is None else Instance(known.starts, known.nonce)
        verdict = judge(met, instance)
        if verdict is Verdict.SAME:
            return None
        if verdict is Verdict.ANOTHER:
            assert known is not None
            return self._found(
                guid,
                (known.host, host),
                f"the queue manager at {host} has the GUID of the one that was seen at"
                f" {known.host}, and is not a later run of it (start {instance.starts} after start"
                f" {known.starts})",
            )
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        row = PeerInstance(
            guid, instance.starts, instance.nonce, host, int(self._services.environment.time())
        )
        self._known[guid] = row
        self._services.storage.batch.run(partial(peer_instances.remember, row=row))
        if known is not None:
            # Sessions of the previous run are dead, or belong to another machine. That machine will
            # connect again and be detected.
            self._end_sessions(guid, "its queue manager was started again", but=connection)
        return None

    def is_qmd(self, guid: bytes) -> bool:
        """Return whether a queue manager has stated in a handshake that it runs qmd."""
        return guid in self._known

    def contradiction(
        self, connection: PeerConnection, source: bytes, queue: str, before: str
    ) -> str:
        """Record that two different messages had the same position in one sequence.

        `before` is the host that sent the first of them. Return the reason for the refusal.
        """
        hosts = tuple(dict.fromkeys(each for each in (before, connection.host) if each))
        return self._found(
            source,
            hosts,
            f"two different messages of that queue manager had one position in its sequence to"
            f" {queue}; they came from {' and '.join(hosts)}",
        )

    def refused_by(self, connection: PeerConnection) -> str:
        """Record that a peer has refused this one because of its GUID; return the reason."""
        return self._found(
            self._services.id,
            (connection.host,),
            f"{connection.host} has refused this queue manager, because it knows another machine"
            " with its GUID, or a later run of it than the backup that this one was restored from",
            OWN_REMEDY,
        )

    def remedy_of_refusal(self, attempts: Sequence[Attempt]) -> str:
        """Return " " and the remedy if the GUID was refused at the last attempt; else ""."""
        conflict = self.conflicts.get(self._services.id)
        if conflict is None or not attempts or not attempts[-1].result.endswith(REFUSED_AS_ANOTHER):
            return ""
        return f" {conflict.remedy}"

    def accepted_by(self, connection: PeerConnection) -> None:
        """Remove the conflict that this peer had reported: it has now accepted a session."""
        conflict = self.conflicts.get(self._services.id)
        if conflict is not None and conflict.hosts == (connection.host,):
            del self.conflicts[self._services.id]

    def forget(self, guid: bytes) -> bool:
        """Forget a queue manager: an operator has resolved the conflict.

        Return whether anything was known about it.
        """
        known = self._known.pop(guid, None)
        conflict = self.conflicts.pop(guid, None)
        if known is not None:
            self._services.storage.batch.run(partial(peer_instances.forget, queue_manager=guid))
        # A machine that was restored from a backup reuses message numbers that are known here.
        self._known_messages.forget_source(guid)
        return known is not None or conflict is not None

    def _found(self, guid: bytes, hosts: tuple[str, ...], reason: str, remedy: str = REMEDY) -> str:
        remedy = remedy.format(guid=guid_text(guid))
        if guid not in self.conflicts and len(self.conflicts) >= CONFLICTS_MAX:
            del self.conflicts[next(iter(self.conflicts))]
        before = self.conflicts.pop(guid, None)
        hosts = tuple(dict.fromkeys((*(before.hosts if before else ()), *hosts)))[:16]
        at_s = int(self._services.environment.time())
        self.conflicts[guid] = Conflict(guid, hosts, at_s, reason, remedy)
        self._services.log_limited(
            "two_of_one_identity",
            guid_text(guid),
            queue_manager=guid_text(guid),
            addresses=list(hosts),
            reason=reason,
            remedy=remedy,
            code="two_of_one_identity",
        )
        return f"two machines have one identity: {reason}"
