"""Replay: send a slice of an archive again, in the order of arrival, each message once.

The slice is fixed when the job begins: the files, the condition, and the batch size.  It is divided
into batches by a total order, and each batch is staged and published under the job's id and its
number.  So a job that died can be started again: it continues behind its last batch, and no
published batch is published again.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.engines.engine import WrongQuery
from pipeline.jobs.archive import Archive
from pipeline.jobs.archived_rows import rows_of
from pipeline.source import schema
from pipeline.source.sink import PROPERTIES, messages_of
from qmd.client.blocking import Blocking
from qmd.control_protocol.bulk import Attempt

BATCH_ROWS = 5000
#: Rows in the order of arrival; rows of the same moment in the order of their queue.
ORDER = ("arrived_at", "queue_manager", "queue", "position", "id")
REPLIES = ("admin_queue", "acknowledge", "response_queue", "report_queue")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


class ReplayFailed(Exception):
    """The replay stopped and sent nothing more; the text gives the reason and the remedy."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Replayed:
    rows: int = 0  # of the slice
    sent: int = 0  # by this run
    batches: int = 0


class Replay:
    """One job, identified by its id."""

    def __init__(
        self,
        spark: Any,
        archive: Archive,
        job_id: str,
        *,
        where: str = "",
        since: str = "",
        until: str = "9999",
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        """Raise ReplayFailed for an invalid id.  `spark` is a session, or the embedded engine."""
        if not _NAME.fullmatch(job_id):
            raise ReplayFailed(
                f"{job_id!r} is not an id of a job; use letters, digits, '.', '_' and '-'",
                "bad_job_id",
            )
        self._rows = rows_of(spark)
        self._archive = archive
        self._job_id = job_id
        self._request = {"where": where, "since": since, "until": until, "batch_rows": batch_rows}

    def count(self) -> int:
        """Return the number of messages in the slice."""
        return self._count(self._archive.runs(self._since, self._until))

    def contents(self) -> Any:
        """Return the contents of the slice by day, host and queue, as a pandas table."""
        plan = self._archive.plan(self._job_id)
        runs = plan["runs"] if plan is not None else self._archive.runs(self._since, self._until)
        return self._rows.contents(runs, self._where)

    def run(
        self,
        qm: Blocking,
        destination: str,
        *,
        delivery: str = "",
        replies: bool = True,
        rate: float = 0.0,
        progress: Callable[[int, int], None] = lambda sent, rows: None,
    ) -> Replayed:
        """Send the messages that were not sent yet.

        `rate`: at most this many messages a second; 0: no limit.  Without `replies` the messages
        ask for no acknowledgments, responses or reports.
        """
        plan = self._plan(destination)
        rows = self._rows.ordered(plan["runs"], self._where, ORDER)
        done = Replayed(rows=plan["rows"])
        query = f"replay/{self._job_id}"
        began = time.monotonic()
        for number, batch in enumerate(_batches(rows, plan["batch_rows"])):
            if number < plan["done"]:
                continue
            messages = self._messages(batch, destination, delivery, replies=replies)
            qm.pipeline.stage(query, number, partition=0, attempt="replay", messages=messages)
            attempt = Attempt(0, "replay", len(messages))
            if qm.pipeline.publish(query, number, [attempt]).published:
                done.sent += len(messages)
                done.batches += 1
            plan["done"] = number + 1
            self._archive.write_plan(self._job_id, plan)
            progress(number * plan["batch_rows"] + len(messages), plan["rows"])
            if rate:
                time.sleep(max(began + done.sent / rate - time.monotonic(), 0.0))
        return done

    def _plan(self, destination: str) -> dict[str, Any]:
        plan = self._archive.plan(self._job_id)
        request = {**self._request, "destination": destination}
        if plan is not None:
            if plan["asked"] != request:
                raise ReplayFailed(
                    f"job {self._job_id} was begun with {plan['asked']}, and now has {request};"
                    " use another --job-id for another slice",
                    "job_was_other",
                )
            known = set(self._archive.runs())
            if gone := [run for run in plan["runs"] if run not in known]:
                raise ReplayFailed(
                    f"the archive was compacted again since job {self._job_id} began, and"
                    f" {gone[0]} no longer exists, so its batches cannot be divided as before."
                    f" Sent so far: {plan['done']} batches of {plan['batch_rows']} messages",
                    "archive_changed",
                )
            return plan
        runs = self._archive.runs(self._since, self._until)
        if not runs:
            raise ReplayFailed(
                "the archive has no such days; see `qmd pipeline archive`", "nothing_archived"
            )
        plan = {
            "asked": request,
            "runs": runs,
            "batch_rows": self._request["batch_rows"],
            "rows": self._count(runs),
            "done": 0,
        }
        self._archive.write_plan(self._job_id, plan)
        return plan

    def _count(self, runs: list[str]) -> int:
        try:
            return self._rows.count(runs, self._where) if runs else 0
        except WrongQuery as wrong:
            raise ReplayFailed(
                f"--where {self._where!r} is no condition on the columns of messages: {wrong};"
                " docs/pipeline.md lists the columns",
                "wrong_condition",
            ) from wrong

    @property
    def _where(self) -> str:
        return str(self._request["where"])

    @property
    def _since(self) -> str:
        return str(self._request["since"])

    @property
    def _until(self) -> str:
        return str(self._request["until"])

    def _messages(
        self, rows: list[Any], destination: str, delivery: str, *, replies: bool
    ) -> list[Any]:
        import pyarrow as pa

        left_out = {"destination", "delivery", "dead_letter_queue"}
        left_out |= set() if replies else set(REPLIES)
        columns = [
            name
            for name in schema.column_names("messages")
            if name in PROPERTIES and name not in left_out
        ]
        table = pa.Table.from_pylist(
            [_fields(row, columns) for row in rows],
            schema=pa.schema(schema.arrow_schema("messages", columns)),
        )
        messages: list[Any] = []
        for batch in table.to_batches():
            messages += messages_of(batch, columns, destination, delivery)
        return messages


def _fields(row: Any, columns: list[str]) -> dict[str, Any]:
    """Return the properties of the message to send."""
    fields = {name: row[name] for name in columns}
    if not fields.get("connector_type"):
        fields["class_number"] = None  # only connectors set a class of their own
    for name in ("body", "extension"):
        if fields.get(name) is not None:
            fields[name] = bytes(fields[name])
    return fields


def _batches(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch
