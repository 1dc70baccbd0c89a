"""Addresses of links that lead to a URL: over the door for SRMP.  docs/srmp.md

("http://hostb", 80)          the address of the link
QMD-SRMP 1 http://hostb:80    the line with which a session to the door begins
"""

from __future__ import annotations

Address = tuple[str, int]


def url_address(scheme: str, host: str, port: int) -> Address:
    """Return the address of the link to a host of a URL."""
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}".casefold(), port


def address_of(text: str) -> Address:
    """Return the address of a text such as `http://hostb:80`.  Raises ValueError."""
    host, _, port = text.rpartition(":")
    if "://" not in host:
        raise ValueError(f"{text[:80]!r} is no address of a URL")
    return host.casefold(), int(port)


def is_url(address: Address | None) -> bool:
    """Return whether an address is one of a URL."""
    return address is not None and "://" in address[0]


def preface(address: Address | None) -> bytes:
    """Return the line that a session begins with; b"" for one with a queue manager."""
    if address is None or not is_url(address):
        return b""
    return f"QMD-SRMP 1 {address[0]}:{address[1]}\n".encode("ascii", "replace")
