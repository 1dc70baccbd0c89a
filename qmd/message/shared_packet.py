"""Packets in memory: complete bytes, or a head with a part that other packets share.

    bytes            an ordinary message
    SharedPacket     a copy: head ─┬─► Part: label, body and the headers after them
                     a copy: head ─┘

Copies differ in the bytes before the label: BaseHeader, UserHeader, TransactionHeader and the fixed
fields of the MessagePropertiesHeader. All fields of a waiting packet that are read or patched
(packet_fields.py, protocol/patching.py) are there, so `head_of` is enough for them. `whole` builds
the complete bytes, for as long as they are needed: a thousand waiting copies take the memory of
one.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec

from protocol import properties_offset
from qmd.control_protocol.messages import StoredMessage

PROPERTIES_BYTES = 56  # of MessagePropertiesHeader before the label, [MS-MQMQ] 2.2.19.3


class Part:
    """The shared end of the packets of several messages; `id` is the id of its row, 0: none."""

    __slots__ = ("__weakref__", "express_holders", "id", "packet")

    def __init__(self, part_id: int, packet: bytes) -> None:
        self.id = part_id
        self.packet = packet
        self.express_holders = 0  # express messages that use it


class SharedEnd:
    """The common end of packets that are made one after the other; the first one sets the part."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        self.part: Part | None = None


class SharedPacket:
    """A packet that shares its end with others."""

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
    """Return the bytes that contain all fields at fixed offsets."""
    return packet if isinstance(packet, bytes) else packet.head


def express_added(packet: Packet) -> int:
    """Return the memory in bytes for one more express message; later call `express_removed`."""
    if isinstance(packet, bytes):
        return len(packet)
    part = packet.part
    part.express_holders += 1
    return len(packet.head) + (len(part.packet) if part.express_holders == 1 else 0)


def express_removed(packet: Packet) -> int:
    """Return the memory in bytes that the removal of an express message frees."""
    if isinstance(packet, bytes):
        return len(packet)
    part = packet.part
    part.express_holders -= 1
    return len(packet.head) + (0 if part.express_holders else len(part.packet))


def part_of(packet: Packet) -> tuple[int, int] | None:
    """Return id and size of the part named in the packet's row; None: there is no shared part."""
    return None if isinstance(packet, bytes) else (packet.part.id, len(packet.part.packet))


def split(packet: bytes) -> int:
    """Return the offset where the head of a packet ends."""
    return properties_offset(packet) + PROPERTIES_BYTES


def cut(packet: bytes, part_id: int) -> tuple[bytes, tuple[int, int]]:
    """Return head and part of a complete packet, as stored in its row."""
    end = split(packet)
    return packet[:end], (part_id, len(packet) - end)


class SharedMessage:
    """A message of a local queue, as held in its ready window."""

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
    """Return the message with its abort count increased by one."""
    stored = held.stored if isinstance(held, SharedMessage) else held
    stored = msgspec.structs.replace(stored, abort_count=stored.abort_count + 1)
    return SharedMessage(stored, held.packet) if isinstance(held, SharedMessage) else stored


class Parts:
    """The shared parts in memory, each once."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Part] = WeakValueDictionary()

    def add(self, part: Part) -> None:
        self._known[part.id] = part

    def shared(self, packet: bytes, part_id: int) -> SharedPacket:
        """Return the shared form of a packet read from the disk, with that part as its end."""
        end = split(packet)
        part = self._known.get(part_id)
        if part is None:
            part = self._known[part_id] = Part(part_id, packet[end:])
        return SharedPacket(packet[:end], part)

    def held(self, stored: StoredMessage, part_id: int) -> SharedMessage:
        """Return the shared form of a message of a local queue."""
        packet = self.shared(stored.packet, part_id)
        return SharedMessage(msgspec.structs.replace(stored, packet=packet.head), packet)
