"""Redirection: sends the messages for one address to another, in order and exactly once.

A redirected outgoing queue keeps the name in its packets, its sequence and its numbers. Only the
address to dial changes, also for later messages to the old name. A host that has moved (the same
queue manager at another address) therefore accepts the messages that it does not have and rejects
the duplicates, because it detects duplicates by source and sequence.

A different queue manager does not know which messages the first one has accepted. The peer of
transactional messages is therefore stored on disk *before* they are transmitted. If a different
queue manager answers at the new address, messages that may have been delivered stay here until an
operator permits their transmission.

Two names of one queue have two sequences. qmd distinguishes them by the name in the packet; whether
other implementations do is not known, and one that replaces the older sequence by the younger would
lose messages. A redirect that would lead two sequences to one queue is therefore refused, unless
qmd answers there and the names in the packets, which contain no ports, differ.
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
from qmd.queues.outgoing_names import link_of
from qmd.queues.outgoing_queue import OutgoingQueue
from storage.tables import outgoing as outgoing_rows

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.peers.link import Link
    from qmd.peers.origins import Origins
    from qmd.peers.sessions import Peers
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

TO_ANOTHER = " anybody"  # suffix of the address if another queue manager may answer there

Value = dict[str, Any]


class Redirection:
    """The redirected outgoing queues, and the peers that their messages may go to."""

    def __init__(
        self,
        services: Services,
        origins: Origins,
        outgoing: OutgoingQueues,
        peers: Peers,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._origins = origins
        self._outgoing = outgoing
        self._peers = peers
        self._destinations = destinations
        self._storing: set[OutgoingQueue] = set()  # queues with a new peer that is not stored yet
        self._redirected: dict[OutgoingQueue, None] = {}

    async def redirect(
        self, destination: str, address: str, *, to_another: bool = False
    ) -> list[OutgoingQueue]:
        """Redirect one outgoing queue by its name, or all queues of an address.

        An empty `address` ends the redirection; `to_another` permits a different queue manager
        there. Return the queues.  Raises Refusal, without any change.
        """
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
        """Restore a queue that was redirected in an earlier run."""
        self._redirected[queue] = None
        queue.link = self._link_of(queue)

    def _link_of(self, queue: OutgoingQueue) -> Link:
        """Return the link to the new address of a redirected queue."""
        assert queue.redirect is not None
        hop = parse_hop(queue.redirect.removesuffix(TO_ANOTHER))
        return self._peers.link_to_address(hop.host, hop.port)

    def stands_for(self, name: FormatName) -> OutgoingQueue | None:
        """Return the redirected queue that sends to the same queue as a new name, or None.

        Both names then share one sequence.
        """
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
        """Return whether the transactional messages of a queue may go to the peer of the link.

        A new peer is stored on disk first; the queue is woken when that is durable.
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
                " could arrive at both. To send them nevertheless: qmd outgoing redirect"
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

    def _queues(self, destination: str) -> list[OutgoingQueue]:
        """Return one queue by its name, or all queues of an address.  Raises Refusal."""
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
        """Refuse a redirect that is impossible or would lead two sequences to one queue."""
        name = _direct_name(queue)
        if name is None or queue.for_others:
            raise Refusal(
                "redirect_not_direct",
                f"{queue.destination} has no address of its own that could be changed",
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
                    "Let the applications use one name. The waiting messages can be sent again"
                    f" as new ones: qmd outgoing purge '{queue.destination}', then qmd dead-letter"
                    " resend with the new name; check first whether some of them have arrived.",
                )

    def _is_qmd(self, queue: OutgoingQueue) -> bool:
        """Return whether the stored peer of a queue runs qmd."""
        return queue.known_peer is not None and self._origins.is_qmd(queue.known_peer)

    def _follow(self, queue: OutgoingQueue) -> None:
        """Use the link of the new address."""
        before = queue.link
        link = (
            link_of(self._peers, parse_format_name(queue.destination), None)
            if queue.redirect is None
            else self._link_of(queue)
        )
        queue.hindrance = ""
        if link is not before:
            if before.connection is not None:
                # Later acknowledgments of the old peer must not count for messages that are sent
                # to the new address.
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
        raise Refusal("bad_address", f"{address!r} is not an address: {error}") from error
    if not hop.host:
        raise Refusal("bad_address", f"{address!r} is not an address", "Give host or host:port.")
    return hop


def _text(hop: Hop) -> str:
    host = f"[{hop.host}]" if ":" in hop.host else hop.host
    return f"{host}:{hop.port}"
