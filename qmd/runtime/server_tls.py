"""TLS of servers: contexts whose connections refuse endless changes of keys.

OpenSSL processes all records that carry no data in one call: changes of keys ([RFC 8446] 4.6.3),
requests to negotiate again, empty records. Each costs as much as a request, and none is a request
that could be counted: a client without a login would hold the event loop as long as it sends them.
Here OpenSSL gets one record at a time, so that they are counted.
"""

from __future__ import annotations

import enum
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HEADER_BYTES = 5  # of a record: type, version, length of the rest
#: Records without data in a minute. Clients change keys after gigabytes of data.
WITHOUT_DATA_MAX, WITHOUT_DATA_S = 32, 60.0


class Taken(enum.Enum):
    """Bytes that OpenSSL got."""

    NOTHING = enum.auto()
    PART = enum.auto()  # of a record, or the end of the connection
    RECORD = enum.auto()  # a whole one, or the rest of it


class ServerObject(ssl.SSLObject):
    """The TLS of one connection; it takes its records one by one from the bytes that have come."""

    def take_from(self, source: ssl.MemoryBIO, records: ssl.MemoryBIO) -> None:
        """Take records from `source`, and write them to `records`, which OpenSSL reads."""
        self._source, self._records = source, records
        self._head = b""
        self._missing = 0  # bytes of a record of which the head was taken
        self._has_ended = False
        self._without_data, self._counted_from = 0, 0.0

    def do_handshake(self) -> None:
        """Make the next steps of the handshake."""
        while True:
            try:
                super().do_handshake()
            except ssl.SSLWantReadError:
                if self._take() is Taken.NOTHING:
                    raise
            else:
                return

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """Return data, or write it to `buffer` and return its size."""
        return self._with_records(partial(super().read, len, buffer))

    def unwrap(self) -> Any:
        """End the use of TLS."""
        return self._with_records(super().unwrap)

    def _with_records(self, step: Callable[[], Any]) -> Any:
        """Return the result of a step, which gets as many records as it needs and there are."""
        taken = Taken.NOTHING
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if taken is Taken.RECORD:
                    self._had_no_data()
                taken = self._take()
                if taken is Taken.NOTHING:
                    raise

    def _take(self) -> Taken:
        """Move bytes of one record to OpenSSL."""
        source = self._source
        if not self._missing:
            self._head += source.read(HEADER_BYTES - len(self._head))
            if len(self._head) < HEADER_BYTES:
                return self._take_end()
            self._missing = int.from_bytes(self._head[-2:])
            self._records.write(self._head)
            self._head = b""
        elif not source.pending:
            return self._take_end()
        data = source.read(self._missing)
        self._records.write(data)
        self._missing -= len(data)
        return Taken.PART if self._missing else Taken.RECORD

    def _take_end(self) -> Taken:
        """Let OpenSSL know the end of the connection, once."""
        if self._has_ended or not self._source.eof:
            return Taken.NOTHING
        self._has_ended = True
        self._records.write(self._head)
        self._records.write_eof()
        return Taken.PART

    def _had_no_data(self) -> None:
        """Count a record.  Raises ssl.SSLError if there are too many."""
        now = time.monotonic()
        if now > self._counted_from + WITHOUT_DATA_S:
            self._counted_from, self._without_data = now, 0
        self._without_data += 1
        if self._without_data > WITHOUT_DATA_MAX:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the client changes its keys too often")


class ServerContext(ssl.SSLContext):
    """A context of which each connection is a `ServerObject`."""

    sslobject_class = ServerObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, *others: Any, **named: Any) -> ssl.SSLObject:
        """Return the TLS of a connection, whose bytes come in `incoming`."""
        records = ssl.MemoryBIO()
        made = super().wrap_bio(records, *others, **named)
        assert isinstance(made, ServerObject)
        made.take_from(incoming, records)
        return made


def server_context(
    certificate: Path,
    key: Path | None,
    client_ca: Path | None,
    verify: ssl.VerifyMode = ssl.CERT_REQUIRED,
) -> ssl.SSLContext:
    """Return the context of a certificate; with `client_ca`, those of clients are verified.

    Raises OSError, ssl.SSLError.
    """
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = verify
    return context
