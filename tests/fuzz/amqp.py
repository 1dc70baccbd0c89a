"""Targets: bytes of clients of AMQP, from the login to the messages, and messages alone.

A connection of the door gets any bytes in pieces of any size.  It answers with frames of AMQP,
never fails, and leaves nothing behind when its client has gone.  The daemon behind it accepts
everything at once.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from random import Random
from typing import Any

import proton
import structlog.testing

from protocol.errors import MalformedPacket
from qmd.client.errors import NotConnected
from qmd.config.settings import AmqpSettings
from qmd.control_protocol import messages as control_frames
from qmd.doors.amqp import sections
from qmd.doors.amqp.arriving import arrived
from qmd.doors.amqp.connection import ClientConnection
from qmd.doors.amqp.door import Door
from qmd.doors.amqp.leaving import encoded
from qmd.doors.amqp.login import SASL_HEADER
from tests.amqp import frames
from tests.fuzz import mutation
from tests.fuzz.limits import outcome, within_limits
from tests.fuzz.packets import message_packets
from tests.fuzz.target import Target, numbers, pieces, steered

QUEUE_MANAGER = "00000000-0000-0000-0000-000000000000"
CONNECTION_S_MAX = 1.0  # of processor time: the login has a password to check
TURNS_MAX = 2000
_SIZE = struct.Struct(">I")


# Seeds.


def messages() -> Iterable[bytes]:
    """Return messages with all sections."""
    everything = proton.Message(
        *(),
        body={"a": [1, "x", None, b"y"], "b": proton.symbol("s")},
        id="id",
        correlation_id=proton.ulong(7),
        subject="label",
        reply_to="answers",
        ttl=5,
        priority=7,
        durable=True,
        properties={"text": "x", "number": proton.uint(3), "time": proton.timestamp(1)},
        annotations={
            proton.symbol("x-opt-msmq-application-tag"): 3,
            proton.symbol("x-opt-msmq-acknowledge"): "positive_arrival",
            proton.symbol("x-opt-msmq-once"): "token",
            proton.symbol("x-opt-delivery-delay"): proton.ulong(5),
        },
    )
    array = proton.Array(proton.UNDESCRIBED, proton.Data.INT, *map(proton.int32, range(3)))
    described = proton.Described(proton.symbol("kind"), [array, proton.decimal64(1)])
    yield bytes(everything.encode())
    for body in (b"data", "text", None, [1, 2], described):
        yield bytes(proton.Message(body=body, inferred=body == b"data").encode())


def sasl(code: int, *fields: Any) -> bytes:
    frame = frames.encoded(code, *fields)
    return frame[:5] + b"\x01" + frame[6:]


def conversations() -> Iterable[bytes]:
    """Return the bytes of clients, after a byte that announces no steering numbers."""
    open_, first = frames.opening(), next(iter(messages()))
    sender = frames.attach("out", 0, frames.SENDER, "orders")
    receiver = frames.attach("in", 1, frames.RECEIVER, "orders")
    credit = frames.encoded(
        frames.FLOW,
        *(proton.uint(0), proton.uint(100), proton.uint(0), proton.uint(100)),
        *(proton.uint(1), proton.uint(0), proton.uint(10), None, None),
    )
    yield b"\0" + open_ + sender + frames.transfer(0, 0, first) + frames.encoded(frames.CLOSE)
    halves = frames.transfer(0, 0, first[:40], more=True), frames.transfer(0, 0, first[40:])
    yield b"\0" + open_ + sender + b"".join(halves) + frames.encoded(frames.END)
    for state in (frames.ACCEPTED, 0x25, 0x26, 0x27, 0x34):
        settled = frames.encoded(
            *(frames.DISPOSITION, True, proton.uint(0), proton.uint(1), state == 0x26),
            frames.described(state),
        )
        yield b"\0" + open_ + receiver + credit + settled
    detach = frames.encoded(frames.DETACH, proton.uint(1), True)
    yield b"\0" + open_ + receiver + credit + detach
    coordinator = frames.encoded(
        *(frames.ATTACH, "transactions", proton.uint(0), False, None, None),
        *(frames.described(frames.SOURCE), frames.described(0x30), None, None, proton.uint(0)),
    )
    declare = bytes(proton.Message(body=frames.described(0x31)).encode())
    discharge = bytes(proton.Message(body=frames.described(0x32, b"t" * 16, False)).encode())
    yield (
        b"\0" + open_ + coordinator + frames.transfer(0, 0, declare)
        + frames.transfer(0, 1, discharge)
    )  # fmt: skip
    yield (
        b"\0"
        + open_
        + frames.attach("manage", 0, frames.SENDER, "$management")
        + (frames.transfer(0, 0, first))
    )
    plain = sasl(0x41, proton.symbol("PLAIN"), b"\0ann\0secret")
    scram = sasl(0x41, proton.symbol("SCRAM-SHA-256"), b"n,,n=ann,r=abc")
    anonymous = sasl(0x41, proton.symbol("ANONYMOUS"), b"")
    yield b"\0" + SASL_HEADER + plain
    yield b"\0" + SASL_HEADER + scram + sasl(0x43, b"c=biws,r=abc,p=AAAA")
    yield b"\0" + SASL_HEADER + anonymous + open_ + sender


def mutate_frames(stream: bytes, size_max: int, random: Random) -> bytes:
    """Return a stream with a frame changed, with its right size, doubled, moved or removed."""
    found = _split(stream)
    at = random.randrange(len(found)) if found else 0
    match random.randrange(6) if found else -1:
        case -1:
            return _changed(stream, random)[:size_max]
        case 0:
            found.insert(random.randrange(len(found) + 1), found[at])
        case 1:
            found.append(found.pop(at))
        case 2:
            del found[at]
        case _:
            changed = _changed(found[at], random)
            if len(changed) >= 8 and not changed.startswith(b"AMQP") and random.random() < 0.9:
                changed = _SIZE.pack(len(changed)) + changed[4:]
            found[at] = changed
    return b"".join(found)[:size_max]


ODD = (b"", b"\x40", b"\x45", b"\x41", b"\x43", b"\xa0\x00", b"\xa1\x01\xff", b"\xc0\x01\x00")
ODD += (b"\x52\xff", b"\x70\xff\xff\xff\xff", b"\xd0\xff\xff\xff\xff\0\0\0\1", b"\0\x53\x34\x45")


def _changed(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(3):
            case 0:
                changed[at : at + random.choice((0, 1, 2, 5))] = random.choice(ODD)
            case 1:
                changed[at : at + 1] = bytes((random.randrange(256),))
            case _:
                del changed[at : at + random.choice((1, 2, 8))]
    return bytes(changed)


def _split(stream: bytes) -> list[bytes]:
    """Split a stream into headers and frames; the last one may be anything."""
    found, at = [], 0
    while at < len(stream):
        size = 8 if stream.startswith(b"AMQP", at) else int.from_bytes(stream[at : at + 4], "big")
        size = max(8, size)
        found.append(stream[at : at + size])
        at += size
    return found


# The connection.


class Inline(Executor):
    """Runs each call at once."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments, **named))
        return future


class Accepting:
    """The daemon: it accepts every request, and each queue has a few messages."""

    queue_manager = QUEUE_MANAGER

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Any]] = []
        self._left = [
            control_frames.StoredMessage(number, 0, packet)
            for number, packet in enumerate(message_packets())
        ]

    async def open(self) -> None:
        """Connect."""

    def ask(self, verb: Any, *arguments: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if verb in (control_frames.Take, control_frames.TakeChosen) and not self._left:
            self._waiting.append(answer)  # until the end
            return answer
        answer.set_result(self._result(verb))
        return answer

    def _result(self, verb: Any) -> Any:
        if verb in (control_frames.Take, control_frames.TakeChosen):
            taken, self._left = self._left, []
            return [
                [each.lookup_id, each.arrived_at_ms, each.packet, None, 0, 0, None, None]
                for each in taken
            ]
        if verb is control_frames.Peek:
            return []
        return {"allowed": True, "messages": 0, "name": "orders"}

    async def request(self, verb: Any, *arguments: Any) -> Any:
        return await self.ask(verb, *arguments)

    def close(self) -> None:
        for each in self._waiting:
            each.cancel()


class FuzzedDoor(Door):
    """A door that listens nowhere."""

    def __init__(self) -> None:
        super().__init__(AmqpSettings(passwords_on_loopback=True), Path("nowhere"), "fuzzed")
        self.executor.shutdown()
        self.executor = Inline()  # type: ignore[assignment]

    def connect(self, principals: Sequence[str], lost: Callable[[NotConnected], None]) -> Any:
        return Accepting()


class Wire(asyncio.Transport):
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = bytearray()
        self.is_over = False

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Accept any limits."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End the output."""

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        """Nothing waits."""

    def resume_reading(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True


def check_connection(data: bytes) -> None:
    """Check one connection, from its first byte to its end."""
    sizes, stream = numbers(data, 8)
    within_limits(_check_connection, stream, sizes, seconds_max=CONNECTION_S_MAX)


def _check_connection(stream: bytes, sizes: list[int]) -> None:
    faults: list[Any] = []
    with structlog.testing.capture_logs() as logged, asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
        wire = runner.run(_talk(stream, sizes))
    faults += [each for each in logged if each["event"] == "amqp_client_failed"]
    assert not faults, faults
    for frame in _split(bytes(wire.written)):
        is_header = frame.startswith(b"AMQP") and len(frame) == 8
        assert is_header or int.from_bytes(frame[:4], "big") == len(frame), frame


async def _talk(stream: bytes, sizes: list[int]) -> Wire:
    door, wire = FuzzedDoor(), Wire()
    connection = ClientConnection(door)
    connection.connection_made(wire)
    for piece in pieces(stream, sizes):
        if wire.is_over:
            break
        connection.data_received(piece)
        for _ in range(3):
            await asyncio.sleep(0)
    if not wire.is_over:
        connection.eof_received()
        await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(TURNS_MAX):
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()
    assert not door.names
    return wire


def check_message(data: bytes) -> None:
    """Check that a message is refused in one way, or becomes one of the queue manager."""
    found, _ = outcome(
        sections.BadMessage, lambda: arrived(data, "orders", settled=False, now_ms=0)
    )
    if found is not None:
        assert isinstance(found.message.body, bytes)


def check_packet(data: bytes) -> None:
    """Check that any packet becomes a message of AMQP that can be read, or is refused."""
    stored = control_frames.StoredMessage(1, 0, data)
    made, _ = outcome(MalformedPacket, encoded, stored, QUEUE_MANAGER)
    if made is not None:
        assert sections.split(made)
        proton.Message().decode(made)


def mutate_message(data: bytes, size_max: int, random: Random) -> bytes:
    """Return a message with a few changes."""
    return _changed(data, random)[:size_max]


TARGETS = (
    Target("amqp", check_connection, conversations, steered(mutate_frames, 8)),
    Target("amqp-arriving", check_message, messages, mutate_message),
    Target("amqp-leaving", check_packet, message_packets, mutation.mutate_packet),
)
