"""Target: capture files for `qmd interop read`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from random import Random

from qmd.interop.capture import BadCapture
from qmd.interop.reading import Reading, packet_json, session_json
from tests.captures import connection, ethernet, pcap, pcapng
from tests.dialogue import usual
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target

SECONDS_MAX = 1.0  # of 64 KiB in the smallest segments
_ODD = (b"\xff\xff\xff\xff", bytes(4), b"\0\0\0\x80", b"LIOR", b"\x0a\x0d\x0d\x0a", b"\6\0\0\0")


def captures() -> Iterable[bytes]:
    parts = usual()
    for segment in (60, 1400):
        packets = [ethernet(packet) for packet in connection(parts, segment=segment)]
        yield pcap(packets)
        yield pcapng(packets)
    yield pcap([ethernet(packet) for packet in connection(parts, with_begin=False)][5:])


def read(data: bytes) -> None:
    reading = Reading(io.BytesIO(data))
    carried = 0
    for session, seen in reading.packets():
        json.dumps(packet_json(session.number, seen, with_bytes=True))
        carried += len(seen.bytes)
    for session in reading.sessions:
        json.dumps(session_json(session))
    assert carried <= len(data), "no byte is read twice"
    assert reading.summary()["sessions"] == len(reading.sessions)


def check_capture(data: bytes) -> None:
    _, refused = outcome(BadCapture, read, data, seconds_max=SECONDS_MAX)
    assert refused is None or str(refused)


def mutate_capture(data: bytes, size_max: int, random: Random) -> bytes:
    """Change bytes, or remove, repeat or move a piece, as lossy networks and disks do."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        if not changed:
            break
        at, size = random.randrange(len(changed)), random.choice((1, 2, 4, 16, 60, 150))
        piece = bytes(changed[at : at + size])
        match random.randrange(5):
            case 0:
                del changed[at : at + size]
            case 1:
                changed[at:at] = piece
            case 2:
                del changed[at : at + size]
                to = random.randrange(len(changed) + 1)
                changed[to:to] = piece
            case 3:
                changed[at : at + 4] = random.choice(_ODD)
            case _:
                changed[at] = random.randrange(256)
    return bytes(changed)[:size_max]


TARGETS = (Target("capture", check_capture, captures, mutate_capture),)
