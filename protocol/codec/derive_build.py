"""Generator of builders: turns a layout into a function from records to bytes that checks all
rules.

In the derived code `parts` are the pieces of the packet and `o` is their total length in bytes. A
run with a measured size is packed when that size is known; until then its part is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error

import construct as C

from protocol.codec.derive_source import Field, Place, Run, Scope, Writer, unwrap
from protocol.codec.layout import (
    Absent,
    Aligned,
    Octets,
    Present,
    Repeat,
    ScannedText,
    WideText,
    Within,
)
from protocol.codec.marks import Align, AlignTo, Bound, Measured, NothingLeft, Rule, Unbound
from protocol.codec.support import misfit
from protocol.text import ends_with_its_only_null

_WRONG_TYPE = "MUST be what the flags announce"
_WRONG_SIZE = "MUST have the size that is stated"


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A run that waits for its measured size: its number, the size field, the packing statement."""

    number: str
    field: Field
    measured: Measured
    pack: str


class BuildWriter(Writer):
    """A writer of build functions; the statements follow the order of the packet."""

    head = "def build(m):\n    parts = []; add = parts.append; o = 0"
    tail = "    return b''.join(parts)"

    def __init__(self) -> None:
        super().__init__()
        self.names |= {
            "error": error,
            "misfit": misfit,
            "well_ended": ends_with_its_only_null,
        }
        self.unsettled: list[_Unsettled] = []
        self.measured: Measured | None = None
        self.counted: dict[str, str] = {}  # computed variables, and the expression of each

    def write_record(self, struct: C.Struct) -> None:
        self.record(struct, Scope(Place("m", "")))
        self.flush()
        assert not self.unsettled, "a measured size has no end"

    # -- records and runs -------------------------------------------------------------------

    def record(self, struct: C.Struct, scope: Scope) -> None:
        named = {it.name: unwrap(it) for it in struct.subcons if it.name}
        variables = ", ".join(scope.named(name).variable for name in named)
        self.line(f"{variables}, = {scope.place.variable}")
        for name in named:
            scope[name] = scope.named(name)
        for name, con in named.items():
            if isinstance(con, C.Rebuild):  # counts are computed before they are used
                count, source = scope.named(name).variable, scope.expression(con.func)
                self.line(f"{count} = {source}")
                self.counted[count] = source
        super().record(struct, scope)

    def fixed_field(self, con: C.Construct, shape: tuple[str, int], place: Place) -> None:
        entry = self.run.add(*shape, place)
        self.last = entry
        if isinstance(con, Measured):
            self.measured, self.measured_field = con, entry
        if shape[0].endswith("s"):  # struct would truncate or pad silently
            self.line(f"if len({place.variable}) != {shape[1]}:")
            self.line(f"    {self.refuse(place, self._last_offset(), _WRONG_SIZE)}")

    def flush(self) -> None:
        """Pack the pending run of fixed fields."""
        run, self.run = self.run, Run()
        if not run.fields:
            return
        values = ", ".join(run.variables)
        packed = f"{self.link('pack', Struct(run.format).pack)}({values})"
        fields = self.link("values", tuple((it.format, *row) for it, row in _named(run)))
        number = str(len(self.names))
        what, start = f"add({packed})", "o"
        if self.measured:
            what, start = f"parts[slot_{number}] = {packed}", f"at_{number}"
        text = f"try: {what}\n{{0}}except error: raise misfit({fields}, ({values},), {start})"
        if self.measured:
            self.line(f"slot_{number} = len(parts); add(b''); at_{number} = o; o += {run.size}")
            waiting = _Unsettled(number, self.measured_field, self.measured, text)
            self.unsettled.append(waiting)
            self.measured = None
        else:
            self._lines(text)
            self.line(f"o += {run.size}")

    def _lines(self, text: str) -> None:
        self.line(text.format("    " * self.indent))

    def _settle(self) -> None:
        """End the range that the most recently opened size field measures."""
        waiting = self.unsettled.pop()
        place = waiting.field.place
        assert place is not None
        before = waiting.field.offset - waiting.measured.start
        at = f"at_{waiting.number} + {before}" if before else f"at_{waiting.number}"
        self.line(f"{place.variable} = o - ({at})")
        refuse = self.refuse(
            place, f"at_{waiting.number} + {waiting.field.offset}", waiting.measured.rule
        )
        self.line(f"if {place.variable} > {waiting.measured.maximum}: {refuse}")
        self._lines(waiting.pack)

    # -- marks ------------------------------------------------------------------------------

    def rule(self, rule: Rule, scope: Scope) -> None:
        offset = self._last_offset() if rule.offset is None else str(rule.offset)
        self.line(f"if not {scope.expression(rule.condition)}:")
        self.line(f"    {self.refuse(scope.named(rule.field), offset, rule.rule)}")

    def _last_offset(self) -> str:
        return f"o + {self.last.offset}" if isinstance(self.last, Field) else self.last

    def align(self, con: Align, scope: Scope) -> None:
        zeros = self.link("zeros", [bytes(count) for count in range(con.modulus)])
        self.line(f"if o & {con.modulus - 1}:")
        self.line(f"    add({zeros}[-o & {con.modulus - 1}])")
        self.line(f"    o = o + {con.modulus - 1} & -{con.modulus}")

    def align_to(self, con: AlignTo, scope: Scope) -> None:
        self.align(con, scope)

    def unbound(self, con: Unbound, scope: Scope) -> None:
        self._settle()

    def bound(self, con: Bound, scope: Scope) -> None:
        """Write nothing: the bound is itself a measured size."""

    def nothing_left(self, con: NothingLeft, scope: Scope) -> None:
        """Write nothing: a builder has no bytes left over."""

    # -- variable fields --------------------------------------------------------------------

    def _add(self, place: Place) -> None:
        self.line(f"add({place.variable}); o += len({place.variable})")
        self.last = f"o - len({place.variable})"

    def _wrong_size(self, size: str, place: Place) -> str:
        """Return the test of a stated size, or "" if the size was computed from this very value."""
        exact = self.counted.get(size) == f"len({place.variable})"
        return "" if exact else f"len({place.variable}) != {size}"

    def variable_bytes(self, con: Octets, place: Place, scope: Scope) -> None:
        wrong = self._wrong_size(scope.expression(con.length), place)
        if wrong:
            self.line(f"if {wrong}:")
            self.line(f"    {self.refuse(place, 'o', _WRONG_SIZE)}")
        self._add(place)

    def wide_text(self, con: WideText, place: Place, scope: Scope) -> None:
        var = place.variable
        tests = [self._wrong_size(scope.expression(con.size), place), _badly_ended(var)]
        wrong = " or ".join(filter(None, tests))
        if con.optional:
            wrong = f"{var} and ({wrong})"
        self.line(f"if {wrong}:")
        self.line(f"    {self.refuse(place, 'o', con.rule)}")
        self._add(place)

    def scanned_text(self, con: ScannedText, place: Place, scope: Scope) -> None:
        self.line(f"if {_badly_ended(place.variable)}:")
        self.line(f"    {self.refuse(place, 'o', con.rule)}")
        self._add(place)

    def aligned(self, con: Aligned, place: Place, scope: Scope) -> None:
        self.align(con.padding, scope)
        self.branch(con.subcon, place, scope)

    # -- choices and lists ------------------------------------------------------------------

    def branch(self, con: C.Construct, place: Place, scope: Scope) -> None:
        """Write the check that a field has the type that the flags announce."""
        if isinstance(con, C.Struct):
            record = con.record.__name__
            self.names[record] = con.record
            self.line(f"if type({place.variable}) is not {record}:")
            self.line(f"    {self.refuse(place, 'o', _WRONG_TYPE)}")
        elif isinstance(con, Octets | ScannedText):
            self.line(f"if type({place.variable}) is not bytes:")
            self.line(f"    {self.refuse(place, 'o', _WRONG_TYPE)}")
        self.field(con, place, scope)
        self.flush()

    def present(self, con: Present, place: Place, scope: Scope) -> None:
        self.line(f"if {scope.expression(con.condition)}:")
        self.line(f"    if {place.variable} is None: {self.refuse(place, 'o', con.rule)}")
        self.indent += 1
        self.branch(con.subcon, place, scope)
        self.indent -= 1
        self.line(f"elif {place.variable} is not None: {self.refuse(place, 'o', Absent.rule)}")

    def absent(self, con: Absent, place: Place, scope: Scope) -> None:
        self.line(f"if {place.variable} is not None: {self.refuse(place, 'o', con.rule)}")

    def within(self, con: Within, place: Place, scope: Scope) -> None:
        self.field(con.subcon, place, scope)
        self.flush()
        self._settle()

    def repeat(self, con: Repeat, place: Place, scope: Scope) -> None:
        element = Place(f"{place.variable}_element", place.path)
        head = f"for {element.variable} in {place.variable}:"
        self.block(head, con.subcon, element, Scope(place, scope))


def _badly_ended(variable: str) -> str:
    """Return the test for a text that does not end with its only null.

    See ParseWriter.wide_text.
    """
    quick = f"{variable}.find(b'\\0\\0') < len({variable}) - 3 or {variable}[-2:] != b'\\0\\0'"
    return f"({quick} or len({variable}) & 1) and not well_ended({variable})"


def _named(run: Run) -> list[tuple[Field, tuple[int, int, str]]]:
    fields = [it for it in run.fields if it.place]
    return list(zip(fields, run.table, strict=True))
