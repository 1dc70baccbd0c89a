"""The flag words of the headers: integers with named bit ranges.

A flag word is an `int`, so it preserves unknown and reserved bits, and so does a packet that is
built again.  Bits are counted from the least significant one, as in the specification's tables
(MS-MQMQ 2.2.19, MS-MQQB 2.2).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class BitRange(property):
    """A range of `width` bits of a flag word, from bit `low` upwards, read as a number."""

    def __init__(self, low: int, width: int) -> None:
        mask = (1 << width) - 1
        super().__init__(lambda word: word >> low & mask)
        self.low = low
        self.mask = mask


def bits(low: int, width: int = 1) -> Any:
    """Declare a named range; `Any` allows `priority: int = bits(0, 3)` in the class body."""
    return BitRange(low, width)


class FlagWord(int):
    """An integer with named bit ranges; subclasses declare the ranges."""

    __slots__ = ()
    ranges: ClassVar[dict[str, BitRange]] = {}

    def __init_subclass__(cls) -> None:
        cls.ranges = {name: it for name, it in vars(cls).items() if isinstance(it, BitRange)}

    @classmethod
    def of(cls, **values: int) -> Self:
        """Return the word with these ranges set and every other bit clear."""
        return cls(0).replace(**values)

    def replace(self, **values: int) -> Self:
        """Return the same word with these ranges replaced.  Raises ValueError if a value does not
        fit.
        """
        word = int(self)
        for name, value in values.items():
            place = type(self).ranges[name]
            if not 0 <= value <= place.mask:
                raise ValueError(f"{name} is 0..{place.mask}, not {value}")
            word = word & ~(place.mask << place.low) | value << place.low
        return type(self)(word)

    def __getitem__(self, name: str) -> int:
        # For construct, which evaluates `this.flags.priority` as a lookup by name.
        return type(self).ranges[name].fget(self)  # type: ignore[misc,no-any-return]

    def __repr__(self) -> str:
        named = ", ".join(f"{name}={self[name]}" for name in type(self).ranges if self[name])
        return f"{type(self).__name__}({int(self):#x}: {named})"


class BaseFlags(FlagWord):
    """BaseHeader.Flags, 16 bits (MS-MQMQ 2.2.19.1)."""

    __slots__ = ()
    priority: int = bits(0, 3)  # PR: 0..7, 7 is the highest; 0 in a transactional message
    internal: int = bits(3)  # IN: EstablishConnection, ConnectionParameters, SessionAck
    session_header: int = bits(4)  # SH
    debug_header: int = bits(5)  # DH
    tracing: int = bits(8)  # TR


class InternalFlags(FlagWord):
    """InternalHeader.Flags, 16 bits (MS-MQQB 2.2.1)."""

    __slots__ = ()
    packet_type: int = bits(0, 4)  # PT: 1 SessionAck, 2 EstablishConnection, 3 ConnectionParameters
    connection_refused: int = bits(4)  # CS


class OperatingSystem(FlagWord):
    """EstablishConnectionHeader.OperatingSystem, 16 bits (MS-MQQB 2.2.3.1)."""

    __slots__ = ()
    constant: int = bits(0, 8)  # RE: 0x10
    no_ping: int = bits(8)  # SE: 1 if no ping was sent before this session
    server: int = bits(9)  # OS: the initiator runs a server-class operating system
    quality_of_service: int = bits(10)  # QS


class UserFlags(FlagWord):
    """UserHeader.Flags, 32 bits (MS-MQMQ 2.2.19.2)."""

    __slots__ = ()
    hops: int = bits(0, 5)  # RC: routing servers passed, 0..29
    delivery: int = bits(5, 2)  # DM: 0 express, 1 recoverable (and every transactional message)
    negative_journal: int = bits(8)  # JN
    positive_journal: int = bits(9)  # JP
    destination_type: int = bits(10, 3)  # DQ
    admin_type: int = bits(13, 3)  # AQ
    response_type: int = bits(16, 3)  # RQ
    security_header: int = bits(19)  # SH
    transaction_header: int = bits(20)  # TH
    properties_header: int = bits(21)  # MP: always set
    connector_type: int = bits(22)  # CQ
    multi_queue_header: int = bits(23)  # MQ
    http_header: int = bits(25)  # AH: came over HTTP; never set on this wire
    soap_header: int = bits(28)  # HH


class TransactionFlags(FlagWord):
    """TransactionHeader.Flags, 32 bits (MS-MQMQ 2.2.20.5)."""

    __slots__ = ()
    connector: int = bits(0)  # CG: a connector queue manager's GUID follows
    final_ack: int = bits(1)  # FA: a final ack is requested
    first: int = bits(2)  # FM: first message of its transaction
    last: int = bits(3)  # LM: last message of its transaction
    index: int = bits(4, 20)  # ID: the number of the transaction at the sender


class SecurityFlags(FlagWord):
    """SecurityHeader.Flags, 16 bits (MS-MQMQ 2.2.20.6)."""

    __slots__ = ()
    sender_type: int = bits(0, 4)  # ST: 0 no sender id, 1 SID, 2 queue manager's GUID
    authenticated: int = bits(4)  # AU: never trusted
    body_encrypted: int = bits(5)  # EB
    default_provider: int = bits(6)  # DE
    data_present: int = bits(7)  # AI: the sizes decide, not this bit
    signature_type: int = bits(8, 4)  # AS: never trusted


class PropertyFlags(FlagWord):
    """MessagePropertiesHeader.Flags, 8 bits: the requested acknowledgments (MS-MQMQ 2.2.19.3)."""

    __slots__ = ()
    positive_arrival: int = bits(0)  # PA
    positive_receive: int = bits(1)  # PR
    negative_arrival: int = bits(2)  # NA
    negative_receive: int = bits(3)  # NR


class DebugFlags(FlagWord):
    """DebugHeader.Flags, 16 bits (MS-MQMQ 2.2.20.8)."""

    __slots__ = ()
    queue_type: int = bits(0, 2)  # QT: 0 no queue, 1 public queue


class PingFlags(FlagWord):
    """Ping.Flags, 16 bits (MS-MQQB 2.2.7); the other bits are ignored."""

    __slots__ = ()
    not_server: int = bits(0)  # RC: the initiator does not run a server-class operating system
    refused: int = bits(1)  # RF: a session would be rejected
