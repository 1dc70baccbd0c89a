"""Files that people write, such as an address or objectives: small, and text."""

from __future__ import annotations

from pathlib import Path

BYTES_MAX = 1024 * 1024


def read_small(path: Path) -> str:
    """Return the text of a file of at most BYTES_MAX bytes.

    Raises OSError, and ValueError with the reason for a longer file and for one that is no UTF-8.
    A path may name a device that never ends, so at most one byte more is read.
    """
    with path.open("rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise ValueError(f"it has more than {BYTES_MAX} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text in UTF-8: byte {error.start} is wrong") from None
