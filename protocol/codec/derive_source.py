"""Shared parts of both generators: names, expressions, runs of fixed fields."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import construct as C
from construct import expr as E

from protocol.codec.layout import (
    Absent,
    Aligned,
    Flags,
    Octets,
    Present,
    Refuse,
    Repeat,
    ScannedText,
    WideText,
    Within,
)
from protocol.codec.marks import (
    Align,
    AlignTo,
    Bound,
    Measured,
    NothingLeft,
    Reserved,
    Rule,
    Unbound,
)
from protocol.errors import MalformedPacket
from protocol.flags import FlagWord

_OPERATORS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.and_: "&",
    operator.or_: "|",
    operator.eq: "==",
    operator.ne: "!=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.lt: "<",
    operator.le: "<=",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A field in the derived code: its variable, its dotted name, its flag word class if it has
    one.
    """

    variable: str
    path: str
    word: type[FlagWord] | None = None


class Scope(dict[str, "Place | Scope"]):
    """The fields of a record that are known so far, as `this` refers to them."""

    def __init__(self, place: Place, parent: Scope | None = None) -> None:
        super().__init__()
        self.place = place
        self.parent = parent

    def named(self, name: str, word: type[FlagWord] | None = None) -> Place:
        """Return the place of the field `name` of this record."""
        path = f"{self.place.path}.{name}" if self.place.path else name
        return Place(f"{self.place.variable}_{name}", path, word)

    def expression(self, condition: Any) -> str:
        """Return a `this` expression as Python source.  Raises TypeError if it is not supported."""
        if isinstance(condition, int):
            return repr(condition)
        if isinstance(condition, E.BinExpr):
            left, right = self.expression(condition.lhs), self.expression(condition.rhs)
            return f"({left} {_OPERATORS[condition.op]} {right})"
        if isinstance(condition, E.FuncPath) and condition._FuncPath__func is len:
            return f"len({self.expression(condition._FuncPath__operand)})"
        if isinstance(condition, E.Path):
            return self._path(condition)
        raise TypeError(f"cannot derive code from the expression {condition!r}")

    def _path(self, path: Any) -> str:
        names: list[str] = []
        while path._Path__parent is not None:
            names.append(path._Path__field)
            path = path._Path__parent
        at: Place | Scope = self
        for name in reversed(names):
            if isinstance(at, Scope):
                at = at.parent if name == "_" and at.parent is not None else at[name]
            else:
                assert at.word is not None, f"{at.path} has no named bits"
                bits = at.word.ranges[name]
                return f"({at.variable} >> {bits.low} & {bits.mask})"
        assert isinstance(at, Place)
        return at.variable


@dataclass(slots=True)
class Field:
    """One fixed-size field of a run; `place` is None for reserved bytes."""

    format: str
    size: int
    place: Place | None
    offset: int = 0


@dataclass(slots=True)
class Run:
    """A run of consecutive fixed-size fields."""

    fields: list[Field] = field(default_factory=list)
    size: int = 0

    def add(self, format: str, size: int, place: Place | None) -> Field:
        entry = Field(format, size, place, self.size)
        self.fields.append(entry)
        self.size += size
        return entry

    @property
    def format(self) -> str:
        return "<" + "".join(entry.format for entry in self.fields)

    @property
    def variables(self) -> list[str]:
        return [entry.place.variable for entry in self.fields if entry.place]

    @property
    def table(self) -> tuple[tuple[int, int, str], ...]:
        """Return (offset in the run, bytes, dotted name) of each field, for error texts."""
        return tuple((it.offset, it.size, it.place.path) for it in self.fields if it.place)


class Writer:
    """The lines of a derived function, and the objects that they refer to.

    A subclass has a method for each kind of construct: `(con, place, scope)` for a field, where
    `con` is the construct; `(con, scope)` for a mark between fields.
    """

    head: str
    tail: str

    fields: ClassVar[dict[type, str]] = {
        Absent: "absent",
        Aligned: "aligned",
        Octets: "variable_bytes",
        C.Switch: "switch",
        Present: "present",
        Refuse: "refusal",
        Repeat: "repeat",
        ScannedText: "scanned_text",
        WideText: "wide_text",
        Within: "within",
    }
    marks: ClassVar[dict[type, str]] = {
        Align: "align",
        AlignTo: "align_to",
        Bound: "bound",
        NothingLeft: "nothing_left",
        Reserved: "reserved",
        Rule: "rule",
        Unbound: "unbound",
    }

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.names: dict[str, Any] = {"MalformedPacket": MalformedPacket}
        self.run = Run()
        # Start of the most recently written field, for the rules on it: a field of the run, or a
        # source expression.
        self.last: Field | str = ""

    def source(self) -> str:
        return "\n".join([self.head, *self.lines, self.tail, ""])

    def field(self, con: C.Construct, place: Place, scope: Scope) -> None:
        """Write the statements for one field."""
        shape = fixed(con)
        if shape:
            self.fixed_field(con, shape, place)
            return
        if isinstance(con, C.Struct):  # its fields continue the run
            inner = Scope(place, scope)
            self.record(con, inner)
            scope[place.path.rpartition(".")[2]] = inner
            return
        if type(con) not in self.fields:
            raise TypeError(f"cannot derive code from {con!r}")
        self.flush()
        getattr(self, self.fields[type(con)])(con, place, scope)

    def mark(self, con: C.Construct, scope: Scope) -> None:
        """Write the statements for a mark between two fields."""
        if type(con) not in self.marks:
            raise TypeError(f"cannot derive code from {con!r}")
        if not isinstance(con, Bound | Reserved | Rule):  # these continue the run
            self.flush()
        getattr(self, self.marks[type(con)])(con, scope)

    def record(self, struct: C.Struct, scope: Scope) -> None:
        """Write the statements for all fields of a record and the marks between them."""
        marks = [*struct.subcons[1:], None]
        for subcon, following in zip(struct.subcons, marks, strict=True):
            con = unwrap(subcon)
            if not subcon.name:
                self.mark(con, scope)
                continue
            place = scope.named(subcon.name, con.word if isinstance(con, Flags) else None)
            scope[subcon.name] = place
            ruled = isinstance(following, Rule) and following.offset is None
            if ruled and isinstance(con, C.Struct):
                self._ruled_record(con, following.field, place, scope)
            else:
                self.field(con, place, scope)

    def _ruled_record(self, con: C.Struct, ruled: str, place: Place, scope: Scope) -> None:
        """Write a record that has a rule on one of its first fields, and keep its start offset."""
        self.flush()
        self.line(f"at_{place.variable} = o")
        self.field(con, place, scope)
        self.flush()
        offset = 0
        for subcon in con.subcons:
            if subcon.name == ruled.rpartition(".")[2]:
                break
            shape = fixed(unwrap(subcon))
            offset += shape[1] if shape else 0
        self.last = f"at_{place.variable} + {offset}"

    def reserved(self, con: Reserved, scope: Scope) -> None:
        self.run.add(f"{con.size}x", con.size, None)

    def fixed_field(self, con: C.Construct, shape: tuple[str, int], place: Place) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Write the pending run of fixed fields."""
        raise NotImplementedError

    def branch(self, con: C.Construct, place: Place, scope: Scope) -> None:
        """Write a field that is optional or of varying type."""
        self.field(con, place, scope)
        self.flush()

    def block(self, head: str, con: C.Construct, place: Place, scope: Scope) -> None:
        self.line(head)
        self.indent += 1
        self.branch(con, place, scope)
        self.indent -= 1

    def switch(self, con: C.Switch, place: Place, scope: Scope) -> None:
        key = f"k_{place.variable}"
        self.line(f"{key} = {scope.expression(con.keyfunc)}")
        keys_of: dict[int, list[int]] = {}
        for value, case in con.cases.items():
            keys_of.setdefault(id(case), []).append(value)
        word = "if"
        for case in {id(case): case for case in con.cases.values()}.values():
            keys = keys_of[id(case)]
            test = f"{key} == {keys[0]}" if len(keys) == 1 else f"{key} in {tuple(keys)}"
            self.block(f"{word} {test}:", case, place, scope)
            word = "elif"
        self.block("else:", con.default, place, scope)

    def refusal(self, con: Refuse, place: Place, scope: Scope) -> None:
        offset = f"o - {con.back}" if con.offset is None else str(con.offset)
        self.line(self.refuse(scope.named(con.field), offset, con.rule))

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def link(self, prefix: str, it: Any) -> str:
        """Add an object to the function's globals and return its name there."""
        name = f"{prefix}_{len(self.names)}"
        self.names[name] = it
        return name

    def refuse(self, place: Place | str, offset: str, rule: str) -> str:
        """Return the statement that rejects a packet."""
        path = place if isinstance(place, str) else place.path
        return f"raise MalformedPacket({path!r}, {offset}, {rule!r})"


def unwrap(con: C.Construct) -> C.Construct:
    """Return the construct without the names around it."""
    while isinstance(con, C.Renamed):
        con = con.subcon
    return con


def fixed(con: C.Construct) -> tuple[str, int] | None:
    """Return the struct format and the size of a field of constant size, else None."""
    if isinstance(con, Flags | C.Rebuild):
        return fixed(con.subcon)
    if isinstance(con, Measured):
        return "I", con.size
    if isinstance(con, C.FormatField):
        if con.length > 1 and con.fmtstr[0] != "<":
            raise TypeError(f"not little-endian: {con!r}")
        return con.fmtstr[1], con.length
    if isinstance(con, Octets) and isinstance(con.length, int):
        return f"{con.length}s", con.length
    return None
