"""Reports about traced messages: one for each step on their way.

[MS-MQQB] 1.3.6, 3.1.5.8.9, 3.1.7.1.7. A DebugHeader names the queue for reports by a GUID, without
its computer. It is a queue of this computer, or a public queue that the directory knows. One that
neither knows is assumed to be on the computer that sent the message, where the GUIDs of its queues
are known. A report that finds no queue is dropped, as the specification requires.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol import UserMessage, parse_user_message
from protocol.names.format_name import PublicName
from qmd.core.report import build_report
from qmd.directory.interface import DirectoryAway
from qmd.directory.resolver import MustAsk
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.message.shared_packet import Packet, whole

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from qmd.directory.resolver import Resolver
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.answer_ways import AnswerWays
    from qmd.outcomes.post import Post
    from qmd.queues.answer_limits import AnswerLimits, AskedFor
    from qmd.queues.peer_session import PeerSession
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


ASKING_MAX = 64  # reports that wait for the directory
AT_ONCE = 16  # reports in one turn of the loop, about many messages of an application


class _Unaddressed(NamedTuple):
    """A report about `packet`, of which only the directory may know the queue."""

    name: PublicName
    report: bytes
    packet: bytes
    source: bytes
    asked: AskedFor | None


class Reports:
    """Sends reports. They are express messages, sent after the commit of the step."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        recorder: Recorder,
        resolver: Resolver,
        destinations: Destinations,
        answer_ways: AnswerWays,
        answer_limits: AnswerLimits,
    ) -> None:
        self._resolver = resolver
        self._asking: set[asyncio.Task[None]] = set()
        self._reporting: set[asyncio.Task[None]] = set()
        self._services = services
        self._ways = answer_ways
        self._limits = answer_limits
        self._admission = admission
        self._recorder = recorder
        self._destinations = destinations

    def connect(self, post: Post) -> None:
        """Set the collaborator that is created later."""
        self._post = post

    def arrived(
        self,
        message: UserMessage,
        packet: bytes,
        batch: Batch,
        connection: PeerSession | None = None,
    ) -> None:
        """Report, after the open batch, that a message has arrived in its queue here.

        `connection` is the session that brought it; None: an application here has sent it.
        """
        batch.when_durable(partial(self._report, message, packet, None, connection))

    def all_arrived(self, packets: Sequence[Packet], batch: Batch) -> None:
        """Report, after the open batch, that messages of an application here have arrived here.

        This takes many turns of the loop: a report takes 60 µs.
        """
        batch.when_durable(partial(self._begin, self._report_all(packets)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._services.lifecycle.stopping:
            work.close()
            return
        task = self._services.loop.create_task(work)
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _report_all(self, packets: Sequence[Packet]) -> None:
        for start in range(0, len(packets), AT_ONCE):
            some = packets[start : start + AT_ONCE]
            await self._services.ids.ensure(len(some))
            for packet in map(whole, some):
                self._report(parse_user_message(packet), packet, None)
            await asyncio.sleep(0)

    def sent(self, packets: list[bytes], address: str) -> None:
        """Report packets that were handed to the session with the peer at an IP address."""
        for packet in packets:
            self._report(parse_user_message(packet), packet, address)

    def _report(
        self,
        message: UserMessage,
        packet: bytes,
        next_hop: str | None,
        connection: PeerSession | None = None,
    ) -> None:
        """Send a report, if the message names a queue for reports; None: it has arrived."""
        if message.debug is None or message.debug.queue is None:
            return
        source, name = message.user.source_queue_manager, PublicName(message.debug.queue)
        now_s = int(self._services.environment.time())
        report = build_report(
            message,
            target=self._destinations.describe(message),
            next_hop=next_hop,
            own_id=self._services.id,
            addressee=source,
            message_number=self._services.ids.next_message_number(),
            sent_time=now_s,
            at=time_date(now_s),
        )
        asked = None
        if source != self._services.id or connection is not None:
            asked = self._ways.asked(source, connection)
        if self._admission.is_full(len(report), express_bytes=len(report)) is not None:
            return  # reports are for information only, and peers can ask for any number of them
        if asked is not None and not self._limits.take_copies(asked.by, 1):
            self._limits.count_not_made(asked.by, "too many reports")
            return
        try:
            self._destinations.route_name(name, for_acknowledgments=True, asked=asked)
        except MustAsk:
            self._ask(_Unaddressed(name, report, packet, source, asked))
            return
        except Refusal:
            asked = asked and asked._replace(via=source)
        self._send(name, report, packet, asked)

    def _send(self, name: PublicName, report: bytes, packet: bytes, asked: AskedFor | None) -> None:
        """Send a report about `packet` with the open batch."""
        batch = self._services.storage.batch
        if not self._post.send_packet(name, report, batch, asked=asked):
            self._recorder.record(
                EventHeader(Kind.REPORTED, to_queue=str(name)), [packet], batch=batch
            )

    def _ask(self, waiting: _Unaddressed) -> None:
        """Send a report when the directory has answered; drop it if too many wait for that."""
        if len(self._asking) >= ASKING_MAX or self._services.lifecycle.stopping:
            return
        task = self._services.loop.create_task(self._ask_and_send(waiting))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_and_send(self, waiting: _Unaddressed) -> None:
        asked = waiting.asked
        try:
            await self._resolver.resolve(waiting.name)
        except DirectoryAway:
            return  # reports are express messages: none waits for the directory
        except Refusal:
            asked = asked and asked._replace(via=waiting.source)
        if not self._services.lifecycle.stopping:
            await self._services.ids.ensure(1)
            self._send(waiting.name, waiting.report, waiting.packet, asked)

    def stop(self) -> None:
        """Drop the reports that are not sent yet."""
        for task in self._asking | self._reporting:
            task.cancel()


def time_date(at_s: int) -> str:
    """Return a time-date of [MS-MQQB] 3.1.5.8.9, such as `07:13:54 PM Sat,Nov 21 26`.

    It is in English and UTC, independent of the locale and the time zone of this computer.
    """
    at = time.gmtime(at_s)
    half = "PM" if at.tm_hour >= 12 else "AM"
    date = f"{_DAYS[at.tm_wday]},{_MONTHS[at.tm_mon - 1]} {at.tm_mday:02} {at.tm_year % 100:02}"
    return f"{(at.tm_hour + 11) % 12 + 1:02}:{at.tm_min:02}:{at.tm_sec:02} {half} {date}"
