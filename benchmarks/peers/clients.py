"""The two applications of a peer's benchmark: one process, one role, one line of JSON.

    python -m benchmarks.peers.clients send|receive PROTOCOL ADDRESS --messages N ...

A body of 1 KiB begins with the message's number and the time of its sending, on the clock that all
processes of a host share; the rest is a part of random bytes.  The sender keeps a window of
unconfirmed messages, or sends in batches and waits for all confirmations of one, or sends at a
steady pace.  The receiver checks order, and counts what comes twice; it prints "ready" first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import struct
import time
from typing import Any

import uvloop

from benchmarks.peers.protocols import RECEIVERS, SENDERS

BODY_BYTES = 1024
LOOK_UP_EVERY = 64  # messages between turns of the loop, which writes and reads confirmations

_HEAD = struct.Struct(">QQ")  # number, time of sending in ns


async def send(given: argparse.Namespace) -> dict[str, Any]:
    pool = os.urandom(1 << 20)
    sender = SENDERS[given.protocol](given.batch)
    await sender.open(given.address)
    cpu_s, first_ns = _cpu_s(), time.monotonic_ns()
    for number in range(given.messages):
        if given.rate_per_s:
            due_ns = first_ns + int(number / given.rate_per_s * 1e9)
            if (rest_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(rest_ns / 1e9)
        elif given.batch:
            if number % given.batch == 0:
                await sender.flush()
                await sender.confirmed_to(number)
        else:
            if number % LOOK_UP_EVERY == 0:
                await sender.flush()
                await asyncio.sleep(0)
            await sender.confirmed_to(number - given.window + 1)
        start = random.randrange(len(pool) - BODY_BYTES)
        rest = pool[start : start + BODY_BYTES - _HEAD.size]
        await sender.send(_HEAD.pack(number, time.monotonic_ns()) + rest)
        if given.rate_per_s:
            await sender.flush()
    await sender.flush()
    await sender.confirmed_to(given.messages)
    return {"first_ns": first_ns, "cpu_s": _cpu_s() - cpu_s}


class Got:
    """The messages that came."""

    def __init__(self, messages: int) -> None:
        self._messages, self._seen = messages, bytearray(messages)
        self.count = self.doubles = self.disorder = self._next = self.last_ns = 0
        self.took_ms: list[float] = []

    def __call__(self, body: bytes) -> bool:
        """Count a message; return whether it is the last one."""
        number, sent_ns = _HEAD.unpack_from(body)
        self.last_ns = time.monotonic_ns()
        self.took_ms.append((self.last_ns - sent_ns) / 1e6)
        self.disorder += number != self._next
        self._next = number + 1
        if self._seen[number]:
            self.doubles += 1
        else:
            self._seen[number] = 1
            self.count += 1
        return self.count >= self._messages


async def receive(given: argparse.Namespace) -> dict[str, Any]:
    cpu_s, got = _cpu_s(), Got(given.messages)
    await RECEIVERS[given.protocol](
        given.address, got, given.prefetch, given.acknowledge_every, _tell_ready
    )
    cuts = statistics.quantiles(got.took_ms, n=100)
    return {
        "last_ns": got.last_ns,
        "cpu_s": _cpu_s() - cpu_s,
        "doubles": got.doubles,
        "disorder": got.disorder,
        "given_p50_ms": round(cuts[49], 2),
        "given_p99_ms": round(cuts[98], 2),
    }


def _tell_ready() -> None:
    print("ready", flush=True)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("send", "receive"))
    parser.add_argument("protocol", choices=tuple(SENDERS))
    parser.add_argument("address")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rate-per-s", type=float, default=0.0)
    parser.add_argument("--prefetch", type=int, default=1000)
    parser.add_argument("--acknowledge-every", type=int, default=100)
    given = parser.parse_args()
    report = uvloop.run((send if given.role == "send" else receive)(given))
    print(json.dumps(report), flush=True)
    os._exit(0)  # no orderly end of connections: some libraries wait for seconds


if __name__ == "__main__":
    main()
