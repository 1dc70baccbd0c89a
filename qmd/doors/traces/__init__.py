"""The exporter of traces: it makes spans of events, and sends them to a collector by OTLP.

It is a process of its own and reads the event log like any client: the daemon makes no span.
"""
