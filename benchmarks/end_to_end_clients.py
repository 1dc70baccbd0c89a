"""The two applications of the end-to-end benchmark, each a process of its own.

A body begins with the message's number and the time of its sending, on the clock that all processes
of a host share; the rest is the same in every message.  The receiver reads every body and accepts
only the next number.

Each client prints "ready", and at the end one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvloop

from qmd.client import Taken, connect
from qmd.client.new_message import DeliveryName

UNCONFIRMED_MESSAGES = 1000  # sent and not yet confirmed; a take asks for a quarter
TAKES_AHEAD = 4  # takes with an unfinished removal
PATIENCE_S = 20.0

_HEAD = struct.Struct(">QQ")  # number, time of sending in ns


async def send(
    socket: Path,
    destination: str,
    *,
    messages: int,
    body_bytes: int,
    delivery: DeliveryName,
    unconfirmed: int = UNCONFIRMED_MESSAGES,
    rate_per_s: float = 0.0,
) -> dict[str, Any]:
    """Send as fast as the window allows, or at a steady pace without waiting for confirmations."""
    rest = _rest(body_bytes)
    async with connect(socket) as here:
        print("ready", flush=True)
        cpu_s, first_ns = _cpu_s(), time.monotonic_ns()
        async with here.sender(destination, window=unconfirmed) as sender:
            for number in range(messages):
                if rate_per_s:
                    due_ns = first_ns + int(number / rate_per_s * 1e9)
                    await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
                body = _HEAD.pack(number, time.monotonic_ns()) + rest
                await sender.send(body, delivery=delivery)
        return {"first_ns": first_ns, "cpu_s": _cpu_s() - cpu_s}


async def receive(
    socket: Path,
    queue: str,
    *,
    messages: int,
    body_bytes: int,
    unconfirmed: int = UNCONFIRMED_MESSAGES,
    times: Path | None = None,
) -> dict[str, Any]:
    """Take, check and remove; a message counts as received when its removal is on the disk.

    `times` gets, for each message, when it was sent and given, in ns.
    """
    rest = _rest(body_bytes)
    given_ms: list[float] = []  # from its sending until the application has the message
    given_ns: list[tuple[int, int]] = []  # when it was sent, and when the application had it
    removed_ms: list[float] = []  # from its sending until its removal is durable

    async def remove(taken: Taken, sent_ns: list[int]) -> None:
        await taken.remove()
        now_ns = time.monotonic_ns()
        removed_ms.extend((now_ns - each) / 1e6 for each in sent_ns)

    async with connect(socket) as there:
        print("ready", flush=True)
        cpu_s = _cpu_s()
        removals: deque[asyncio.Task[None]] = deque()
        while len(given_ms) < messages:
            taken = await there.take(queue, max(unconfirmed // 4, 1), timeout_s=PATIENCE_S)
            if not taken:
                raise RuntimeError(f"after {len(given_ms)} of {messages} messages no more came")
            now_ns = time.monotonic_ns()
            sent_ns = []
            for message in taken.messages:
                body = message.body
                number, at_ns = _HEAD.unpack_from(body)
                if number != len(given_ms) or body[_HEAD.size :] != rest:
                    raise RuntimeError(f"message {number} came, {len(given_ms)} was the next")
                given_ms.append((now_ns - at_ns) / 1e6)
                given_ns.append((at_ns, now_ns))
                sent_ns.append(at_ns)
            removals.append(asyncio.create_task(remove(taken, sent_ns)))
            while len(removals) > TAKES_AHEAD:
                await removals.popleft()
        for removal in removals:
            await removal
        last_ns = time.monotonic_ns()
        if times is not None:
            times.write_text(json.dumps(given_ns))  # noqa: ASYNC240 - the measurement is over
        return {
            "last_ns": last_ns,
            "cpu_s": _cpu_s() - cpu_s,
            "given_ms": _p50_and_p99(given_ms),
            "removed_ms": _p50_and_p99(removed_ms),
        }


def _rest(body_bytes: int) -> bytes:
    pattern = bytes(index * 7 & 255 for index in range(256))
    size = body_bytes - _HEAD.size
    return (pattern * (size // len(pattern) + 1))[:size]


def _p50_and_p99(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100)
    return round(cuts[49], 2), round(cuts[98], 2)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("send", "receive"))
    parser.add_argument("socket", type=Path)
    parser.add_argument("queue")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--body-bytes", type=int, required=True)
    parser.add_argument("--unconfirmed", type=int, default=UNCONFIRMED_MESSAGES)
    parser.add_argument("--delivery", default="transactional")
    parser.add_argument("--rate-per-s", type=float, default=0.0)
    parser.add_argument("--times", type=Path, help="a file for the times of each message")
    given = vars(parser.parse_args())
    role, socket, queue = given.pop("role"), given.pop("socket"), given.pop("queue")
    if role == "send":
        del given["times"]
        report = uvloop.run(send(socket, queue, **given))
    else:
        del given["delivery"], given["rate_per_s"]
        report = uvloop.run(receive(socket, queue, **given))
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
