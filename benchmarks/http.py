"""Single durable sends over HTTP: one message for each request, over connections kept alive.

    python -m benchmarks.http [--connections 50] [--seconds 5] [--bytes 1024] [--json]

A daemon, a door and the clients run on this machine; the promise is 3,000 sends a second over 50
connections.  The rate depends on the machine: the second figure is the time of the processor that
daemon and door use for 1,000 sends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from pathlib import Path

from tests.process.harness import Daemon
from tests.process.http_door import HttpDoor

PROMISE = 3000


async def _send(port: int, request: bytes, until: float) -> int:
    """Send the same request again and again; return how many were answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    loop, count = asyncio.get_running_loop(), 0
    while loop.time() < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 "), head
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        count += 1
    writer.close()
    return count


async def _run(door: HttpDoor, connections: int, seconds: float, size: int) -> float:
    head = (
        "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {door.token(name='admin')}\r\n"
        f"content-type: application/octet-stream\r\ncontent-length: {size}\r\n\r\n"
    )
    request, until = head.encode() + b"x" * size, asyncio.get_running_loop().time() + seconds
    counts = await asyncio.gather(*(_send(door.port, request, until) for _ in range(connections)))
    return sum(counts) / seconds


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(connections: int, seconds: float, size: int) -> dict[str, float]:
    """Return the figures of one run."""
    with tempfile.TemporaryDirectory(prefix="qmd-bench-") as folder:
        daemon = Daemon(Path(folder) / "qmd", warm=False)
        door = HttpDoor(daemon)
        try:
            daemon.start()
            daemon.create("orders")
            door.start()
            asyncio.run(_run(door, connections, 0.5, size))
            assert door.process is not None
            pids = (daemon.pid, door.process.pid)
            before = sum(map(_processor_s, pids))
            rate = asyncio.run(_run(door, connections, seconds, size))
            spent = sum(map(_processor_s, pids)) - before
        finally:
            door.kill()
            daemon.kill()
    return {
        "sends_per_second": round(rate),
        "processor_s_per_1000": round(1000 * spent / (rate * seconds), 3),
        "promise": PROMISE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = measure(given.connections, given.seconds, given.bytes)
    if given.json:
        print(json.dumps(figures))
    else:
        print(f"{figures['sends_per_second']} durable sends/s over {given.connections} connections")
        print(f"{figures['processor_s_per_1000']} s of the processor for 1,000")


if __name__ == "__main__":
    main()
