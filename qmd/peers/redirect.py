"""What waits for a dead address goes to a new one: in order, and once.

A redirected outgoing queue stays what it is: the name in its packets, its sequence and its numbers.
Only the address that is dialled is another, and later messages to the old name take the same way.
So a host that has moved (the same queue manager at another address) takes what it has not, and
rejects what it has: its duplicates check goes by the source and the sequence.

Another queue manager knows nothing of what the first one has taken.  Whom transactional messages
were handed to is therefore on disk *before* they are; where somebody else answers at the new
address, what may have been delivered stays here until an operator says that it shall go all the
same.  Two names of one queue have two sequences.  qmd tells them apart by the name in the packet;
of others that is not known, and where they give up the older sequence for the younger it would be
lost: a redirect that would bring two together is refused, unless qmd answers there and the names
differ in packets, which bear no ports.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from protocol.errors import InvalidName
from protocol.identifiers import guid_text
from protocol.names.direct_name import PORT, DirectName
from protocol.names.format_name import FormatName, parse_format_name
from qmd.config.route_rules import Hop, parse_hop
from qmd.errors import Refusal
from qmd.queues.outgoing_queue import OutgoingQueue
from storage.tables import outgoing as outgoing_rows

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.peers.link import Link
    from qmd.peers.sessions import Peers
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

TO_ANOTHER = " anybody"  # behind the address of a redirect that is for another queue manager too

Value = dict[str, Any]


class Redirection:
    """Addresses that stand for others."""

    def __init__(
        self,
        services: Services,
        identities: IdentityConflicts,
        outgoing: OutgoingQueues,
        peers: Peers,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._identities = identities
        self._outgoing = outgoing
        self._peers = peers
        self._destinations = destinations
        self._storing: set[OutgoingQueue] = set()  # the disk is stored whom they are handed to
        self._redirected: dict[OutgoingQueue, None] = {}

    async def redirect(
        self, destination: str, address: str, *, to_another: bool = False
    ) -> list[OutgoingQueue]:
        """The queues that go elsewhere from now on.  Raises Refusal; then none does."""
        queues = self._queues(destination)
        hop = _hop(address) if address else None
        for queue in queues:
            self._check(queue, hop)
        text = None if hop is None else _text(hop) + (TO_ANOTHER if to_another else "")
        await self._services.storage.batch.run(
            partial(
                outgoing_rows.redirect,
                outgoing_ids=[queue.id for queue in queues],
                address=text,
            )
        )
        for queue in queues:
            queue.redirect = text
            if text is None:
                self._redirected.pop(queue, None)
            else:
                self._redirected[queue] = None
            self._follow(queue)
            log.info(
                "outgoing_redirected",
                destination=queue.destination,
                address=address or "its own",
                messages=queue.messages,
            )
        return queues

    def restored(self, queue: OutgoingQueue) -> None:
        """A queue that was redirected in an earlier run."""
        self._redirected[queue] = None
        queue.link = self._link_of(queue)

    def _link_of(self, queue: OutgoingQueue) -> Link:
        assert queue.redirect is not None
        hop = parse_hop(queue.redirect.removesuffix(TO_ANOTHER))
        return self._peers.link_to_address(hop.host, hop.port)

    def stands_for(self, name: FormatName) -> OutgoingQueue | None:
        """The redirected queue that a new name leads to as well: one queue, one sequence."""
        if not isinstance(name, DirectName):
            return None
        for queue in self._redirected:
            if queue.for_others:
                continue
            assert queue.redirect is not None
            hop = parse_hop(queue.redirect.removesuffix(TO_ANOTHER))
            its = _direct_name(queue)
            if (
                its is not None
                and its.local_path.key == name.local_path.key
                and (hop.host.casefold(), hop.port)
                == (name.host.casefold().strip("[]"), name.port or PORT)
            ):
                return queue
        return None

    def may_transmit(self, queue: OutgoingQueue, link: Link) -> bool:
        """Whether its transactional messages may go to whom the link leads to.

        If that is somebody new, the disk is stored first.
        """
        remote = link.remote_id
        if (
            queue.for_others
            or link.carrier is not None
            or remote is None
            or not queue.sequence.outstanding
            or queue.known_peer == remote
        ):
            queue.hindrance = ""
            return True
        if (
            queue.redirect is not None
            and queue.known_peer is not None
            and not queue.redirect.endswith(TO_ANOTHER)
        ):
            queue.hindrance = (
                f"Another queue manager ({guid_text(remote)}) answers at {link.name} than the one"
                f" that may have taken some of these messages ({guid_text(queue.known_peer)}): they"
                " could arrive at both. If they shall go all the same: qmd outgoing redirect"
                f" '{queue.destination}' {link.name} --to-another"
            )
            return False
        if queue not in self._storing:
            self._storing.add(queue)
            stored = self._services.storage.batch.run(
                partial(outgoing_rows.set_peers, outgoing_ids=[queue.id], peer=remote)
            )
            stored.add_done_callback(partial(self._peer_stored, queue, remote))
        return False

    def _peer_stored(self, queue: OutgoingQueue, remote: bytes, done: asyncio.Future[None]) -> None:
        self._storing.discard(queue)
        if done.cancelled() or done.exception() is not None:
            return  # the storage failed, and the daemon stops
        queue.known_peer = remote
        queue.link.wake()

    # Within.

    def _queues(self, destination: str) -> list[OutgoingQueue]:
        """One by its name, or all of an address."""
        if "\\" in destination or "=" in destination:
            return [self._destinations.find_outgoing(destination)]
        hop = _hop(destination)
        found = [
            queue
            for queue in self._outgoing.queues
            if not queue.for_others
            and (name := _direct_name(queue)) is not None
            and (name.host.casefold().strip("[]"), name.port or PORT)
            == (hop.host.casefold(), hop.port)
        ]
        if not found:
            raise Refusal(
                "no_such_outgoing_queue",
                f"there is no outgoing queue to a queue at {destination}",
                "See `qmd outgoing list`; a queue appears with its first message.",
            )
        return found

    def _check(self, queue: OutgoingQueue, hop: Hop | None) -> None:
        name = _direct_name(queue)
        if name is None or queue.for_others:
            raise Refusal(
                "redirect_not_direct",
                f"{queue.destination} has no address of its own that could be another",
                "Only queues to DIRECT= names can be redirected; for others see [routing] and the"
                " directory.",
            )
        if hop is None:
            return
        for other in self._outgoing.queues:
            its = _direct_name(other)
            if (
                other is not queue
                and not other.for_others
                and its is not None
                and its.local_path.key == name.local_path.key
                and (its.host.casefold().strip("[]"), its.port or PORT)
                == (hop.host.casefold(), hop.port)
                and (other.sequence.base or other.sequence.next_number > 1)
                and (queue.sequence.base or queue.sequence.next_number > 1)
                and not (self._is_qmd(other) and its.wire_text() != name.wire_text())
            ):
                raise Refusal(
                    "redirect_two_sequences",
                    f"{other.destination} has a sequence of its own already: messages of"
                    f" {queue.destination} would arrive at one queue in two sequences, of which"
                    " the receiver may give up the older one",
                    "Let the applications use one name. What waits can be sent again as new"
                    f" messages: qmd outgoing purge '{queue.destination}', then qmd dead-letter"
                    " resend with the new name; look first whether some of it has arrived.",
                )

    def _is_qmd(self, queue: OutgoingQueue) -> bool:
        """Whether its transactional messages were handed to a queue manager that runs qmd."""
        return queue.known_peer is not None and self._identities.is_qmd(queue.known_peer)

    def _follow(self, queue: OutgoingQueue) -> None:
        """Take the way that its row says."""
        before = queue.link
        link = (
            self._outgoing.link_of_name(queue.destination)
            if queue.redirect is None
            else self._link_of(queue)
        )
        queue.hindrance = ""
        if link is not before:
            if before.connection is not None:
                # What it acknowledges from here on must not be taken for an answer to what follows.
                before.connection.close("its messages go to another address")
            del before.queues[queue]
            queue.link = link
            link.queues[queue] = None
            queue.new_pass("it was redirected", transactional_only=False)
        link.kick()
        link.wake()


def _direct_name(queue: OutgoingQueue) -> DirectName | None:
    try:
        name = parse_format_name(queue.destination)
    except InvalidName:
        return None
    return name if isinstance(name, DirectName) else None


def _hop(address: str) -> Hop:
    try:
        hop = parse_hop(address)
    except ValueError as error:
        raise Refusal("bad_address", f"{address!r} is no address: {error}") from error
    if not hop.host:
        raise Refusal("bad_address", f"{address!r} is no address", "Give host or host:port.")
    return hop


def _text(hop: Hop) -> str:
    host = f"[{hop.host}]" if ":" in hop.host else hop.host
    return f"{host}:{hop.port}"
