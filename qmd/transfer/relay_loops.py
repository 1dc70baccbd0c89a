"""Relay loops: relayed messages end when every way to their destination leads back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.message_class import MessageClass
from qmd.core.disposition import reason_text
from qmd.events.header import Kind
from storage.errors import StorageError

if TYPE_CHECKING:
    from qmd.outcomes.undeliverable import Undeliverable
    from qmd.peers.link import Link
    from qmd.peers.next_hop import NextHops
    from qmd.queues.outgoing_queue import OutgoingQueue
    from qmd.runtime.services import Services


class RelayLoops:
    """Ends the messages of outgoing queues of which each next hop has sent them here."""

    def __init__(
        self, services: Services, next_hops: NextHops, undeliverable: Undeliverable
    ) -> None:
        self._services = services
        self._next_hops = next_hops
        self._undeliverable = undeliverable
        self._ending: dict[OutgoingQueue, asyncio.Task[None]] = {}

    def end_relayed(self, link: Link) -> None:
        """End the relayed messages of a link: each possible next hop has sent some of them here."""
        if not self._next_hops.carriers(link):
            return  # without any way the destination may still connect
        for queue in link.queues:
            if queue.for_others and queue.messages and queue not in self._ending:
                reason = reason_text(
                    MessageClass.NACK_HOP_COUNT_EXCEEDED,
                    queue=queue.destination,
                    detail="every route from here leads back to where it came from",
                )
                self._ending[queue] = self._services.loop.create_task(self._end_all(queue, reason))

    def stop(self) -> None:
        """Cancel what is under way; a start finds the loop again."""
        for task in list(self._ending.values()):
            task.cancel()

    async def _end_all(self, queue: OutgoingQueue, reason: str) -> None:
        try:
            await self._undeliverable.end_all(
                queue, MessageClass.NACK_HOP_COUNT_EXCEEDED, reason, Kind.UNROUTABLE
            )
        except StorageError:
            pass  # the daemon stops
        finally:
            del self._ending[queue]
