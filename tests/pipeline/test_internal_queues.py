"""Acknowledgments between queue managers arrive in no queue: none counts as a lost message."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra qmd-msmq[spark] is not installed")
pytest.importorskip("duckdb", reason="the extra qmd-msmq[spark] is not installed")

from pipeline.engines.local import LocalEngine
from pipeline.events import find_files, read_piece
from pipeline.jobs import slo
from pipeline.jobs.audit.findings import AuditSettings
from pipeline.jobs.audit.job import audit
from pipeline.jobs.audit.state import State
from tests.pipeline.foreign_fleet import HOUR, MIDNIGHT, MINUTE, Fleet, Message, Stream
from tests.pipeline.nights import about_messages


def test_final_acks_that_are_acknowledged_are_not_lost(tmp_path: Path) -> None:
    f = Fleet(random.Random(1))
    alpha, echo = f.host("alpha"), f.host("echo")
    there, back = Stream(alpha), Stream(echo)
    guid = alpha.guid
    for n, name in enumerate(
        [
            f"DIRECT=TCP:10.0.0.1\\private$\\order_queue$ via {guid}",
            "DIRECT=OS:alpha\\private$\\order_queue$",
            f"PRIVATE={guid}\\4",
            "DIRECT=TCP:10.0.0.1\\private$\\my_order_queue$",
        ]
    ):
        at = MIDNIGHT + HOUR + n * MINUTE
        f.life(Message(alpha, echo, "orders", there), at)
        f.sent(ack := Message(echo, alpha, "acks", None), at + 1000)
        f.acked(ack, at + 1020)
        for event in echo.events:
            if event["message"] is ack:
                event["queue"] = name
    f.wrong("acked_not_stored", ack)  # the last one is for a queue of an application
    f.life(Message(echo, alpha, "answers", back), MIDNIGHT + 2 * HOUR)
    f.write(tmp_path, without=set(), hole=(alpha, 0, 0))

    files = find_files([str(tmp_path)])
    with LocalEngine(threads=1) as engine:
        found = audit(engine, files, State(), AuditSettings(tasks=1))
    assert about_messages(found) == f.findings
    assert len(found.open) == 0
    columns = ("queue_manager", "host", "at_ms", "kind", "message_id", "queue")
    tables = [each for file in files for each in read_piece((file.path, 0, -1), columns)]
    counted = [batch for table in tables for batch in slo._events(table, {})]
    queues = {queue for batch in counted for queue in batch.column("queue").to_pylist()}
    assert {queue for queue in queues if "order_queue" in queue or queue.startswith("PRIV")} == {
        "DIRECT=TCP:10.0.0.1\\private$\\my_order_queue$"
    }
