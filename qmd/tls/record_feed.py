"""The bytes of a connection over TLS on their way to OpenSSL: few records at a time, and counted.

OpenSSL processes all records that carry no data in one call: changes of keys ([RFC 8446] 4.6.3) and
empty records.  A peer could send any number of them, each as expensive as a small message: they
would hold the event loop, and nothing above TLS would know of them.
"""

from __future__ import annotations

HEADER_BYTES = 5  # of a record: type, version, length of the rest
#: OpenSSL gets so many at once.  A read of a full buffer has five that are full.
RECORDS_MAX = 32
#: Records without data in a minute.  Peers change keys after gigabytes of data.
WITHOUT_DATA_MAX, WITHOUT_DATA_S = 64, 60.0


class RecordFeed:
    """The bytes that have come, and the records without data so far."""

    def __init__(self) -> None:
        self._waiting: memoryview | bytes = b""
        self._missing = 0  # bytes of the record of which OpenSSL has got the beginning
        self._unread = 0  # records that OpenSSL has got, and that may have data
        self._without_data, self._counted_from = 0, 0.0

    def add(self, data: memoryview) -> None:
        """Take bytes that have come; `keep` must follow before their memory is used again."""
        self._waiting = bytes(self._waiting) + data if self._waiting else data

    def keep(self) -> None:
        """Copy the bytes that wait."""
        self._waiting = bytes(self._waiting)

    def take(self) -> memoryview | bytes:
        """Return bytes for OpenSSL, at most `RECORDS_MAX` records; none: nothing waits."""
        waiting, end = self._waiting, self._missing
        size, records = len(waiting), 0
        while end <= size:
            records += end > 0  # the one that ends here
            if records == RECORDS_MAX or end + HEADER_BYTES > size:
                break
            end += HEADER_BYTES + int.from_bytes(waiting[end + 3 : end + HEADER_BYTES])
        cut = min(end, size)
        self._missing = end - cut
        self._waiting = waiting[cut:]
        self._unread += records
        return waiting[:cut]

    def handshake_ended(self) -> None:
        """Forget the records of the handshake."""
        self._unread = 0

    def had_data(self) -> None:
        """Record that OpenSSL has returned data of a record."""
        self._unread = max(0, self._unread - 1)

    def has_too_many(self, now: float) -> bool:
        """Count the records of which OpenSSL has returned nothing; return whether they exceed.

        `now` is a time in seconds.
        """
        if not self._unread:
            return False
        if now > self._counted_from + WITHOUT_DATA_S:
            self._counted_from, self._without_data = now, 0
        self._without_data += self._unread
        self._unread = 0
        return self._without_data > WITHOUT_DATA_MAX
