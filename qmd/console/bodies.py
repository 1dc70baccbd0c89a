"""Bodies of messages as text for pages.

`FORMATS` lists the ways to show a body; `register` adds one.  A reader gets the body and the body
type, and raises UnreadableBody or ValueError for bodies that it cannot read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from qmd.bodies.content import read_content
from qmd.bodies.errors import UnreadableBody

BYTES_MAX = 64 * 1024  # of a body that are shown at first
ALL_BYTES_MAX = 1024 * 1024  # that a browser shows without delay; the rest can be saved
STRUCTURED_BYTES_MAX = 1024 * 1024  # of a body that is laid out
HEX_BYTES = 16  # of one line
HEX_BYTES_MAX = 256 * 1024  # of a body that are written out
DEPTH_MAX = 40  # steps of indentation

Reader = Callable[[bytes, int], str]


class Format(NamedTuple):
    """One way to show a body."""

    name: str
    title: str
    read: Reader


class Shown(NamedTuple):
    """A body as text."""

    format: str
    text: str
    problem: str  # why it is not shown in the format that was asked for
    is_cut: bool


def _text(body: bytes, body_type: int) -> str:
    return str(read_content(body, body_type, "text").value)


def _utf_16(body: bytes, body_type: int) -> str:
    if len(body) % 2:
        raise UnreadableBody("UTF-16", len(body), "it has an odd number of bytes")
    coding = "utf-16" if body[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-16-le"
    return body.decode(coding, "replace").removesuffix("\0")


def _json(body: bytes, body_type: int) -> str:
    if len(body) > STRUCTURED_BYTES_MAX:
        raise UnreadableBody("JSON", -1, "it is too long to be laid out")
    return json.dumps(read_content(body, body_type, "json").value, ensure_ascii=False, indent=2)


def _xml(body: bytes, body_type: int) -> str:
    if len(body) > STRUCTURED_BYTES_MAX:
        raise UnreadableBody("XML", -1, "it is too long to be laid out")
    read_content(body, body_type, "xml")  # it is well-formed, and has no document type
    text = _text(body, body_type)
    return laid_out(text)


def _object(name: str) -> Reader:
    def read(body: bytes, body_type: int) -> str:
        if len(body) > STRUCTURED_BYTES_MAX:
            raise UnreadableBody(name, -1, "it is too long to be laid out")
        found = read_content(body, body_type, name)
        return json.dumps(found.to_json(), ensure_ascii=False, indent=2)

    return read


def _hex(body: bytes, body_type: int) -> str:
    rows = []
    for start in range(0, min(len(body), HEX_BYTES_MAX), HEX_BYTES):
        part = body[start : start + HEX_BYTES]
        signs = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in part)
        rows.append(f"{start:08x}  {part.hex(' '):<{3 * HEX_BYTES}} {signs}")
    return "\n".join(rows)


FORMATS: dict[str, Format] = {}


def register(name: str, title: str, read: Reader) -> None:
    """Add a way to show bodies, or replace the one of that name."""
    FORMATS[name] = Format(name, title, read)


register("text", "Text", _text)
register("json", "JSON", _json)
register("xml", "XML", _xml)
register("utf-16", "UTF-16", _utf_16)
register("binary", ".NET BinaryFormatter", _object("binary"))
register("activex", "ActiveX", _object("activex"))
register("hex", "Hexadecimal", _hex)


def show(body: bytes, body_type: int, wanted: str = "", *, whole: bool = False) -> Shown:
    """Return a body in a format of FORMATS, or in the one that it shows; else in hexadecimal.

    A long body is cut; if it is shown `whole`, at ALL_BYTES_MAX.
    """
    problem = ""
    name = wanted if wanted in FORMATS else _recognized(body, body_type)
    try:
        text = FORMATS[name].read(body, body_type)
    except (UnreadableBody, ValueError, RecursionError) as error:
        problem = f"It cannot be shown as {FORMATS[name].title}: {error}"
        name, text = _fallback(body, body_type)
    most = ALL_BYTES_MAX if whole else BYTES_MAX
    return Shown(name, text[:most], problem, len(text) > most)


def _recognized(body: bytes, body_type: int) -> str:
    if len(body) > STRUCTURED_BYTES_MAX:
        return "text"
    try:
        found = read_content(body, body_type).format
    except UnreadableBody:
        return "hex"
    if found == "text" and b"\0" in body:
        return "utf-16"
    return found if found in FORMATS else "hex"


def _fallback(body: bytes, body_type: int) -> tuple[str, str]:
    try:
        return "text", _text(body, body_type)
    except UnreadableBody:
        return "hex", _hex(body[:BYTES_MAX], body_type)


_TAG = re.compile(r"(<[^<>]*>)")


def laid_out(text: str) -> str:
    """Return XML with one element in each line; texts stay as they are."""
    parts = [part for part in _TAG.split(text) if part.strip()]
    rows: list[str] = []
    depth = 0
    for at, part in enumerate(parts):
        is_end = part.startswith("</")
        if is_end:
            depth -= 1
        follows_text = at > 0 and not parts[at - 1].startswith("<")
        is_text = not part.startswith("<")
        is_only = at > 0 and _opens(parts[at - 1])
        if rows and ((is_text and is_only) or (is_end and (follows_text or is_only))):
            rows[-1] += part
        else:
            rows.append("  " * min(max(depth, 0), DEPTH_MAX) + part)
        if _opens(part):
            depth += 1
    return "\n".join(rows)


def _opens(part: str) -> bool:
    return part.startswith("<") and part[1:2] not in "/?!" and not part.endswith("/>")
