"""Numbers inside settled parts of a stream: later nights say what one run over all of them says."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

import pyarrow as pa
from pyarrow import parquet

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from qmd.cli.event_files import arrow_schema
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Fleet, Message, Stream
from tests.pipeline.nights import about_messages


class Odd:
    """Streams of two sequences from alpha to echo, each with an odd message that comes late."""

    def __init__(self) -> None:
        self.fleet = Fleet(random.Random(1))
        self.alpha, self.echo = self.fleet.host("alpha"), self.fleet.host("echo")
        self.at = MIDNIGHT + HOUR
        self.late: set[int] = set()  # minutes

    def begin(self, queue: str) -> None:
        self.stream, self.queue = Stream(self.alpha), queue
        self.messages: list[Message] = []

    def message(self) -> Message:
        return Message(self.alpha, self.echo, self.queue, self.stream)

    def good(self, count: int) -> None:
        for _ in range(count):
            self.at += MINUTE
            self.messages.append(self.message())
            self.fleet.life(self.messages[-1], self.at)

    def odd(self) -> None:
        """Let the events until the next message come late."""
        self.at += MINUTE
        self.late.add(self.at // MINUTE)

    def store(self, m: Message, number: int | None = None) -> None:
        """Send `m`, and store it under another number of its sequence."""
        self.fleet.sent(m, self.at)
        self.fleet.accepted(m, self.at + 12, position=(m.position[0], number or m.position[1]))
        self.fleet.acked(m, self.at + 22)

    def write(self, folder: Path) -> None:
        """Write both logs into `first`; the odd messages into a folder for each host."""
        for host in (self.alpha, self.echo):
            parts: dict[str, list[Any]] = {"first": [], host.name: []}
            for row in host.rows():
                is_late = row["at_ms"] // MINUTE in self.late
                parts[host.name if is_late else "first"].append(row)
            for name, rows in parts.items():
                (folder / name).mkdir(exist_ok=True)
                table = pa.Table.from_pylist(rows, schema=arrow_schema())
                parquet.write_table(table, folder / name / f"{host.name}.parquet")


def accepted_beyond_the_end_of_its_sequence(odd: Odd) -> None:
    odd.odd()
    odd.store(m := odd.message(), 1000)
    odd.fleet.wrong("wrong_number", m)


def accepted_as_a_settled_one(odd: Odd) -> None:
    odd.odd()
    odd.store(m := odd.message(), 2)
    odd.fleet.wrong("wrong_number", m)


def sent_as_a_settled_one(odd: Odd) -> None:
    odd.odd()
    odd.stream.number = 1
    odd.store(m := odd.message())
    odd.stream.number = 4
    for kind in ("number_reused", "reordered"):
        odd.fleet.wrong(kind, m)


def never_sent(odd: Odd) -> None:
    odd.odd()
    odd.stream.number = 1
    odd.fleet.accepted(m := odd.message(), odd.at + 12)
    odd.stream.number = 4
    for kind in ("never_sent", "reordered"):
        odd.fleet.wrong(kind, m)


def stored_again(odd: Odd) -> None:
    odd.odd()
    odd.fleet.accepted(odd.messages[1], odd.at + 12)
    odd.fleet.wrong("duplicated", odd.messages[1])


def sent_and_stored_again(odd: Odd) -> None:
    odd.odd()
    odd.store(odd.messages[1])
    odd.fleet.wrong("duplicated", odd.messages[1])


def accepted_under_an_unused_number_of_another_stream(odd: Odd) -> None:
    """Its source gave that number to no message, but it is no gap."""
    odd.odd()
    used = odd.stream
    odd.stream = Stream(odd.alpha)
    m, number = odd.message(), used.number + 1
    odd.fleet.sent(m, odd.at)
    odd.fleet.accepted(m, odd.at + 12, position=(used.sequence_id, number))
    odd.fleet.acked(m, odd.at + 22)
    odd.stream, used.number = used, number
    odd.fleet.wrong("wrong_number", m)


ODD = [accepted_beyond_the_end_of_its_sequence, accepted_as_a_settled_one, sent_as_a_settled_one,
       never_sent, stored_again, sent_and_stored_again,
       accepted_under_an_unused_number_of_another_stream]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "nights"),
    [
        (ODD, ["first", "alpha echo"]),
        (ODD, ["first", "alpha", "echo"]),
        (ODD, ["first", "echo", "alpha"]),
    ],
)
def test_late_messages_among_settled_ones(
    tmp_path: Path, kinds: list[Any], nights: list[str]
) -> None:
    odd = Odd()
    for make in kinds:
        odd.begin(make.__name__)
        odd.good(4)
        make(odd)
        odd.good(2)
        odd.stream.sequence, odd.stream.number = 2, 0
        odd.good(3)
    odd.write(tmp_path)
    state, settings = State(), AuditSettings(tasks=1)

    def found(names: str, state: State) -> Counter[Any]:
        files = find_files([str(tmp_path / name) for name in names.split()])
        return about_messages(audit(engine, files, state, settings))

    with LocalEngine(threads=1) as engine:
        whole = found("first alpha echo", State())
        last = [found(night, state) for night in nights][-1]

    assert whole == odd.fleet.findings
    assert last == whole


def test_a_night_without_files_finds_nothing() -> None:
    with LocalEngine(threads=1) as engine:
        assert len(audit(engine, [], State(), AuditSettings(tasks=1)).findings) == 0


def test_an_earlier_file_that_comes_later_does_not_rename_a_host(tmp_path: Path) -> None:
    fleet = Fleet(random.Random(1))
    renamed = fleet.host("kilo")
    renamed.later_name = (MIDNIGHT + HOUR, "kilo-new")
    rows = sorted(renamed.rows(), key=lambda row: int(row["at_ms"]))
    state = State()
    with LocalEngine(threads=1) as engine:
        for night in (rows[1:], rows[:1]):
            path = tmp_path / f"{len(night)}-{night[0]['block']}.parquet"
            parquet.write_table(pa.Table.from_pylist(night, schema=arrow_schema()), path)
            audit(engine, find_files([str(path)]), state, AuditSettings(tasks=1))

    assert list(state.hosts.values()) == ["kilo-new"]


def test_a_gap_before_a_lost_end_of_a_sequence_is_found(tmp_path: Path) -> None:
    """The receiver continues with the next sequence: its numbers show no end of the first one."""
    odd = Odd()
    odd.begin("end")
    odd.good(4)
    f, number = odd.fleet, odd.stream.number + 1
    f.findings["gap", "", odd.stream.sequence_id, number] += 1
    odd.stream.number = number
    odd.odd()
    f.sent(lost := odd.message(), odd.at)
    f.wrong("lost", lost)
    odd.stream.sequence, odd.stream.number = 2, 0
    odd.good(3)
    f.write(tmp_path, without=set(), hole=(odd.alpha, 0, 0))
    with LocalEngine(threads=1) as engine:
        found = audit(engine, find_files([str(tmp_path)]), State(), AuditSettings(tasks=1))

    assert about_messages(found) == f.findings


@pytest.mark.parametrize("full", [False, True])
def test_the_state_does_not_grow_with_the_sequences(tmp_path: Path, *, full: bool) -> None:
    """A quiet queue has a sequence for each of its messages."""
    odd = Odd()
    odd.begin("quiet")
    for sequence in range(1, 101):
        odd.stream.sequence, odd.stream.number = sequence, 0
        odd.good(1)
    odd.write(tmp_path)
    state = State()
    with LocalEngine(threads=1) as engine:
        audit(engine, find_files([str(tmp_path)]), state, AuditSettings(tasks=1, full=full))

    assert len(state.runs) == 2  # what was sent, and what was accepted
