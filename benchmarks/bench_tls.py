"""Cost of TLS between two queue managers: the same load with and without it, in turns.

    python -m benchmarks.bench_tls [--messages N] [--rounds N] [--body-bytes N] [--json]

There are two pairs of daemons, and only one of them works at a time.  The turns alternate in both
directions (with, without, without, with), so that other load on the machine affects both alike.
Each round gives a quotient; the result is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import replace
from typing import Any

from benchmarks.bench_end_to_end import WARM_UP_MESSAGES, Load, daemons, throughput
from benchmarks.pair import Daemon, run

Figures = dict[str, Any]


async def measure(load: Load, rounds: int) -> Figures:
    """Return all figures by name."""
    figures: Figures = {"load_average": round(os.getloadavg()[0], 1)}
    found: dict[str, list[Figures]] = {"tls": [], "plain": []}
    async with daemons(replace(load, tls=True)) as over_tls, daemons(load) as plain:
        for pair in (over_tls, plain):
            await throughput(*pair, load, WARM_UP_MESSAGES)
        await _check(over_tls[1])
        for round_ in range(rounds):
            turns = [(over_tls, found["tls"]), (plain, found["plain"])]
            for pair, results in turns if round_ % 2 == 0 else reversed(turns):
                results.append(await throughput(*pair, load, load.messages))
    for name in ("messages_per_s", "daemons_cpu_s_per_1000"):
        quotients = [
            tls[name] / without[name]
            for tls, without in zip(found["tls"], found["plain"], strict=True)
        ]
        figures[f"{name}_tls_by_plain"] = round(statistics.median(quotients), 3)
        for kind, results in found.items():
            figures[f"{name}_{kind}"] = [each[name] for each in results]
    return figures


async def _check(daemon: Daemon) -> None:
    """Raise RuntimeError unless the messages came over TLS."""
    async with daemon.client() as client:
        state = await client.status()
    if not state["tls"]["accepted"]:
        raise RuntimeError("the daemons did not use TLS")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000, help="of each turn")
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=6, help="of two turns")
    parser.add_argument(
        "--delivery", choices=("transactional", "recoverable", "express"), default="transactional"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    load = Load(messages=given.messages, delivery=given.delivery, body_bytes=given.body_bytes)
    figures = run(measure(load, given.rounds))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value}")


if __name__ == "__main__":
    main()
