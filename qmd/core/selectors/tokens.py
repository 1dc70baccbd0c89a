"""Tokens of a selector: words, names, literals and signs."""

from __future__ import annotations

import re
from typing import NamedTuple

TEXT_CHARACTERS_MAX = 4096
_LONG_MAX = (1 << 63) - 1

KEYWORDS = frozenset(
    ("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
)

_PATTERN = re.compile(
    r"""
      (?P<space>   \s+ )
    | (?P<approx>  (?: \d+\.\d* | \.\d+ ) (?:[eE][+-]?\d+)? [fFdD]? | \d+[eE][+-]?\d+[fFdD]?
                   | \d+[fFdD] )
    | (?P<exact>   (?: 0[xX][0-9a-fA-F]+ | \d+ ) [lL]? )
    | (?P<text>    '(?:[^']|'')*' )
    | (?P<quoted>  "(?:[^"]|"")*" )
    | (?P<name>    [^\W\d][\w$.]* | \$[\w$.]* )
    | (?P<sign>    <> | <= | >= | [-+*/=<>(),] )
    """,
    re.VERBOSE,
)


class BadSelector(Exception):
    """A selector cannot be used: `reason` says why, `at` is the index of the character, from 0."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(f"{reason}, at character {at + 1}")
        self.reason = reason
        self.at = at


class Token(NamedTuple):
    """One token.  `kind` is "word" (a keyword), "name", "text", "number", "sign" or "end"."""

    kind: str
    value: str | int | float
    at: int


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a selector, and one for its end.  Raises BadSelector."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise BadSelector(
            f"the selector has {len(text)} characters; {TEXT_CHARACTERS_MAX} are allowed", 0
        )
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None:
            what = "a text without its end" if text[at] in "'\"" else f"an unexpected {text[at]!r}"
            raise BadSelector(f"there is {what}", at)
        kind, piece = str(match.lastgroup), match.group()
        if kind != "space":
            found.append(_token(kind, piece, at))
        at = match.end()
    found.append(Token("end", "", at))
    return found


def _token(kind: str, piece: str, at: int) -> Token:
    if kind == "text":
        return Token("text", piece[1:-1].replace("''", "'"), at)
    if kind == "quoted":
        return Token("name", piece[1:-1].replace('""', '"'), at)
    if kind == "name":
        word = piece.upper()
        return Token("word", word, at) if word in KEYWORDS else Token("name", piece, at)
    if kind == "approx":
        return Token("number", float(piece.rstrip("fFdD")), at)
    if kind == "exact":
        return Token("number", _exact(piece.rstrip("lL"), at), at)
    return Token("sign", piece, at)


def _exact(digits: str, at: int) -> int:
    try:
        if digits[:2] in ("0x", "0X"):
            number = int(digits, 16)
        elif len(digits) > 1 and digits[0] == "0":  # as in Java
            number = int(digits, 8)
        else:
            number = int(digits)
    except ValueError as error:
        raise BadSelector(f"{digits} is not a number (a leading 0 makes it octal)", at) from error
    if number > _LONG_MAX + 1:  # one more for -9223372036854775808
        raise BadSelector(f"{digits} has more than 64 bits", at)
    return number
