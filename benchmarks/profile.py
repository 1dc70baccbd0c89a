"""CPU profile: py-spy samples both daemons during the end-to-end load.

    python -m benchmarks.profile [--messages N] [--delivery D] [--top N]

The CPU time of a daemon's threads for one message, divided among functions by py-spy's samples; a
sample counts for the innermost function of qmd.  Sampling costs time of its own, so the sum is
above that of the benchmark; waiting for the disk is no CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_end_to_end import WARM_UP_MESSAGES, Load, daemons, throughput
from benchmarks.pair import Daemon, run

SAMPLES_PER_S = 250
ELSEWHERE = "event loop, system calls"
LOOP = "qmd/daemon.py main"  # the event loop's own work appears as this function
# Waiting for work, which py-spy often takes for activity.
WAITING = "aiosqlite/core.py _connection_worker_thread"

Samples = Counter[tuple[str, str]]  # by group and function

# The prefix of a frame's place, and its group; the first match counts.
GROUPS: Sequence[tuple[str, str]] = (
    ("protocol/framing.py", "framing"),
    ("protocol/", "codec"),
    ("qmd/core/session", "session"),
    ("qmd/core/window.py", "session"),
    ("qmd/core/handshake.py", "session"),
    ("qmd/core/sequence.py", "sequence"),
    ("qmd/core/", "core, the rest"),
    ("storage/engine/batch.py Batch.write", "storage: commit"),
    ("storage/engine/batch.py", "storage: gathering a batch"),
    ("storage/engine/writer.py", "storage: writer"),
    ("storage/", "storage: rows in and out"),
    ("qmd/control/server.py", "control socket"),
    ("qmd/control/message_handlers.py", "control socket"),
    ("qmd/control_protocol/messages.py", "control socket"),
    ("qmd/operations/send", "sending"),
    ("qmd/operations/sent_events.py", "sending"),
    ("qmd/operations/packet_composer.py", "sending"),
    ("qmd/message/build.py", "sending"),
    ("qmd/naming/destinations.py", "sending"),
    ("qmd/queues/outgoing", "outgoing queues"),
    ("qmd/peers/link.py", "outgoing queues"),
    ("qmd/peers/transmitter.py", "outgoing queues"),
    ("qmd/transfer/incoming.py", "incoming"),
    ("qmd/queues/incoming_sequences.py", "incoming"),
    ("qmd/operations/receive.py", "reading"),
    ("qmd/queues/local_queue.py", "reading"),
    ("qmd/peers/connection.py", "connection"),
    ("qmd/peers/packet_reader.py", "connection"),
    ("qmd/", "the rest of ours"),
)


async def profile(load: Load, top: int) -> None:
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise SystemExit("py-spy is not installed: pip install py-spy")
    async with daemons(load) as (a, b):
        await throughput(a, b, load, WARM_UP_MESSAGES)
        with tempfile.TemporaryDirectory(prefix="qmd-profile-") as folder:
            files = [Path(folder, daemon.name) for daemon in (a, b)]
            spies = [
                await _look(spy, daemon, file) for daemon, file in zip((a, b), files, strict=True)
            ]
            before = [daemon.thread_cpu_s() for daemon in (a, b)]
            try:
                figures = await throughput(a, b, load, load.messages)
            finally:
                after = [daemon.thread_cpu_s() for daemon in (a, b)]
                for each in spies:
                    each.send_signal(signal.SIGINT)
                    await each.wait()
            shares = [
                microseconds(
                    samples(file.read_text()),
                    {
                        thread: (spent_s - began.get(thread, 0.0)) / load.messages * 1e6
                        for thread, spent_s in ended.items()
                    },
                )
                for file, began, ended in zip(files, before, after, strict=True)
            ]
    print(f"{figures['messages_per_s']:,} messages a second during profiling; CPU us a message\n")
    print_table([by_group(share) for share in shares], rows_max=len(GROUPS))
    print_table([by_function(share) for share in shares], rows_max=top)


async def _look(spy: str, daemon: Daemon, file: Path) -> asyncio.subprocess.Process:
    looking = await asyncio.create_subprocess_exec(
        *(spy, "record", "--pid", str(daemon.pid), "--rate", str(SAMPLES_PER_S)),
        *("--format", "raw", "--threads", "--output", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert looking.stdout is not None
    await looking.stdout.readline()  # its first line: sampling has begun
    return looking


def samples(raw: str) -> dict[int, Samples]:
    """Count each thread's samples by place; lines are `thread (ID): NAME;frame;...;frame COUNT`."""
    threads: dict[int, Samples] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if _name(frames[-1]) != WAITING:
            number = int(thread.partition("(")[2].partition(")")[0])
            threads.setdefault(number, Counter())[place(frames)] += int(count)
    return threads


def microseconds(
    threads: dict[int, Samples], cpu_us: dict[int, float]
) -> dict[tuple[str, str], float]:
    """Return the CPU time per message by group and function; `cpu_us`: the total by thread."""
    shares: dict[tuple[str, str], float] = {}
    for thread, found in threads.items():
        total = found.total()
        for key, count in found.items():
            shares[key] = shares.get(key, 0.0) + count / total * cpu_us.get(thread, 0.0)
    return shares


def place(frames: Sequence[str]) -> tuple[str, str]:
    """Return group and name of the innermost function of qmd; a frame is `name (file:line)`."""
    for name in map(_name, reversed(frames)):
        if name.startswith(LOOP):
            break
        for beginning, group in GROUPS:
            if name.startswith(beginning):
                return group, name
    return ELSEWHERE, _name(frames[-1])


def _name(frame: str) -> str:
    function, _, where = frame.partition(" (")
    return f"{where.rpartition(':')[0]} {function}"


def by_group(shares: dict[tuple[str, str], float]) -> dict[str, float]:
    groups: dict[str, float] = {}
    for (group, _), spent_us in shares.items():
        groups[group] = groups.get(group, 0.0) + spent_us
    return groups


def by_function(shares: dict[tuple[str, str], float]) -> dict[str, float]:
    return {function: spent_us for (_, function), spent_us in shares.items()}


def print_table(shares: list[dict[str, float]], rows_max: int) -> None:
    a, b = shares
    names = sorted(a.keys() | b.keys(), key=lambda name: -a.get(name, 0) - b.get(name, 0))
    print(f"{'':52}{'A':>8}{'B':>8}")
    for name in names[:rows_max]:
        print(f"{name:52}{a.get(name, 0):8.1f}{b.get(name, 0):8.1f}")
    print(f"{'all':52}{sum(a.values()):8.1f}{sum(b.values()):8.1f}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--delivery", default="transactional")
    parser.add_argument("--top", type=int, default=25, help="functions to list")
    given = parser.parse_args()
    run(profile(Load(messages=given.messages, delivery=given.delivery), given.top))


if __name__ == "__main__":
    main()
