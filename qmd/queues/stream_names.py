"""Names of streams: the name that a source uses for a queue of ours, and its stored form."""

from __future__ import annotations

_PRIVATE = 3

#: The name of our queue in the packets of a source: the type of the format name, and the bytes of a
#: direct name, a GUID, or the number of a private queue.
Name = tuple[int, bytes | int]
NOT_KNOWN: Name = (0, b"")  # the name of a stream that an older version began


def write_name(name: Name) -> bytes:
    """Return the stored form of a name: one byte with its type, then its value."""
    kind, value = name
    return bytes([kind]) + (value if isinstance(value, bytes) else b"%d" % value)


def read_name(stored: bytes) -> Name:
    """Return the name of a stored form; b"" is that of older versions, which stored none."""
    if not stored:
        return NOT_KNOWN
    kind, value = stored[0], stored[1:]
    return kind, int(value) if kind == _PRIVATE else value
