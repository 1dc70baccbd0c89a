"""Writing rows as messages: each row once, also if Spark repeats a task or a batch.

Executors *stage* the rows of their partition in the queue manager, where they are invisible.  When
all tasks of a batch are complete, the driver *publishes* them: exactly the attempts that Spark
names, in one transaction of the queue manager that also records the batch.  A repeated batch is not
published again.  This cannot be decided for each partition, because a repeated batch may be divided
into other partitions.

A batch of a stream is identified by the query id in the checkpoint and by its number there.  A name
from the user would not do: a new checkpoint counts from 0 again.  A batch write is identified by
its `jobId`, or by an id of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pipeline.source import schema
from pipeline.source.connection import Connection, say
from pipeline.source.errors import SourceError, option_error, plainly
from pipeline.source.option_names import KAFKA_COLUMNS
from pipeline.source.options import SERVICE_BUS, Options
from protocol.errors import InvalidName
from qmd.client import ClientError, new_message
from qmd.client.pipeline import Published
from qmd.control_protocol.bulk import Attempt
from qmd.control_protocol.messages import NewMessage

# Local properties with which Spark names a task's batch; undocumented, so a test checks them.
EPOCH = "streaming.sql.batchId"
QUERY = "sql.streaming.queryId"

ROWS_AT_ONCE = 8_192

# Column -> keyword of `new_message`.
PROPERTIES = {
    "body": "body",
    "label": "label",
    "delivery": "delivery",
    "priority": "priority",
    "time_to_reach_queue": "time_to_reach_queue_s",
    "time_to_be_received": "time_to_be_received_s",
    "dead_letter": "dead_letter",
    "journal": "journal",
    "body_type": "body_type",
    "correlation_id": "correlation_id",
    "application_tag": "application_tag",
    "extension": "extension",
    "response_queue": "response_queue",
    "admin_queue": "admin_queue",
    "acknowledge": "acknowledge",
    "sender_id": "sender_id",
    "connector_type": "connector_type",
    "report_queue": "report_queue",
    "dead_letter_queue": "dead_letter_queue",
    "class_number": "message_class",
}
_DESTINATION = "destination"
_PLAIN = {"body", "label"}
# Spark types of a column, by the first word of their names.
_TYPES = {
    "destination": ("string",),
    "body": ("binary", "string"),
    "label": ("string",),
    "delivery": ("string",),
    "priority": ("int", "bigint", "smallint", "tinyint"),
    "time_to_reach_queue": ("int", "bigint"),
    "time_to_be_received": ("int", "bigint"),
    "dead_letter": ("boolean",),
    "journal": ("boolean",),
    "body_type": ("int", "bigint", "string"),
    "correlation_id": ("string", "binary"),
    "application_tag": ("int", "bigint"),
    "extension": ("binary",),
    "response_queue": ("string",),
    "admin_queue": ("string",),
    "acknowledge": ("array<string>", "int", "bigint"),
    "sender_id": ("string", "binary"),
    "connector_type": ("string", "binary"),
    "report_queue": ("string",),
    "dead_letter_queue": ("string",),
    "class_number": ("int", "bigint"),
}
# Columns of a read message that the queue manager sets anew in a written message.
_NOT_WRITTEN = {*schema.column_names("messages"), SERVICE_BUS} - set(PROPERTIES) - {_DESTINATION}
_ACKNOWLEDGE = {
    name: 1 << bit
    for bit, name in enumerate(
        ("positive_arrival", "positive_receive", "negative_arrival", "negative_receive")
    )
}


@dataclass
class Staged(WriterCommitMessage):
    """The rows that one task has staged."""

    query: str
    epoch: int
    partition: int
    attempt: str
    rows: int


class _Writer:
    """The common part of both kinds of writing."""

    def __init__(self, options: Options, fields: Sequence[tuple[str, str]]) -> None:
        self.endpoint = options.endpoint()
        self.destination = options.destination
        self.delivery = options.delivery
        if self.delivery == "express":
            raise option_error(
                "delivery",
                "is express, and such messages cannot be written exactly once: they live in memory,"
                " so a crash would lose messages of a batch that counts as written, or send"
                " messages again that were already received; use recoverable, or leave it out",
            )
        self.columns = check_columns(fields, has_destination=bool(self.destination))

    def stage(self, batches: Iterator[Any], query: str, epoch: int) -> Staged:
        """Stage all rows of one task, as one attempt."""
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId()
        # Repeated or concurrent tasks for the same partition must not mix their rows.
        attempt = f"{context.attemptNumber()}-{uuid.uuid4().hex}"
        rows = 0
        at: Connection | None = None
        try:
            for messages in self._messages(batches):
                at = at or Connection(self.endpoint, patient=True)
                at.run(
                    at.qm.pipeline.stage(
                        query,
                        epoch,
                        partition=partition,
                        attempt=attempt,
                        messages=messages,
                        first_row=rows,
                    )
                )
                rows += len(messages)
        finally:
            if at is not None:
                at.close()
        return Staged(query, epoch, partition, attempt, rows)

    def _messages(self, batches: Iterator[Any]) -> Iterator[list[NewMessage]]:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                piece = batch.slice(start, ROWS_AT_ONCE)
                yield messages_of(piece, self.columns, self.destination, self.delivery)

    def publish(self, query: str, epoch: int, tasks: Iterable[Staged]) -> Published | None:
        """Send the rows of these tasks; return the answer, or None if there are no rows."""
        attempts = [Attempt(one.partition, one.attempt, one.rows) for one in tasks if one.rows]
        if not attempts:
            return None
        with Connection(self.endpoint, patient=True) as at:
            return at.run(at.qm.pipeline.publish(query, epoch, attempts))

    def discard(self, tasks: Iterable[WriterCommitMessage | None]) -> None:
        """Remove the rows that these tasks of a failed batch have staged."""
        staged = [one for one in tasks if isinstance(one, Staged) and one.rows]
        if not staged:
            return
        # Do not hide the failure of the batch; the queue manager removes stages that remain by age.
        with contextlib.suppress(SourceError), Connection(self.endpoint) as at:
            for one in staged:
                at.run(
                    at.qm.pipeline.discard_stages(
                        one.query, one.epoch, partition=one.partition, attempt=one.attempt
                    )
                )

    def discard_all(self, query: str) -> None:
        """Remove all rows staged under a name that only this write uses."""
        with contextlib.suppress(SourceError), Connection(self.endpoint) as at:
            at.run(at.qm.pipeline.discard_stages(query))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of a stream: publishes each batch once, under the query id in its checkpoint."""

    def __init__(self, options: Options, fields: Sequence[tuple[str, str]]) -> None:
        self._writer = _Writer(options, fields)

    @plainly
    def write(self, iterator: Iterator[Any]) -> Staged:
        query, epoch = batch_of_task()
        return self._writer.stage(iterator, query, epoch)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tasks = [one for one in messages if isinstance(one, Staged)]
        if len(tasks) != len(messages):
            raise SourceError("qmd: Spark commits a batch without having all of its tasks")
        queries = {one.query for one in tasks}
        if any(one.epoch != batchId for one in tasks) or len(queries) > 1:
            raise SourceError(
                f"qmd: Spark commits batch {batchId} with tasks of"
                f" {sorted((one.query, one.epoch) for one in tasks)}; nothing of it was sent"
            )
        for query in queries:
            self._writer.publish(query, batchId, tasks)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.discard(messages)


class BatchWriter(DataSourceArrowWriter):
    """Writer of a batch: publishes all rows once, also if a job is repeated with its `jobId`."""

    def __init__(self, options: Options, fields: Sequence[tuple[str, str]]) -> None:
        self._writer = _Writer(options, fields)
        self._query = f"job/{options.job_id or uuid.uuid4().hex}"
        self._is_named = bool(options.job_id)

    @plainly
    def write(self, iterator: Iterator[Any]) -> Staged:
        return self._writer.stage(iterator, self._query, 0)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        tasks = [one for one in messages if isinstance(one, Staged)]
        if len(tasks) != len(messages):
            raise SourceError("qmd: Spark commits a job without having all of its tasks")
        found = self._writer.publish(self._query, 0, tasks)
        if self._is_named and found is not None and not found.published:
            self._check_repeated(found, sum(one.rows for one in tasks))

    def _check_repeated(self, found: Published, rows: int) -> None:
        """Say that a job was written before; refuse one that has other rows now."""
        at = datetime.fromtimestamp(found.at_ms / 1000, UTC).isoformat(timespec="seconds")
        job = self._query.partition("/")[2]
        text = (
            f"qmd at {self._writer.endpoint}: the job {job} was written at {at} with"
            f" {found.messages} messages"
        )
        if found.messages != rows:
            raise SourceError(
                f"{text}; this run has {rows} rows, and none of them was sent.  Give each run a"
                " jobId of its own: only a repetition of the same rows has the same one"
            )
        say(f"{text}; this run with its jobId sent nothing")

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows, also of tasks that Spark has not seen end."""
        if self._is_named:  # another run of the same job may be active
            self._writer.discard(messages)
        else:
            self._writer.discard_all(self._query)


def batch_of_task() -> tuple[str, int]:
    """Return the query and the batch of this task, from Spark's local properties."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query, epoch = context.getLocalProperty(QUERY), context.getLocalProperty(EPOCH)
    if not query or epoch is None:
        raise SourceError(
            f"qmd: this Spark does not set the batch of a task ({QUERY}, {EPOCH}), so a repeated"
            " batch cannot be distinguished from a new one; use Spark 4.3"
        )
    return f"spark/{query}", int(epoch)


def check_columns(fields: Sequence[tuple[str, str]], *, has_destination: bool) -> tuple[str, ...]:
    """Return the columns to write.  `fields`: names and Spark types.  Raises SourceError."""
    columns = []
    for name, kind in fields:
        if name in _TYPES:
            if kind not in _TYPES[name]:
                raise SourceError(
                    f'qmd: column "{name}" is {kind}, and has to be {" or ".join(_TYPES[name])}'
                )
            columns.append(name)
        elif name in KAFKA_COLUMNS:
            raise SourceError(
                f'qmd: column "{name}" is of Kafka\'s sink; its counterpart here is'
                f" {KAFKA_COLUMNS[name]}"
            )
        elif name not in _NOT_WRITTEN:
            raise SourceError(
                f'qmd: column "{name}" is not a property of a message; drop it, or rename it to one'
                f" of {', '.join((_DESTINATION, *PROPERTIES))}"
            )
    if _DESTINATION not in columns and not has_destination:
        raise SourceError(
            'qmd: no destination: name it with .option("destination", "orders@hostb"), or for each'
            ' row in a column "destination"'
        )
    return tuple(columns)


def messages_of(
    batch: Any, columns: Sequence[str], destination: str, delivery: str
) -> list[NewMessage]:
    """Convert the rows of a record batch to messages; null values are left out."""
    if destination and not delivery and set(columns) <= _PLAIN:
        quick = _plain_messages(batch, columns, destination)
        if quick is not None:
            return quick
    names = [name for name in columns if name in PROPERTIES]
    if delivery:
        names = [name for name in names if name != "delivery"]
    values = [_values(name, batch) for name in names]
    keys = [PROPERTIES[name] for name in names]
    count = batch.num_rows
    where = [destination] * count if destination else batch.column(_DESTINATION).to_pylist()
    messages = []
    rows: Iterable[tuple[Any, ...]] = zip(*values, strict=True) if values else [()] * count
    for place, row in zip(where, rows, strict=True):
        given = {key: value for key, value in zip(keys, row, strict=True) if value is not None}
        if delivery:
            given["delivery"] = delivery
        if not place:
            raise SourceError('qmd: a row has no destination; fill its column "destination"')
        try:
            messages.append(new_message(place, **given))
        except (ValueError, InvalidName, ClientError) as error:
            raise SourceError(f"qmd: a row for {place} cannot be a message: {error}") from error
    return messages


def _plain_messages(
    batch: Any, columns: Sequence[str], destination: str
) -> list[NewMessage] | None:
    """Do the same for columns of texts and bytes without nulls, which most written rows have.

    Returns None if a column has nulls.
    """
    given = {name: batch.column(name) for name in columns}
    if any(column.null_count for column in given.values()):
        return None
    body, label = given.get("body"), given.get("label")
    # Arrow's strings and the body are both UTF-8.
    bodies = itertools.repeat(b"", batch.num_rows)
    if body is not None:
        bodies = (body if str(body.type) == "binary" else body.cast("binary")).to_pylist()
    labels = itertools.repeat("") if label is None else label.to_pylist()
    return list(map(NewMessage, itertools.repeat(destination), bodies, labels))


def _values(name: str, batch: Any) -> list[Any]:
    values: list[Any] = batch.column(name).to_pylist()
    make = _MAKE.get(name)
    return values if make is None else [None if one is None else make(one) for one in values]


def _acknowledge(given: Any) -> int:
    if isinstance(given, int):
        return given
    unknown = set(given) - _ACKNOWLEDGE.keys()
    if unknown:
        raise SourceError(
            f'qmd: column "acknowledge" has {sorted(unknown)[0]!r}; there are'
            f" {', '.join(_ACKNOWLEDGE)}"
        )
    return sum(_ACKNOWLEDGE[name] for name in set(given))


_MAKE: dict[str, Callable[[Any], Any]] = {"acknowledge": _acknowledge}
