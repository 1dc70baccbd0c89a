"""Generator of parsers: turns a layout into a function that checks the bound before each read.

In the derived code `b` is the packet, `o` the offset of the next byte, `end` the bound that no read
may cross, `total` the length of the packet in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import construct as C

from protocol.codec.derive_source import Field, Place, Run, Scope, Writer
from protocol.codec.layout import (
    Absent,
    Aligned,
    Flags,
    Octets,
    Present,
    Repeat,
    ScannedText,
    WideText,
    Within,
)
from protocol.codec.marks import Align, AlignTo, Bound, Measured, NothingLeft, Rule, Unbound
from protocol.codec.support import missing, missing_bytes, scan
from protocol.text import ends_with_its_only_null


class ParseWriter(Writer):
    """A writer of parse functions; the statements follow the order of the packet."""

    head = "def parse(b, o=0):\n    total = end = len(b)"
    tail = "    return m"

    def __init__(self) -> None:
        super().__init__()
        self.names |= {
            "new": tuple.__new__,
            "missing": missing,
            "missing_bytes": missing_bytes,
            "well_ended": ends_with_its_only_null,
            "scan": scan,
        }
        # Statements to write after the run of fixed fields is read: rules, flag words, records.
        self.after_run: list[Callable[[str], list[str]]] = []

    def write_record(self, struct: C.Struct) -> None:
        self.record(struct, Scope(Place("m", "")))
        self.flush()

    # -- records and runs -------------------------------------------------------------------

    def record(self, struct: C.Struct, scope: Scope) -> None:
        super().record(struct, scope)
        name = struct.record.__name__
        self.names[name] = struct.record
        fields = ", ".join(scope.named(it.name).variable for it in struct.subcons if it.name)
        self.after_run.append(lambda start: [f"{scope.place.variable} = new({name}, ({fields},))"])

    def fixed_field(self, con: C.Construct, shape: tuple[str, int], place: Place) -> None:
        entry = self.run.add(*shape, place)
        self.last = entry
        if isinstance(con, Flags):
            word = self.link("flags", con.word)
            self.after_run.append(lambda start: [f"{place.variable} = {word}({place.variable})"])
        elif isinstance(con, Measured):
            outside = f"not {con.minimum} <= {place.variable} <= {con.maximum}"
            self.after_run.append(
                lambda start: [
                    f"if {outside}: {self.refuse(place, f'{start} + {entry.offset}', con.rule)}"
                ]
            )

    def flush(self) -> None:
        """Write the pending run of fixed fields and the statements that depend on it."""
        run, after = self.run, self.after_run
        self.run, self.after_run = Run(), []
        start = "o"
        if run.fields:
            start = f"o - {run.size}"
            table = self.link("fields", run.table)
            self.line(f"if o + {run.size} > end: raise missing({table}, o, end)")
            self.line(f"{_read(run, self)}; o += {run.size}")
        for write in after:
            for text in write(start):
                self.line(text)

    def _later(self, write: Callable[[str], list[str]]) -> None:
        """Write statements after the pending run, or now if there is none."""
        self.after_run.append(write)
        if not self.run.fields:
            self.flush()

    # -- marks ------------------------------------------------------------------------------

    def rule(self, rule: Rule, scope: Scope) -> None:
        condition = scope.expression(rule.condition)
        place = scope.named(rule.field)
        last = self.last

        def write(start: str) -> list[str]:
            if rule.offset is not None:
                offset = str(rule.offset)
            elif isinstance(last, Field):
                offset = f"{start} + {last.offset}"
            else:
                offset = last
            return [f"if not {condition}: {self.refuse(place, offset, rule.rule)}"]

        self._later(write)

    def bound(self, bound: Bound, scope: Scope) -> None:
        end = scope.expression(bound.end)
        place = scope.named(bound.field)
        run = self.run

        def write(start: str) -> list[str]:
            table = self.link("fields", run.table)
            return [
                f"end = {end}",
                f"if end > total: {self.refuse(place, str(bound.offset), bound.rule)}",
                # The run that was read may continue beyond the base header.
                f"if end < o: raise missing({table}, {start}, end)",
            ]

        self._later(write)

    def unbound(self, con: Unbound, scope: Scope) -> None:
        self.line("o = end; end = total")

    def nothing_left(self, con: NothingLeft, scope: Scope) -> None:
        refuse = self.refuse(scope.named(con.field), str(con.offset), con.rule)
        self.line(f"if o < end: {refuse}")

    def align(self, con: Align, scope: Scope) -> None:
        self.line(f"o = o + {con.modulus - 1} & -{con.modulus}")

    def align_to(self, con: AlignTo, scope: Scope) -> None:
        size = len(con.marker)
        at = f"(o + {con.modulus - 1} & -{con.modulus})"
        self.line(f"if {at} + {size} <= end and b[{at}:{at} + {size}] == {con.marker!r}: o = {at}")

    # -- variable fields --------------------------------------------------------------------

    def variable_bytes(self, con: Octets, place: Place, scope: Scope) -> None:
        self._slice(scope.expression(con.length), place)
        self.line("o = e")
        self.last = f"o - len({place.variable})"

    def _slice(self, length: str, place: Place) -> None:
        self.line(f"e = o + {length}")
        self.line(f"if e > end: raise missing_bytes({place.path!r}, o, e, end)")
        self.line(f"{place.variable} = b[o:e]")

    def wide_text(self, con: WideText, place: Place, scope: Scope) -> None:
        self._slice(scope.expression(con.size), place)
        # The first two zero bytes of a valid text are its last two bytes, or begin one byte earlier
        # if the last character is below U+0100.  All other cases are rare and are checked by
        # `well_ended`.
        quick = "b.find(b'\\0\\0', o, e) < e - 3 or b[e - 1] or e - o & 1"
        given = "e > o and " if con.optional else ""
        self.line(f"if {given}({quick}) and not well_ended({place.variable}):")
        self.line(f"    {self.refuse(place, 'o', con.rule)}")
        self.line("o = e")

    def scanned_text(self, con: ScannedText, place: Place, scope: Scope) -> None:
        self.line(f"e = scan(b, o, end, {place.path!r}); {place.variable} = b[o:e]; o = e")

    def aligned(self, con: Aligned, place: Place, scope: Scope) -> None:
        self.align(con.padding, scope)
        self.field(con.subcon, place, scope)

    # -- choices and lists ------------------------------------------------------------------

    def present(self, con: Present, place: Place, scope: Scope) -> None:
        self.block(f"if {scope.expression(con.condition)}:", con.subcon, place, scope)
        self.line(f"else: {place.variable} = None")

    def absent(self, con: Absent, place: Place, scope: Scope) -> None:
        self.line(f"{place.variable} = None")

    def within(self, con: Within, place: Place, scope: Scope) -> None:
        outer = f"outer_{place.variable}"
        refuse = self.refuse(place, "o", con.rule)
        self.line(f"{outer} = end; end = o + {scope.expression(con.length)}")
        self.line(f"if end > {outer}: {refuse}")
        self.field(con.subcon, place, scope)
        self.line(f"if end != o and end != o + 3 & -4: {refuse}")
        self.line(f"end = {outer}")

    def repeat(self, con: Repeat, place: Place, scope: Scope) -> None:
        element = Place(f"{place.variable}_element", place.path)
        self.line(f"{place.variable} = []")
        head = f"for _ in range({scope.expression(con.count)}):"
        self.block(head, con.subcon, element, Scope(place, scope))
        self.line(f"    {place.variable}.append({element.variable})")
        self.line(f"{place.variable} = tuple({place.variable})")


def _read(run: Run, writer: ParseWriter) -> str:
    """Return the statement that reads a run; indexing is twice as fast for one small number."""
    if [entry.format for entry in run.fields] == ["H"]:
        return f"{run.variables[0]} = b[o] | b[o + 1] << 8"
    unpack = writer.link("unpack", Struct(run.format).unpack_from)
    return f"{', '.join(run.variables)}, = {unpack}(b, o)"
