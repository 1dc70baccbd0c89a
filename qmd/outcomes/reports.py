"""Traced messages: a report for each step on their way.  [MS-MQQB] 1.3.6, 3.1.5.8.9, 3.1.7.1.7

A DebugHeader names the queue for reports by a GUID, and we have no directory that knows where it
is.  It is taken to be on the computer that sent the message; there the GUIDs of our queues are
known.  A report that finds no queue is dropped, as the specification has it.
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
    from qmd.outcomes.post import Post
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from storage.engine.batch import Batch


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


class Reports:
    """Sends reports; they are express, and leave once what they tell of is on disk."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        recorder: Recorder,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._admission = admission
        self._recorder = recorder
        self._destinations = destinations

    def connect(self, post: Post) -> None:
        """Name the collaborators that are made after it."""
        self._post = post

    def arrived(self, message: UserMessage, packet: bytes, batch: Batch) -> None:
        """A message goes into its queue here with the open batch."""
        batch.when_durable(partial(self._report, message, packet, None))

    def sent(self, packets: list[bytes], address: str) -> None:
        """Messages were handed to the session with the queue manager at an IP address."""
        for packet in packets:
            self._report(parse_user_message(packet), packet, address)

    def _report(self, message: UserMessage, packet: bytes, next_hop: str | None) -> None:
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
        via = None if source == self._services.id else source
        if self._admission.is_full(len(report), express=True) is not None:
            return  # reports are for information only, and peers can ask for any number of them
        if not self._post.send_packet(name, report, batch, via=via):
            self._recorder.record(
                EventHeader(Kind.REPORTED, to_queue=str(name)), [packet], batch=batch
            )


def time_date(at_s: int) -> str:
    """time-date of [MS-MQQB] 3.1.5.8.9: English and UTC, whatever this computer's locale and zone.

    `07:13:54 PM Sat,Nov 21 26`
    """
    at = time.gmtime(at_s)
    half = "PM" if at.tm_hour >= 12 else "AM"
    date = f"{_DAYS[at.tm_wday]},{_MONTHS[at.tm_mon - 1]} {at.tm_mday:02} {at.tm_year % 100:02}"
    return f"{(at.tm_hour + 11) % 12 + 1:02}:{at.tm_min:02}:{at.tm_sec:02} {half} {date}"
