"""multipart/related, as MSMQ writes and reads it.  RFC 2387, [MC-MQSRM] 4"""

from __future__ import annotations

import secrets
from email.message import Message as Headers
from email.utils import collapse_rfc2231_value
from typing import NamedTuple

PARTS_MAX = 8
HEADER_BYTES_MAX = 4096  # of one part
CONTENT_TYPE_CHARACTERS_MAX = 1000  # its parser takes time by their square


class NotMime(Exception):
    """The body is not what its content type says; the text says why."""


class Part(NamedTuple):
    """One part: its headers, in lower case, and its content."""

    headers: dict[str, str]
    content: bytes


def parameters(content_type: str) -> tuple[str, dict[str, str]]:
    """Return the media type and the parameters of a Content-Type header, in lower case.

    Raises NotMime, ValueError.
    """
    if len(content_type) > CONTENT_TYPE_CHARACTERS_MAX:
        raise NotMime(f"its content type has more than {CONTENT_TYPE_CHARACTERS_MAX} characters")
    headers = Headers()
    headers["content-type"] = content_type
    found = headers.get_params(failobj=[])
    given = {name.lower(): collapse_rfc2231_value(value) for name, value in found[1:]}
    return headers.get_content_type(), given


def read_parts(body: bytes, boundary: str) -> list[Part]:
    """Return the parts of a body.  Raises NotMime.

    MSMQ states the length of each part and puts no line end in front of the next boundary.
    """
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    if not boundary or len(delimiter) > 72 + 2:
        raise NotMime("the boundary is missing or too long")
    at = body.find(delimiter)
    if at < 0:
        raise NotMime("the boundary is not in the body")
    parts: list[Part] = []
    while True:
        at += len(delimiter)
        if body.startswith(b"--", at):
            return parts
        if len(parts) == PARTS_MAX:
            raise NotMime(f"it has more than {PARTS_MAX} parts")
        part, at = _read_part(body, at, delimiter)
        parts.append(part)


def _read_part(body: bytes, at: int, delimiter: bytes) -> tuple[Part, int]:
    """Return the part behind a delimiter, and the index of the delimiter after it."""
    start = body.find(b"\r\n", at)
    end = body.find(b"\r\n\r\n", at, at + HEADER_BYTES_MAX)
    if start < 0 or end < 0:
        raise NotMime("the headers of a part do not end")
    headers: dict[str, str] = {}
    for line in body[start + 2 : end].split(b"\r\n"):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    content_at = end + 4
    length = headers.get("content-length", "")
    if length:
        if not (length.isascii() and length.isdigit() and len(length) < 12):
            raise NotMime(f"{length[:20]!r} is no length of a part")
        content_end = content_at + int(length)
        # At once, or after a line end.
        gap = 2 if body.startswith(b"\r\n", content_end) else 0
        is_there = body.startswith(delimiter, content_end + gap)
        following = content_end + gap if is_there else -1
    else:
        following = body.find(delimiter, content_at)
        content_end = following - 2 if body[following - 2 : following] == b"\r\n" else following
    if following < 0 or content_end < content_at:
        raise NotMime("a part does not end where its length says, or has no end")
    return Part(headers, body[content_at:content_end]), following


def write_parts(parts: list[Part]) -> tuple[bytes, str]:
    """Return a body and its content type."""
    while True:
        boundary = f"MSMQ - SOAP boundary, {secrets.randbelow(1 << 48)}"
        delimiter = b"--" + boundary.encode()
        if not any(delimiter in part.content for part in parts):
            break
    lines = []
    for part in parts:
        lines.append(delimiter + b"\r\n")
        for name, value in part.headers.items():
            lines.append(f"{name}: {value}\r\n".encode())
        lines.append(b"Content-Length: %d\r\n\r\n" % len(part.content))
        lines += [part.content, b"\r\n"]
    lines.append(delimiter + b"--\r\n")
    return b"".join(lines), f'multipart/related; boundary="{boundary}"; type=text/xml'
