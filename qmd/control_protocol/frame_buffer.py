"""Splitting of a byte stream into frames."""

from __future__ import annotations

import struct
import sys

FRAME_BYTES_MAX = 64 * 1024 * 1024  # a batch of messages; one body is at most 4 MB
LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The bytes cannot be a frame: the connection must be closed."""


class FrameBuffer:
    """Buffer that splits a byte stream into the contents of complete frames."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._wanted = 0  # with fewer bytes `_rest` holds no complete frame
        #: Whether the last call has left frames that may be complete: see `more`.
        self.has_more = False

    @property
    def wanted_bytes(self) -> int:
        """The length of the incomplete frame in bytes, as far as it is known."""
        return self._wanted

    def set_limit(self, frame_bytes_max: int) -> None:
        """Set the limit for later frames."""
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes | bytearray, frames_max: int = sys.maxsize) -> list[memoryview]:
        """Return the complete frames, at most `frames_max`: a read may hold thousands.

        Raises FrameError for a length over the limit.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            # The frames are views of this buffer: a copy of megabytes takes milliseconds.
            data, self._rest = self._rest, bytearray()
        return self._split(data, frames_max)

    def more(self, frames_max: int) -> list[memoryview]:
        """Return further frames of the bytes that were fed before.  Raises FrameError."""
        data, self._rest = self._rest, bytearray()
        return self._split(data, frames_max)

    def clear(self) -> None:
        """Drop all bytes that are left."""
        self._rest, self._wanted, self.has_more = bytearray(), 0, False

    def _split(self, data: bytes | bytearray, frames_max: int) -> list[memoryview]:
        view, end, start = memoryview(data), len(data), 0
        frames: list[memoryview] = []
        self.has_more = False
        while start + 4 <= end:
            if len(frames) == frames_max:
                self._wanted, self.has_more = 0, True
                break
            (length,) = LENGTH.unpack_from(data, start)
            if length > self._frame_bytes_max:
                raise FrameError(
                    f"a frame of {length} bytes was announced; at most"
                    f" {self._frame_bytes_max} are accepted"
                )
            if start + 4 + length > end:
                self._wanted = 4 + length
                break
            frames.append(view[start + 4 : start + 4 + length])
            start += 4 + length
        else:
            self._wanted = 4
        self._rest += view[start:]
        return frames
