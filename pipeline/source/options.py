"""The options of `format("qmd")`: read, checked, and named in every error.  docs/pipeline.md

Spark passes all options as text, with case-insensitive names, and shows them in plans and logs
(except those that look like secrets to it).  So a token is never an option: the option names the
file or the environment variable that holds it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.source import schema
from pipeline.source.errors import option_error

MESSAGES_A_TRIGGER = 20_000
RECONNECT_S = 60.0

_COMMON = {"endpoint", "tokenfile", "tokenenv", "cafile", "reconnectseconds"}
_WHAT = {"kind", "columns", "body", "queue", "sources", "partitions"}
_READ = _COMMON | _WHAT | {"path", "pushdown"}
_STREAM = (
    _COMMON
    | _WHAT
    | {
        *("readerid", "shared", "startingfrom", "ongap"),
        *("maxmessagespertrigger", "maxbytespertrigger"),
    }
)
_WRITE = _COMMON | {"queue", "destination", "delivery", "jobid"}
_STREAM_WRITE = _COMMON | {"queue", "destination", "delivery", "checkpointlocation", "path"}
_SPELLING = (
    *("endpoint", "tokenFile", "tokenEnv", "caFile", "reconnectSeconds", "kind", "columns"),
    *(
        "body",
        "queue",
        "sources",
        "partitions",
        "path",
        "pushdown",
        "readerId",
        "shared",
        "startingFrom",
    ),
    *("onGap", "maxMessagesPerTrigger", "maxBytesPerTrigger", "destination", "delivery"),
    *("jobId", "checkpointLocation"),
)
_SPELLED = {name.lower(): name for name in _SPELLING}
_USES = {
    "read": _READ,
    "readStream": _STREAM,
    "write": _WRITE,
    "writeStream": _STREAM_WRITE,
    "schema": _READ | _STREAM,  # Spark asks for the schema without naming the use
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a queue manager, and the files and variables (never the values) of its secrets."""

    address: str  # path of the control socket, or tls://host:port
    token_file: str = ""
    token_env: str = ""
    ca_file: str = ""
    reconnect_s: float = RECONNECT_S

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True)
class SourceQueues:
    """Queues of one queue manager: names in any spelling, or patterns with `*`."""

    endpoint: Endpoint
    queues: tuple[str, ...]


class Options:
    """All options for one use: "read", "readStream", "write", "writeStream" or "schema"."""

    def __init__(self, given: Mapping[str, str], use: str) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        self.use = use
        for name in self.given:
            if name not in _USES[use]:
                of = "read" if use == "schema" else use  # Spark asks for the schema first
                raise option_error(
                    _SPELLED.get(name, name), f"is not an option of {of}{self._like(name)}"
                )

    # -- reading --

    @property
    def path(self) -> str:
        return self.given.get("path", "")

    @property
    def kind(self) -> str:
        """Return "messages" or "events"; for files also "" if the option is not set."""
        kind = self._one_of("kind", ("messages", "events"), "" if self.path else "messages")
        if self.use == "readStream" and kind != "messages":
            raise option_error("kind", "is messages for a stream: events have no reader to reserve")
        return kind

    @property
    def bodies(self) -> bool:
        return self._truth("body", default=True)

    def columns(self, kind: str) -> tuple[str, ...]:
        """Return the names of the columns to read, in order."""
        if "columns" not in self.given:
            return schema.default_columns(kind, bodies=self.bodies)
        known = schema.column_names(kind)
        columns = tuple(_list(self.given["columns"]))
        if not columns:
            raise option_error("columns", "names no column; leave it out for all")
        for name in columns:
            if name not in known:
                raise option_error(
                    "columns", f"has {name!r}, which {kind} do not have{_like(name, known)}"
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

    @property
    def partitions(self) -> int:
        """Return the number of parts into which one queue is divided."""
        return self._number("partitions", 1, at_least=1, at_most=10_000)

    @property
    def pushdown(self) -> bool:
        """Return whether filters are passed to the queue manager.

        The default is false: Spark 4.3 keeps the reader of a DataFrame with the filters of its
        first query, and reads a later query without filters with the same reader.
        """
        return self._truth("pushdown", default=False)

    def sources(self) -> list[SourceQueues]:
        """Return the queues to read, by queue manager."""
        if "sources" in self.given:
            return self._sources()
        queues = tuple(_list(self.given.get("queue", "")))
        if not queues and self.kind != "events":
            raise option_error("queue", 'is missing: .option("queue", "orders")')
        return [SourceQueues(endpoint, queues) for endpoint in self.endpoints()]

    def _sources(self) -> list[SourceQueues]:
        for name in ("endpoint", "queue"):
            if name in self.given:
                raise option_error("sources", f'replaces "{name}"; leave one of them out')
        example = '[{"endpoint": "/run/qmd/qmd.sock", "queue": ["orders"]}]'
        try:
            listed = json.loads(self.given["sources"])
            found = [
                SourceQueues(
                    self._endpoint(
                        each["endpoint"],
                        token_file=each.get("tokenFile"),
                        token_env=each.get("tokenEnv"),
                        ca_file=each.get("caFile"),
                    ),
                    tuple(_list(each.get("queue", []))),
                )
                for each in listed
            ]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise option_error("sources", f"is not as {example}: {error}") from error
        if not found or (self.kind != "events" and not all(one.queues for one in found)):
            raise option_error("sources", f"names no queue; it is as {example}")
        return found

    # -- endpoints --

    def endpoints(self) -> list[Endpoint]:
        addresses = _list(self.given.get("endpoint", ""))
        if not addresses:
            raise option_error(
                "endpoint",
                "is missing: the path of a control socket (/run/qmd/qmd.sock), or tls://host:port",
            )
        return [self._endpoint(address) for address in addresses]

    def endpoint(self) -> Endpoint:
        """Return the endpoint to write to."""
        found = self.endpoints()
        if len(found) != 1:
            raise option_error(
                "endpoint", "has several addresses; one queue manager takes the messages"
            )
        return found[0]

    def _endpoint(
        self,
        address: str,
        *,
        token_file: str | None = None,
        token_env: str | None = None,
        ca_file: str | None = None,
    ) -> Endpoint:
        if "://" in address and not address.startswith("tls://"):
            raise option_error("endpoint", f"is {address!r}; it is a path, or tls://host:port")
        return Endpoint(
            address,
            self.given.get("tokenfile", "") if token_file is None else token_file,
            self.given.get("tokenenv", "") if token_env is None else token_env,
            self.given.get("cafile", "") if ca_file is None else ca_file,
            float(self._number("reconnectseconds", int(RECONNECT_S), at_least=0, at_most=86_400)),
        )

    # -- streams --

    @property
    def reader_id(self) -> str:
        name = self.given.get("readerid", "")
        if not name:
            raise option_error(
                "readerId",
                "is missing: a name of this query's own, which identifies its progress",
            )
        return name

    @property
    def shared(self) -> bool:
        """Return whether messages stay in their queues; the default is true for journals only."""
        queues = [queue for wanted in self.sources() for queue in wanted.queues]
        return self._truth("shared", default=all(map(_is_journal, queues)))

    @property
    def start(self) -> str:
        return self._one_of("startingFrom", ("oldest", "newest"), "oldest")

    @property
    def gap_fails(self) -> bool:
        return self._one_of("onGap", ("fail", "warn"), "fail") == "fail"

    @property
    def messages_a_trigger(self) -> int:
        return self._number("maxMessagesPerTrigger", MESSAGES_A_TRIGGER, at_least=1)

    @property
    def bytes_a_trigger(self) -> int:
        """Return the bytes of packets for each trigger; 0: no limit."""
        return self._number("maxBytesPerTrigger", 0, at_least=0)

    # -- writing --

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
        return self._one_of("delivery", kinds, "")

    @property
    def job_id(self) -> str:
        return self.given.get("jobid", "")

    # -- values --

    def _truth(self, name: str, *, default: bool) -> bool:
        said = self.given.get(name.lower())
        if said is None:
            return default
        if said.lower() not in ("true", "false"):
            raise option_error(name, f"is {said!r}; it is true or false")
        return said.lower() == "true"

    def _number(self, name: str, default: int, *, at_least: int, at_most: int = 1 << 62) -> int:
        said = self.given.get(name.lower())
        if said is None:
            return default
        try:
            number = int(said)
        except ValueError:
            raise option_error(name, f"is {said!r}; it is a whole number") from None
        if not at_least <= number <= at_most:
            raise option_error(name, f"is {number}; it is {at_least} to {at_most}")
        return number

    def _one_of(self, name: str, values: Sequence[str], default: str) -> str:
        said = self.given.get(name.lower(), default)
        if said != default and said not in values:
            raise option_error(name, f"is {said!r}; it is one of {', '.join(values)}")
        return said

    def _like(self, name: str) -> str:
        return _like(name, [_SPELLED[one] for one in _USES[self.use]])


def _like(name: str, known: Sequence[str]) -> str:
    lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    return (
        f"; did you mean {lower[close[0]]}?" if close else f"; there are {', '.join(sorted(known))}"
    )


def _list(said: Any) -> list[str]:
    """Return a JSON list, or the names of a comma-separated list."""
    if isinstance(said, list):
        return [str(one) for one in said]
    text = str(said).strip()
    if text.startswith("["):
        return [str(one) for one in json.loads(text)]
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_journal(queue: str) -> bool:
    return queue.lower().rstrip("$").endswith(("journal",)) and (";" in queue or "\\" in queue)
