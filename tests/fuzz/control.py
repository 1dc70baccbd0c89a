"""Target: frames of the control socket, in pieces of any size, with any contents.

The frames of a stream do not depend on its pieces.  The contents of a frame are a request, or are
refused in one way, at a cost that follows from the size; and a refused request can still be
answered by its number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec

from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from tests.fuzz.limits import outcome, within_limits
from tests.fuzz.target import Target, numbers, pieces, steered

FRAME_BYTES_MAX = 32 * 1024

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan")),
    *("", "x", "é", "private$\\q", b"", b"x" * 20, [], [1], {}, {"a": 1}),
)
SAMPLES: tuple[frames.Request, ...] = (
    frames.Hello(1),
    frames.Send(2, [frames.NewMessage("orders", b"body", label="l")], b"t" * 16),
    frames.Take(3, "orders", 10, frames.FOREVER),
    frames.Remove(4, "orders", [1, 2, 3]),
    frames.GiveBack(5, "orders", [1]),
    frames.Peek(6, "orders", 5, 6, 0.5),
    frames.Outcome(7, b"t"),
    operator_frames.CreateQueue(8, "orders", True, "label", False, 1000),
    operator_frames.DeleteQueue(9, "orders"),
    operator_frames.PurgeQueue(10, "orders"),
    operator_frames.ListQueues(11, True),
    operator_frames.ShowQueue(12, "orders"),
    operator_frames.ListOutgoing(13),
    operator_frames.ShowOutgoing(14, "x"),
    operator_frames.PauseOutgoing(15, "x"),
    operator_frames.ResumeOutgoing(16, "x"),
    operator_frames.KickOutgoing(17, "x"),
    operator_frames.ListSequences(18),
    operator_frames.ListSessions(19),
    frames.Move(20, "orders", "orders;retry", frames.Choice([1], [b"i" * 20]), frames.Piece(5)),
    frames.Resend(21, "orders", frames.Choice([1]), frames.Piece(5), "o", "label", b"body", True),
    operator_frames.DeadLetters(22, "orders"),
    frames.Import(23, "orders", [frames.ImportedMessage(b"p", 1, "why", 1, 2, 3, 4)], True),
    operator_frames.Status(2**63),
)
# First bytes of other MessagePack types.
HEADS = (
    *(
        b"\xc0",
        b"\xc1",
        b"\x91",
        b"\x81",
        b"\xdc\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\0\0\1\0",
    ),
    *(
        b"\xc4\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\xa5\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xcb" + b"\xff" * 8,
    ),
    *(b"\xd6\xff" + b"\xff" * 4, b"\xc7\x0c\xff" + b"\xff" * 12, b"\xc9\xff\xff\xff\xff\x01"),
)


def streams() -> Iterable[bytes]:
    yield b"\0" + b"".join(map(frames.frame, SAMPLES))
    for sample in SAMPLES:
        yield b"\x02\x03\x09" + frames.frame(sample)
    yield b"\0" + _frame(b"\x91" * 2000)


def check_frames(data: bytes) -> None:
    sizes, stream = numbers(data, 8)
    within_limits(_check_frames, stream, sizes)


def _check_frames(stream: bytes, sizes: list[int]) -> None:
    buffer = frames.FrameBuffer(FRAME_BYTES_MAX)
    found: list[bytes] = []
    is_broken = False
    for piece in pieces(stream, sizes):
        try:
            found += map(bytes, buffer.feed(piece))
        except frames.FrameError:
            is_broken = True
            break
    expected, must_break = _cut(stream)
    assert is_broken == must_break
    # Complete frames in the piece that shows the fault are not returned any more.
    assert found == expected[: len(found)] if is_broken else found == expected
    for inside in found:
        _check_request(inside)


def _cut(stream: bytes) -> tuple[list[bytes], bool]:
    """Return the contents of the complete frames of a stream, and whether one is too long."""
    found = []
    while len(stream) >= 4:
        (size,) = struct.unpack_from("<I", stream)
        if size > FRAME_BYTES_MAX:
            return found, True
        if len(stream) < 4 + size:
            break
        found.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return found, False


def _check_request(inside: bytes) -> None:
    request, refused = outcome(msgspec.DecodeError, frames.decode_request, inside)
    if refused is not None:
        assert str(refused)
        number = frames.request_number(inside)
        frames.frame(frames.Refused(number, "request_not_understood", str(refused)))
        return
    assert isinstance(request, frames.Request)
    assert frames.request_number(inside) == request.number
    assert msgspec.msgpack.decode(frames.frame(request)[4:])[0]


def _frame(inside: bytes) -> bytes:
    return struct.pack("<I", len(inside)) + inside


def mutate_frames(stream: bytes, size_max: int, random: Random) -> bytes:
    """Change a value in a request, add or remove a request, or insert a byte of another type."""
    insides, _ = _cut(stream)
    insides = insides or [msgspec.msgpack.encode(random.choice(SAMPLES))]
    at = random.randrange(len(insides))
    match random.randrange(5):
        case 0:
            insides[at:at] = [msgspec.msgpack.encode(random.choice(SAMPLES))]
        case 1:
            cut = random.randint(0, len(insides[at]))
            insides[at] = insides[at][:cut] + random.choice(HEADS) + insides[at][cut + 1 :]
        case 2:
            insides[at] = random.choice(HEADS) * random.choice((1, 2, 500, 2000)) + insides[at]
        case _:
            insides[at] = _with_odd_value(insides[at], random)
    return b"".join(map(_frame, insides))[:size_max]


def _with_odd_value(inside: bytes, random: Random) -> bytes:
    try:
        value = msgspec.msgpack.decode(inside)
        if isinstance(value, list) and value:
            at = random.randrange(len(value) + 1)
            value[at : at + 1] = [random.choice(ODD_VALUES)]
        return msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
        return msgspec.msgpack.encode(random.choice(SAMPLES))


TARGETS = (Target("control_frames", check_frames, streams, steered(mutate_frames, 8)),)
