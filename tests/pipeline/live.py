"""Real queue managers for tests of the data source, and reads of them with and without Spark."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra qmd-msmq[spark] is not installed")


from pipeline.source import DefaultSource
from pipeline.source.connection import Connection
from pipeline.source.options import Endpoint
from qmd.client import blocking, new_message
from tests.process.harness import Daemon

# On a busy machine, a session and its first query alone may take half a minute.
TIMEOUT = pytest.mark.timeout(1800)


class Place:
    """A queue manager, its socket, and its client."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.socket = str(daemon.folder / "qmd.sock")
        self.qm: Any = blocking.connect(self.socket)

    def queue(self, name: str, *, transactional: bool = False, journal: bool = False) -> str:
        self.qm.create_queue(name, transactional=transactional, journal=journal)
        return name

    def send(self, queue: str, count: int, first: int = 0, **properties: Any) -> None:
        self.qm.send_many(
            [
                new_message(queue, f"body {number}", label=f"order {number}", **properties)
                for number in range(first, first + count)
            ]
        )

    def stages(self) -> list[dict[str, Any]]:
        with Connection(Endpoint(self.socket)) as at:
            return at.run(at.qm.pipeline.list_stages())

    def labels(self, queue: str) -> list[str]:
        return [message.label for message in self.qm.peek_each(queue)]


def read(spark: Any, place: Place, **options: Any) -> Any:
    return spark.read.format("qmd").options(endpoint=place.socket, **options).load()


def stream(spark: Any, place: Place, **options: Any) -> Any:
    return spark.readStream.format("qmd").options(endpoint=place.socket, **options).load()


def rows(place: Place, **options: str) -> list[dict[str, Any]]:
    """Return the rows that executors read: their readers, called as Spark calls them."""
    return rows_of({"endpoint": place.socket, **options})


def rows_of(options: dict[str, str]) -> list[dict[str, Any]]:
    reader = DefaultSource(options).reader(None)
    found = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in found for row in batch.to_pylist()]


def orders(count: int, first: int = 0) -> list[str]:
    return [f"order {number}" for number in range(first, first + count)]


def stream_reader(place: Place, **options: Any) -> Any:
    """Return the reader that Spark's driver calls, without Spark."""
    given = {"endpoint": place.socket, **{name: str(value) for name, value in options.items()}}
    return DefaultSource(given).streamReader(None)
