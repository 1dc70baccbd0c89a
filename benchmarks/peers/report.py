"""Tables of the rounds: medians of each peer, and ratios of qmd to it with their spread.

A ratio is that of two turns of one round, which began minutes after each other, so that other work
on the machine met both; the medians of different peers may come from different rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.peers.measure import Figures
from benchmarks.peers.servers import NATS, QMD, RABBITMQ, RECOVERABLE, REDIS

Round = dict[str, dict[str, Figures]]  # figures by peer and load
Table = list[list[str]]

FIGURES = {
    "messages_per_s": ("messages/s", 0),
    "cpu_s_per_1000": ("CPU s for 1,000: servers", 3),
    "clients_cpu_s_per_1000": ("clients", 3),
    "written_bytes": ("bytes written a message", 0),
    "given_p50_ms": ("at 200/s, until given: p50, ms", 1),
    "given_p99_ms": ("p99, ms", 1),
    "idle_rss_mb": ("memory, MB: idle", 0),
    "peak_rss_mb": ("loaded", 0),
}
LOADS = ("W1", "W2, one by one", "W2, by hundreds")


@dataclass(frozen=True)
class Promise:
    """A bound for the ratio of qmd's figure to a peer's."""

    load: str
    figure: str
    peer: str
    bound: float
    is_least: bool

    def is_kept(self, ratio: float) -> bool:
        return ratio >= self.bound if self.is_least else ratio <= self.bound


PROMISES = (
    Promise("W1", "messages_per_s", RABBITMQ, 2.0, True),
    Promise("W1", "messages_per_s", NATS, 1.0, True),
    Promise("W1", "cpu_s_per_1000", RABBITMQ, 0.45, False),
    Promise("W1", "cpu_s_per_1000", NATS, 1.2, False),
    Promise("W1", "given_p50_ms", RABBITMQ, 1.0, False),
    Promise("W1", "given_p99_ms", RABBITMQ, 1.0, False),
    Promise("W1", "given_p50_ms", NATS, 2.0, False),
    Promise("W1", "given_p99_ms", NATS, 2.0, False),
    Promise("W1", "messages_per_s", RECOVERABLE, 1.0, False),
    Promise("W2, one by one", "messages_per_s", RABBITMQ, 1.0, True),
    Promise("W2, one by one", "messages_per_s", REDIS, 1.0, True),
    Promise("W2, by hundreds", "messages_per_s", REDIS, 2.0, True),
)


def medians(rounds: list[Round]) -> Iterator[tuple[str, Table]]:
    """Yield the name of each load, and a table of the peers' medians, with the spread."""
    for load in LOADS:
        turns = {
            peer: [each[peer][load] for each in rounds if load in each.get(peer, {})]
            for peer in _peers(rounds)
        }
        turns = {peer: found for peer, found in turns.items() if found}
        present = {name for found in turns.values() for name in found[0]}
        names = [name for name in FIGURES if name in present]
        table = [[load, *(FIGURES[name][0] for name in names)]]
        for peer, found in turns.items():
            cells = [_cell([one[name] for one in found], FIGURES[name][1]) for name in names]
            table.append([peer, *cells])
        if turns:
            yield load, table


def _peers(rounds: list[Round]) -> list[str]:
    return list(dict.fromkeys(name for each in rounds for name in each))


def _cell(values: list[float], digits: int) -> str:
    median = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return median
    return f"{median} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def ratios(rounds: list[Round]) -> Table:
    """Return a table of the promised ratios: median, least, most, promise."""
    table = [["qmd to another, ratio of", "", "median", "least", "most", "goal", ""]]
    for promise in PROMISES:
        found = []
        for each in rounds:
            ours, theirs = (
                each.get(peer, {}).get(promise.load, {}).get(promise.figure)
                for peer in (QMD, promise.peer)
            )
            if ours and theirs:
                found.append(ours / theirs)
        if not found:
            continue
        median = statistics.median(found)
        label = {"given_p50_ms": "p50 until given", "given_p99_ms": "p99 until given"}
        what = label.get(promise.figure, FIGURES[promise.figure][0].partition(":")[0])
        sign = "≥" if promise.is_least else "≤"
        table.append(
            [
                f"{promise.load}: {what}",
                promise.peer,
                *(f"{value:.2f}" for value in (median, min(found), max(found))),
                f"{sign} {promise.bound:g}",
                "" if promise.is_kept(median) else "missed",
            ]
        )
    return table


def text(table: Table) -> str:
    """Return a table with columns of equal width."""
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def markdown(table: Table) -> str:
    """Return a table of Markdown."""
    head, *rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)
