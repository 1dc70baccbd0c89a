"""Fields of many packets at once: the same as of each alone."""

from __future__ import annotations

import random
import struct
from itertools import accumulate

from qmd.core.packet_fields import may_want_word, sources_and_numbers, which_may_want_word
from qmd.events.header import IDENTITY, IDENTITY_OFFSET, identity_of, runs_of_sources

SOURCES = b"a" * 16, b"b" * 16


ADMIN, JOURNAL, TRANSACTION = 1 << 13, 1 << 9, 1 << 20
DIRECT, FINAL_ACK = 7, 2


def transactional(draw: random.Random) -> bytes:
    """Return a packet as far as its transaction, with direct names of several lengths."""
    names, flags = [draw.choice([8, 10, 20])], DIRECT << 10 | TRANSACTION
    flags |= draw.choice([0, 0, 0, 0, ADMIN, JOURNAL])
    if draw.random() < 0.3:
        names.append(draw.choice([4, 8, 40]))
        flags |= DIRECT << 16
    made = bytearray(60) + struct.pack("<I", flags)
    if flags & ADMIN:
        made += bytes(16)  # a public queue
    for length in names:
        made += struct.pack("<H", length) + b"n" * length
        made += bytes(-len(made) & 3)
    return bytes(made) + struct.pack("<IQII", draw.choice([0, 0, FINAL_ACK]), 1, 2, 3)


def packet(draw: random.Random) -> bytes:
    """Return a packet as far as its flags, with the flag of an administration queue or not."""
    made = bytearray(100)
    IDENTITY.pack_into(made, IDENTITY_OFFSET, draw.choice(SOURCES), draw.randrange(1 << 32))
    struct.pack_into("<I", made, 60, draw.choice([0, 7 << 13]))
    return bytes(made)


def test_like_packets_are_judged_as_each_alone() -> None:
    draw = random.Random(8)
    for _ in range(300):
        packets = [draw.choice([transactional, packet])(draw) for _ in range(20)]
        wanting = [index for index, each in enumerate(packets) if may_want_word(each)]
        assert which_may_want_word(packets) == wanting


def test_joined_packets_have_fields_only_if_none_wants_word() -> None:
    draw = random.Random(9)
    judged = [0, 0]
    for _ in range(3000):
        packets = [draw.choice([transactional, packet])(draw)] * draw.choice([1, 2, 3])
        if draw.random() < 0.3:
            packets.append(transactional(draw))
        # Two of the same names, of which the second wants a final ack.
        packets.append(packets[-1][:-20] + struct.pack("<I", draw.choice([0, 2])) + bytes(16))
        offsets = list(accumulate(map(len, packets), initial=0))[:-1]
        found = sources_and_numbers(b"".join(packets), offsets)
        wants = any(map(may_want_word, packets))
        judged[wants] += 1
        if found is not None:
            assert not wants
            assert list(zip(*found, strict=True)) == list(map(identity_of, packets))
        elif not wants:
            assert len({each[60:66] for each in packets}) > 1 or not may_want_word(packets[0])
    assert min(judged) > 200


def test_many_packets_have_the_fields_that_each_has() -> None:
    draw = random.Random(7)
    packets = [packet(draw) for _ in range(50)]

    wanting = [index for index, each in enumerate(packets) if may_want_word(each)]
    assert 0 < len(wanting) < len(packets)
    assert which_may_want_word(packets) == wanting
    found = [
        (source, number)
        for source, first, numbers in runs_of_sources(packets)
        for number in numbers
        if identity_of(packets[first])[0] == source
    ]
    assert found == [identity_of(each) for each in packets]
    assert len(list(runs_of_sources(packets[:1]))) == 1
    assert list(runs_of_sources([])) == []
