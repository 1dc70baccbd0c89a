"""Verdict on the demo's messages: a readable table, and the broken promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from benchmarks.tally import Tally

LISTED_MAX = 20
FINDINGS = "findings"


@dataclass
class Outcome:
    """The results of a run."""

    transactional: Tally
    recoverable: Tally
    express: Tally
    kills: int = 0
    cuts: int = 0  # connections
    resent: int = 0
    duplicates_refused: int = 0
    seconds: float = 0.0  # from the first send until all was settled

    @property
    def tallies(self) -> tuple[Tally, Tally, Tally]:
        return self.transactional, self.recoverable, self.express


def broken_promises(outcome: Outcome) -> list[str]:
    """Return every broken promise, one line for each message."""
    return [line for tally in outcome.tallies for line in broken_promises_of(tally, outcome.kills)]


def broken_promises_of(tally: Tally, kills: int) -> Iterator[str]:
    """Yield the broken promises of one delivery, after `kills` kills in all."""
    if tally.sent < tally.total:
        yield f"{tally.total - tally.sent:,} {tally.delivery} messages were not sent"
    for number in tally.missing:
        # An express message lives in memory: a later kill may have removed it.
        if tally.delivery != "express" or tally.kills_before.get(number, kills) == kills:
            yield f"lost: {tally.name(number)}"
    for number in tally.doubled:
        yield (
            f"arrived {len(tally.arrivals[number])} times: {tally.name(number)},"
            f" as {' and '.join(tally.arrivals[number])}"
        )
    if tally.delivery == "transactional":
        for number in tally.out_of_order:
            yield f"arrived after a later one: {tally.name(number)}"
    for message_id in tally.altered:
        yield f"its body is not what was sent: message {message_id}"


def reasons(failure: BaseException) -> list[str]:
    """Return the errors that stopped the run; exception groups are flattened."""
    if isinstance(failure, BaseExceptionGroup):
        return [line for one in failure.exceptions for line in reasons(one)]
    if isinstance(failure, TimeoutError):
        return ["it did not end in time"]
    return [f"{type(failure).__name__}: {failure}"]


def table(outcome: Outcome) -> list[str]:
    lines = [
        _row("", *(tally.delivery for tally in outcome.tallies)),
        _row("", "A to B", "B to A", "B to A"),
    ]
    for name in ("sent", "delivered", "lost", "doubled", "out of order"):
        lines.append(_row(name, *(f"{_figure(tally, name):,}" for tally in outcome.tallies)))
    lines.append("")
    delivered = sum(tally.delivered for tally in outcome.tallies)
    for name, value in (
        ("resent", f"{outcome.resent:,}"),
        ("duplicates refused", f"{outcome.duplicates_refused:,}"),
        ("kills survived", f"{outcome.kills}"),
        ("connections cut", f"{outcome.cuts}"),
        ("seconds", f"{outcome.seconds:.1f}"),
        ("messages a second", f"{delivered / outcome.seconds:,.0f}" if outcome.seconds else "-"),
    ):
        lines.append(_row(name, value))
    return lines


def _figure(tally: Tally, name: str) -> int:
    match name:
        case "sent":
            return tally.sent
        case "delivered":
            return tally.delivered
        case "lost":
            return len(tally.missing)
        case "doubled":
            return len(tally.doubled)
    return len(tally.out_of_order)


def _row(name: str, *cells: str) -> str:
    return f"{name:20}" + "".join(f"{cell:>15}" for cell in cells)


def verdict(outcome: Outcome, wrong: list[str], folder: Path) -> list[str]:
    """Return the closing lines.  All errors are also written to a file in `folder`."""
    if not wrong:
        lost = len(outcome.express.missing)
        return [
            "Every transactional message arrived exactly once and in order, and every recoverable"
            " one exactly once.",
            f"No express message came twice; {lost or 'none'} of them"
            f" {'was' if lost <= 1 else 'were'} lost: they live in memory, and a kill takes what is"
            " there.",
        ]
    findings = folder / FINDINGS
    findings.write_text("".join(f"{line}\n" for line in wrong))
    lines = ["THIS IS WRONG:", *(indent(line, "  ") for line in wrong[:LISTED_MAX])]
    if len(wrong) > LISTED_MAX:
        lines.append(f"  ... and {len(wrong) - LISTED_MAX} more: see {findings}")
    return [*lines, f"The data and the logs of both queue managers are kept in {folder}"]
