"""Types as Spark's SQL writes them, checked before Spark reads them: the option `bodySchema`.

Spark's parser is in Java, and the data source in Python: a wrong type would end in an error of
Spark about a text that no option has.  This parser knows the structure and the names; which of the
types have values is decided later (`bodies.check_type`).
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\s+|(?P<name>`(?:[^`]|``)+`)|(?P<word>[0-9A-Za-z_]+)|(?P<mark>[<>,:()])|(?P<text>'[^']*'|\"[^\"]*\")"
)
_SIMPLE = frozenset(
    ("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float",
     "real", "double", "date", "string", "binary", "decimal", "dec", "numeric", "char", "character",
     "varchar", "timestamp", "timestamp_ntz", "timestamp_ltz", "time", "interval", "void",
     "variant")
)  # fmt: skip
#: Words that may follow a simple type: `interval day to second`, `string collate UTF8_LCASE`.
_AFTER = re.compile(
    r"year|month|day|hour|minute|second|to|collate|with(out)?|local|time|zone", re.I
)
_DIGITS_MAX = 38
_WHOLE = "the content"
# A type, in contrast to a list of columns.
_TYPE = re.compile(r"\w+(\s*\([\d\s,]*\))?$|(struct|array|map)\s*<", re.IGNORECASE)


class WrongType(ValueError):
    """A text is no type of Spark's SQL; the message continues the sentence that quotes it."""


def check_ddl(text: str, *, is_type: bool) -> None:
    """Raise WrongType unless `text` is a type, or a list of columns with their types."""
    parser = _Parser(text)
    if is_type:
        parser.type_(_WHOLE)
    else:
        parser.fields("")
    parser.end()


def is_type(text: str) -> bool:
    """Return whether `text` is a type; otherwise it is a list of columns."""
    return _TYPE.match(text) is not None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise WrongType(
                    f"has {text[at]!r} at character {at + 1}; names with other characters than"
                    " a to z, digits and _ are in backticks"
                )
            if found.lastgroup:
                self._tokens.append((found.lastgroup, found[0]))
            at = found.end()
        self._at = 0

    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _is(self, value: str) -> bool:
        """Take the next token if it is this mark or word."""
        if self._next()[1].casefold() != value:
            return False
        self._at += 1
        return True

    def _here(self) -> str:
        kind, value = self._next()
        return "ends" if kind == "end" else f"has {value!r}"

    def _mark(self, mark: str, where: str) -> None:
        if not self._is(mark):
            raise WrongType(f"{self._here()} where {where} needs {mark!r}")

    def end(self) -> None:
        if self._next()[0] != "end":
            raise WrongType(f"{self._here()} behind its end")

    def fields(self, inside: str) -> None:
        """Read columns with their types; `inside` is the name of the column that they are in."""
        while True:
            kind, value = self._next()
            if kind not in ("name", "word") or value.isdigit():
                raise WrongType(f"{self._here()} where the name of a column is expected")
            self._at += 1
            name = f"{inside}{value}"
            self._is(":")
            self.type_(name)
            if self._is("not") and not self._is("null"):
                raise WrongType(f"{self._here()} where {name} needs NULL after NOT")
            if self._is("comment"):
                if self._next()[0] != "text":
                    raise WrongType(f"{self._here()} where {name} needs a comment in quotes")
                self._at += 1
            if not self._is(","):
                return

    def type_(self, name: str) -> None:
        kind, value = self._next()
        if kind != "word":
            raise WrongType(f"{self._here()} where {name} needs a type")
        self._at += 1
        word = value.casefold()
        if word == "struct":
            self._mark("<", "struct")
            if not self._is(">"):
                self.fields("" if name == _WHOLE else f"{name}.")
                self._mark(">", name)
        elif word == "array":
            self._mark("<", "array")
            self.type_(f"{name}[]")
            self._mark(">", name)
        elif word == "map":
            self._mark("<", "map")
            self.type_(f"the key of {name}")
            self._mark(",", "map")
            self.type_(f"{name}{{}}")
            self._mark(">", name)
        elif word in _SIMPLE:
            self._simple(word, name)
        else:
            raise WrongType(
                f"has {value!r} as the type of {name}; there are string, boolean, int, bigint,"
                " double, decimal(p, s), binary, timestamp, date, struct<...>, array<...>, map<...>"
                " and the other types of Spark"
            )

    def _simple(self, word: str, name: str) -> None:
        numbers: list[int] = []
        if self._is("("):
            while True:
                value = self._next()[1]
                if not (value.isascii() and value.isdigit()):
                    raise WrongType(f"{self._here()} where {word} of {name} needs a number")
                numbers.append(int(value))
                self._at += 1
                if not self._is(","):
                    break
            self._mark(")", f"{word} of {name}")
        if word in ("decimal", "dec", "numeric") and numbers:
            digits, scale = (*numbers, 0)[:2]
            if len(numbers) > 2 or not 0 < digits <= _DIGITS_MAX or scale > digits:
                given = ", ".join(map(str, numbers))
                raise WrongType(
                    f"has {word}({given}) as the type of {name}; a decimal has 1 to"
                    f" {_DIGITS_MAX} digits, and not more of them behind the point"
                )
        elif word in ("char", "character", "varchar") and len(numbers) != 1:
            raise WrongType(f"has {word} as the type of {name}; it needs a length: {word}(20)")
        while self._next()[0] == "word" and _AFTER.fullmatch(self._next()[1]):
            is_collation = self._is("collate")
            self._at += not is_collation
            if is_collation:
                self._at += 1
