"""The door for AMQP 1.0 (OASIS, ISO/IEC 19464): `qmd door amqp`.

    socket ── connection ── sasl ── engine (qpid-proton) ── links ── control connection ── daemon

Each connection of a client has one connection to the control socket, which acts for the user that
the client has proven to be.  `docs/amqp.md` has the mapping of messages and the limits.
"""
