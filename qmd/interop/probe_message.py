"""Messages of a probe: small, with one label, and short-lived."""

from __future__ import annotations

import time
from typing import NamedTuple

from protocol.flags import BaseFlags, PropertyFlags, TransactionFlags, UserFlags
from protocol.headers import (
    DIRECT_QUEUE,
    SIGNATURE,
    VERSION,
    BaseHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    TransactionHeader,
    UserHeader,
)
from protocol.identifiers import NULL_GUID
from protocol.message_class import MessageClass
from protocol.records import UserMessage
from protocol.text import wide_text

LABEL = "qmd interop probe"
LIFETIME_S = 3600
_BODY = b"probe"
_SHA_512, _AES_256 = 0x800E, 0x6610  # stated by every sender, also without a signature


class Wanted(NamedTuple):
    """The properties of a message; names are direct names without `DIRECT=`."""

    destination: str
    admin_queue: str  # of the acknowledgments, if any are requested
    number: int
    sequence: int
    delivery: int = 0
    position: tuple[int, int] | None = None  # in the sequence: number, and the number before it
    acknowledge: int = 0  # MessagePropertiesHeader.Flags
    age_s: int = 0  # how long ago it claims to have been sent
    reach_s: int = LIFETIME_S
    final_ack: bool = False


def build(source: bytes, wanted: Wanted) -> UserMessage:
    """Return the message of the queue manager `source`."""
    priority = 0 if wanted.position else 3
    base = BaseHeader(VERSION, 0, BaseFlags.of(priority=priority), SIGNATURE, 0, wanted.reach_s)
    return UserMessage(
        base, _user(source, wanted), _transaction(wanted), None, _properties(wanted), *(None,) * 4
    )


def _user(source: bytes, wanted: Wanted) -> UserHeader:
    flags = UserFlags.of(
        delivery=wanted.delivery,
        destination_type=DIRECT_QUEUE,
        admin_type=DIRECT_QUEUE if wanted.acknowledge else 0,
        transaction_header=int(wanted.position is not None),
        properties_header=1,
    )
    return UserHeader(
        source,
        NULL_GUID,
        LIFETIME_S,
        (int(time.time()) - wanted.age_s) & 0xFFFFFFFF,
        wanted.number,
        flags,
        _name(wanted.destination),
        _name(wanted.admin_queue) if wanted.acknowledge else None,
        None,
        None,
    )


def _transaction(wanted: Wanted) -> TransactionHeader | None:
    if wanted.position is None:
        return None
    flags = TransactionFlags.of(
        first=1, last=1, index=wanted.number & 0xFFFFF, final_ack=wanted.final_ack
    )
    return TransactionHeader(flags, wanted.sequence, *wanted.position, None)


def _properties(wanted: Wanted) -> MessagePropertiesHeader:
    return MessagePropertiesHeader(
        flags=PropertyFlags(wanted.acknowledge),
        label_length=0,
        message_class=MessageClass.NORMAL,
        correlation_id=bytes(20),
        body_type=0,
        application_tag=0,
        message_size=0,
        allocation_body_size=len(_BODY),
        privacy_level=0,
        hash_algorithm=_SHA_512,
        encryption_algorithm=_AES_256,
        extension_size=0,
        label=wide_text(LABEL),
        extension=b"",
        body=_BODY,
    )


def _name(text: str) -> DirectQueueName:
    name = wide_text(text)
    return DirectQueueName(len(name), name)
