"""A server without a queue manager: the least that messages of many connections cost.

    python -m benchmarks.bare_loop PORT

It serves connections on uvloop, and answers as many bytes as a packet of 1 KiB has with as many as
a session acknowledgment has, in the next turn of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

PACKET_BYTES = 1200
ANSWER = bytes(36)
BUFFER_BYTES = 65536
BACKLOG = 1024
START_S = 10.0
CALM_S = 0.5


class Server(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._bytes = 0
        self._is_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no class of asyncio

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._bytes += nbytes
        if self._bytes >= PACKET_BYTES and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        self._is_due = False
        self._bytes %= PACKET_BYTES
        self._transport.write(ANSWER)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", port, backlog=BACKLOG)
    await server.serve_forever()


def cpu_us(port: int, connections: int, messages: int) -> float:
    """Return the microseconds of a server's processor for a message.

    The messages come from so many connections by turns.
    """
    server = subprocess.Popen((sys.executable, "-m", "benchmarks.bare_loop", str(port)))
    try:
        with contextlib.ExitStack() as opened:
            senders = [opened.enter_context(_connect(port)) for _ in range(connections)]
            packet = bytes(PACKET_BYTES)
            for sender in senders:
                sender.sendall(packet)
            time.sleep(CALM_S)
            before_s = _cpu_s(server.pid)
            for number in range(messages):
                senders[number % connections].sendall(packet)
            time.sleep(CALM_S)
            return round((_cpu_s(server.pid) - before_s) / messages * 1e6, 1)
    finally:
        server.terminate()
        server.wait()


def _connect(port: int) -> socket.socket:
    end_s = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(CALM_S / 10)


def _cpu_s(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
