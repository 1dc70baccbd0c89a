"""Security identifiers: `S-1-5-21-...` and their bytes in a SecurityHeader (MS-DTYP 2.4.2)."""

from __future__ import annotations

import re

from protocol.errors import InvalidName

SUB_AUTHORITIES_MAX = 15
SENDER_ID_BYTES_MAX = 8 + 4 * SUB_AUTHORITIES_MAX

_TEXT = re.compile(r"S-1-([0-9]{1,15}|0x[0-9a-f]{12})((?:-[0-9]{1,10}){1,15})", re.IGNORECASE)


def security_id_text(raw: bytes) -> str | None:
    """Format the bytes of a SID; None if they are not a SID."""
    if len(raw) < 12 or raw[0] != 1 or len(raw) != 8 + 4 * raw[1]:
        return None
    authority = int.from_bytes(raw[2:8], "big")
    parts = (int.from_bytes(raw[at : at + 4], "little") for at in range(8, len(raw), 4))
    shown = str(authority) if authority < 1 << 32 else f"0x{authority:012x}"
    return "-".join(("S-1", shown, *map(str, parts)))


def parse_security_id(text: str) -> bytes:
    """Parse the text of a SID to bytes.  Raises InvalidName."""
    match = _TEXT.fullmatch(text)
    parts = [int(part) for part in match[2][1:].split("-")] if match else []
    authority = int(match[1], 0) if match else 0
    if match is None or max(parts) > 0xFFFFFFFF or authority >= 1 << 48:
        raise InvalidName("sender_id", 0, "MUST be a security identifier such as S-1-5-21-1-2-1001")
    return b"".join(
        (
            bytes((1, len(parts))),
            authority.to_bytes(6, "big"),
            *(part.to_bytes(4, "little") for part in parts),
        )
    )
