"""Straight-line parsers and builders, derived from the declared layouts.

`Codec(UserMessage)` walks the construct layout of a record and writes two Python functions:

* a run of fixed-size fields, also across headers, becomes one `struct.Struct` behind one check of
  the remaining bytes;
* a variable field becomes a slice behind such a check, a rule an `if`, a Switch an `if` chain;
* a record becomes its NamedTuple, a flag word its class.

Plain construct needs 100 microseconds and more for a message, these functions 4 to 5.  Compiled
construct cannot be used, because it drops the checks of lengths.  Both implementations must agree
on every layout: the property tests compare the derived functions with `reference.py`, which runs
the layout in plain construct.  A construct that this module does not know raises TypeError when the
functions are derived, never while a packet is read.

`write.py` derives the functions of all packets before anything runs, into `protocol/derived`.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from protocol.codec.derive_build import BuildWriter
from protocol.codec.derive_parse import ParseWriter
from protocol.codec.layout import layout

Record = TypeVar("Record")


class Codec(Generic[Record]):
    """The derived functions of one record.

    parse(packet: bytes, offset: int = 0) -> Record and build(record) -> bytes raise
    MalformedPacket.  Their source is kept for inspection.
    """

    parse: Callable[..., Record]
    build: Callable[[Record], bytes]

    def __init__(self, record: type[Record]) -> None:
        parser = ParseWriter()
        parser.write_record(layout(record))
        builder = BuildWriter()
        builder.write_record(layout(record))
        self.parse_source = parser.source()
        self.build_source = builder.source()
        self.parse = _function("parse", self.parse_source, parser.names, record)
        self.build = _function("build", self.build_source, builder.names, record)


def _function(name: str, source: str, names: dict[str, Any], record: type) -> Any:
    filename = f"<{name} {record.__name__}, derived>"
    # Let tracebacks and profilers show the derived lines.
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    # The source is derived from the declared layouts, never from input.
    exec(compile(source, filename, "exec"), names)  # nosec B102
    return names[name]
