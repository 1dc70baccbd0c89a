"""The names of the options of `format("qmd")`, with the uses that each has.

Spark passes option names without regard to case.  `KAFKA` names the counterparts of the options of
Spark's Kafka source, for people that come from there.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

READ, STREAM, WRITE, STREAM_WRITE = "read", "readStream", "write", "writeStream"
SCHEMA = "schema"  # Spark asks for the schema without naming the use
TABLE = "a table of SQL"  # which is read and written

_ALL = (READ, STREAM, WRITE, STREAM_WRITE)
_READS = (READ, STREAM)
_WRITES = (WRITE, STREAM_WRITE)

#: Option -> its uses.
_USES: dict[str, tuple[str, ...]] = {
    "endpoint": _ALL,
    "tokenFile": _ALL,
    "tokenEnv": _ALL,
    "caFile": _ALL,
    "certificateFile": _ALL,
    "keyFile": _ALL,
    "reconnectSeconds": _ALL,
    "queue": _ALL,
    "kind": _READS,
    "columns": _READS,
    "body": _READS,
    "bodyFormat": _READS,
    "bodySchema": _READS,
    "avroSchema": _READS,
    "onBadBody": _READS,
    "serviceBus": _READS,
    "sources": _READS,
    "partitions": _READS,
    "maxRowsPerPartition": _READS,
    "startingOffsets": _READS,
    "startingTimestamp": _READS,
    "startingOffsetsByTimestampStrategy": (STREAM,),
    "endingOffsets": _READS,
    "endingTimestamp": _READS,
    "path": (READ, STREAM_WRITE),
    "where": (READ,),
    "pushdown": (READ,),
    "readerId": (STREAM,),
    "shared": (STREAM,),
    "startingFrom": (STREAM,),
    "onGap": (STREAM,),
    "failOnDataLoss": (STREAM,),
    "maxMessagesPerTrigger": (STREAM,),
    "maxRowsPerTrigger": (STREAM,),
    "minRowsPerTrigger": (STREAM,),
    "maxTriggerDelay": (STREAM,),
    "maxBytesPerTrigger": (STREAM,),
    "discoverSeconds": (STREAM,),
    "destination": _WRITES,
    "delivery": _WRITES,
    "jobId": (WRITE,),
    "checkpointLocation": (STREAM_WRITE,),
    "queryName": (STREAM_WRITE,),  # Spark passes the name of the query to its sink
}
_SPELLED = {name.lower(): name for name in _USES}

#: Options that files do not have.
OF_QUEUE_MANAGERS = (
    *("endpoint", "queue", "sources", "partitions", "maxRowsPerPartition", "reconnectSeconds"),
    *("tokenFile", "tokenEnv", "caFile", "certificateFile", "keyFile"),
)

#: Option of Spark's Kafka source or sink -> its counterpart, or the reason why there is none.
KAFKA = {
    "kafka.bootstrap.servers": "endpoint",
    "subscribe": "queue",
    "subscribePattern": "queue (with * for any part of a name)",
    "assign": "queue",
    "topic": "destination",
    "startingOffsetsByTimestamp": "startingTimestamp, as JSON by queue",
    "endingOffsetsByTimestamp": "endingTimestamp, as JSON by queue",
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "minOffsetsPerTrigger": "minRowsPerTrigger",
    "minPartitions": "partitions",
    "maxRecordsPerPartition": "maxRowsPerPartition",
    "kafka.group.id": "readerId",
    "groupIdPrefix": "readerId",
    "fetchOffset.numRetries": "reconnectSeconds",
    "fetchOffset.retryIntervalMs": "reconnectSeconds",
    "kafkaConsumer.pollTimeoutMs": "reconnectSeconds",
    "includeHeaders": 'the column "extension", which is always there',
}
#: Option of Kafka's own client -> its counterpart; the others have none.
KAFKA_CLIENT = {
    "kafka.security.protocol": "the endpoint, tls://host:port",
    "kafka.ssl.truststore.location": "caFile",
    "kafka.ssl.keystore.location": "certificateFile, and keyFile for its key",
    "kafka.sasl.mechanism": "tokenFile",
    "kafka.sasl.jaas.config": "tokenFile, or tokenEnv",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.enable.auto.commit": "none: messages are consumed when a batch is complete",
    "kafka.max.poll.records": "maxRowsPerTrigger",
    "kafka.client.id": "readerId",
    "kafka.request.timeout.ms": "reconnectSeconds",
    "kafka.session.timeout.ms": "reconnectSeconds",
}
#: Column of rows for Spark's Kafka sink -> the column here.
KAFKA_COLUMNS = {
    "value": "body",
    "key": "label",
    "topic": "destination",
    "headers": "extension",
    "partition": "none: queues have no partitions",
}
_SPELLED_IN_KAFKA = {name.lower(): name for name in (*KAFKA, *KAFKA_CLIENT)}


def is_option(name: str, use: str) -> bool:
    """Return whether the option, in small letters, is one of a use."""
    uses = _USES.get(_SPELLED.get(name, ""), ())
    return any(one in uses for one in {SCHEMA: _READS, TABLE: _ALL}.get(use, (use,)))


def spelled(name: str) -> str:
    """Return the option as the manual spells it."""
    return _SPELLED.get(name.lower(), _SPELLED_IN_KAFKA.get(name.lower(), name))


def why_not(name: str, use: str) -> str:
    """Return the rest of the sentence about an option that the use does not have."""
    of = READ if use == SCHEMA else use
    if name in _SPELLED_IN_KAFKA:
        spelling = _SPELLED_IN_KAFKA[name]
        if spelling in KAFKA:
            where = "sink" if spelling == "topic" else "source"
            return f"is of Kafka's {where}; its counterpart here is {KAFKA[spelling]}"
        return f"is of Kafka's client; its counterpart here is {KAFKA_CLIENT[spelling]}"
    if name.startswith("kafka."):
        return "is for Kafka's own client, and has no counterpart here"
    uses = _USES.get(_SPELLED.get(name, ""))
    if uses:
        return f"is not an option of {of}; it is one of {' and '.join(uses)}"
    known = [one for one in _USES if is_option(one.lower(), use)]
    return f"is not an option of {of}{like(name, known)}"


def like(name: str, known: Sequence[str]) -> str:
    """Return a hint at the known name that resembles `name`, or at all of them."""
    lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), lower, 1)
    return (
        f"; did you mean {lower[close[0]]}?" if close else f"; there are {', '.join(sorted(known))}"
    )
