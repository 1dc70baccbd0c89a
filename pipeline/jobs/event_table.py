"""Event logs as a Spark table, for jobs that query events rather than audit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.event_numbers import EARLIEST_MS, LATEST_MS, SIZE_MAX
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
    """Return all events of `files`; an event that two files contain appears twice.

    Their numbers are within the limits of `pipeline.event_numbers`.
    """
    from pyspark.sql import functions as F

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
    return table.withColumns({
        "at_ms": F.greatest(F.least("at_ms", F.lit(LATEST_MS)), F.lit(EARLIEST_MS)),
        "bytes": F.when(F.col("bytes").between(0, SIZE_MAX), F.col("bytes")),
    })  # fmt: skip
