"""The kinds of other ends; each module imports the library of its extra."""

from __future__ import annotations

from qmd.bridge.definition import Amqp, Definition, Kafka, Nats
from qmd.bridge.ends import Sink, Source


def sink_of(definition: Definition, name: str, queue_manager: str) -> Sink:
    """Return the other end of an outward bridge.  Raises ImportError without its library."""
    if isinstance(definition, Nats):
        from qmd.bridge.kinds.nats import NatsSink

        return NatsSink(definition)
    if isinstance(definition, Amqp):
        from qmd.bridge.kinds.amqp import AmqpSink

        return AmqpSink(definition, queue_manager)
    if isinstance(definition, Kafka):
        from qmd.bridge.kinds.kafka import KafkaSink

        return KafkaSink(definition, name)
    from qmd.bridge.kinds.s3 import S3Sink

    return S3Sink(definition)


def source_of(definition: Definition, name: str) -> Source:
    """Return the other end of an inward bridge.  Raises ImportError without its library."""
    if isinstance(definition, Nats):
        from qmd.bridge.kinds.nats import NatsSource

        return NatsSource(definition, name)
    if isinstance(definition, Amqp):
        from qmd.bridge.kinds.amqp import AmqpSource

        return AmqpSource(definition)
    if isinstance(definition, Kafka):
        from qmd.bridge.kinds.kafka import KafkaSource

        return KafkaSource(definition)
    from qmd.bridge.kinds.s3 import S3Source

    return S3Source(definition)
