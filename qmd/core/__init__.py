"""Protocol logic without I/O: sessions, sequences and retries of outgoing queues.

Nothing here reads a clock, a socket, a disk or a random source. Callers pass `now` (seconds of a
monotonic clock) and bytes, and get events and bytes back; timers are values (`next_timer`,
`handle_timer`). The simulation can therefore run everything in this package.
"""
