"""A connection to the control socket: pipelining, flow control, and its end."""

import asyncio
import contextlib
import struct

import pytest

from qmd.client import NotConnected, TooLarge
from qmd.client.connection import Connection, open_connection
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from tests.integration.client.peer import Peer


class Line(asyncio.Transport):
    """A transport that keeps the bytes written to it."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, data):
        self.writes.append(data)


def test_requests_made_together_leave_in_one_write(tmp_path):
    async def scenario():
        line, connection = Line(), Connection(tmp_path)
        connection.connection_made(line)

        for _ in range(10):
            connection.ask(frames.Peek, "orders")
        await asyncio.sleep(0)

        (written,) = line.writes
        assert len(frames.FrameBuffer().feed(written)) == 10

    asyncio.run(scenario())


def test_a_later_request_may_be_answered_first(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            connection = await open_connection(peer.path)
            take = connection.ask(frames.Take, "orders", 1, frames.FOREVER)
            peek = connection.ask(frames.Peek, "orders")

            assert await peek == []
            assert not take.done()

            peer.put("orders", b"1")
            assert len(await take) == 1
            await connection.close()

    asyncio.run(scenario())


def test_a_lost_connection_fails_all_outstanding_requests(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            connection = await open_connection(peer.path)
            peer.before.append(operator_frames.Status)
            take = connection.ask(frames.Take, "orders", 1, frames.FOREVER)
            status = connection.ask(operator_frames.Status)

            for answer in (take, status):
                with pytest.raises(NotConnected):
                    await answer
            assert connection.is_lost
            with pytest.raises(NotConnected):
                connection.ask(frames.Peek, "orders")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        struct.pack("<I", frames.FRAME_BYTES_MAX + 1),
        frames.frame(operator_frames.Status(1)),
    ],
    ids=["no MessagePack", "too long", "a request"],
)
def test_an_invalid_reply_ends_the_connection(tmp_path, reply):
    async def scenario():
        ended = asyncio.Event()

        async def babble(reader, writer):
            await reader.read(1)
            writer.write(reply)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            ended.set()

        async with await asyncio.start_unix_server(babble, tmp_path / "socket"):
            connection = await open_connection(tmp_path / "socket")
            with pytest.raises(NotConnected, match="not valid"):
                await connection.ask(operator_frames.Status)
            await ended.wait()

    asyncio.run(scenario())


def test_a_request_over_the_limit_is_not_sent(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            connection = await open_connection(peer.path)
            with pytest.raises(TooLarge):
                connection.ask(operator_frames.CreateQueue, "q" * frames.FRAME_BYTES_MAX)
            await connection.ask(frames.Peek, "orders")

            assert [type(request) for request in peer.requests] == [frames.Peek]
            await connection.close()

    asyncio.run(scenario())


def test_the_connection_has_no_room_while_the_other_end_does_not_read(tmp_path):
    async def scenario():
        may_read, ended = asyncio.Event(), asyncio.Event()

        async def slow_reader(reader, writer):
            await may_read.wait()
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 20):
                    pass
            writer.transport.abort()
            ended.set()

        async with await asyncio.start_unix_server(slow_reader, tmp_path / "socket"):
            connection = await open_connection(tmp_path / "socket")
            request = [frames.NewMessage("orders", bytes(1_000_000))]
            answers = [connection.ask(frames.Send, request) for _ in range(4)]
            await asyncio.sleep(0)  # the requests are written, as far as the socket takes them

            room = asyncio.ensure_future(connection.has_room())
            await asyncio.sleep(0)
            assert not room.done()

            may_read.set()
            await room
            await connection.close()
            for answer in answers:
                with pytest.raises(NotConnected):
                    await answer
            await ended.wait()

    asyncio.run(scenario())


def test_without_a_daemon_the_error_has_a_remedy(tmp_path):
    with pytest.raises(NotConnected, match=r"no control socket at .*; start the daemon"):
        asyncio.run(open_connection(tmp_path / "socket"))
