"""Target: files for `qmd import`, with any lines of JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from random import Random
from typing import Any

from protocol.packets import parse_user_message
from qmd.client.archive import BrokenLine, read_line
from qmd.control_protocol.messages import MOMENT_MS_MAX
from tests.fuzz import packets
from tests.fuzz.limits import outcome
from tests.fuzz.target import Target

_LIMIT = 1 << 32
_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 32, 1 << 70, 1.5, "", "x" * 600, "\ud800", [], {}, [[[]]]),
    *("AAAA", "====", MOMENT_MS_MAX, MOMENT_MS_MAX + 1),
)


def lines() -> Iterable[bytes]:
    (target,) = (target for target in packets.TARGETS if target.name == "user_message")
    for packet in target.seeds():
        yield json.dumps(
            {
                "qmd_message": 1,
                "packet_base64": base64.b64encode(packet).decode(),
                "arrived_at_ms": 1_700_000_000_123,
                "reason": None,
                "abort_count": 1,
                "move_count": 2,
                "last_move_at_ms": 1_700_000_000_124,
                "expires_in_s": 60,
            }
        ).encode()
    yield b"[" * 50_000
    yield b'{"qmd_message":' * 5_000
    yield b'{"qmd_message": 1, "arrived_at_ms": ' + b"9" * 5_000 + b"}"


def check_line(line: bytes) -> None:
    message, refused = outcome(BrokenLine, read_line, line)
    if message is None:
        assert refused is not None
        assert str(refused)
        return
    parse_user_message(message.packet)
    assert 0 <= message.arrived_at_ms <= MOMENT_MS_MAX
    for number in (message.abort_count, message.move_count, message.expires_in_s or 0):
        assert 0 <= number < _LIMIT


def mutate_line(line: bytes, size_max: int, random: Random) -> bytes:
    """Change a value, or a byte in the packet or in the line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found or random.random() < 0.2:
        changed = bytearray(line or b"{")
        changed[random.randrange(len(changed))] = random.randrange(256)
        return bytes(changed)[:size_max]
    name = random.choice(list(found))
    value = found[name]
    if name == "packet_base64" and isinstance(value, str) and random.random() < 0.8:
        try:
            packet = bytearray(base64.b64decode(value))
        except (binascii.Error, ValueError):
            packet = bytearray()
        if packet:
            packet[random.randrange(len(packet))] = random.randrange(256)
        found[name] = base64.b64encode(packet).decode()
    elif random.random() < 0.3:
        del found[name]
    else:
        found[name] = random.choice(_ODD_VALUES)
    return json.dumps(found).encode()[:size_max]


TARGETS = (Target("imports", check_line, lines, mutate_line),)
