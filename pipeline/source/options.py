"""The options of `format("qmd")`: read, checked, and named in every error.  docs/pipeline.md

Spark passes all options as text, with case-insensitive names, and shows them in plans and logs
(except those that look like secrets to it).  So a token is never an option: the option names the
file or the environment variable that holds it.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from pipeline.source import bounds, schema
from pipeline.source.bounds import Bound
from pipeline.source.ddl import WrongType, check_ddl, is_type
from pipeline.source.errors import option_error
from pipeline.source.option_names import (
    OF_QUEUE_MANAGERS,
    READ,
    SCHEMA,
    STREAM,
    STREAM_WRITE,
    WRITE,
    like,
)
from pipeline.source.option_values import (
    SECRETS,
    ConnectionOptions,
    Endpoint,
    SourceQueues,
    check_once,
    names_of,
)
from pipeline.source.where import parse_where
from protocol.errors import InvalidName
from protocol.names.format_name import Suffix, parse_destination

MESSAGES_A_TRIGGER = 20_000

DISCOVER_S = 30
TRIGGER_DELAY_S = 900.0  # as in Kafka's source
NAME_CHARACTERS_MAX = 200  # of a reader
BODY_FORMATS = ("binary", "text", "json", "avro", "dotnet")
CONTENT = ("content", "content_error")  # the columns that a format adds
SERVICE_BUS = "service_bus"
ADDED = (*CONTENT, SERVICE_BUS)  # no columns of the schema, but made of some

_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

__all__ = ["BODY_FORMATS", "CONTENT", "Endpoint", "Options", "SourceQueues"]


class ReadOptions(ConnectionOptions):
    """The options of tables, and those that streams share with them."""

    @property
    def path(self) -> str:
        return self.given.get("path", "")

    @property
    def kind(self) -> str:
        """Return "messages" or "events"; for files also "" if the option is not set."""
        kind = self.one_of("kind", ("messages", "events"), "" if self.path else "messages")
        if self.use == STREAM and kind != "messages":
            raise option_error("kind", "is messages for a stream: events have no reader to reserve")
        return kind

    @property
    def bodies(self) -> bool:
        return self.truth("body", default=True)

    def columns(self, kind: str) -> tuple[str, ...]:
        """Return the names of the columns to read, in order."""
        if "columns" not in self.given:
            names = schema.default_columns(kind, bodies=self.bodies)
            return (*names, *self._added(kind))
        known = (*schema.column_names(kind), *self._added(kind))
        columns = tuple(names_of(self.given["columns"], "columns"))
        if not columns:
            raise option_error("columns", "names no column; leave it out for all")
        for name in columns:
            if name not in known:
                option = "serviceBus" if name == SERVICE_BUS else "bodyFormat"
                raise option_error(
                    "columns",
                    f'has "{name}", which exists only with the option "{option}"'
                    if name in ADDED
                    else f"has {name!r}, which {kind} do not have{like(name, known)}",
                )
        if len(set(columns)) < len(columns):
            raise option_error("columns", "names a column twice")
        gone = set(columns) & (schema.BODIES | schema.BEHIND_THE_BODY)
        if kind == "messages" and not self.bodies and gone:
            raise option_error(
                "columns",
                f"has {sorted(gone)[0]!r}, which cannot be read without bodies; leave body=false"
                " out",
            )
        return columns

    def _added(self, kind: str) -> tuple[str, ...]:
        """Return the columns that options add to those of the schema."""
        if kind != "messages":
            return ()
        content = CONTENT if self.body_format else ()
        return (*content, SERVICE_BUS) if self.service_bus else content

    @property
    def partitions(self) -> int:
        """Return the number of parts into which one queue is divided."""
        return self.number("partitions", 1, at_least=1, at_most=10_000)

    @property
    def rows_a_partition(self) -> int:
        """Return the most rows of one partition; 0: no limit."""
        return self.number("maxRowsPerPartition", 0, at_least=1)

    @property
    def pushdown(self) -> bool:
        """Return the value of an option without effect, which earlier releases had.

        Spark 4.3 keeps the reader of a DataFrame with the filters of its first query, and reads a
        later query, or the other side of a join, with the same reader.
        """
        return self.truth("pushdown", default=False)

    @property
    def body_format(self) -> str:
        """Return the format in which bodies are decoded, or "" for none."""
        name = self.one_of("bodyFormat", BODY_FORMATS, "binary")
        schemas = {"json": "bodySchema", "avro": "avroSchema"}
        for option, formats in (("bodySchema", ("json", "dotnet")), ("avroSchema", ("avro",))):
            if option.lower() in self.given and name not in formats:
                raise option_error(option, f'needs the option "bodyFormat" to be {formats[0]}')
        if name in schemas and not self.given.get(schemas[name].lower(), "").strip():
            raise option_error(schemas[name], f"is missing: bodyFormat={name} needs it")
        self._check_body_schema()
        if "onbadbody" in self.given and name == "binary":
            raise option_error("onBadBody", 'needs the option "bodyFormat"')
        _ = self.bad_body_fails
        if name != "binary" and (not self.bodies or self.kind == "events"):
            raise option_error("bodyFormat", "needs the bodies of messages")
        return "" if name == "binary" else name

    def _check_body_schema(self) -> None:
        text = self.body_schema.strip()
        try:
            if text:
                check_ddl(text, is_type=is_type(text))
        except WrongType as error:
            raise option_error("bodySchema", f"is {text!r}: it {error}") from None

    @property
    def service_bus(self) -> bool:
        """Return whether headers of service buses are decoded."""
        found = self.truth("serviceBus", default=False)
        if found and self.kind == "events":
            raise option_error("serviceBus", "is for messages; events have no headers")
        return found

    @property
    def body_schema(self) -> str:
        return self.given.get("bodyschema", "")

    @property
    def avro_schema(self) -> str:
        return self.given.get("avroschema", "")

    @property
    def bad_body_fails(self) -> bool:
        return self.one_of("onBadBody", ("null", "fail"), "null") == "fail"

    @property
    def starting(self) -> Bound:
        """Return where the read begins; in a stream, where a new reader begins."""
        first = self.one_of("startingFrom", ("oldest", "newest"), "")
        if first and {"startingoffsets", "startingtimestamp"} & self.given.keys():
            raise option_error(
                "startingFrom", 'is the same as "startingOffsets"; leave one of them out'
            )
        named = bounds.LATEST if first == "newest" else bounds.EARLIEST
        found = bounds.starting(self.given, self._queue_names(), named)
        if self.use == READ and bounds.LATEST in (found.general, *found.queues.values()):
            raise option_error("startingOffsets", "is latest; a batch that begins there is empty")
        self._check_bound("starting", found)
        return found

    @property
    def ending(self) -> Bound:
        """Return where the read ends."""
        found = bounds.ending(self.given, self._queue_names())
        self._check_bound("ending", found)
        return found

    def _check_order(self) -> None:
        """Refuse ends that lie before the start: such a read would silently have no rows."""
        first, last = self.starting, self.ending
        for queue in ("", *first.queues, *last.queues):
            start, end = first.of(queue), last.of(queue)
            if isinstance(start, int) and isinstance(end, int) and end < start:
                raise option_error("endingOffsets", f"ends at {end}, before the start at {start}")
        for queue in ("", *first.times, *last.times):
            low, high = first.time_of(queue), last.time_of(queue)
            if low is not None and high is not None and high < low:
                raise option_error("endingTimestamp", 'is before "startingTimestamp"')

    def _check_bound(self, name: str, bound: Bound) -> None:
        if self.path and f"{name}offsets" in self.given:
            raise option_error(f"{name}Offsets", "is for queues; files have the option where")
        if self.path and f"{name}timestamp" in self.given:
            raise option_error(f"{name}Timestamp", "is for queues; files have the option where")
        if self.kind == "events" and bound.queues:
            raise option_error(f"{name}Offsets", f"is for messages; events have {name}Timestamp")
        if self.kind == "events" and bound.times:
            raise option_error(f"{name}Timestamp", "is one time for events, and not one by queue")

    def _queue_names(self) -> list[str]:
        return [] if self.path else [name for one in self.sources() for name in one.queues]

    def sources(self) -> list[SourceQueues]:
        """Return the queues to read, by queue manager."""
        if "sources" in self.given:
            found = self._sources()
        else:
            queues = tuple(names_of(self.given.get("queue", "")))
            if not queues and self.kind != "events":
                raise option_error("queue", 'is missing: .option("queue", "orders")')
            found = [SourceQueues(endpoint, queues) for endpoint in self.endpoints()]
        for name in itertools.chain.from_iterable(one.queues for one in found):
            if "*" in name and ";" in name:
                raise option_error(
                    "queue",
                    f"has the pattern {name!r}, and patterns stand for queues only; name each"
                    " journal or subqueue",
                )
        return found

    def _sources(self) -> list[SourceQueues]:
        for name in ("endpoint", "queue"):
            if name in self.given:
                raise option_error("sources", f'replaces "{name}"; leave one of them out')
        example = '[{"endpoint": "/run/qmd/qmd.sock", "queue": ["orders"]}]'
        try:
            listed = json.loads(self.given["sources"])
        except (ValueError, RecursionError) as error:
            raise option_error("sources", f"is not as {example}: {error}") from error
        if not isinstance(listed, list) or not all(map(_is_source, listed)):
            raise option_error(
                "sources",
                f"is not as {example}; beside endpoint and queue each may have"
                f" {', '.join(SECRETS)}",
            )
        found = [
            SourceQueues(
                self._endpoint(
                    each["endpoint"],
                    token_file=each.get("tokenFile"),
                    token_env=each.get("tokenEnv"),
                    ca_file=each.get("caFile"),
                    certificate_file=each.get("certificateFile"),
                    key_file=each.get("keyFile"),
                ),
                tuple(names_of(each.get("queue", []))),
            )
            for each in listed
        ]
        check_once([one.endpoint.address for one in found], "sources")
        if not found or (self.kind != "events" and not all(one.queues for one in found)):
            raise option_error("sources", f"names no queue; it is as {example}")
        return found


class StreamOptions(ReadOptions):
    """The options of streams."""

    @property
    def reader_id(self) -> str:
        name = self.given.get("readerid", "")
        if not name.strip():
            raise option_error(
                "readerId",
                "is missing: a name of this query's own, which identifies its progress",
            )
        if len(name) > NAME_CHARACTERS_MAX:
            raise option_error(
                "readerId", f"has {len(name)} characters; {NAME_CHARACTERS_MAX} are allowed"
            )
        return name

    @property
    def shared(self) -> bool:
        """Return whether messages stay in their queues; the default is true for journals only."""
        queues = [queue for wanted in self.sources() for queue in wanted.queues]
        return self.truth("shared", default=all(map(_is_journal, queues)))

    @property
    def late_start_fails(self) -> bool:
        """Return whether `startingTimestamp` needs a message of that time or later."""
        option = "startingOffsetsByTimestampStrategy"
        if option.lower() in self.given and "startingtimestamp" not in self.given:
            raise option_error(option, 'needs the option "startingTimestamp"')
        return self.one_of(option, ("latest", "error"), "latest") == "error"

    @property
    def gap_fails(self) -> bool:
        if "failondataloss" not in self.given:
            return self.one_of("onGap", ("fail", "warn"), "fail") == "fail"
        if "ongap" in self.given:
            raise option_error("failOnDataLoss", 'is the same as "onGap"; leave one of them out')
        return self.truth("failOnDataLoss", default=True)

    @property
    def messages_a_trigger(self) -> int:
        if "maxrowspertrigger" not in self.given:
            return self.number("maxMessagesPerTrigger", MESSAGES_A_TRIGGER, at_least=1)
        if "maxmessagespertrigger" in self.given:
            raise option_error(
                "maxRowsPerTrigger", 'is the same as "maxMessagesPerTrigger"; leave one of them out'
            )
        return self.number("maxRowsPerTrigger", MESSAGES_A_TRIGGER, at_least=1)

    @property
    def rows_a_trigger_min(self) -> int:
        """Return the fewest rows for which a batch begins before `trigger_delay_s` is over."""
        return self.number("minRowsPerTrigger", 0, at_least=1)

    @property
    def trigger_delay_s(self) -> float:
        said = self.given.get("maxtriggerdelay")
        if said is None:
            return TRIGGER_DELAY_S
        if "minrowspertrigger" not in self.given:
            raise option_error("maxTriggerDelay", 'needs the option "minRowsPerTrigger"')
        found = _DURATION.fullmatch(said.strip().lower())
        if found is None:
            raise option_error("maxTriggerDelay", f"is {said!r}; it is a duration such as 15m")
        return int(found[1]) * _UNITS_S[found[2] or "s"]

    @property
    def bytes_a_trigger(self) -> int:
        """Return the bytes of packets for each trigger; 0: no limit."""
        return self.number("maxBytesPerTrigger", 0, at_least=0)

    @property
    def discover_s(self) -> int:
        """Return how often new queues of a pattern are looked for, in seconds."""
        return self.number("discoverSeconds", DISCOVER_S, at_least=1, at_most=86_400)


class Options(StreamOptions):
    """All options for one use: "read", "readStream", "write", "writeStream" or "schema"."""

    def check(self) -> Options:
        """Check all options of this use, and return them.  Raises SourceError for the first fault.

        Spark would report most faults in the middle of a query, and some never.
        """
        if self.use in (WRITE, STREAM_WRITE):
            self.endpoint()
            _ = self.destination, self.delivery, self.job_id
            return self
        self._check_read()
        if self.use == STREAM or (self.use == SCHEMA and "readerid" in self.given):
            self._check_stream()
        return self

    def _check_read(self) -> None:
        kind = self.kind
        _ = self.partitions, self.rows_a_partition, self.pushdown, self.bodies, self.service_bus
        if self.path:
            self._check_path()
        else:
            self.sources()
        _ = self.body_format
        if kind:
            self.columns(kind)
        if kind:  # of files, it is known when the first one was read
            where = parse_where(self.given.get("where", ""), kind)
            gone = where.columns & (schema.BODIES | schema.BEHIND_THE_BODY)
            if kind == "messages" and not self.bodies and gone:
                raise option_error(
                    "where",
                    f"has {sorted(gone)[0]!r}, which cannot be read without bodies; leave"
                    " body=false out",
                )
        self._check_order()

    def _check_path(self) -> None:
        """Refuse options about queue managers for files, which would have no effect."""
        for name in OF_QUEUE_MANAGERS:
            if name.lower() in self.given:
                why = "is for queue managers, and files are read"
                where = "; choose rows with the option where" if name == "queue" else ""
                raise option_error(name, f"{why}{where}")

    def _check_stream(self) -> None:
        _ = self.reader_id, self.shared, self.gap_fails, self.trigger_delay_s, self.discover_s
        _ = self.bytes_a_trigger, self.late_start_fails
        if self.rows_a_trigger_min > self.messages_a_trigger:
            raise option_error(
                "minRowsPerTrigger",
                f"is {self.rows_a_trigger_min}, which is more than maxRowsPerTrigger"
                f" ({self.messages_a_trigger})",
            )

    @property
    def is_patient(self) -> bool:
        """Return whether a queue manager that is away is waited for before the first answer."""
        return self.use == STREAM or "reconnectseconds" in self.given

    @property
    def destination(self) -> str:
        """Return the destination of all rows, or "" if each row has a column `destination`."""
        if "queue" in self.given and "destination" in self.given:
            raise option_error("queue", 'is the same as "destination"; leave one of them out')
        return self.given.get("destination", self.given.get("queue", ""))

    @property
    def delivery(self) -> str:
        """Return the delivery of all rows, or "" for that of their column, or automatic."""
        kinds = ("automatic", "express", "recoverable", "transactional")
        return self.one_of("delivery", kinds, "")

    @property
    def job_id(self) -> str:
        return self.given.get("jobid", "")


def _is_source(one: Any) -> bool:
    """Return whether this is an element of the option `sources`, as JSON."""
    if not isinstance(one, dict) or not isinstance(one.get("endpoint"), str):
        return False
    queues = one.get("queue", [])
    names = queues if isinstance(queues, list) else [queues]
    rest = {name: value for name, value in one.items() if name not in ("endpoint", "queue")}
    return all(isinstance(each, str) for each in (*names, *rest.values())) and not (
        rest.keys() - set(SECRETS)
    )


def _is_journal(queue: str) -> bool:
    """Return whether this spelling names a journal, and not a queue with such a name."""
    try:
        name = parse_destination(queue, local_host=".")
    except InvalidName:  # a pattern, or wrong, which the queue manager says
        return False
    return getattr(name, "suffix", None) is Suffix.JOURNAL
