"""What decides: sessions, sequences, outgoing queues.  No clock, socket, disk or chance in here.

Callers pass `now` (seconds of a monotonic clock) and bytes, and get events and bytes; timers are
values (`next_timer`, `handle_timer`).  Everything in this package can therefore be simulated.
"""
