"""Origins: what is known about the other ends of sessions, and which of them speak for a GUID.

Any program can state any GUID. The *origin* of a session is the strongest fact about its other end:
an authority's certificate, a proven key, or else its address (docs/decisions/0031). Everything that
is remembered about a queue manager is kept for the pair of its GUID and an origin.

One origin of each GUID is its *primary* one: only sessions with it carry messages for that queue
manager. A fact is stored when its session has done something useful: an accepted message, or an
answer to this queue manager, which dialled. A bare handshake changes nothing.

Several facts may belong to one origin: an operator joins the address to which a host has moved, and
a host that has been upgraded keeps its origin when it first proves a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from enum import IntEnum
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, NamedTuple

import structlog

from protocol.identifiers import guid_text
from qmd.core.peer_instance import Instance
from qmd.runtime.identity_key import fingerprint
from qmd.runtime.shares import owner_of
from storage.tables import peer_origins
from storage.tables.peer_origins import PeerOrigin

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.runtime.services import Services

log = structlog.get_logger()

KNOWN_MAX = 50_000  # facts
# Of them, those of hosts that this queue manager has not dialled: the others keep their own room.
FIRST_USES_MAX = 40_000
PER_NETWORK_MAX = 10_000  # of these, from one network (qmd/runtime/shares.py)
PER_ADDRESS_MAX = 1000  # of them that one address may cause: hosts behind one NAT share an address
SEEN_AGAIN_S = 86_400  # after which a fact is stored again with its new time
# If there is no room for a new fact, those are forgotten that were not seen for so long. No fact
# makes room for another one before: it could be that of a genuine peer.
FORGOTTEN_S = 60 * 86_400
LOOK_AGAIN_S = 60.0  # between searches for such facts
KEY, AUTHORITY = "key:", "authority:"
ALL = "*"
#: Begins the origin of sessions without proof from the address of a host that has since proven a
#: key.
UNPROVEN = "unproven:"


class Bound(IntEnum):
    """How a fact was bound to a GUID; a greater one from `CONFIGURED` on replaces a smaller one."""

    ANOTHER = 0  # another origin was the primary one
    FIRST_USE = 1  # the first with an accepted message
    DIALLED = 2  # it answered at an address that this queue manager dialled
    CONFIGURED = 3  # the same, at an address of the configuration or of the directory
    AUTHORITY = 4  # the certificate of an authority names the GUID
    OPERATOR = 5

    @property
    def text(self) -> str:
        """The name in lists and logs."""
        return self.name.lower().replace("_", " ")


class Certified(NamedTuple):
    """The certificate of the other end of a TLS connection.

    `public_key` is the identity key that it names, 32 bytes, or b"" if an authority has signed a
    certificate without one. `authority` is the fingerprint of that authority, or "" if none has.
    `queue_manager` is the GUID that it names.
    """

    public_key: bytes
    queue_manager: bytes
    authority: str = ""


class Origins:
    """The known origins of all queue managers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: dict[bytes, dict[str, PeerOrigin]] = {}
        self._primary: dict[bytes, PeerOrigin] = {}
        self._per_address: Counter[str] = Counter()  # facts that are no decision of an operator
        self._count = 0
        self._first_uses = 0
        self._per_network: Counter[Hashable] = Counter()  # of these
        self._look_again_at = 0.0
        #: Called with the GUID when its primary origin has changed.
        self.on_primary: Callable[[bytes], None] = lambda guid: None
        #: Called with the GUID when one of its facts may belong to another origin than before, and
        #: with a function that returns whether a session has kept its origin.
        self.on_facts: Callable[[bytes, Callable[[PeerConnection], bool]], None] = (
            lambda guid, has_kept_origin: None
        )
        #: Called when a session states a GUID with another primary origin.
        self.on_conflict: Callable[[PeerConnection, PeerOrigin], None] = lambda session, known: None

    def restore(self, rows: Iterable[PeerOrigin]) -> None:
        """Restore the stored facts."""
        for row in rows:
            self._put(row)

    # Queries.

    def primary(self, guid: bytes) -> str | None:
        """Return the primary origin of a queue manager, or None if none is known."""
        row = self._primary.get(guid)
        return None if row is None else row.origin

    def primary_fact(self, guid: bytes) -> PeerOrigin | None:
        """Return the fact that makes an origin the primary one of a queue manager, or None."""
        return self._primary.get(guid)

    def is_primary(self, connection: PeerConnection) -> bool:
        """Return whether a session is with the primary origin of the GUID that it states."""
        session = connection.session
        guid = None if session is None else session.remote_id
        return guid is not None and self.primary(guid) == connection.origin

    def is_qmd(self, guid: bytes) -> bool:
        """Return whether the primary origin of a queue manager runs qmd, by its own statement."""
        row = self._primary.get(guid)
        return row is not None and bool(row.is_qmd)

    def is_proven(self, guid: bytes, origin: str) -> bool:
        """Return whether an origin has proven a key, so that no other one may speak for it."""
        if is_proof(origin):
            return True
        facts = self._known.get(guid, {}).values()
        return any(row.origin == origin and is_proof(row.fact) for row in facts)

    def is_dialled(self, guid: bytes, origin: str) -> bool:
        """Return whether an origin has answered this queue manager, or an operator knows it."""
        facts = self._known.get(guid, {}).values()
        return any(row.origin == origin and row.bound >= Bound.DIALLED for row in facts)

    def facts(self, guid: bytes | None = None) -> list[PeerOrigin]:
        """Return the known facts of one queue manager, or of all."""
        chosen = self._known.values() if guid is None else [self._known.get(guid, {})]
        return [row for facts in chosen for row in facts.values()]

    def is_primary_fact(self, row: PeerOrigin) -> bool:
        """Return whether a fact belongs to the primary origin of its queue manager."""
        return self.primary(row.queue_manager) == row.origin

    def run(self, guid: bytes, fact: str) -> Instance | None:
        """Return the last known run of a queue manager with a key; None if none is known."""
        row = self._known.get(guid, {}).get(fact)
        return Instance(row.starts, row.nonce) if row is not None and row.starts else None

    def host(self, guid: bytes, fact: str) -> str:
        """Return the last address of a fact, or ""."""
        row = self._known.get(guid, {}).get(fact)
        return "" if row is None else row.host

    # Sessions.

    def identify(self, connection: PeerConnection, guid: bytes, key: bytes | None) -> None:
        """Set the origin of a session that states a GUID; `key` is the proven one, or None."""
        certified = connection.certified
        if certified is not None:
            key = certified.public_key or None
        connection.peer_key = key
        if key is not None:
            # Also with an authority: its certificate changes nothing for a host that has been known
            # by its key before, so that no message is doubled.
            connection.fact = f"{KEY}{fingerprint(key)}"
        elif certified is not None:
            connection.fact = f"{AUTHORITY}{certified.authority}"
        else:
            connection.fact = connection.host
        connection.has_proof = is_proof(connection.fact)
        connection.origin, connection.is_upgraded = self._belonging(connection, guid)

    def _belonging(self, connection: PeerConnection, guid: bytes) -> tuple[str, bool]:
        """Return the origin of a session, and whether its key is new for one known by its address.

        The latter is a host that runs qmd, and has been upgraded.
        """
        row = self._known.get(guid, {}).get(connection.fact)
        if row is not None:
            return row.origin, False
        before = self._primary.get(guid)
        if connection.peer_key is None or before is None:
            return connection.fact, False
        is_upgraded = (
            before.fact == connection.host
            and bool(before.is_qmd)
            and before.bound < Bound.AUTHORITY
        )
        if is_upgraded or self._is_renewed(connection, guid, before):
            return before.origin, is_upgraded
        return connection.fact, False

    def _is_renewed(self, connection: PeerConnection, guid: bytes, before: PeerOrigin) -> bool:
        """Return whether an authority vouches for another key of a host that it has vouched for."""
        certified = connection.certified
        return (
            certified is not None
            and bool(certified.authority)
            and certified.queue_manager == guid
            and before.bound == Bound.AUTHORITY
        )

    def opened(self, connection: PeerConnection) -> None:
        """Report a session that states a GUID with another primary origin."""
        assert connection.session is not None
        primary = self._primary.get(connection.session.remote_id or b"")
        if primary is not None and primary.origin != connection.origin:
            # Its messages are not those of the primary origin, though they may have the same ids.
            connection.peer = stated_peer(primary.queue_manager, connection.origin)
            self.on_conflict(connection, primary)

    def accepted(self, connection: PeerConnection) -> None:
        """Store that a session has brought an accepted message."""
        if not connection.is_recorded:
            self._record(connection, Bound.FIRST_USE)

    def dialled(self, connection: PeerConnection, *, is_configured: bool) -> None:
        """Store that a queue manager has answered where this one dialled."""
        self._record(connection, Bound.CONFIGURED if is_configured else Bound.DIALLED)

    def run_began(self, connection: PeerConnection, guid: bytes, instance: Instance) -> None:
        """Store a new run of an origin that is known."""
        row = self._known.get(guid, {}).get(connection.fact)
        if row is not None:
            self._store(row._replace(starts=instance.starts, nonce=instance.nonce))

    def _record(self, connection: PeerConnection, bound: Bound) -> None:
        """Store the fact of a session; it becomes the primary one if the binding permits it."""
        assert connection.session is not None
        guid = connection.session.remote_id
        if guid is None or guid == self._services.id:
            return
        connection.is_recorded = True
        certified = connection.certified
        if certified is not None and certified.authority and certified.queue_manager == guid:
            bound = Bound.AUTHORITY
        now_s = self._now_s()
        row = self._known.get(guid, {}).get(connection.fact)
        primary = self._primary.get(guid)
        if connection.is_upgraded and primary is not None and primary.fact == connection.host:
            self._upgrade(connection, primary)
            return
        if primary is not None and primary.origin != connection.origin:
            if bound < Bound.CONFIGURED or bound <= primary.bound:
                bound = Bound.ANOTHER
            self.on_conflict(connection, primary)
        if row is None:
            if bound < Bound.CONFIGURED and not self._has_room(connection.host, bound):
                self._services.log_limited(
                    "peer_not_recorded",
                    connection.host,
                    address=connection.host,
                    queue_manager=guid_text(guid),
                    code="peer_not_recorded",
                )
                return
            run = connection.instance or Instance(0, b"")
            row = PeerOrigin(
                guid,
                connection.fact,
                connection.origin,
                bound,
                int(connection.is_qmd),
                connection.host,
                connection.peer_key or b"",
                run.starts,
                run.nonce,
                now_s,
                now_s,
            )
        elif (
            bound > row.bound
            or row.host != connection.host
            or now_s >= row.last_seen_s + SEEN_AGAIN_S
        ):
            row = row._replace(bound=max(bound, row.bound), host=connection.host, last_seen_s=now_s)
        else:
            return
        self._store(row)

    def _upgrade(self, connection: PeerConnection, before: PeerOrigin) -> None:
        """Let a host keep its origin with the key that it has proven for the first time.

        Sessions without proof from its address, and with other keys, are another origin from now
        on, also those that are open.
        """
        run = connection.instance or Instance(0, b"")
        self._store(
            before._replace(origin=f"{UNPROVEN}{before.fact}", bound=Bound.ANOTHER),
            before._replace(
                fact=connection.fact,
                public_key=connection.peer_key or b"",
                starts=run.starts,
                nonce=run.nonce,
                last_seen_s=self._now_s(),
            ),
        )
        connection.is_upgraded = False
        self._facts_changed(before.queue_manager)

    def _facts_changed(self, guid: bytes) -> None:
        """Let the sessions end that would get another origin if they began now."""
        self.on_facts(guid, lambda session: self._belonging(session, guid)[0] == session.origin)

    # Operators.

    def pin(self, guid: bytes, fact: str) -> PeerOrigin:
        """Make the origin of a fact the primary one of a queue manager, for good."""
        row = self._known.get(guid, {}).get(fact) or self._new(guid, fact)
        others = [
            each._replace(bound=Bound.FIRST_USE)
            for each in self._known.get(guid, {}).values()
            if each.bound == Bound.OPERATOR and each.origin != row.origin
        ]
        row = row._replace(bound=Bound.OPERATOR)
        self._store(*others, row)
        self._facts_changed(guid)
        return row

    def join(self, guid: bytes, fact: str) -> PeerOrigin | None:
        """Let a fact belong to the primary origin of a queue manager; None if there is none.

        An operator states that it is the same machine: it has a new address, or a new key. An
        address does not join an origin with a key, which must prove it each time.
        """
        primary = self._primary.get(guid)
        if primary is None or (is_proof(primary.fact) and not is_proof(fact)):
            return None
        row = self._known.get(guid, {}).get(fact) or self._new(guid, fact)
        row = row._replace(origin=primary.origin, bound=Bound.OPERATOR)
        self._store(row)
        self._facts_changed(guid)
        return row

    def forget(self, guid: bytes, fact: str = ALL) -> int:
        """Forget a fact about a queue manager, or all; return the number of those known."""
        chosen = [row for row in self.facts(guid) if fact in (ALL, row.fact)]
        self._remove(chosen)
        self._facts_changed(guid)
        return len(chosen)

    def forget_runs(self, guid: bytes) -> int:
        """Forget the runs of a queue manager; return the number of its facts."""
        rows = self.facts(guid)
        if rows:
            self._store(*(row._replace(starts=0, nonce=b"") for row in rows))
        return len(rows)

    def _new(self, guid: bytes, fact: str) -> PeerOrigin:
        now_s = self._now_s()
        host = "" if is_proof(fact) else fact
        return PeerOrigin(guid, fact, fact, Bound.OPERATOR, 0, host, b"", 0, b"", now_s, now_s)

    # The table.

    def _store(self, *rows: PeerOrigin) -> None:
        """Store facts with the open batch; notify if a primary origin has changed."""
        guid = rows[0].queue_manager
        before = self.primary(guid)
        for row in rows:
            self._put(row)
        self._services.storage.batch.run(partial(peer_origins.remember, rows=list(rows)))
        if self.primary(guid) != before:
            log.info(
                "peer_bound",
                queue_manager=guid_text(guid),
                origin=self.primary(guid),
                bound=Bound(self._primary[guid].bound).text,
            )
            self.on_primary(guid)

    def _put(self, row: PeerOrigin) -> None:
        facts = self._known.setdefault(row.queue_manager, {})
        before = facts.pop(row.fact, None)
        if before is not None:
            self._uncount(before)
        facts[row.fact] = row
        self._count += 1
        self._per_address[_network(row.host)] += row.bound < Bound.CONFIGURED
        if row.bound < Bound.DIALLED:
            self._first_uses += 1
            self._per_network[owner_of(row.host).group] += 1
        self._choose(row.queue_manager)

    def _uncount(self, row: PeerOrigin) -> None:
        self._count -= 1
        network = _network(row.host)
        self._per_address[network] -= row.bound < Bound.CONFIGURED
        if not self._per_address[network]:
            del self._per_address[network]
        if row.bound < Bound.DIALLED:
            group = owner_of(row.host).group
            self._first_uses -= 1
            self._per_network[group] -= 1
            if not self._per_network[group]:
                del self._per_network[group]

    def _choose(self, guid: bytes) -> None:
        """Find the primary fact of a queue manager: the one with the greatest binding."""
        facts = self._known.get(guid)
        # Of two with one binding the older one: a joined fact has the origin of the former.
        best = max(facts.values(), key=_rank, default=None) if facts else None
        if best is None or best.bound == Bound.ANOTHER:
            self._primary.pop(guid, None)
        else:
            self._primary[guid] = best

    def _remove(self, rows: list[PeerOrigin]) -> None:
        if not rows:
            return
        guids = {row.queue_manager: self.primary(row.queue_manager) for row in rows}
        for row in rows:
            facts = self._known[row.queue_manager]
            del facts[row.fact]
            self._uncount(row)
            if not facts:
                del self._known[row.queue_manager]
            self._choose(row.queue_manager)
        places = [(row.queue_manager, row.fact) for row in rows]
        self._services.storage.batch.run(partial(peer_origins.forget, facts=places))
        for guid, before in guids.items():
            if self.primary(guid) != before:
                self.on_primary(guid)

    def _has_room(self, host: str, bound: Bound) -> bool:
        """Return whether another fact may be stored that a session with this address causes."""
        if self._fits(host, bound):
            return True
        now = self._services.loop.time()
        if now < self._look_again_at:
            return False
        self._look_again_at = now + LOOK_AGAIN_S
        latest_s = self._now_s() - FORGOTTEN_S
        self._remove(
            [
                row
                for row in self.facts()
                if row.bound < Bound.CONFIGURED and row.last_seen_s < latest_s
            ]
        )
        return self._fits(host, bound)

    def _fits(self, host: str, bound: Bound) -> bool:
        if self._count >= KNOWN_MAX or self._per_address[_network(host)] >= PER_ADDRESS_MAX:
            return False
        return bound >= Bound.DIALLED or (
            self._first_uses < FIRST_USES_MAX
            and self._per_network[owner_of(host).group] < PER_NETWORK_MAX
        )

    def _now_s(self) -> int:
        return int(self._services.environment.time())


def stated_peer(guid: bytes, origin: str = "") -> str:
    """Return how events name a session that states the GUID of another primary origin.

    Without `origin`, return what such names of all origins begin with.
    """
    return f"{guid_text(guid)}, stated by {origin}"


def is_proof(fact: str) -> bool:
    """Return whether a fact is a key or an authority, and not an address."""
    return fact.startswith((KEY, AUTHORITY))


def _rank(row: PeerOrigin) -> tuple[int, int]:
    return row.bound, -row.first_seen_s


def _network(host: str) -> str:
    """Return the network that counts as one address: of IPv6 a /64, which each host has whole."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return address.exploded[:19]
    return host
