"""Costs of a message that other work on the machine does not change: writes, bytes and calls.

    python -m benchmarks.costs [--check] [--write] [--json]

    writes   write calls of the daemon, to its files and to the sockets of clients
    bytes    that these calls wrote
    pages    bytes of the pages that they changed in the page cache, which the disk has to write
    calls    calls of functions on the daemon's event loop, counted by cProfile in runs of their own
             that make all small commits there (counted.py)
    client calls    the same in the client, which reads the body of each received message

Each request waits for the answer to the one before it, so that the number of commits does not
depend on the speed of the machine.  `--check` compares the counts with `benchmarks/costs.json`, and
fails if one is more than 5 % above (10 % for messages to another host); `--write` writes the file.
Pages depend on the file system and are only shown; calls depend on the version of Python, and are
compared for the same one.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import pair
from qmd.client import QueueManager
from qmd.client.new_message import new_message
from qmd.control_protocol.messages import NewMessage

BASELINE = Path(__file__).with_suffix(".json")
MORE_MAX = 1.05
TRANSFER_MORE_MAX = 1.1  # the pieces in which packets are read differ from run to run
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BODY = bytes(1024)
BATCH = 100
#: Below the checkpoint, the time of which depends on the history of the file.
SINGLE, BATCHES = 300, 20
WARM_UP = 40
QUEUE = "costs"
RELEASE_TIMEOUT_S = 20.0
TRANSFER_RUNS = 4

#: Messages to another host: calls of the sending daemon, and of the receiving one, where an
#: application receives them.
TRANSFERS = "transfer, sender", "transfer, receiver"

Costs = dict[str, dict[str, float]]  # scenario -> count -> for one message
_IO = {"writes": "syscw", "bytes": "wchar", "pages": "write_bytes"}


async def single_send(client: QueueManager) -> int:
    for _ in range(SINGLE):
        await client.send(QUEUE, BODY, delivery="recoverable")
    return SINGLE


async def batch_send(client: QueueManager) -> int:
    for _ in range(BATCHES):
        await client.send_many([_new_message() for _ in range(BATCH)])
    return BATCHES * BATCH


async def batch_receive(client: QueueManager) -> int:
    count = 0
    for _ in range(BATCHES):
        bodies = [message.body for message in await client.receive_many(QUEUE, limit=BATCH)]
        count += len(bodies)
    return count


Scenario = Callable[[QueueManager], Awaitable[int]]
SCENARIOS: dict[str, Scenario] = {
    "single send": single_send,
    "batch send": batch_send,
    "batch receive": batch_receive,
}


def _new_message() -> NewMessage:
    return new_message(QUEUE, BODY, delivery="recoverable")


async def transfer(a: pair.Daemon, b: pair.Daemon) -> int:
    """Send transactional messages from one host to another."""
    destination = b.destination(QUEUE)
    async with a.client() as here, b.client() as there:
        for _ in range(BATCHES):
            await here.send_many(
                [new_message(destination, BODY, delivery="transactional") for _ in range(BATCH)]
            )
        left = BATCHES * BATCH
        while left:
            left -= len(await there.receive_many(QUEUE, limit=left, timeout_s=20))
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await pair.nothing_is_left(here, there)
    return BATCHES * BATCH


def _io(daemon: pair.Daemon) -> dict[str, int]:
    lines = Path(f"/proc/{daemon.pid}/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


async def _start(folder: Path, python: tuple[str, ...] = ()) -> pair.Daemon:
    daemon = pair.Daemon(folder, "costs", python=python)
    await daemon.create()
    await daemon.start()
    return daemon


async def count_writes(folder: Path) -> Costs:
    """Count writes and their bytes."""
    daemon = await _start(folder / "writes")
    found: Costs = {}
    async with pair.stopped_at_end(daemon), daemon.client() as client:
        await client.create_queue(QUEUE)
        for _ in range(WARM_UP):
            await client.send(QUEUE, BODY, delivery="recoverable")
        for name, scenario in SCENARIOS.items():
            before = _io(daemon)
            messages = await scenario(client)
            after = _io(daemon)
            found[name] = {
                cost: round((after[field] - before[field]) / messages, 3)
                for cost, field in _IO.items()
            }
    return found


async def count_client_calls(folder: Path) -> dict[str, float]:
    """Count function calls of the client in each scenario."""
    daemon = await _start(folder / "client")
    found: dict[str, float] = {}
    async with pair.stopped_at_end(daemon), daemon.client() as client:
        await client.create_queue(QUEUE)
        await client.send(QUEUE, BODY, delivery="recoverable")  # the codec is imported, once
        bodies = [message.body async for message in client.receive_each(QUEUE, timeout_s=0)]
        assert bodies == [BODY]
        for name, scenario in SCENARIOS.items():
            profile = cProfile.Profile()
            with profile:
                messages = await scenario(client)
            calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
            found[name] = round(calls / messages, 1)
    return found


async def count_calls(folder: Path) -> dict[str, float]:
    """Count function calls: in a run with each number of scenarios, and the differences."""
    totals, counts = [], [1]
    for number in range(len(SCENARIOS) + 1):
        profile = folder / f"calls{number}"
        python = ("-m", "cProfile", "-o", str(profile), "-m", "benchmarks.counted")
        daemon = await _start(folder / f"run{number}", python)
        async with pair.stopped_at_end(daemon):
            async with daemon.client() as client:
                await client.create_queue(QUEUE)
                for scenario in list(SCENARIOS.values())[:number]:
                    count = await scenario(client)
                    counts[number:] = [count]
            await daemon.stop()
        totals.append(pstats.Stats(str(profile)).total_calls)  # type: ignore[attr-defined]
    return {
        name: round((totals[at] - totals[at - 1]) / counts[at], 1)
        for at, name in enumerate(SCENARIOS, 1)
    }


async def count_transfer_calls(folder: Path) -> dict[str, float]:
    """Count function calls at both hosts: in a run with a transfer, less those of one without.

    Packets are read in larger or smaller pieces, so the least of some runs is taken.
    """
    totals: list[list[int]] = []
    messages = 1
    for number in range(1 + TRANSFER_RUNS):
        profiles = [folder / f"transfer{number}{host}" for host in "ab"]
        a, b = [
            await _start(
                folder / f"pair{number}{host}",
                ("-m", "cProfile", "-o", str(profile), "-m", "benchmarks.counted"),
            )
            for host, profile in zip("ab", profiles, strict=True)
        ]
        async with pair.stopped_at_end(a, b):
            async with b.client() as there:
                await there.create_queue(QUEUE, transactional=True)
            if number:
                messages = await transfer(a, b)
            for daemon in (a, b):
                await daemon.stop()
        totals.append([pstats.Stats(str(each)).total_calls for each in profiles])  # type: ignore[attr-defined]
    without, *with_it = totals
    return {
        name: round((min(each[at] for each in with_it) - without[at]) / messages, 1)
        for at, name in enumerate(TRANSFERS)
    }


async def measure() -> Costs:
    """Return the costs of one message in each scenario."""
    with tempfile.TemporaryDirectory(prefix="qmd-costs-") as folder:
        found = await count_writes(Path(folder))
        for name, calls in (await count_calls(Path(folder))).items():
            found[name]["calls"] = calls
        for name, calls in (await count_client_calls(Path(folder))).items():
            found[name]["client calls"] = calls
        for name, calls in (await count_transfer_calls(Path(folder))).items():
            found[name] = {"calls": calls}
    return found


def allowed(scenario: str) -> float:
    """Return the factor by which a count may be above that of the file."""
    return TRANSFER_MORE_MAX if scenario in TRANSFERS else MORE_MAX


def compare(found: Costs, before: Costs, version: str) -> list[str]:
    """Return the counts that are too far above those of the file, as sentences.

    `version` is that of Python with which the file was written.
    """
    compared = {"writes", "bytes", *(("calls", "client calls") if version == VERSION else ())}
    return [
        f"{scenario}, {cost}: {value:,} for a message instead of {before[scenario][cost]:,}"
        for scenario, costs in found.items()
        for cost, value in costs.items()
        if cost in compared
        and value > allowed(scenario) * before.get(scenario, {}).get(cost, value)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = pair.run(measure())
    stored = json.loads(BASELINE.read_text()) if BASELINE.exists() else {"costs": {}, "python": ""}
    before: Costs = stored["costs"]
    if given.write:
        fresh = {"python": VERSION, "costs": found}
        BASELINE.write_text(json.dumps(fresh, indent=2) + "\n")
    if given.json:
        print(json.dumps(found))
        return
    for scenario, costs in found.items():
        for cost, value in costs.items():
            was = before.get(scenario, {}).get(cost)
            print(f"{scenario:20}{cost:14}{value:>12,}" + (f"{was:>12,}" if was else ""))
    if given.check and (more := compare(found, before, stored["python"])):
        print(f"more than is allowed above {BASELINE.name}:", *more, sep="\n    ", file=sys.stderr)
        print("If that is meant: python -m benchmarks.costs --write", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
