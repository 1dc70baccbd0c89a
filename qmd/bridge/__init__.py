"""Bridges between queues and other brokers: RabbitMQ and other brokers of AMQP, NATS, Kafka, S3.

    definition   the file of bridges
    ends         the other end of a bridge: what each kind offers
    kinds/       one module for each kind, with its library
    envelope     messages as headers and bodies, by the mapping of the HTTP door
    outward      queue ──► other end
    inward       other end ──► queue, with positions in a queue
    process      the bridges of one file, their retries, and their state

A bridge is a client of the daemon, in a process of its own.  docs/bridge.md states what each kind
guarantees.
"""
