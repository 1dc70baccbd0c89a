"""Deferred acknowledgments: they wait until the directory has resolved their public queue.

The message that causes one is itself acknowledged without waiting for the directory. A deferred
acknowledgment is therefore stored in the same commit as its cause, and waits until the directory
answers; if a message of another host asks for it, for at most `[consequences] age`.  That of an
express message is in memory only, as the message was.
Acknowledgments to one queue are sent in their order. If the directory does not contain the queue,
they are dropped, and that is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import parse_user_message
from protocol.identifiers import GUID_BYTES, guid_text
from protocol.names.format_name import PublicName
from qmd.core.packet_fields import is_express
from qmd.directory.interface import DirectoryAway
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import NO_LISTS
from qmd.queues.answer_limits import AskedFor
from storage.tables import unaddressed
from storage.tables.pages import EMPTY, Totals
from storage.tables.unaddressed import Unaddressed

if TYPE_CHECKING:
    from qmd.directory.resolver import Resolver
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.post import Post
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024  # of packets, which are in memory as well
SENT_AT_ONCE = 500  # of one queue, in one turn of the loop
SHARES = 4  # of these, a host gets the fourth part
ASKING_MAX = 8  # queues about which the directory is asked at once
RETRY_S = 1.0  # the least time between two queries about one queue


class _Waiting(NamedTuple):
    """One deferred acknowledgment."""

    id: int
    packet: bytes
    is_on_disk: bool
    asked: AskedFor | None = None  # the host that asks for it; None: an application here
    since_s: float = 0.0  # by the wall clock


class DeferredAcknowledgments:
    """The deferred acknowledgments by their queue; one task for each queue asks the directory."""

    def __init__(
        self, services: Services, recorder: Recorder, resolver: Resolver, destinations: Destinations
    ) -> None:
        self._services = services
        self._recorder = recorder
        self._resolver = resolver
        self._destinations = destinations
        self._waiting: dict[PublicName, list[_Waiting]] = {}
        self._tasks: dict[PublicName, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()  # set when the directory may answer otherwise
        self._next_id = 1
        self.count = 0
        self._bytes = 0
        self._shares: defaultdict[str, Totals] = defaultdict(lambda: EMPTY)  # of asking hosts
        self._asking = asyncio.Semaphore(ASKING_MAX)

    def connect(self, post: Post) -> None:
        """Set the collaborator that is created later."""
        self._post = post

    def restore(self, rows: Iterable[tuple[Unaddressed, bool]]) -> None:
        """Load the stored acknowledgments, each with whether it is intact; `start` sends them."""
        for row, is_whole in rows:
            self._next_id = row.id + 1
            name = PublicName(row.queue)
            if is_whole:
                asked = self._asked_by_source(row.packet)
                self._append(name, _Waiting(row.id, row.packet, True, asked, row.at_s))
            else:
                self._not_sent(name, [], "it is not what was stored on the disk")
                self._services.storage.batch.run(partial(unaddressed.remove, ids=[row.id]))

    def start(self) -> None:
        """Ask the directory about all queues with deferred acknowledgments."""
        for name in self._waiting:
            self._ask(name)

    def stop(self) -> None:
        """Cancel the queries; stored acknowledgments wait for the next start."""
        for task in self._tasks.values():
            task.cancel()

    def directory_changed(self) -> None:
        """Ask the directory again at once."""
        self._changed.set()
        self._changed.clear()

    def must_wait(self, name: PublicName, asked: AskedFor | None) -> bool:
        """Return whether the directory must be asked about a queue, or already is."""
        if name in self._waiting:
            return True
        try:
            self._destinations.route_name(name, for_acknowledgments=True, asked=asked)
        except MustAsk:
            return True
        except Refusal:
            pass  # sending it will report the same reason
        return False

    def add(self, name: PublicName, packet: bytes, batch: Batch, asked: AskedFor | None) -> None:
        """Send a packet when the directory has answered.

        `batch` is the open batch, which contains the message that it acknowledges. `asked` is set
        if a message of another host asks for it.
        """
        if asked is not None:
            used = self._shares[asked.by]
            if used.messages >= WAITING_MAX // SHARES or used.bytes > WAITING_BYTES_MAX // SHARES:
                self._not_sent(name, [packet], f"too many of {asked.by} wait for the directory")
                return
        if self.count >= WAITING_MAX or self._bytes + len(packet) > WAITING_BYTES_MAX:
            self._not_sent(name, [packet], "too many wait for the directory")
            return
        number, self._next_id = self._next_id, self._next_id + 1
        is_on_disk = not is_express(packet)
        at_s = int(self._services.environment.time())
        if is_on_disk:
            row = Unaddressed(number, name.queue, at_s, packet)
            batch.run(partial(unaddressed.add, row=row))
        self._append(name, _Waiting(number, packet, is_on_disk, asked, at_s))
        self._ask(name)

    def _append(self, name: PublicName, waiting: _Waiting) -> None:
        self._waiting.setdefault(name, []).append(waiting)
        self.count += 1
        self._bytes += len(waiting.packet)
        if waiting.asked is not None:
            before = self._shares[waiting.asked.by]
            size = before.bytes + len(waiting.packet)
            self._shares[waiting.asked.by] = Totals(before.messages + 1, size)

    def _ask(self, name: PublicName) -> None:
        if name not in self._tasks and not self._services.lifecycle.stopping:
            task = self._services.loop.create_task(self._ask_and_send(name))
            self._tasks[name] = task
            task.add_done_callback(partial(self._asked, name))

    def _asked(self, name: PublicName, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]

    async def _ask_and_send(self, name: PublicName) -> None:
        while True:
            try:
                async with self._asking:
                    await self._resolver.resolve(name)
            except DirectoryAway as error:
                self._expire(name)
                if name not in self._waiting:
                    return
                self._services.log_limited(
                    "acknowledgment_waits", str(name), code=error.code, reason=error.text
                )
                pause_s = max(self._services.settings.directory.pause_s, RETRY_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), pause_s)
                continue
            except Refusal as refusal:
                ended = self._take(name, len(self._waiting[name]), self._services.storage.batch)
                self._not_sent(name, [each.packet for each in ended], refusal.text)
                return
            if self._services.lifecycle.stopping:
                return
            await self._services.ids.ensure(SENT_AT_ONCE)
            batch = self._services.storage.batch
            for waiting in self._take(name, SENT_AT_ONCE, batch):
                dropped = self._post.send_packet(name, waiting.packet, batch, asked=waiting.asked)
                self._record(name, waiting.packet, dropped)
            if name not in self._waiting:
                return

    def _asked_by_source(self, packet: bytes) -> AskedFor | None:
        """Return the host that asks for a stored acknowledgment, by the source of its original."""
        source = parse_user_message(packet).properties.correlation_id[:GUID_BYTES]
        return None if source == self._services.id else AskedFor(guid_text(source))

    def _expire(self, name: PublicName) -> None:
        """End the first acknowledgments of a queue that other hosts ask for and that are old."""
        before_s = self._services.environment.time() - self._services.settings.consequences.age_s
        old = 0
        for waiting in self._waiting[name]:
            if waiting.asked is None or waiting.since_s > before_s:
                break
            old += 1
        if old:
            ended = self._take(name, old, self._services.storage.batch)
            self._not_sent(name, [each.packet for each in ended], "the directory did not answer")

    def _take(self, name: PublicName, count: int, batch: Batch) -> list[_Waiting]:
        """Remove the first `count` acknowledgments of a queue with this batch; return them."""
        waiting = self._waiting[name]
        taken, waiting[:count] = waiting[:count], []
        if not waiting:
            del self._waiting[name]
            self._tasks.pop(
                name, None
            )  # it ends in this turn; a later acknowledgment gets a new task
        self.count -= len(taken)
        self._bytes -= sum(len(each.packet) for each in taken)
        for each in taken:
            if each.asked is not None:
                before = self._shares.pop(each.asked.by)
                if before.messages > 1:
                    size = before.bytes - len(each.packet)
                    self._shares[each.asked.by] = Totals(before.messages - 1, size)
        on_disk = [each.id for each in taken if each.is_on_disk]
        if on_disk:
            batch.run(partial(unaddressed.remove, ids=on_disk))
        return taken

    def _not_sent(self, name: PublicName, packets: list[bytes], reason: str) -> None:
        count = max(len(packets), 1)
        self._services.log_limited(
            "acknowledgment_not_sent", str(name), queue=str(name), count=count, reason=reason
        )
        for packet in packets:
            self._record(name, packet, reason)

    def _record(self, name: PublicName, packet: bytes, dropped: str) -> None:
        """Record in the event log that a message was acknowledged, or why it was not."""
        recorder = self._recorder
        if not recorder.enabled:
            return
        properties = parse_user_message(packet).properties
        about = properties.correlation_id
        event = recorder.group(
            EventHeader(
                Kind.UNACKNOWLEDGED if dropped else Kind.ACKNOWLEDGED,
                message_class=properties.message_class,
                to_queue=str(name),
                reason=dropped,
            ),
            about[:GUID_BYTES],
            lists=NO_LISTS,
        )
        event.numbers.append(int.from_bytes(about[GUID_BYTES:], "little"))
