"""Identity conflicts: two machines that state one GUID are detected and reported.

If both ends run qmd, each proves a key in the handshake and states its run (identity_proof.py and
peer_instance.py of qmd/core). A cloned image has the key of its original: a machine with a known
key that is not a later run of the stored one gets no session. Every other conflict only concerns
two *origins* (origins.py), which do not influence each other: it is reported with the decision that
an operator can make. Two different messages with the same position in a sequence, of which the
second is refused, show a clone that does not run qmd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from protocol.identifiers import guid_text
from qmd.core.handshake import REFUSED_AS_ANOTHER
from qmd.core.peer_instance import Instance, Verdict, judge
from qmd.peers.origins import Bound, is_proof

if TYPE_CHECKING:
    from qmd.core.retry import Attempt
    from qmd.peers.connection import PeerConnection
    from qmd.peers.origins import Origins
    from qmd.queues.message_id_history import KnownMessages
    from qmd.runtime.services import Services
    from storage.tables.peer_origins import PeerOrigin

log = structlog.get_logger()

CONFLICTS_MAX = 100
PER_GUID_MAX = 4  # conflicts of origins that are kept for one GUID: any program can cause them
SHOWN_S = 86_400  # for which such a conflict is shown
REMEDY = (
    "One of them was cloned, or runs on an old backup. Give the clone an identity of its own (a new"
    " data folder); then, here: qmd session forget {guid}"
)
OTHER_ORIGIN_REMEDY = (
    "Messages for this queue manager go only to {primary}. If the machine at {host} is the genuine"
    " one: qmd peer pin {guid} {fact}; otherwise take its address out of [peers] allow"
)
NOT_ITSELF = (
    "the queue manager that answers there states the GUID of this one, without a proof; if this"
    " computer reaches itself at that address, name it in reached_at of the section [listen]"
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
    """Ends the sessions with one origin of a queue manager, `but` one session."""

    def __call__(self, guid: bytes, origin: str, reason: str, *, but: PeerConnection) -> None: ...


class IdentityConflicts:
    """The conflicts between machines with one GUID."""

    def __init__(
        self, services: Services, known_messages: KnownMessages, origins: Origins, starts: int = 0
    ) -> None:
        self._services = services
        self._known_messages = known_messages
        self._origins = origins
        self.own = Instance(starts, services.environment.urandom(16))
        #: By the GUID; "" is the origin of machines with one key.
        self._conflicts: dict[tuple[bytes, str], Conflict] = {}
        origins.on_conflict = self._other_origin

    def connect(self, end_sessions: EndSessions) -> None:
        """Set the function that ends the sessions with an origin."""
        self._end_sessions = end_sessions

    def restore(self, starts: int) -> None:
        """Set the count of the starts of this queue manager, including this start."""
        self.own = self.own._replace(starts=starts)

    @property
    def conflicts(self) -> list[Conflict]:
        """All conflicts, the latest last."""
        since_s = int(self._services.environment.time()) - SHOWN_S
        return [
            conflict
            for (_, origin), conflict in self._conflicts.items()
            if not origin or conflict.at_s >= since_s
        ]

    def about(self, guid: bytes | None) -> Conflict | None:
        """Return the latest conflict about a GUID, or None."""
        found = [each for each in self.conflicts if each.queue_manager == guid]
        return found[-1] if found else None

    def judge(
        self,
        connection: PeerConnection,
        guid: bytes,
        instance: Instance | None,
        key: bytes | None,
    ) -> str | None:
        """Judge the GUID, the run and the key of the other end of a handshake.

        Return why there must be no session, or None. `instance` is None if it does not run qmd;
        `key` is the key that it has proven, or None.
        """
        host = connection.host
        connection.is_qmd = instance is not None
        connection.instance = instance
        certified = connection.certified
        if certified is not None and certified.queue_manager != guid:
            return (
                f"its certificate is for queue manager {guid_text(certified.queue_manager)}, and it"
                f" states {guid_text(guid)}"
            )
        if certified is not None and key not in (None, certified.public_key):
            return "its certificate is for another key than that of its handshake"
        self._origins.identify(connection, guid, key)
        if guid == self._services.id:
            # Its run is no secret: each queue manager that connects gets it.
            is_ours = instance is not None and instance.nonce == self.own.nonce
            if is_ours and connection.peer_key == self._services.key.public:
                return None  # this queue manager has connected to itself
            if is_ours and connection.link is not None:
                return NOT_ITSELF
            return self._found(
                guid,
                (host,),
                f"a queue manager at {host} has the GUID of this one",
                origin="" if connection.peer_key == self._services.key.public else host,
            )
        if instance is None or not is_proof(connection.fact):
            # Without a proof the run could be that of any program: a false one must not exclude
            # the genuine peer.
            return None
        known = self._origins.run(guid, connection.fact)
        if known is None:
            self._origins.run_began(connection, guid, instance)
            return None
        verdict = judge(known, instance)
        if verdict is Verdict.SAME:
            return None
        if verdict is Verdict.ANOTHER:
            seen_at = self._origins.host(guid, connection.fact)
            return self._found(
                guid,
                (seen_at, host),
                f"the queue manager at {host} has the GUID and the key of the one that was seen at"
                f" {seen_at}, and is not a later run of it (start {instance.starts} after start"
                f" {known.starts})",
            )
        self._origins.run_began(connection, guid, instance)
        # Sessions of the previous run are dead, or belong to another machine. That machine will
        # connect again and be detected.
        self._end_sessions(
            guid, connection.origin, "its queue manager was started again", but=connection
        )
        return None

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

    def remedy_of_refusal(self, last: Attempt | None) -> str:
        """Return " " and the remedy if the GUID was refused at the last attempt; else ""."""
        conflict = self._conflicts.get((self._services.id, ""))
        if conflict is None or last is None or not last.result.endswith(REFUSED_AS_ANOTHER):
            return ""
        return f" {conflict.remedy}"

    def accepted_by(self, connection: PeerConnection) -> None:
        """Remove the conflict that this peer had reported: it has now accepted a session."""
        own = (self._services.id, "")
        conflict = self._conflicts.get(own)
        if conflict is not None and conflict.hosts == (connection.host,):
            del self._conflicts[own]

    def forget(self, guid: bytes) -> bool:
        """Forget a queue manager: an operator has resolved the conflict.

        Return whether anything was known about it.
        """
        known = self._origins.forget_runs(guid)
        resolved = self.resolve(guid)
        # A machine that was restored from a backup reuses message numbers that are known here.
        self._known_messages.forget_source(guid)
        return known > 0 or resolved

    def resolve(self, guid: bytes) -> bool:
        """Remove the conflicts about a GUID; return whether there were any."""
        places = [place for place in self._conflicts if place[0] == guid]
        for place in places:
            del self._conflicts[place]
        return bool(places)

    def _other_origin(self, connection: PeerConnection, primary: PeerOrigin) -> None:
        """Report a session that states the GUID of another origin."""
        guid, host = primary.queue_manager, connection.host
        shown = guid_text(guid)
        self._found(
            guid,
            tuple(dict.fromkeys((primary.host or primary.fact, host))),
            f"a program at {host} ({_proven(connection)}) states the GUID of queue manager {shown},"
            f" which is bound to {primary.fact} ({Bound(primary.bound).text})",
            OTHER_ORIGIN_REMEDY.format(
                primary=primary.fact, host=host, guid=shown, fact=connection.fact
            ),
            origin=connection.origin,
        )

    def _found(
        self,
        guid: bytes,
        hosts: tuple[str, ...],
        reason: str,
        remedy: str = REMEDY,
        *,
        origin: str = "",
    ) -> str:
        remedy = remedy.replace("{guid}", guid_text(guid))
        place = (guid, origin)
        before = self._conflicts.pop(place, None)
        if before is None:
            self._make_room(guid)
        hosts = tuple(dict.fromkeys((*(before.hosts if before else ()), *hosts)))[:16]
        at_s = int(self._services.environment.time())
        self._conflicts[place] = Conflict(guid, hosts, at_s, reason, remedy)
        code = "two_origins_of_one_identity" if origin else "two_of_one_identity"
        self._services.log_limited(
            code,
            guid_text(guid),
            queue_manager=guid_text(guid),
            addresses=list(hosts),
            reason=reason,
            remedy=remedy,
            code=code,
        )
        return f"two machines have one identity: {reason}"

    def _make_room(self, guid: bytes) -> None:
        """Drop the oldest conflict of origins if there are too many, for a GUID or in all.

        Any program can cause them: they do not displace conflicts of machines with one key.
        """
        places = [place for place in self._conflicts if place[1]]
        its = [place for place in places if place[0] == guid]
        if len(its) >= PER_GUID_MAX:
            del self._conflicts[its[0]]
        elif len(self._conflicts) >= CONFLICTS_MAX:
            del self._conflicts[places[0] if places else next(iter(self._conflicts))]


def _proven(connection: PeerConnection) -> str:
    return connection.fact if is_proof(connection.fact) else "without proof"
