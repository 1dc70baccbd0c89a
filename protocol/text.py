"""UTF-16 text as it lies in packets: little-endian, ending with a null character.

Two bytes of zero are no null character when they are half of one character and half of the next;
a packet of 4 MB may be full of them, so none of this loops over characters.
"""

from __future__ import annotations

NULL = b"\0\0"
_CHUNK_BYTES = 4096


def wide_text(text: str) -> bytes:
    """A name or label for a packet; the text itself must hold no null."""
    return (text + "\0").encode("utf-16-le", "surrogatepass")


def plain_text(raw: bytes) -> str:
    """A name or label for people; b"" is no label, and halves of characters show as U+FFFD."""
    return raw[:-2].decode("utf-16-le", "replace")


def ends_with_its_only_null(text: bytes) -> bool:
    """Whether the bytes end with a null character and hold no other."""
    return 0 <= _first_null(text) == len(text) - 2


def end_of_text(packet: bytes, start: int, end: int) -> int:
    """The offset behind the first null character from `start` on; -1 if there is none."""
    at = packet.find(NULL, start, end)
    if at < 0 or (at - start) % 2 == 0:
        return at + 2 if at >= 0 else at
    if packet[at + 1 : at + 3] == NULL and at + 3 <= end:  # the end of ordinary text
        return at + 3
    for chunk in range(at + 1, end, _CHUNK_BYTES):
        null = _first_null(packet[chunk : min(chunk + _CHUNK_BYTES, end)])
        if null >= 0:
            return chunk + null + 2
    return -1


def _first_null(text: bytes) -> int:
    """The offset of the first null character; -1 if there is none."""
    low, high = text[: len(text) & -2 : 2], text[1::2]
    both = int.from_bytes(low, "little") | int.from_bytes(high, "little")
    at = both.to_bytes(len(high), "little").find(0)
    return at * 2 if at >= 0 else at
