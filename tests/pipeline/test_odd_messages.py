"""Messages that differ at both ends, leave where they never came, or are imported twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.events import find_files
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT, MINUTE, Fleet, Message, Stream
from tests.pipeline.nights import about_messages


def odd_fleet(folder: Path) -> Fleet:
    f = Fleet(random.Random(1))
    alpha, echo = f.host("alpha"), f.host("echo")
    at = MIDNIGHT + HOUR

    def message(stream: Stream | None, queue: str = "usual") -> Message:
        nonlocal at
        at += 20 * MINUTE
        return Message(alpha, echo, queue, stream)

    def arrives(m: Message, **otherwise: Any) -> Any:
        f.sent(m, at)
        came = f.accepted(m, at + 12)
        came.update(otherwise)
        f.acked(m, at + 22)
        f.left(came, at + 60)
        return came

    for stream in (Stream(alpha), None):
        for _ in range(3):
            f.life(message(stream), at)
        arrives(m := message(stream), bytes=701)
        f.wrong("other_size", m)
        f.life(message(stream), at)
        arrives(m := message(stream), queue="private$\\elsewhere")
        f.wrong("other_queue", m)
        f.life(message(stream), at)
    other = Stream(alpha)  # all of it is stored elsewhere, in order
    for _ in range(3):
        arrives(m := message(other, "whole"), queue="private$\\wrong")
        f.wrong("other_queue", m)
    capitals = Stream(alpha)
    for _ in range(3):
        arrives(message(capitals, "Capitals"), queue="PRIVATE$\\CAPITALS")
    # Received, and never stored, although its sender has the acknowledgment.
    f.sent(m := message(other, "whole"), at)
    f.acked(m, at + 22)
    echo.record(at + 60, "received", m, queue=m.queue, leaves={"place": 7 << 44 | 900})
    f.wrong("received_unstored", m)
    f.wrong("acked_not_stored", m)
    # Exported and imported: into a queue that still has it, and after it was removed.
    m = message(None)
    came = f.life(m, at, received=False)
    for n in range(2):
        echo.record(at + MINUTE + n * HOUR, "imported", m, queue=m.queue, comes=True)
    f.wrong("imported_twice", m)
    m = message(None)
    came = f.life(m, at, received=False)
    for n in range(2):
        f.left(came, at + 2 * MINUTE + n * HOUR, "purged")
        came = echo.record(at + 3 * MINUTE + n * HOUR, "imported", m, queue=m.queue, comes=True)
    assert at < MIDNIGHT + DAY - HOUR
    f.write(folder, without=set(), hole=(alpha, 0, 0))
    return f


@pytest.mark.parametrize("full", [False, True])
def test_exactly_the_odd_messages_are_found(engine: Any, tmp_path: Path, full: bool) -> None:
    fleet = odd_fleet(tmp_path)
    files = find_files([str(tmp_path)])

    whole = audit(engine, files, State(), AuditSettings(tasks=2, full=full))

    assert about_messages(whole) == fleet.findings


@pytest.mark.parametrize("hosts", [("alpha", "echo"), ("echo", "alpha")])
def test_the_odd_messages_are_found_night_after_night(
    engine: Any, tmp_path: Path, hosts: tuple[str, str]
) -> None:
    fleet = odd_fleet(tmp_path)
    files = find_files([str(tmp_path)])
    state = State()

    for host in hosts:
        night = [file for file in files if host in file.path]
        result = audit(engine, night, state, AuditSettings(tasks=2))
        assert about_messages(result) <= fleet.findings

    assert about_messages(result) == fleet.findings
