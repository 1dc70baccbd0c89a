"""The kinds of events, and the header that all messages of one event share.

docs/events.md describes the kinds and the fields for readers of the event log.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple

#: At byte 16 of a packet: SourceQueueManager, and MessageId behind TimeToBeReceived, SentTime and
#: QueueManagerAddress.  [MS-MQMQ] 2.2.19.2
IDENTITY = struct.Struct("<16s24xI")
IDENTITY_OFFSET = 16

#: Values of the field `delivery`, by the numbers in qmd/control_protocol/messages.py.
DELIVERIES = ("express", "recoverable", "transactional")


class Kind(enum.StrEnum):
    """The kinds of events.  The names are part of the schema of events and never change.

    The order is that of a message's life: events of one message in one batch are written in this
    order.
    """

    RESTORED = "restored"  # the first start with a restored folder: the log has another history
    STARTED = "started"  # the daemon started: earlier express messages are gone
    MET = "met"  # a session with another run of a queue manager than before, which `peer` names
    DISK_FULL = "disk_full"  # new messages are refused from now on
    ACCESS_REFUSED = "access_refused"  # a client lacked a right; the reason has both
    DISK_HAS_ROOM = "disk_has_room"  # new messages are accepted again; the reason has the duration
    DELAYED = "delayed"  # accepted from an application, to be sent at the time in the reason
    CANCELLED = "cancelled"  # a delayed message was removed, and will not be sent
    UNSENDABLE = "unsendable"  # a delayed message cannot be sent at its time: the reason says why
    SENT = "sent"  # by an application, into a local queue or an outgoing queue
    IMPORTED = "imported"
    STORED = "stored"  # an express message was written to disk because a reader reserved it
    TRANSMITTED = "transmitted"
    RETRANSMITTED = "retransmitted"
    OUT_OF_ORDER = "out_of_order"  # came too early; the sender will send it again
    RELAYED = "relayed"  # from a second computer, for a third one, into an outgoing queue here
    ACCEPTED = "accepted"  # from another computer, into a local queue
    DUPLICATE = "duplicate"  # came again, and was not kept again
    REFUSED = "refused"  # came, and was not put into its queue; the class and the reason say why
    SESSION_ACKNOWLEDGED = "session_acknowledged"  # the other computer has a message without order
    ORDER_ACKNOWLEDGED = "order_acknowledged"  # the other computer has a transactional message
    AWAITING = "awaiting"  # is kept until an application there has received it
    FINAL_ACK_RECEIVED = "final_ack_received"  # a negative one: it will not be received there
    CONFIRMED = "confirmed"  # an application at the destination has received it
    UNCONFIRMED = "unconfirmed"  # no final ack came within the interval
    LATE_CONFIRMATION = "late_confirmation"  # a final ack came after the interval
    NOTED = "noted"  # a client has recorded the reason, which names the client
    ABORTED = "aborted"  # was taken, and is back at its place
    MOVED = "moved"
    RECEIVED = "received"  # by an application: it has left its queue
    EXPIRED = "expired"  # its time to live ended
    UNROUTABLE = "unroutable"  # was to be relayed, and no route leads on
    PURGED = "purged"
    QUEUE_DELETED = "queue_deleted"
    REJECTED = "rejected"  # by its receiving application
    REQUEUED = "requeued"  # sent again as another message
    DAMAGED = "damaged"  # differs from the bytes that were stored, and was set aside
    LOST = "lost"  # an express message that ended with the process
    VANISHED = "vanished"  # its row is in the database no more, and nothing has ended it
    JOURNALED = "journaled"  # a copy was kept in `to_queue`
    JOURNAL_FULL = "journal_full"  # no copy was kept: its quota is reached
    DEAD_LETTERED = "dead_lettered"  # is in `to_queue` now
    DISCARDED = "discarded"  # ended, and no dead letter was requested
    FINAL_ACK_SENT = "final_ack_sent"
    ACKNOWLEDGED = "acknowledged"  # an acknowledgment message went to `to_queue`
    UNACKNOWLEDGED = "unacknowledged"  # one was requested, and `to_queue` does not take it
    REPORTED = "reported"  # a report message went to `to_queue`


class EventHeader(NamedTuple):
    """The fields that all messages of one event share, except their source.

    The fields are those of `storage.tables.events.Event`.  A header is also the key by which the
    recorder finds the event of the open batch to which a message is added.
    """

    kind: Kind
    queue: str = ""
    peer: str = ""
    sequence_id: int = 0
    message_class: int = 0
    reason: str = ""
    to_queue: str = ""
    transaction: str = ""
    delivery: str = ""


def identity_of(packet: bytes) -> tuple[bytes, int]:
    """Return the identity of the message in a packet: its source queue manager and its number."""
    source, number = IDENTITY.unpack_from(packet, IDENTITY_OFFSET)
    return source, number


def runs_of_sources(packets: Sequence[bytes]) -> Iterator[tuple[bytes, int, list[int]]]:
    """Yield adjacent packets of one source: the source, the first index, and their numbers."""
    identities = list(map(IDENTITY.unpack_from, packets, repeat(IDENTITY_OFFSET)))
    if identities:
        sources, all_numbers = zip(*identities, strict=True)
        if sources.count(sources[0]) == len(sources):  # mostly
            yield sources[0], 0, list(all_numbers)
            return
    first = 0
    for source, run in groupby(identities, itemgetter(0)):
        numbers = [number for _, number in run]
        yield source, first, numbers
        first += len(numbers)
