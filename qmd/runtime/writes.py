"""Writes of several packets or frames at once: small ones are joined, large ones are not copied."""

from __future__ import annotations

from collections.abc import Sequence

#: A copy of fewer bytes costs less than a buffer of its own in the system call.
LARGE_BYTES = 16 * 1024


def in_few_buffers(buffers: Sequence[bytes | bytearray]) -> Sequence[bytes | bytearray]:
    """Return the bytes of all buffers in few of them, for one write each.

    A transport gives all of them to the system together.
    """
    if len(buffers) == 1 or max(map(len, buffers), default=0) < LARGE_BYTES:
        return (b"".join(buffers),) if len(buffers) > 1 else buffers
    found: list[bytes | bytearray] = []
    small: list[bytes | bytearray] = []
    for buffer in buffers:
        if len(buffer) < LARGE_BYTES:
            small.append(buffer)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(buffer)
    if small:
        found.append(b"".join(small))
    return found
