"""Host names as the resolver of the operating system takes them."""

from __future__ import annotations


def encoded(host: str) -> bytes:
    """Encode a host name or address for `getaddrinfo`.  Raises UnicodeError.

    Python encodes text itself, with the codec of international names, and loads this codec with its
    tables (0.6 MB) for names of ASCII too.
    """
    return host.encode("ascii" if host.isascii() else "idna")
