"""A packet in memory: its bytes, or a head of its own and a part that other packets share.

    bytes            an ordinary message
    SharedPacket     a copy: head ─┬─► Part: label, body and what stands behind them
                     a copy: head ─┘

Copies differ in what stands in front of the label: BaseHeader, UserHeader, TransactionHeader and
the fixed fields of the MessagePropertiesHeader.  All that is asked of a waiting packet
(stored_packet.py, patching.py) stands there, so `head_of` is enough for it.  `whole` makes bytes of
it, for as long as they are needed: a thousand copies that wait take the memory of one.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec

from protocol import properties_offset
from qmd.control_protocol.messages import StoredMessage

PROPERTIES_BYTES = 56  # of MessagePropertiesHeader before the label, [MS-MQMQ] 2.2.19.3


class Part:
    """The end of the packets of several messages; `id` is that of its row, 0: it has none."""

    __slots__ = ("__weakref__", "express_holders", "id", "packet")

    def __init__(self, part_id: int, packet: bytes) -> None:
        self.id = part_id
        self.packet = packet
        self.express_holders = 0  # express messages that go on with it


class SharedPacket:
    """One of several packets that end alike."""

    __slots__ = ("head", "part")

    def __init__(self, head: bytes, part: Part) -> None:
        self.head = head
        self.part = part

    def __len__(self) -> int:
        return len(self.head) + len(self.part.packet)

    def whole(self) -> bytes:
        return self.head + self.part.packet


Packet = bytes | SharedPacket


def whole(packet: Packet) -> bytes:
    return packet if isinstance(packet, bytes) else packet.head + packet.part.packet


def head_of(packet: Packet) -> bytes:
    """Bytes that have all of the fields at fixed places."""
    return packet if isinstance(packet, bytes) else packet.head


def express_added(packet: Packet) -> int:
    """Bytes of memory that one more express message takes; `express_removed` when it goes."""
    if isinstance(packet, bytes):
        return len(packet)
    part = packet.part
    part.express_holders += 1
    return len(packet.head) + (len(part.packet) if part.express_holders == 1 else 0)


def express_removed(packet: Packet) -> int:
    """Bytes of memory that are free without it."""
    if isinstance(packet, bytes):
        return len(packet)
    part = packet.part
    part.express_holders -= 1
    return len(packet.head) + (0 if part.express_holders else len(part.packet))


def part_of(packet: Packet) -> tuple[int, int] | None:
    """Id and bytes of the part that its row names."""
    return None if isinstance(packet, bytes) else (packet.part.id, len(packet.part.packet))


def split(packet: bytes) -> int:
    """Where the head of a packet ends."""
    return properties_offset(packet) + PROPERTIES_BYTES


def cut(packet: bytes, part_id: int) -> tuple[bytes, tuple[int, int]]:
    """Head and part of a whole packet, as its row has them."""
    end = split(packet)
    return packet[:end], (part_id, len(packet) - end)


class SharedMessage:
    """A message of a queue of ours, as its window has it."""

    __slots__ = ("packet", "stored")

    def __init__(self, stored: StoredMessage, packet: SharedPacket) -> None:
        self.stored = stored  # with the head as its packet
        self.packet = packet

    @property
    def lookup_id(self) -> int:
        return self.stored.lookup_id

    @property
    def expires_at_s(self) -> int | None:
        return self.stored.expires_at_s

    @property
    def arrived_at_ms(self) -> int:
        return self.stored.arrived_at_ms

    def whole(self) -> StoredMessage:
        return msgspec.structs.replace(self.stored, packet=self.packet.whole())


Held = StoredMessage | SharedMessage


def whole_message(held: Held) -> StoredMessage:
    return held.whole() if isinstance(held, SharedMessage) else held


def once_more_aborted(held: Held) -> Held:
    """The message, which remembers one more transaction that had received it and was aborted."""
    stored = held.stored if isinstance(held, SharedMessage) else held
    stored = msgspec.structs.replace(stored, abort_count=stored.abort_count + 1)
    return SharedMessage(stored, held.packet) if isinstance(held, SharedMessage) else stored


class Parts:
    """The parts that are in memory, each once."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Part] = WeakValueDictionary()

    def add(self, part: Part) -> None:
        self._known[part.id] = part

    def shared(self, packet: bytes, part_id: int) -> SharedPacket:
        """A packet that was read from the disk, whose end is that part."""
        end = split(packet)
        part = self._known.get(part_id)
        if part is None:
            part = self._known[part_id] = Part(part_id, packet[end:])
        return SharedPacket(packet[:end], part)

    def held(self, stored: StoredMessage, part_id: int) -> SharedMessage:
        """Likewise a message of a queue of ours."""
        packet = self.shared(stored.packet, part_id)
        return SharedMessage(msgspec.structs.replace(stored, packet=packet.head), packet)
