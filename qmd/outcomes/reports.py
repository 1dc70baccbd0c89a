"""Reports about traced messages: one for each step on their way.

[MS-MQQB] 1.3.6, 3.1.5.8.9, 3.1.7.1.7. A DebugHeader names the queue for reports by a GUID, without
its computer. It is assumed to be on the computer that sent the message, where the GUIDs of its
queues are known. A report that finds no queue is dropped, as the specification requires.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from protocol import UserMessage, parse_user_message
from protocol.names.format_name import PublicName
from qmd.core.report import build_report
from qmd.events.header import EventHeader, Kind

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.outcomes.answer_ways import AnswerWays
    from qmd.outcomes.post import Post
    from qmd.queues.answer_limits import AnswerLimits
    from qmd.queues.peer_session import PeerSession
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


class Reports:
    """Sends reports. They are express messages, sent after the commit of the step."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        recorder: Recorder,
        destinations: Destinations,
        answer_ways: AnswerWays,
        answer_limits: AnswerLimits,
    ) -> None:
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
        batch = self._services.storage.batch
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
            asked = self._ways.asked(source, connection)._replace(via=source)
        if self._admission.is_full(len(report), express=True) is not None:
            return  # reports are for information only, and peers can ask for any number of them
        if asked is not None and not self._limits.take_copies(asked.by, 1):
            self._limits.count_not_made(asked.by, "too many reports")
            return
        if not self._post.send_packet(name, report, batch, asked=asked):
            self._recorder.record(
                EventHeader(Kind.REPORTED, to_queue=str(name)), [packet], batch=batch
            )


def time_date(at_s: int) -> str:
    """Return a time-date of [MS-MQQB] 3.1.5.8.9, such as `07:13:54 PM Sat,Nov 21 26`.

    It is in English and UTC, independent of the locale and the time zone of this computer.
    """
    at = time.gmtime(at_s)
    half = "PM" if at.tm_hour >= 12 else "AM"
    date = f"{_DAYS[at.tm_wday]},{_MONTHS[at.tm_mon - 1]} {at.tm_mday:02} {at.tm_year % 100:02}"
    return f"{(at.tm_hour + 11) % 12 + 1:02}:{at.tm_min:02}:{at.tm_sec:02} {half} {date}"
