"""UTF-16 text as it lies in packets: little-endian, with its terminating null."""

from __future__ import annotations


def wide_text(text: str) -> bytes:
    """A name or label for a packet; the text itself must hold no null."""
    return (text + "\0").encode("utf-16-le", "surrogatepass")


def plain_text(raw: bytes) -> str:
    """A name or label for people; b"" is no label, and halves of characters show as \ufffd."""
    return raw[:-2].decode("utf-16-le", "replace")
