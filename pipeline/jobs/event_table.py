"""Event logs as a Spark table, for jobs that query events rather than audit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.events import LogFile

#: The columns that the jobs read; a column that a file lacks is null.
SCHEMA = (
    "host string, queue_manager string, block bigint, index bigint, at_ms bigint, kind string,"
    " message_id string, queue string, peer string, lookup_id bigint, sequence_id decimal(20,0),"
    " sequence_number bigint, `class` string, delivery string, bytes bigint, reason string,"
    " to_queue string, transaction string, label string, correlation_id string"
)
COLUMNS = tuple(each.split()[0].strip("`") for each in SCHEMA.split(", "))


def read_events(spark: Any, files: Sequence[LogFile]) -> Any:
    """Return all events of `files`; an event that two files contain appears twice."""
    parquet = [file.path for file in files if file.path.endswith(".parquet")]
    lines = [file.path for file in files if not file.path.endswith(".parquet")]
    tables = []
    if parquet:
        # Folders named day=... and host=... are not columns: the rows contain both.
        reader = spark.read.schema(SCHEMA).option("recursiveFileLookup", "true")
        tables.append(reader.parquet(*parquet))
    if lines:
        tables.append(spark.read.schema(SCHEMA).json(lines))
    table = tables[0]
    for other in tables[1:]:
        table = table.unionByName(other)
    return table


#: One row for each message: its stages, by the clock of the host that logged each.
LEDGER = r"""
SELECT message_id,
  min(host) FILTER (WHERE is_source) AS from_host,
  min(host) FILTER (WHERE kind = 'accepted') AS to_host,
  min(queue) FILTER (WHERE kind = 'accepted') AS queue,
  min(queue) FILTER (WHERE kind = 'sent') AS destination,
  max(bytes) AS bytes,
  max(delivery) AS delivery,
  min(at_ms) FILTER (WHERE kind = 'sent') AS sent_ms,
  min(at_ms) FILTER (WHERE kind = 'transmitted') AS transmitted_ms,
  min(at_ms) FILTER (WHERE kind = 'accepted') AS accepted_ms,
  min(at_ms) FILTER (WHERE kind IN ('order_acknowledged', 'session_acknowledged')) AS acked_ms,
  min(at_ms) FILTER (WHERE kind = 'received') AS received_ms,
  min(at_ms) FILTER (WHERE kind = 'confirmed') AS confirmed_ms
FROM (SELECT *, substring(message_id, 1, 36) = queue_manager AS is_source FROM events
      WHERE kind IN ('sent', 'transmitted', 'accepted', 'order_acknowledged',
                     'session_acknowledged', 'received', 'confirmed') AND message_id <> '')
GROUP BY message_id
"""


def ledger(spark: Any, files: Sequence[LogFile]) -> Any:
    """Return the table of `LEDGER`, kept on the executors' disks for several queries."""
    from pyspark import StorageLevel

    read_events(spark, files).createOrReplaceTempView("events")
    table = spark.sql(LEDGER).persist(StorageLevel.DISK_ONLY)
    table.createOrReplaceTempView("ledger")
    return table
