"""Acknowledgments to public queues, of which the directory has yet to say where they are.

What asks for them is acknowledged without waiting for any directory; so they are on disk with what
they speak of, as far as that is (an express message's is in memory, as it was itself), until they
can be sent, however long the directory is away.  They go in their order; what the directory has not
got, it says, and then they end with a line in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import parse_user_message
from protocol.identifiers import GUID_BYTES
from protocol.names.format_name import PublicName
from qmd.core.packet_fields import is_express
from qmd.directory.interface import DirectoryAway
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.events.recorder import NO_LISTS
from storage.tables import unaddressed
from storage.tables.unaddressed import Unaddressed

if TYPE_CHECKING:
    from qmd.directory.resolver import Resolver
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.post import Post
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch

WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024  # of packets: they are in memory as well
SENT_AT_ONCE = 500  # of one queue, in one turn of the loop
RETRY_S = 1.0  # at least, and not before the directory may be asked again


class _Waiting(NamedTuple):
    id: int
    packet: bytes
    is_on_disk: bool


class DeferredAcknowledgments:
    """What waits, by the name of the queue that it is for; a task asks for each."""

    def __init__(
        self, services: Services, recorder: Recorder, resolver: Resolver, destinations: Destinations
    ) -> None:
        self._services = services
        self._recorder = recorder
        self._resolver = resolver
        self._destinations = destinations
        self._waiting: dict[PublicName, list[_Waiting]] = {}
        self._tasks: dict[PublicName, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()  # the directory may say something else now
        self._next_id = 1
        self.count = 0
        self._bytes = 0

    def connect(self, post: Post) -> None:
        """Name the collaborators that are made after it."""
        self._post = post

    def restore(self, rows: Iterable[tuple[Unaddressed, bool]]) -> None:
        """What was on disk; `start` asks for it, when there is a directory."""
        for row, is_whole in rows:
            self._next_id = row.id + 1
            name = PublicName(row.queue)
            if is_whole:
                self._append(name, _Waiting(row.id, row.packet, True))
            else:
                self._not_sent(name, [], "it is not what was stored on the disk")
                self._services.storage.batch.run(partial(unaddressed.remove, ids=[row.id]))

    def start(self) -> None:
        for name in self._waiting:
            self._ask(name)

    def stop(self) -> None:
        """What is on disk waits for the next start."""
        for task in self._tasks.values():
            task.cancel()

    def directory_changed(self) -> None:
        self._changed.set()
        self._changed.clear()

    def must_wait(self, name: PublicName) -> bool:
        """Whether it cannot be said at once where a queue is, or others wait for that before."""
        if name in self._waiting:
            return True
        try:
            self._destinations.route_name(name, for_acknowledgments=True)
        except MustAsk:
            return True
        except Refusal:
            pass  # whoever sends it says so
        return False

    def add(self, name: PublicName, packet: bytes, batch: Batch) -> None:
        """Send this as soon as the directory has answered; `batch` has what it speaks of."""
        if self.count >= WAITING_MAX or self._bytes + len(packet) > WAITING_BYTES_MAX:
            self._not_sent(name, [packet], "too many wait for the directory")
            return
        number, self._next_id = self._next_id, self._next_id + 1
        is_on_disk = not is_express(packet)
        if is_on_disk:
            at_s = int(self._services.environment.time())
            row = Unaddressed(number, name.queue, at_s, packet)
            batch.run(partial(unaddressed.add, row=row))
        self._append(name, _Waiting(number, packet, is_on_disk))
        self._ask(name)

    def _append(self, name: PublicName, waiting: _Waiting) -> None:
        self._waiting.setdefault(name, []).append(waiting)
        self.count += 1
        self._bytes += len(waiting.packet)

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
                await self._resolver.resolve(name)
            except DirectoryAway as error:
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
                dropped = self._post.send_packet(name, waiting.packet, batch)
                self._tell(name, waiting.packet, dropped)
            if name not in self._waiting:
                return

    def _take(self, name: PublicName, count: int, batch: Batch) -> list[_Waiting]:
        """The first of them: with this batch they wait no more."""
        here = self._waiting[name]
        taken, here[:count] = here[:count], []
        if not here:
            del self._waiting[name]
            self._tasks.pop(name, None)  # it ends in this turn; a later one gets a new task
        self.count -= len(taken)
        self._bytes -= sum(len(each.packet) for each in taken)
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
            self._tell(name, packet, reason)

    def _tell(self, name: PublicName, packet: bytes, dropped: str) -> None:
        """The history of what it speaks of says whom that was acknowledged to, or why not."""
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
