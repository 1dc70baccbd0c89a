"""UTF-16 text in packets: little-endian, ending with a null character.

Two zero bytes are not a null character when they belong to two adjacent characters; a packet of 4
MB may be full of such pairs, so no function here loops over characters.
"""

from __future__ import annotations

NULL = b"\0\0"
_CHUNK_BYTES = 4096


def wide_text(text: str) -> bytes:
    """Encode a name or label for a packet; the text itself must not contain a null."""
    return (text + "\0").encode("utf-16-le", "surrogatepass")


def plain_text(raw: bytes) -> str:
    """Decode a name or label for people; b"" gives "", unpaired surrogates give U+FFFD."""
    return raw[:-2].decode("utf-16-le", "replace")


def ends_with_its_only_null(text: bytes) -> bool:
    """Return whether the bytes end with a null character and contain no other."""
    return 0 <= _first_null(text) == len(text) - 2


def end_of_text(packet: bytes, start: int, end: int) -> int:
    """Return the offset after the first null character from `start` on; -1 if there is none."""
    at = packet.find(NULL, start, end)
    if at < 0 or (at - start) % 2 == 0:
        return at + 2 if at >= 0 else at
    if packet[at + 1 : at + 3] == NULL and at + 3 <= end:  # the usual end of a text
        return at + 3
    for chunk in range(at + 1, end, _CHUNK_BYTES):
        null = _first_null(packet[chunk : min(chunk + _CHUNK_BYTES, end)])
        if null >= 0:
            return chunk + null + 2
    return -1


def _first_null(text: bytes) -> int:
    """Return the offset of the first null character; -1 if there is none."""
    low, high = text[: len(text) & -2 : 2], text[1::2]
    both = int.from_bytes(low, "little") | int.from_bytes(high, "little")
    at = both.to_bytes(len(high), "little").find(0)
    return at * 2 if at >= 0 else at
