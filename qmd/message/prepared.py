"""Packets that are made before their messages get a place: one for each delivery of the copies."""

from __future__ import annotations

from protocol import patch_sequence, transaction_offset

#: By delivery, the packet of the message, or of the first of its copies.
PreparedPackets = dict[int, bytes]

#: The position in packets of an outgoing sequence until they get their own one.
UNPLACED = (1, 1)


def placed(packet: bytes, position: tuple[int, int] | None) -> bytes:
    """Return a packet with its position in a sequence: the id and the number; None: it has none."""
    if position is None or not position[0]:
        return packet
    at = transaction_offset(packet)
    assert at is not None, "a packet of a transactional message has such a header"
    sequence_id, number = position
    changed = bytearray(packet)
    patch_sequence(changed, at, sequence_id, number, number - 1)
    return bytes(changed)
